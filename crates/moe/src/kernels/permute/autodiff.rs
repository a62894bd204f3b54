//! The steps of the tape of both directions.

use super::{PermuteBackwardOps, PermuteOps};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::step::{Gradient, step};

#[derive(Debug, Clone)]
struct Permute<B: Backend> {
    slot: IntTensor<B>,
}

impl<B: PermuteBackwardOps> Gradient<B, 1> for Permute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::moe_permute_backward(d_y, self.slot))]
    }
}

#[derive(Debug, Clone)]
struct Unpermute<B: Backend> {
    y: FloatTensor<B>,
    gates: FloatTensor<B>,
    source: IntTensor<B>,
    slot: IntTensor<B>,
}

impl<B: PermuteBackwardOps> Gradient<B, 2> for Unpermute<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_rows, d_gates) = B::moe_unpermute_backward(self.y, self.gates, self.source, self.slot, d_y);
        [Some(d_rows), Some(d_gates)]
    }
}

impl<B: PermuteOps + PermuteBackwardOps, C: CheckpointStrategy> PermuteOps for Autodiff<B, C> {
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
}
