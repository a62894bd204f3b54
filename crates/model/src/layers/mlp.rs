//! The second half of a block: a dense MLP or experts.

use crate::{ExpertLoads, MicroBatch, Parallel, StepContext};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use moe::{MoeConfig, MoeLayer, MoeStats, NoiseKey, SwiGlu};

/// The second half of a block.
#[derive(Module, Debug)]
pub enum Mlp {
    /// One SwiGLU for all tokens.
    Dense(SwiGlu),
    /// Experts, a few of them per token.
    Moe(MoeLayer),
}

/// The output of a block.
#[derive(Debug, Clone)]
pub struct BlockOutput {
    /// The residual stream.
    pub x_btd: Tensor<3>,
    /// The load-balancing losses, `[1]`; `None` in a dense block or if no such loss is configured.
    pub aux_loss: Option<Tensor<1>>,
    /// Where the tokens were routed, for a mixture of experts.
    pub stats: Option<MoeStats>,
}

impl BlockOutput {
    /// Adds the expert loads to those of the step, in training.
    pub(crate) fn record(&self, loads: &ExpertLoads, layer: usize, batch: &MicroBatch) {
        if let (Some(stats), Some(step)) = (&self.stats, batch.step) {
            loads.record(layer, step.first_row, stats);
        }
    }
}

impl Mlp {
    /// A dense MLP of hidden width `inner`.
    pub(crate) fn dense(d: usize, inner: usize, device: &Device) -> Self {
        Self::Dense(SwiGlu::new(d, inner, device))
    }

    /// Experts.
    pub(crate) fn experts(d: usize, moe: &MoeConfig, device: &Device) -> Self {
        Self::Moe(moe.init(d, device))
    }

    /// The layer of experts, if it is one.
    pub(crate) fn moe_mut(&mut self) -> Option<&mut MoeLayer> {
        match self {
            Self::Moe(moe) => Some(moe),
            Self::Dense(_) => None,
        }
    }

    /// `residual + mlp(normed)` for the rank's rows, `[b, s, d]`, in the block number `layer`.
    ///
    /// In training, when the batch has a `step`, experts apply the router's noise and their capacity if the
    /// configuration sets them.
    pub(crate) fn forward_add(
        &self,
        normed_bsd: Tensor<3>,
        residual_bsd: Tensor<3>,
        layer: usize,
        batch: &MicroBatch,
        parallel: &Parallel,
    ) -> BlockOutput {
        let moe = match self {
            Self::Dense(mlp) => {
                let x_btd = mlp.forward_add_over(normed_bsd, residual_bsd, &parallel.sequences.tp);
                return BlockOutput { x_btd, aux_loss: None, stats: None };
            }
            Self::Moe(moe) => moe,
        };
        let ranks = &parallel.sequences.padded(batch.padding);
        let noise = batch
            .step
            .map(|StepContext { seed, step, first_row }| Some(NoiseKey::derive(seed, step, layer as u64, first_row)));
        let output = match (noise, &parallel.experts) {
            (None, None) => moe.evaluate_over(normed_bsd, ranks),
            (None, Some(experts)) => experts.evaluate(moe, normed_bsd, ranks),
            (Some(noise), None) => moe.forward_over(normed_bsd, noise, ranks),
            (Some(noise), Some(experts)) => experts.forward(moe, normed_bsd, noise, ranks),
        };
        BlockOutput { x_btd: residual_bsd + output.y_btd, aux_loss: output.aux_loss, stats: Some(output.stats) }
    }
}
