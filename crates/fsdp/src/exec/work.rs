//! Progress of a rank in a step, for observers of long steps.

use schedule::{Keeps, Kind, Op};
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
    /// Starts to count the work of a list of operations.
    pub fn new(watch: Option<&'a Watch>, ops: &[Op]) -> Self {
        let of = |op: &Op| match op {
            Op::Run { kind: Kind::Forward(Keeps::Nothing), .. } => 0,
            Op::Run { kind: Kind::Forward(_), .. } => 1,
            Op::Run { kind: Kind::Backward | Kind::Weights, .. } => BACKWARD,
            _ => 0,
        };
        Self { watch, done: Cell::new(0), all: ops.iter().map(of).sum() }
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
