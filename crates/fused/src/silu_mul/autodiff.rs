//! The step of the tape of [`silu_mul`](super::silu_mul).

use super::{SiluMulBackwardOps, SiluMulOps};
use crate::step::{Gradient, step};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;

#[derive(Debug, Clone)]
struct SiluMul<B: Backend> {
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
}

impl<B: SiluMulBackwardOps> Gradient<B, 2> for SiluMul<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_gate, d_up) = B::fused_silu_mul_backward(self.gate, self.up, d_y);
        [Some(d_gate), Some(d_up)]
    }
}

impl<B: SiluMulOps + SiluMulBackwardOps, C: CheckpointStrategy> SiluMulOps for Autodiff<B, C> {
    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (plain_gate, plain_up) = (gate.primitive().clone(), up.primitive().clone());
        let y = B::fused_silu_mul(plain_gate.clone(), plain_up.clone());
        step::<B, C, _, 2>([&gate, &up], y, || SiluMul::<B> { gate: plain_gate, up: plain_up })
    }
}
