//! Progress and times of a step, for observers.

use super::Fsdp;
use crate::exec::executor::TimedOp;

impl<B: 'static> Fsdp<B> {
    /// Calls `watch` in every future step, after the forward and the backward of each call, with this rank's finished
    /// work and its total work. It runs on this rank's thread. A forward counts 1, a backward 2.
    pub fn watch(&mut self, watch: impl Fn(usize, usize) + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// Starts to time the operations that this rank runs.
    pub fn time_operations(&mut self) {
        self.timed = Some(vec![]);
    }

    /// Stops timing operations, and returns those since [`time_operations`](Self::time_operations), in order.
    pub fn timed_operations(&mut self) -> Vec<TimedOp> {
        self.timed.take().unwrap_or_default()
    }
}
