//! Scores and gates composed of Burn's operations.

use super::{GateRule, TINY};
use crate::ScoreFunc;
use crate::kernels::elsewhere::indices;
use burn::tensor::{Int, Tensor, activation};

pub(super) fn scores(logits_ne: Tensor<2>, func: ScoreFunc) -> Tensor<2> {
    match func {
        ScoreFunc::Softmax => activation::softmax(logits_ne, 1),
        ScoreFunc::Sigmoid => activation::sigmoid(logits_ne),
    }
}

pub(super) fn gates(scores_ne: Tensor<2>, experts_kn: Tensor<2, Int>, rule: GateRule) -> Tensor<2> {
    let experts_nk = experts_kn.transpose();
    let none_nk = experts_nk.clone().lower_elem(0);
    let mut gates_nk = scores_ne.gather(1, indices(experts_nk)).mask_fill(none_nk, 0.0);
    if rule.normalise {
        gates_nk = gates_nk.clone() / (gates_nk.sum_dim(1) + TINY);
    }
    (gates_nk * rule.scale).transpose()
}
