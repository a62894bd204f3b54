//! Who waits for a long step is told how far it is.

use super::Fsdp;

impl<B: 'static> Fsdp<B> {
    /// From here on `watch` is told in each step, on this rank's thread, how much of the step's work the rank has done
    /// and how much there is, after the forward and the backward of each call. A forward counts 1, a backward 2.
    pub fn watch(&mut self, watch: impl Fn(usize, usize) + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }

    /// How many calls this rank computes of a micro-batch.
    pub(super) fn calls_here(&self) -> usize {
        let is_mine = |call: &usize| self.owners.as_ref().is_none_or(|owners| owners[*call] == self.plan.rank);
        (0..self.calls.len()).filter(|call| self.stages.is_here(*call)).filter(is_mine).count()
    }
}
