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

use super::{Block, BlockOutput, OutputMatrix};
use crate::cache::{Chunk, LayerCache};
use crate::{DeepSeekConfig, MicroBatch, Parallel, RmsNorm, Rope, Targets, TokenRows};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use fused::linear;
use moe::MoeConfig;
use std::ops::Range;

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

/// The input and the targets of one multi-token prediction module for a batch.
///
/// Positions without a target are computed like all others and count toward the load of the experts; padding does not.
#[derive(Debug, Clone)]
pub struct MtpBatch {
    /// `x_{i+k}` at position `i`, `[b, t]`; 0 past the end of a row.
    pub tokens_bt: Tensor<2, Int>,
    /// The targets `x_{i+k+1}`; `None` if there are none.
    pub targets: Option<Targets>,
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

impl MtpBatch {
    /// The batches of modules 1 to `depth` for some positions of rows.
    pub fn of_rows(rows: &TokenRows<'_>, depth: usize, device: &Device) -> Vec<Self> {
        let (b, here) = (rows.targets.len() / rows.t, rows.here.iter().map(Range::len).sum::<usize>());
        (1..=depth)
            .map(|k| {
                let of_row = |next: &'_ [i32]| {
                    let ahead = |i: usize| next.get(i + k - 1).copied().unwrap_or(0);
                    rows.here.iter().cloned().flatten().map(ahead).collect::<Vec<_>>()
                };
                let tokens: Vec<i32> = rows.targets.chunks_exact(rows.t).flat_map(of_row).collect();
                let tokens_bt = Tensor::from_data(TensorData::new(tokens, [b, here]), device);
                Self { tokens_bt, targets: Targets::ahead(rows, k, device) }
            })
            .collect()
    }

    /// `L_k` from the `h^k` of module `k`, as the rank's share from its rows `[b, s, d]`: `[1]`. Returns `None` if no
    /// position has a target.
    pub fn loss(&self, output: &OutputMatrix, h_bsd: Tensor<3>) -> Option<Tensor<1>> {
        Some(output.losses(h_bsd, self.targets.clone()?, 0.0).cross_entropy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ints<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<i32> {
        tensor.clone().into_data().iter::<i32>().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// For a row `x_0 .. x_t`, module `k` reads `x_{i+k}` and predicts `x_{i+k+1}` if no document ends in `x_{i+1}
        /// .. x_{i+k}`.
        #[test]
        fn targets_stay_in_their_row_and_cross_no_end_of_a_document(
            rows in prop::collection::vec(prop::collection::vec(0..4i32, 7), 1..4), depth in 0..8usize, end in prop::option::of(0..4i32), apart: bool,
        ) {
            let t = 6;
            let inputs: Vec<i32> = rows.iter().flat_map(|row| row[..t].to_vec()).collect();
            let targets: Vec<i32> = rows.iter().flat_map(|row| row[1..].to_vec()).collect();
            let here = std::iter::once(0..t).collect();
            let documents_apart = apart && end.is_some();
            let of_rows = TokenRows { inputs: &inputs, targets: &targets, t, here, end_of_text: end, documents_apart, scale: 1.0 };
            let batches = MtpBatch::of_rows(&of_rows, depth, &Device::flex());
            prop_assert_eq!(batches.len(), depth);
            for (k, batch) in (1..).zip(&batches) {
                let places = (0..rows.len()).flat_map(|row| (0..t).map(move |i| (row, i)));
                let read = places.clone().map(|(row, i)| rows[row].get(i + k).copied().unwrap_or(0)).collect::<Vec<_>>();
                prop_assert_eq!(ints(&batch.tokens_bt), read);
                let has_target = |(row, i): &(usize, usize)| {
                    let from = if documents_apart { *i } else { i + 1 };
                    i + k < t && rows[*row][from..=i + k].iter().all(|token| Some(*token) != end)
                };
                let expected: Vec<_> = places.filter(has_target).collect();
                prop_assert_eq!(batch.targets.is_some(), !expected.is_empty());
                if let Some(Targets { places_n: Some(at), tokens_n: wanted, share }) = &batch.targets {
                    prop_assert_eq!(*share, expected.len() as f64 / (rows.len() * t) as f64);
                    prop_assert_eq!(ints(at), expected.iter().map(|(row, i)| (row * t + i) as i32).collect::<Vec<_>>());
                    prop_assert_eq!(ints(wanted), expected.iter().map(|(row, i)| rows[*row][i + k + 1]).collect::<Vec<_>>());
                }
            }
        }
    }
}
