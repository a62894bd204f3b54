//! The step of the tape of norms.

use super::{NormBackwardOps, NormOps, NormRule};
use crate::step::{Gradient, step};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;

#[derive(Debug, Clone)]
pub(crate) struct Norm<B: Backend> {
    pub x: FloatTensor<B>,
    pub gain: FloatTensor<B>,
    pub rule: NormRule,
}

impl<B: NormBackwardOps> Gradient<B, 3> for Norm<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        <[_; 3]>::from(B::fused_norm_backward(self.x, self.gain, d_y, self.rule)).map(Some)
    }
}

impl<B: NormOps + NormBackwardOps, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self> {
        let (rows, factors) = (x.primitive().clone(), gain.primitive().clone());
        let y = B::fused_norm(rows.clone(), factors.clone(), bias.primitive().clone(), rule);
        step::<B, C, _, 3>([&x, &gain, &bias], y, || Norm::<B> { x: rows, gain: factors, rule })
    }
}
