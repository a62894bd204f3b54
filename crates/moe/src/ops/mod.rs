//! The operations of a mixture of experts as one extension of Burn's backends.
//!
//! Every operation is plain Rust on `flex`, and a CubeCL kernel on GPUs and on CubeCL's CPU runtime. The functions that
//! users call are in [`kernels`](crate::kernels), one module per operation. Index tensors are i32; -1 means "none".

mod autodiff;
#[cfg(feature = "cubecl")]
mod cube;
mod flex;
#[cfg(feature = "cubecl")]
mod specs;

use crate::ScoreFunc;
use crate::kernels::dispatch::DispatchRule;
use crate::kernels::reroute::RerouteRule;
use crate::kernels::route::{GateRule, SelectRule};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};

/// The operations; for formulas and layouts see the modules of [`kernels`](crate::kernels) with the same names.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub trait MoeOps: Backend {
    /// Maps `logits_ne` to `scores_ne`, both f32.
    #[fusion(meta = specs::scores)]
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self>;

    /// Maps `scores_ne` and their gradient to the gradient of the logits.
    #[fusion(meta = specs::scores_backward)]
    fn moe_scores_backward(
        scores: FloatTensor<Self>,
        d_scores: FloatTensor<Self>,
        func: ScoreFunc,
    ) -> FloatTensor<Self>;

    /// Maps `scores_ne` and `bias_e` to the best `rule.candidates` experts of each token, `[c, n]` in i32, best first.
    #[fusion(meta = specs::select)]
    fn moe_select(scores: FloatTensor<Self>, bias: FloatTensor<Self>, rule: SelectRule) -> IntTensor<Self>;

    /// Maps `scores_ne` and `experts_kn` to `gates_kn` in f32.
    #[fusion(meta = specs::gates)]
    fn moe_gates(scores: FloatTensor<Self>, experts: IntTensor<Self>, rule: GateRule) -> FloatTensor<Self>;

    /// Returns the gradient of `scores_ne`.
    #[fusion(meta = specs::gates_backward)]
    fn moe_gates_backward(
        scores: FloatTensor<Self>,
        experts: IntTensor<Self>,
        d_gates: FloatTensor<Self>,
        rule: GateRule,
    ) -> FloatTensor<Self>;

    /// Counts how many times each of `groups` sequences in `experts_kn` chose each of `e` experts, `[groups, e]` in
    /// i32.
    #[fusion(meta = specs::count)]
    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self>;

    /// Maps `candidates_cn` to `experts_kn`, with -1 if no candidate had room.
    #[fusion(meta = specs::reroute)]
    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self>;

    /// Maps `experts_kn` to `slot_kn`, `source_r`, `segments` (`[e + 1]`) and `kept_e`, all i32.
    #[fusion(meta = specs::dispatch)]
    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);

    /// Maps `x_nd` to `x_rd`.
    #[fusion(meta = specs::permute)]
    fn moe_permute(x: FloatTensor<Self>, source: IntTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self>;

    /// Maps the gradient of `x_rd` to that of `x_nd`.
    #[fusion(meta = specs::permute_backward)]
    fn moe_permute_backward(d_x: FloatTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self>;

    /// Maps `y_rd` and `gates_kn` to `y_nd`.
    #[fusion(meta = specs::unpermute)]
    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of `y_rd` and `gates_kn`.
    #[fusion(meta = specs::unpermute_backward)]
    fn moe_unpermute_backward(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `x_rp` and `weight_epq` (`weight_eqp` if `transposed`) to `y_rq`.
    #[fusion(meta = specs::grouped_gemm)]
    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        segments: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self>;

    /// Maps `x_rp` and `d_y_rq` to the gradient of `weight_epq`.
    #[fusion(meta = specs::grouped_gemm_weight)]
    fn moe_grouped_gemm_weight(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// [`moe_grouped_gemm_weight`](Self::moe_grouped_gemm_weight), on a device in the memory of `flat` from element
    /// `start` on.
    #[fusion(meta = specs::grouped_gemm_weight_into)]
    fn moe_grouped_gemm_weight_into(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self>;
}
