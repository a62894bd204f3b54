//! Progress of a rank in a step, for observers of long steps.

use std::cell::Cell;

/// Called after each call's forward and backward with the finished and the total work of a step.
pub(crate) type Watch = dyn Fn(usize, usize) + Send;

/// Work of a backward; a forward counts 1.
const BACKWARD: usize = 2;

/// The forwards and backwards of a step on this rank.
pub(crate) struct Work<'a> {
    watch: Option<&'a Watch>,
    done: Cell<usize>,
    all: usize,
}

impl<'a> Work<'a> {
    /// Starts to count the work of `calls` calls.
    pub fn new(watch: Option<&'a Watch>, calls: usize) -> Self {
        Self { watch, done: Cell::new(0), all: calls * (1 + BACKWARD) }
    }

    /// Counts a finished forward of a call.
    pub fn forward(&self) {
        self.add(1);
    }

    /// Counts a finished backward of a call.
    pub fn backward(&self) {
        self.add(BACKWARD);
    }

    fn add(&self, work: usize) {
        self.done.set(self.done.get() + work);
        self.watch.iter().for_each(|watch| watch(self.done.get(), self.all));
    }
}
