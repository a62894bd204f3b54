//! The step of the tape, whose gradients the forward computes.

use super::{CrossEntropyBackwardOps, CrossEntropyOps, CrossEntropyRule};
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::DType;

/// The gradients that the forward has computed, for a cotangent equal to the number of rows, which keeps them in the
/// range of f16.
#[derive(Debug, Clone)]
struct CrossEntropy<B: Backend> {
    d_x: FloatTensor<B>,
    d_head: FloatTensor<B>,
}

impl<B: Backend> Gradient<B, 2> for CrossEntropy<B> {
    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (rows, dtype) = (self.d_x.shape()[0], self.d_x.dtype());
        let by = B::float_div_scalar(B::float_reshape(d_y, [1, 1].into()), (rows as f32).into());
        // Multiplied in f32, because the cotangent may be a loss scale beyond the range of f16.
        let scaled = |gradient: FloatTensor<B>| {
            let wide =
                if gradient.dtype() == DType::F32 { gradient } else { B::float_cast(gradient, DType::F32.into()) };
            let scaled = B::float_mul(wide, by.clone());
            if dtype == DType::F32 { scaled } else { B::float_cast(scaled, dtype.into()) }
        };
        [wanted[0].then(|| scaled(self.d_x)), wanted[1].then(|| scaled(self.d_head))]
    }
}

impl<B: CrossEntropyOps + CrossEntropyBackwardOps, C: CheckpointStrategy> CrossEntropyOps for Autodiff<B, C> {
    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (rows, matrix) = (x.primitive().clone(), head.primitive().clone());
        if !x.is_tracked() && !head.is_tracked() {
            let (cross_entropy, z_loss) = B::fused_cross_entropy(rows, matrix, targets, rule);
            return (Self::from_inner(cross_entropy), Self::from_inner(z_loss));
        }
        let (cross_entropy, z_loss, d_x, d_head) = B::fused_cross_entropy_with_gradients(rows, matrix, targets, rule);
        let tracked = step::<B, C, _, 2>([&x, &head], cross_entropy, || CrossEntropy::<B> { d_x, d_head });
        (tracked, Self::from_inner(z_loss))
    }
}
