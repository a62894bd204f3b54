//! The operations in plain Rust, for the `flex` backend.

use super::MoeOps;
use crate::ScoreFunc;
use crate::kernels::dispatch::{DispatchRule, Placed, dispatch_cpu};
use crate::kernels::grouped_gemm::{Shape as Matrices, grouped_gemm_cpu, grouped_gemm_weight_cpu};
use crate::kernels::permute::{check_places, permute_cpu, unpermute_backward_cpu, unpermute_cpu};
use crate::kernels::reroute::{RerouteRule, reroute_cpu};
use crate::kernels::route::{GateRule, SelectRule};
use crate::kernels::route::{count_cpu, gates_backward_cpu, gates_cpu, scores_backward_cpu, scores_cpu, select_cpu};
use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Shape, TensorData};
use fused::slices::{contiguous, float, slice};
use fused::with_float;

impl MoeOps for Flex {
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self> {
        let [n, e] = dims(&logits);
        float(scores_cpu(slice(&contiguous(&logits)), e, func), [n, e])
    }

    fn moe_scores_backward(
        scores: FloatTensor<Self>,
        d_scores: FloatTensor<Self>,
        func: ScoreFunc,
    ) -> FloatTensor<Self> {
        let [n, e] = dims(&scores);
        let (scores, d_scores) = (contiguous(&scores), contiguous(&d_scores));
        float(scores_backward_cpu(slice(&scores), slice(&d_scores), e, func), [n, e])
    }

    fn moe_select(scores: FloatTensor<Self>, bias: FloatTensor<Self>, rule: SelectRule) -> IntTensor<Self> {
        let [n, e] = dims(&scores);
        let (scores, bias) = (contiguous(&scores), contiguous(&bias));
        int(select_cpu(slice(&scores), slice(&bias), e, &rule), [rule.candidates, n])
    }

    fn moe_gates(scores: FloatTensor<Self>, experts: IntTensor<Self>, rule: GateRule) -> FloatTensor<Self> {
        let ([_, e], shape) = (dims(&scores), dims::<2>(&experts));
        let (scores, experts) = (contiguous(&scores), contiguous(&experts));
        float(gates_cpu(slice(&scores), slice(&experts), e, &rule), shape)
    }

    fn moe_gates_backward(
        scores: FloatTensor<Self>,
        experts: IntTensor<Self>,
        d_gates: FloatTensor<Self>,
        rule: GateRule,
    ) -> FloatTensor<Self> {
        let [n, e] = dims(&scores);
        let (scores, experts, d_gates) = (contiguous(&scores), contiguous(&experts), contiguous(&d_gates));
        float(gates_backward_cpu(slice(&scores), slice(&experts), slice(&d_gates), e, &rule), [n, e])
    }

    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self> {
        let [_, n] = dims(&experts);
        int(count_cpu(slice(&contiguous(&experts)), n, groups, e), [groups, e])
    }

    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self> {
        let [_, n] = dims(&candidates);
        int(reroute_cpu(slice(&contiguous(&candidates)), n, &rule), [rule.top_k, n])
    }

    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let [k, n] = dims(&experts);
        let Placed { slot, source, segments, kept } = dispatch_cpu(slice(&contiguous(&experts)), n, &rule);
        let list = |values: Vec<i32>| {
            let len = values.len();
            int(values, [len])
        };
        (int(slot, [k, n]), list(source), list(segments), list(kept))
    }

    fn moe_permute(x: FloatTensor<Self>, source: IntTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self> {
        let ([n, d], [r]) = (dims(&x), dims(&source));
        let (x, source, slot) = (contiguous(&x), contiguous(&source), contiguous(&slot));
        check_places("permute", slice(&source), slice(&slot));
        with_float!(x.dtype(), T => float(permute_cpu::<T>(slice(&x), slice(&source), n, d), [r, d]))
    }

    fn moe_permute_backward(d_x: FloatTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self> {
        let ([_, d], [_, n]) = (dims(&d_x), dims(&slot));
        let (d_x, slot) = (contiguous(&d_x), contiguous(&slot));
        with_float!(d_x.dtype(), T => float(unpermute_cpu::<T>(slice(&d_x), None, slice(&slot), n, d), [n, d]))
    }

    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let ([_, d], [_, n]) = (dims(&y), dims(&slot));
        let (y, gates, source, slot) = (contiguous(&y), contiguous(&gates), contiguous(&source), contiguous(&slot));
        check_places("unpermute", slice(&source), slice(&slot));
        with_float!(y.dtype(), T => {
            float(unpermute_cpu::<T>(slice(&y), Some(slice(&gates)), slice(&slot), n, d), [n, d])
        })
    }

    fn moe_unpermute_backward(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let ([r, d], [k, n]) = (dims(&y), dims(&slot));
        let (y, gates, d_y) = (contiguous(&y), contiguous(&gates), contiguous(&d_y));
        let (source, slot) = (contiguous(&source), contiguous(&slot));
        with_float!(y.dtype(), T => {
            let (source, slot) = (slice(&source), slice(&slot));
            let (d_rows, d_gates) = unpermute_backward_cpu::<T>(slice(&y), slice(&gates), source, slot, slice(&d_y), d);
            (float(d_rows, [r, d]), float(d_gates, [k, n]))
        })
    }

    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        segments: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        let ([r, p], [_, rows, columns]) = (dims(&x), dims(&weight));
        let q = if transposed { rows } else { columns };
        let (x, weight, segments) = (contiguous(&x), contiguous(&weight), contiguous(&segments));
        with_float!(x.dtype(), T => {
            let y = grouped_gemm_cpu::<T>(slice(&x), slice(&weight), slice(&segments), Matrices { p, q }, transposed);
            float(y, [r, q])
        })
    }

    fn moe_grouped_gemm_weight(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let ([_, p], [_, q], [ends]) = (dims(&x), dims(&d_y), dims(&segments));
        let (x, d_y, segments) = (contiguous(&x), contiguous(&d_y), contiguous(&segments));
        with_float!(x.dtype(), T => {
            let d_weight = grouped_gemm_weight_cpu::<T>(slice(&x), slice(&d_y), slice(&segments), Matrices { p, q });
            float(d_weight, [ends - 1, p, q])
        })
    }

    fn moe_grouped_gemm_weight_into(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        segments: IntTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        Self::moe_grouped_gemm_weight(x, d_y, segments)
    }
}

fn dims<const D: usize>(tensor: &FloatTensor<Flex>) -> [usize; D] {
    tensor.shape().dims()
}

fn int<const D: usize>(values: Vec<i32>, shape: [usize; D]) -> IntTensor<Flex> {
    Flex::int_from_data(TensorData::new(values, Shape::from(shape)), &Default::default())
}
