//! The operations on `flex` tensors.

use super::{GateRule, RouteBackwardOps, RouteOps, SelectRule};
use super::{count_cpu, gates_backward_cpu, gates_cpu, scores_backward_cpu, scores_cpu, select_cpu};
use crate::ScoreFunc;
use crate::kernels::slices::{dims, int};
use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::slices::{contiguous, float, slice};

impl RouteOps for Flex {
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self> {
        let [n, e] = dims(&logits);
        float(scores_cpu(slice(&contiguous(&logits)), e, func), [n, e])
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

    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self> {
        let [_, n] = dims(&experts);
        int(count_cpu(slice(&contiguous(&experts)), n, groups, e), [groups, e])
    }
}

impl RouteBackwardOps for Flex {
    fn moe_scores_backward(
        scores: FloatTensor<Self>,
        d_scores: FloatTensor<Self>,
        func: ScoreFunc,
    ) -> FloatTensor<Self> {
        let [n, e] = dims(&scores);
        let (scores, d_scores) = (contiguous(&scores), contiguous(&d_scores));
        float(scores_backward_cpu(slice(&scores), slice(&d_scores), e, func), [n, e])
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
}
