//! The operations as CubeCL kernels, for GPUs and CubeCL's CPU runtime.

use super::MoeOps;
use crate::ScoreFunc;
use crate::kernels::dispatch::{self, DispatchRule};
use crate::kernels::reroute::{self, RerouteRule};
use crate::kernels::route::{self, GateRule, SelectRule};
use crate::kernels::{grouped_gemm, permute};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

impl MoeOps for CubeBackend {
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self> {
        route::cube::scores(logits, func)
    }

    fn moe_scores_backward(
        scores: FloatTensor<Self>,
        d_scores: FloatTensor<Self>,
        func: ScoreFunc,
    ) -> FloatTensor<Self> {
        route::cube::scores_backward(scores, d_scores, func)
    }

    fn moe_select(scores: FloatTensor<Self>, bias: FloatTensor<Self>, rule: SelectRule) -> IntTensor<Self> {
        route::cube::select_experts(scores, bias, rule)
    }

    fn moe_gates(scores: FloatTensor<Self>, experts: IntTensor<Self>, rule: GateRule) -> FloatTensor<Self> {
        route::cube::gates(scores, experts, rule)
    }

    fn moe_gates_backward(
        scores: FloatTensor<Self>,
        experts: IntTensor<Self>,
        d_gates: FloatTensor<Self>,
        rule: GateRule,
    ) -> FloatTensor<Self> {
        route::cube::gates_backward(scores, experts, d_gates, rule)
    }

    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self> {
        route::cube::count(experts, groups, e)
    }

    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self> {
        reroute::cube::reroute(candidates, rule)
    }

    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        dispatch::cube::dispatch(experts, rule).into()
    }

    fn moe_permute(x: FloatTensor<Self>, source: IntTensor<Self>, _slot: IntTensor<Self>) -> FloatTensor<Self> {
        permute::cube::permute(x, source)
    }

    fn moe_permute_backward(d_x: FloatTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self> {
        permute::cube::unpermute(d_x, None, slot)
    }

    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        _source: IntTensor<Self>,
        slot: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        permute::cube::unpermute(y, Some(gates), slot)
    }

    fn moe_unpermute_backward(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        permute::cube::unpermute_backward(y, gates, source, slot, d_y)
    }

    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        segments: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        grouped_gemm::cube::grouped_gemm(x, weight, segments, transposed)
    }

    fn moe_grouped_gemm_weight(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        grouped_gemm::cube::grouped_gemm_weight(x, d_y, segments, None)
    }

    fn moe_grouped_gemm_weight_into(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self> {
        grouped_gemm::cube::grouped_gemm_weight(x, d_y, segments, Some((flat, start)))
    }
}
