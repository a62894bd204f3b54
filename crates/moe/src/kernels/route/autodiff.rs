//! The steps of the tape of scores and gates.

use super::{GateRule, RouteBackwardOps, RouteOps, SelectRule};
use crate::ScoreFunc;
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::step::{Gradient, step};

#[derive(Debug, Clone)]
struct Scores<B: Backend> {
    scores: FloatTensor<B>,
    func: ScoreFunc,
}

impl<B: RouteBackwardOps> Gradient<B, 1> for Scores<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_scores_backward(self.scores, d_y, self.func))]
    }
}

#[derive(Debug, Clone)]
struct Gates<B: Backend> {
    scores: FloatTensor<B>,
    experts: IntTensor<B>,
    rule: GateRule,
}

impl<B: RouteBackwardOps> Gradient<B, 1> for Gates<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_gates_backward(self.scores, self.experts, d_y, self.rule))]
    }
}

impl<B: RouteOps + RouteBackwardOps, C: CheckpointStrategy> RouteOps for Autodiff<B, C> {
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
}
