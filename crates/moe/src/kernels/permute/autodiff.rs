//! The steps of the tape of both directions.

use super::{PermuteBackwardOps, PermuteOps};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::step::{Gradient, step};

#[derive(Debug, Clone)]
struct Permute<B: Backend> {
    row_of: IntTensor<B>,
}

impl<B: PermuteBackwardOps> Gradient<B, 1> for Permute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_permute_backward(d_y, self.row_of))]
    }
}

#[derive(Debug, Clone)]
struct Unpermute<B: Backend> {
    y: FloatTensor<B>,
    gates: FloatTensor<B>,
    assignment_of: IntTensor<B>,
    row_of: IntTensor<B>,
}

impl<B: PermuteBackwardOps> Gradient<B, 2> for Unpermute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_rows, d_gates) = B::moe_unpermute_backward(self.y, self.gates, self.assignment_of, self.row_of, d_y);
        [Some(d_rows), Some(d_gates)]
    }
}

impl<B: PermuteOps + PermuteBackwardOps, C: CheckpointStrategy> PermuteOps for Autodiff<B, C> {
    fn moe_permute(x: FloatTensor<Self>, assignment_of: IntTensor<Self>, row_of: IntTensor<Self>) -> FloatTensor<Self> {
        let rows = B::moe_permute(x.primitive().clone(), assignment_of, row_of.clone());
        step::<B, C, _, 1>([&x], rows, || Permute { row_of })
    }

    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        assignment_of: IntTensor<Self>,
        row_of: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (rows, plain) = (y.primitive().clone(), gates.primitive().clone());
        let tokens = B::moe_unpermute(rows.clone(), plain.clone(), assignment_of.clone(), row_of.clone());
        step::<B, C, _, 2>([&y, &gates], tokens, || Unpermute { y: rows, gates: plain, assignment_of, row_of })
    }
}
