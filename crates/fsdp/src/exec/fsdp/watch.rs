//! Progress of a step, for observers of long steps.

use super::Fsdp;

impl<B: 'static> Fsdp<B> {
    /// Calls `watch` in every future step, after the forward and the backward of each call, with this rank's finished
    /// work and its total work. It runs on this rank's thread. A forward counts 1, a backward 2.
    pub fn watch(&mut self, watch: impl Fn(usize, usize) + Send + 'static) {
        self.watch = Some(Box::new(watch));
    }
}
