//! The step of the tape of rotations.

use super::{RopeOps, RopeRule};
use crate::step::{Gradient, step};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;

#[derive(Debug, Clone)]
struct Rope<B: Backend> {
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    rule: RopeRule,
}

impl<B: RopeOps> Gradient<B, 1> for Rope<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_rope(d_y, self.cos, self.sin, RopeRule { back: true, ..self.rule }))]
    }
}

impl<B: RopeOps, C: CheckpointStrategy> RopeOps for Autodiff<B, C> {
    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self> {
        assert!(!rule.back, "a rotation has first derivatives only");
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::fused_rope(x.primitive().clone(), cos.clone(), sin.clone(), rule);
        step::<B, C, _, 1>([&x], y, || Rope::<B> { cos, sin, rule })
    }
}
