//! The step of the tape of [`gelu`](super::gelu).

use super::{GeluBackwardOps, GeluOps};
use crate::step::{Gradient, step};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;

#[derive(Debug, Clone)]
pub(crate) struct Gelu<B: Backend>(pub FloatTensor<B>);

impl<B: GeluBackwardOps> Gradient<B, 1> for Gelu<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_gelu_backward(self.0, d_y))]
    }
}

impl<B: GeluOps + GeluBackwardOps, C: CheckpointStrategy> GeluOps for Autodiff<B, C> {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let plain = x.primitive().clone();
        step::<B, C, _, 1>([&x], B::fused_gelu(plain.clone()), || Gelu::<B>(plain))
    }
}
