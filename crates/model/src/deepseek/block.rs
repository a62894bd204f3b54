//! A DeepSeek block: latent attention followed by a dense MLP or experts.

use super::Mla;
use crate::cache::{Chunk, LayerCache};
use crate::layers::mlp::{BlockOutput, Mlp};
use crate::{DeepSeekConfig, MicroBatch, Parallel, RmsNorm, Rope};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use moe::MoeConfig;

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
    pub(super) layer: usize,
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
            true => Mlp::dense(d, config.intermediate_size, device),
            false => Mlp::experts(d, moe, device),
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
    /// [`MoeLayer::evaluate`](moe::MoeLayer::evaluate).
    pub fn forward(&self, x_btd: Tensor<3>) -> BlockOutput {
        self.forward_over(x_btd, &MicroBatch::default(), &Parallel::default())
    }

    /// [`forward`](Self::forward) for the rank's rows, `[b, s, d]` to `[b, s, d]`.
    ///
    /// In training, when the batch has a `step`, it applies the router's noise and the experts' capacity if the
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

    /// The rest of the block, after the heads' output `y`.
    fn mlp(&self, y: Tensor<3>, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> BlockOutput {
        let tp = &parallel.sequences.tp;
        let [x_bsd, normed] = self.post_attention_layernorm.forward_sum(&self.self_attn.o_proj, y, x_bsd, tp);
        self.mlp.forward_add(normed, x_bsd, self.layer, batch, parallel)
    }
}
