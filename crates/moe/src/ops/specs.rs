//! Shapes and dtypes of the operations' outputs, which fusion needs before it runs anything.

use crate::ScoreFunc;
use crate::kernels::dispatch::DispatchRule;
use crate::kernels::reroute::RerouteRule;
use crate::kernels::route::{GateRule, SelectRule};
use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::{DType, Shape};

fn spec<const D: usize>(shape: [usize; D], dtype: DType) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), dtype)
}

pub(super) fn scores(logits: &TensorSpec, _: &ScoreFunc) -> TensorSpec {
    logits.clone()
}

pub(super) fn scores_backward(scores: &TensorSpec, _: &TensorSpec, _: &ScoreFunc) -> TensorSpec {
    scores.clone()
}

pub(super) fn select(scores: &TensorSpec, _: &TensorSpec, rule: &SelectRule) -> TensorSpec {
    spec([rule.candidates, scores.shape[0]], DType::I32)
}

pub(super) fn gates(_: &TensorSpec, experts: &TensorSpec, _: &GateRule) -> TensorSpec {
    TensorSpec::new(experts.shape.clone(), DType::F32)
}

pub(super) fn gates_backward(scores: &TensorSpec, _: &TensorSpec, _: &TensorSpec, _: &GateRule) -> TensorSpec {
    scores.clone()
}

pub(super) fn count(_: &TensorSpec, groups: &usize, e: &usize) -> TensorSpec {
    spec([*groups, *e], DType::I32)
}

pub(super) fn reroute(candidates: &TensorSpec, rule: &RerouteRule) -> TensorSpec {
    spec([rule.top_k, candidates.shape[1]], DType::I32)
}

pub(super) fn dispatch(experts: &TensorSpec, rule: &DispatchRule) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let (k, n) = (experts.shape[0], experts.shape[1]);
    let ints = |len| spec([len], DType::I32);
    (spec([k, n], DType::I32), ints(rule.rows(n, k)), ints(rule.experts + 1), ints(rule.experts))
}

pub(super) fn permute(x: &TensorSpec, source: &TensorSpec, _: &TensorSpec) -> TensorSpec {
    spec([source.shape[0], x.shape[1]], x.dtype)
}

pub(super) fn permute_backward(d_x: &TensorSpec, slot: &TensorSpec) -> TensorSpec {
    spec([slot.shape[1], d_x.shape[1]], d_x.dtype)
}

pub(super) fn unpermute(y: &TensorSpec, _: &TensorSpec, _: &TensorSpec, slot: &TensorSpec) -> TensorSpec {
    spec([slot.shape[1], y.shape[1]], y.dtype)
}

pub(super) fn unpermute_backward(
    y: &TensorSpec,
    gates: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
) -> (TensorSpec, TensorSpec) {
    (y.clone(), gates.clone())
}

pub(super) fn grouped_gemm(x: &TensorSpec, weight: &TensorSpec, _: &TensorSpec, transposed: &bool) -> TensorSpec {
    spec([x.shape[0], weight.shape[if *transposed { 1 } else { 2 }]], x.dtype)
}

pub(super) fn grouped_gemm_weight(x: &TensorSpec, d_y: &TensorSpec, segments: &TensorSpec) -> TensorSpec {
    spec([segments.shape[0] - 1, x.shape[1], d_y.shape[1]], x.dtype)
}

pub(super) fn grouped_gemm_weight_into(
    x: &TensorSpec,
    d_y: &TensorSpec,
    segments: &TensorSpec,
    _: &TensorSpec,
    _: &usize,
) -> TensorSpec {
    grouped_gemm_weight(x, d_y, segments)
}
