//! Progress of a step, for observers of long steps.

use super::Fsdp;

impl<B: 'static> Fsdp<B> {
    /// Calls `watch` in every future step, after the forward and the backward of each call, with this rank's finished
    /// work and its total work. It runs on this rank's thread. A forward counts 1, a backward 2.
    pub fn watch(&mut self, watch: impl Fn(usize, usize) + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// Returns the number of calls that this rank computes per micro-batch.
    pub(super) fn calls_here(&self) -> usize {
        let is_mine = |call: &usize| self.owners.as_ref().is_none_or(|owners| owners[*call] == self.plan.rank);
        (0..self.calls.len()).filter(|call| self.stages.is_here(*call)).filter(is_mine).count()
    }
}
