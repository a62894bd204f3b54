//! A DeepSeek block: latent attention followed by a dense MLP or experts.

use super::Mla;
use crate::cache::{Chunk, LayerCache};
use crate::{DeepSeekConfig, ExpertLoads, MicroBatch, Parallel, RmsNorm, Rope, StepContext};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use moe::{MoeConfig, MoeLayer, MoeStats, NoiseKey, SwiGlu};

/// `x + attn(norm(x))`, then `x + mlp(norm(x))`; the MLP is dense or a mixture of experts.
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before the attention.
    pub input_layernorm: RmsNorm,
    /// Multi-head latent attention.
    pub self_attn: Mla,
    /// Norm before the MLP.
    pub post_attention_layernorm: RmsNorm,
    /// Dense in the first `first_k_dense_replace` blocks.
    pub mlp: Mlp,
    layer: usize,
}

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
    pub(super) fn record(&self, loads: &ExpertLoads, layer: usize, batch: &MicroBatch) {
        if let (Some(stats), Some(place)) = (&self.stats, batch.place) {
            loads.record(layer, place.first_row, stats);
        }
    }
}

impl Block {
    pub(super) fn new(
        config: &DeepSeekConfig,
        moe: &MoeConfig,
        positions: &Rope,
        layer: usize,
        device: &Device,
    ) -> Self {
        let d = config.hidden_size;
        let mlp = match layer < config.first_k_dense_replace {
            true => Mlp::Dense(SwiGlu::new(d, config.intermediate_size, device)),
            false => Mlp::Moe(MoeLayer::new(d, moe, device)),
        };
        Self {
            input_layernorm: RmsNorm::new(d, config.rms_norm_eps, device),
            self_attn: Mla::new(config, positions, device),
            post_attention_layernorm: RmsNorm::new(d, config.rms_norm_eps, device),
            mlp,
            layer,
        }
    }

    /// Maps `[b, t, d]` to `[b, t, d]` as in evaluation and generation: without noise or capacity limits; see
    /// [`MoeLayer::evaluate`].
    pub fn forward(&self, x_btd: Tensor<3>) -> BlockOutput {
        self.forward_over(x_btd, &MicroBatch::default(), &Parallel::default())
    }

    /// [`forward`](Self::forward) for the rank's rows, `[b, s, d]` to `[b, s, d]`.
    ///
    /// In training, when the batch has a `place`, it applies the router's noise and the experts' capacity if the
    /// configuration sets them.
    pub fn forward_over(&self, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> BlockOutput {
        let y = self.self_attn.forward(self.input_layernorm.forward(x_bsd.clone()), batch, parallel);
        self.mlp(y, x_bsd, batch, parallel)
    }

    /// [`forward`](Self::forward) of tokens that follow those in the cache.
    pub(super) fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let y = self.self_attn.forward_cached(self.input_layernorm.forward(x_btd.clone()), layer, chunk);
        self.mlp(y, x_btd, &MicroBatch::default(), &Parallel::default()).x_btd
    }

    /// The rest of the block after the heads' output `y`.
    fn mlp(&self, y: Tensor<3>, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> BlockOutput {
        let (ranks, tp) = (&parallel.sequences.padded(batch.padding), &parallel.sequences.tp);
        let [x_bsd, normed] = self.post_attention_layernorm.forward_sum(&self.self_attn.o_proj, y, x_bsd, tp);
        match &self.mlp {
            Mlp::Dense(mlp) => {
                BlockOutput { x_btd: mlp.forward_add_over(normed, x_bsd, tp), aux_loss: None, stats: None }
            }
            Mlp::Moe(moe) => {
                let noise = batch.place.map(|StepContext { seed, step, first_row }| {
                    Some(NoiseKey::derive(seed, step, self.layer as u64, first_row))
                });
                let output = match (noise, &parallel.experts) {
                    (None, None) => moe.evaluate_over(normed, ranks),
                    (None, Some(experts)) => experts.evaluate(moe, normed, ranks),
                    (Some(noise), None) => moe.forward_over(normed, noise, ranks),
                    (Some(noise), Some(experts)) => experts.forward(moe, normed, noise, ranks),
                };
                BlockOutput { x_btd: x_bsd + output.y_btd, aux_loss: output.aux_loss, stats: Some(output.stats) }
            }
        }
    }
}
