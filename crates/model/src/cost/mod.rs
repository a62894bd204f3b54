//! What each call of a forward costs: FLOPs, memory kept for the backward, and bytes received from other ranks.
//!
//! A family lists the costs of its calls in its `cost.rs`. The memory check, the layout table, the division into
//! pipeline stages and MFU all read these lists. [`kept`] and [`received`] have the formulas that families share; [`work`] has what a call
//! computes, for plans.

pub(crate) mod kept;
pub(crate) mod received;
pub(crate) mod work;

use crate::Family;

/// A full micro-batch, how it is computed, and the ranks that share it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Sequences.
    pub sequences: usize,
    /// Positions of a sequence, including padding.
    pub positions: usize,
    /// Positions of a sequence without padding.
    pub length: usize,
    /// Bytes of an element of activations.
    pub element: usize,
    /// Whether it is computed on the CPU.
    pub on_cpu: bool,
    /// Ranks in an expert-parallel group.
    pub ep: usize,
    /// Ranks in a tensor-parallel group.
    pub tp: usize,
    /// Ranks in a context-parallel group.
    pub cp: usize,
    /// The rank's index in its context-parallel group.
    pub cp_rank: usize,
}

/// Floating-point operations of training on one token, forward and backward (PaLM, arXiv 2204.02311, appendix B;
/// nanoGPT's `estimate_mfu`):
///
/// ```text
/// 6 N + 6 L H (Q + V) T        N  parameters in matrix products that a token passes: without embeddings (the tied head counts), and with
///                                 only top_k of the E routed experts
///                              L, H, Q, V, T  layers, heads, widths of a head's query and value, tokens of a sequence
/// ```
///
/// The forward takes `2 N` multiplications and additions, the backward twice that. By convention, attention's two
/// products are counted without a causal mask. If documents in a row are masked from each other, T is the length of the
/// documents. Recomputed activations are not counted: these are model FLOPs, not hardware FLOPs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flops {
    /// In products with parameters.
    pub products: f64,
    /// In attention, per token that the token attends to.
    pub attention: f64,
}

impl Flops {
    /// FLOPs per token for sequences or documents of mean length `t` (a mean over tokens).
    pub fn per_token(&self, t: f64) -> f64 {
        self.products + self.attention * t
    }
}

impl std::iter::Sum for Flops {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let add = |sum: Self, one: Self| Self {
            products: sum.products + one.products,
            attention: sum.attention + one.attention,
        };
        all.fold(Self::default(), add)
    }
}

/// FLOPs of the products in each call of a forward. The embedding, which is only looked up, has none.
pub(crate) fn product_flops<F: Family + ?Sized>(family: &F) -> Vec<Flops> {
    let mut calls = vec![Flops::default(); 1 + family.blocks() + family.calls_after_blocks()];
    for parameter in family.parameters() {
        calls[family.call_of(&parameter)].products += parameter.flops_per_token();
    }
    calls
}
