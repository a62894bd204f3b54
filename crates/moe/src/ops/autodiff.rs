//! The gradients of operations. Each is one step of the tape, which keeps what its formula needs and calls the
//! backend's backward.

use super::MoeOps;
use crate::ScoreFunc;
use crate::kernels::dispatch::DispatchRule;
use crate::kernels::reroute::RerouteRule;
use crate::kernels::route::{GateRule, SelectRule};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::step::{Gradient, step};

#[derive(Debug, Clone)]
struct Scores<B: MoeOps> {
    scores: FloatTensor<B>,
    func: ScoreFunc,
}

impl<B: MoeOps> Gradient<B, 1> for Scores<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_scores_backward(self.scores, d_y, self.func))]
    }
}

#[derive(Debug, Clone)]
struct Gates<B: MoeOps> {
    scores: FloatTensor<B>,
    experts: IntTensor<B>,
    rule: GateRule,
}

impl<B: MoeOps> Gradient<B, 1> for Gates<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_gates_backward(self.scores, self.experts, d_y, self.rule))]
    }
}

#[derive(Debug, Clone)]
struct Permute<B: MoeOps> {
    slot: IntTensor<B>,
}

impl<B: MoeOps> Gradient<B, 1> for Permute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_permute_backward(d_y, self.slot))]
    }
}

#[derive(Debug, Clone)]
struct Unpermute<B: MoeOps> {
    y: FloatTensor<B>,
    gates: FloatTensor<B>,
    source: IntTensor<B>,
    slot: IntTensor<B>,
}

impl<B: MoeOps> Gradient<B, 2> for Unpermute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_rows, d_gates) = B::moe_unpermute_backward(self.y, self.gates, self.source, self.slot, d_y);
        [Some(d_rows), Some(d_gates)]
    }
}

#[derive(Debug, Clone)]
struct GroupedGemm<B: MoeOps> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    segments: IntTensor<B>,
}

impl<B: MoeOps> Gradient<B, 2> for GroupedGemm<B> {
    const WEIGHT: Option<usize> = Some(1);

    fn of(self, d_y: FloatTensor<B>, [x, weight]: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let Self { x: rows, weight: matrices, segments } = self;
        let d_x = x.then(|| B::moe_grouped_gemm(d_y.clone(), matrices, segments.clone(), true));
        [d_x, weight.then(|| B::moe_grouped_gemm_weight(rows, d_y, segments))]
    }

    fn of_weight_into(self, d_y: FloatTensor<B>, flat: FloatTensor<B>, start: usize) -> FloatTensor<B> {
        B::moe_grouped_gemm_weight_into(self.x, d_y, self.segments, flat, start)
    }
}

const NO_SECOND_ORDER: &str = "the operations of a mixture of experts have first derivatives only";

impl<B: MoeOps, C: CheckpointStrategy> MoeOps for Autodiff<B, C> {
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self> {
        let scores = B::moe_scores(logits.primitive().clone(), func);
        step::<B, C, _, 1>([&logits], scores.clone(), || Scores { scores, func })
    }

    fn moe_select(scores: FloatTensor<Self>, bias: FloatTensor<Self>, rule: SelectRule) -> IntTensor<Self> {
        B::moe_select(scores.into_primitive(), bias.into_primitive(), rule)
    }

    fn moe_gates(scores: FloatTensor<Self>, experts: IntTensor<Self>, rule: GateRule) -> FloatTensor<Self> {
        let plain = scores.primitive().clone();
        let gates = B::moe_gates(plain.clone(), experts.clone(), rule);
        step::<B, C, _, 1>([&scores], gates, || Gates { scores: plain, experts, rule })
    }

    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self> {
        B::moe_count(experts, groups, e)
    }

    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self> {
        B::moe_reroute(candidates, rule)
    }

    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        B::moe_dispatch(experts, rule)
    }

    fn moe_permute(x: FloatTensor<Self>, source: IntTensor<Self>, slot: IntTensor<Self>) -> FloatTensor<Self> {
        let rows = B::moe_permute(x.primitive().clone(), source, slot.clone());
        step::<B, C, _, 1>([&x], rows, || Permute { slot })
    }

    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        source: IntTensor<Self>,
        slot: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (rows, plain) = (y.primitive().clone(), gates.primitive().clone());
        let tokens = B::moe_unpermute(rows.clone(), plain.clone(), source.clone(), slot.clone());
        step::<B, C, _, 2>([&y, &gates], tokens, || Unpermute { y: rows, gates: plain, source, slot })
    }

    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        segments: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        assert!(!transposed, "{NO_SECOND_ORDER}");
        let (rows, matrices) = (x.primitive().clone(), weight.primitive().clone());
        let y = B::moe_grouped_gemm(rows.clone(), matrices.clone(), segments.clone(), false);
        step::<B, C, _, 2>([&x, &weight], y, || GroupedGemm { x: rows, weight: matrices, segments })
    }

    fn moe_scores_backward(_: FloatTensor<Self>, _: FloatTensor<Self>, _: ScoreFunc) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn moe_gates_backward(
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: FloatTensor<Self>,
        _: GateRule,
    ) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn moe_permute_backward(_: FloatTensor<Self>, _: IntTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn moe_unpermute_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: IntTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn moe_grouped_gemm_weight(_: FloatTensor<Self>, _: FloatTensor<Self>, _: IntTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn moe_grouped_gemm_weight_into(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }
}
