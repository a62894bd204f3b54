//! The step of the tape of [`dropout`](super::dropout).

use super::{DropoutOps, DropoutRule};
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;

#[derive(Debug, Clone)]
struct Dropout(DropoutRule);

impl<B: DropoutOps> Gradient<B, 1> for Dropout {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_dropout(d_y, self.0))]
    }
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        step::<B, C, _, 1>([&x], B::fused_dropout(x.primitive().clone(), rule), || Dropout(rule))
    }
}
