//! Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2, equations 21 to 25).
//!
//! At each position the model also predicts tokens after the next one. Each module looks one token further ahead, and
//! all share the model's embedding and output matrix.
//!
//! ```text
//! h^0_i = norm(blocks(x)_i)                                             the head predicts x_{i+1} from it
//! h^k_i = norm_k(block_k([enorm_k(Emb(x_{i+k})) | hnorm_k(h^{k-1}_i)] eh_proj_k)_i)            k = 1 .. depth
//! L_k   = -1/T sum_i log P(x_{i+k+1} | h^k_i)       over the i with a target; T counts the i with a next token x_{i+1}
//! L     = L_main + coef / depth sum_k L_k
//! ```
//!
//! The paper writes `[hidden | embedding]`. The published weights have the embedding's columns first, and so does Kiln.
//! `h^k` is the output of `norm_k` (`shared_head.norm`), both for the head and for the next module.

use super::{Block, OutputMatrix};
use crate::cache::{Chunk, LayerCache};
use crate::layers::mlp::BlockOutput;
use crate::{DeepSeekConfig, MicroBatch, MtpBatch, Parallel, RmsNorm, Rope};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use fused::linear;
use moe::MoeConfig;

/// One multi-token prediction module.
#[derive(Module, Debug)]
pub struct Mtp {
    /// Norm of the new token's embedding.
    pub enorm: RmsNorm,
    /// Norm of the output of the model or of the previous module.
    pub hnorm: RmsNorm,
    /// Projects both norms, side by side, to width `d`: `[2 d, d]`.
    pub eh_proj: Linear,
    /// A block like the model's own, numbered after the last of them.
    pub block: Block,
    /// Norm before the output matrix (`shared_head.norm`).
    pub norm: RmsNorm,
}

impl Mtp {
    /// `k` counts from 0.
    pub(super) fn new(config: &DeepSeekConfig, moe: &MoeConfig, positions: &Rope, k: usize, device: &Device) -> Self {
        let d = config.hidden_size;
        let norm = || RmsNorm::new(d, config.rms_norm_eps, device);
        Self {
            enorm: norm(),
            hnorm: norm(),
            eh_proj: LinearConfig::new(2 * d, d).with_bias(false).init(device),
            block: Block::new(config, moe, positions, config.num_hidden_layers + k, device),
            norm: norm(),
        }
    }

    /// Maps `h^{k-1}` and the embeddings of `x_{i+k}` to `h^k`, `[b, t, d]` each.
    pub fn forward(&self, h_btd: Tensor<3>, embeddings_btd: Tensor<3>) -> Tensor<3> {
        self.forward_over(h_btd, embeddings_btd, &MicroBatch::default(), &Parallel::default()).x_btd
    }

    /// [`forward`](Self::forward) for one rank, analogous to [`Block::forward_over`].
    pub fn forward_over(
        &self,
        h_bsd: Tensor<3>,
        embeddings_bsd: Tensor<3>,
        batch: &MicroBatch,
        parallel: &Parallel,
    ) -> BlockOutput {
        let output = self.block.forward_over(self.joined(h_bsd, embeddings_bsd), batch, parallel);
        BlockOutput { x_btd: self.norm.forward(output.x_btd), ..output }
    }

    /// [`forward`](Self::forward) for positions that follow those in the cache.
    pub(crate) fn forward_cached(
        &self,
        h_btd: Tensor<3>,
        embeddings_btd: Tensor<3>,
        layer: &mut LayerCache,
        chunk: &Chunk,
    ) -> Tensor<3> {
        self.norm.forward(self.block.forward_cached(self.joined(h_btd, embeddings_btd), layer, chunk))
    }

    fn joined(&self, h_btd: Tensor<3>, embeddings_btd: Tensor<3>) -> Tensor<3> {
        let parts = vec![self.enorm.forward(embeddings_btd), self.hnorm.forward(h_btd)];
        linear(Tensor::cat(parts, 2), self.eh_proj.weight.val(), None)
    }
}

/// `L_k` from the `h^k` of module `k`, as the rank's share from its rows `[b, s, d]`: `[1]`. Returns `None` if no
/// position has a target.
pub(super) fn loss(batch: &MtpBatch, output: &OutputMatrix, h_bsd: Tensor<3>) -> Option<Tensor<1>> {
    Some(output.losses(h_bsd, batch.targets.clone()?, 0.0).cross_entropy)
}
