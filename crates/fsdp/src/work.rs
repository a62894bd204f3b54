//! How far a rank is in a step, for who waits for a long one.

use std::cell::Cell;

/// Told of a step's work how much is done and how much there is, after each call's forward and backward.
pub(crate) type Watch = dyn Fn(usize, usize) + Send;

/// A backward is twice as much work as its forward.
const BACKWARD: usize = 2;

/// The forwards and backwards of a step on this rank.
pub(crate) struct Work<'a> {
    watch: Option<&'a Watch>,
    done: Cell<usize>,
    all: usize,
}

impl<'a> Work<'a> {
    /// Of so many calls.
    pub fn new(watch: Option<&'a Watch>, calls: usize) -> Self {
        Self { watch, done: Cell::new(0), all: calls * (1 + BACKWARD) }
    }

    /// A call's forward is through.
    pub fn forward(&self) {
        self.add(1);
    }

    /// A call's backward is through.
    pub fn backward(&self) {
        self.add(BACKWARD);
    }

    fn add(&self, work: usize) {
        self.done.set(self.done.get() + work);
        self.watch.iter().for_each(|watch| watch(self.done.get(), self.all));
    }
}
