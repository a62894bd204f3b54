//! Estimated activation memory of a call, from what each operation keeps for its backward.
//!
//! With `n = b t` tokens, `S = n d` elements of the residual stream, and `P = b heads t` log-sum-exps of attention,
//! which are fp32, the sizes in elements of the parameters' type are:
//!
//! ```text
//! dense SwiGLU    3 n inner                 gate, up, and their product
//! several ranks:   each keeps 1/(tp cp) of all of this, but the rotated key of all rows (tp)
//! experts         r (2 d + 3 h) + 3 n e + 3 n shared      r = n top_k expert rows, or what the capacity admits; over several
//!                                           ranks r d more for the returned rows, and the first term times the largest
//!                                           load of one rank (`moe.max_rank_load`), at most its capacity
//! head            3 S + d vocab             x, norm, and the gradients of norm and, in fp32, matrix, which the forward computes
//! ```
//!
//! Dropout masks are generated where they are used. The head holds 256 rows of logits at once (256 MB on a GPU). The
//! router reads and keeps its input and scores in fp32. The formulas of a family's blocks are in its `cost.rs`.

use super::Workload;
use crate::ParameterSpec;
use fsdp::CallBytes;
use moe::MoeConfig;

const FP32: f64 = 4.0;
/// Overhead of the graph's nodes beyond the tensors.
const NODES: f64 = 1.02;

impl Workload {
    /// The bytes of a call, given the width of its input, the bytes that its operations keep, and the bytes that its
    /// backward needs.
    pub(crate) fn call_bytes(&self, width: f64, kept: f64, backward: f64) -> CallBytes {
        let input = self.kept(width);
        CallBytes { input: input as usize, graph: (input + NODES * kept) as usize, backward: backward as usize }
    }

    /// Estimates a call from the matrices whose names start with `prefix`: it keeps the inputs and the outputs of their
    /// products.
    pub(crate) fn products_bytes(&self, d: f64, prefix: &str, parameters: &[ParameterSpec]) -> CallBytes {
        let of_call = parameters.iter().filter(|parameter| parameter.name.starts_with(prefix));
        let width = |parameter: &ParameterSpec| match parameter.shape[..] {
            [from, to] => (from + to) as f64,
            _ => 0.0,
        };
        self.call_bytes(d, self.kept(of_call.map(width).sum()), 0.0)
    }

    /// Bytes of `width` elements per token in the type of the activations.
    pub(crate) fn kept(&self, width: f64) -> f64 {
        self.tokens_f64() / self.tp as f64 * width * self.element as f64
    }

    /// Bytes of `width` fp32 elements per token.
    pub(crate) fn wide(&self, width: f64) -> f64 {
        self.tokens_f64() / self.tp as f64 * width * FP32
    }

    /// Bytes of `width` elements per token of all tensor-parallel ranks' rows, which each of several ranks holds.
    pub(crate) fn gathered(&self, width: f64) -> f64 {
        if self.tp > 1 { self.tokens_f64() * width * self.element as f64 } else { 0.0 }
    }

    /// Bytes of messages, keys, values and their gradients that the backward of ring attention holds, for keys and
    /// values of `width` elements per token.
    pub(crate) fn ring(&self, width: f64) -> f64 {
        if self.cp > 1 { self.wide(3.0 * width) } else { 0.0 }
    }

    /// Probabilities and score gradients, in tiles of at most 128 queries per head that is computed at once (assumed to
    /// be 16).
    pub(crate) fn scores(&self, heads: f64) -> f64 {
        let (at_once, t) = ((self.sequences as f64 * heads / self.tp as f64).min(16.0), self.positions as f64);
        2.0 * FP32 * at_once * t.min(128.0) * t / self.cp as f64
    }

    /// A mixture of experts: router, routed and shared experts.
    pub(crate) fn experts(&self, d: f64, moe: &MoeConfig) -> f64 {
        let (e, k) = (moe.num_experts as f64, moe.top_k as f64);
        let shared = moe.n_shared_experts as f64 * moe.moe_intermediate_size as f64;
        let router = self.widened(d) + self.wide(3.0 * e + 5.0 * k);
        router + self.expert_rows(d, moe) + self.kept(3.0 * shared)
    }

    /// Rows of experts: `x`, gate, up, their product, and `y`, on the rank that computes them and on the rank they
    /// return to.
    pub(crate) fn expert_rows(&self, d: f64, moe: &MoeConfig) -> f64 {
        let (t, ep) = (self.positions as f64, self.ep as f64);
        let capacity = moe.capacity(self.positions).map_or(f64::INFINITY, |c| (c * moe.num_experts) as f64);
        let own = (t * moe.top_k as f64).min(capacity); // of a sequence
        let came_back = if self.ep > 1 { own * d } else { 0.0 };
        // A full expert has as many rows of each sequence, so a rank whose experts are all full has as many as the
        // capacity of each allows.
        let here = own * ep.min(moe.max_rank_load);
        let rows = here.min(capacity) * (2.0 * d + 3.0 * moe.moe_intermediate_size as f64);
        self.kept((rows + came_back) / t)
    }

    /// The head: the gradients that its forward computes, and the temporary memory of scaling them.
    pub(crate) fn head_bytes(&self, d: f64, vocab: f64) -> CallBytes {
        if self.tp > 1 {
            // Here the backward computes the gradients, and logits are in fp32: they, their probabilities and the mask
            // of the targets.
            let (rows, vocab) = (self.tokens_f64().min(256.0), vocab / self.tp as f64);
            let gradients = self.gathered(d) / self.element as f64 * FP32 + 2.0 * d * vocab * FP32;
            return self.call_bytes(d, self.kept(d), 2.0 * gradients + 4.0 * rows * vocab * FP32);
        }
        let (gradients, size) = (self.kept(d) + d * vocab * FP32, self.element as f64);
        // On a GPU a chunk of rows has 256 MB of logits, its part of the matrix's gradient is a separate product, and a
        // matrix whose columns are not a multiple of 128 is copied.
        let (rows, parts) = if self.on_cpu { (256.0, 1.0) } else { ((256 << 20) as f64 / (vocab * size), 2.0) };
        let logits = self.tokens_f64().min(rows) * vocab * size;
        let padded = if self.on_cpu || vocab % 128.0 == 0.0 { 0.0 } else { d * vocab * size };
        let backward = gradients.max(logits + padded + (parts - 1.0) * d * vocab * FP32);
        self.call_bytes(d, self.kept(d) + gradients, backward)
    }

    /// Tokens of the rank's part of the context.
    fn tokens_f64(&self) -> f64 {
        self.sequences as f64 * self.positions as f64 / self.cp as f64
    }

    /// The fp32 copy of a tensor that is kept anyway.
    fn widened(&self, width: f64) -> f64 {
        if (self.element as f64) < FP32 { self.wide(width) } else { 0.0 }
    }
}
