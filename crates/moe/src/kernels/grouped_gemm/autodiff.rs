//! The step of the tape of [`grouped_gemm`](super::grouped_gemm()).

use super::{GroupedGemmBackwardOps, GroupedGemmOps};
use burn::backend::Backend;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use fused::step::{Gradient, step};

#[derive(Debug, Clone)]
struct GroupedGemm<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    expert_offsets: IntTensor<B>,
}

impl<B: GroupedGemmOps + GroupedGemmBackwardOps> Gradient<B, 2> for GroupedGemm<B> {
    const WEIGHT: Option<usize> = Some(1);

    fn of(self, d_y: FloatTensor<B>, [x, weight]: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let Self { x: rows, weight: matrices, expert_offsets } = self;
        let d_x = x.then(|| B::moe_grouped_gemm(d_y.clone(), matrices, expert_offsets.clone(), true));
        [d_x, weight.then(|| B::moe_grouped_gemm_weight(rows, d_y, expert_offsets))]
    }

    fn of_weight_into(self, d_y: FloatTensor<B>, flat: FloatTensor<B>, start: usize) -> FloatTensor<B> {
        B::moe_grouped_gemm_weight_into(self.x, d_y, self.expert_offsets, flat, start)
    }
}

impl<B: GroupedGemmOps + GroupedGemmBackwardOps, C: CheckpointStrategy> GroupedGemmOps for Autodiff<B, C> {
    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        assert!(!transposed, "grouped_gemm has first derivatives only");
        let (rows, matrices) = (x.primitive().clone(), weight.primitive().clone());
        let y = B::moe_grouped_gemm(rows.clone(), matrices.clone(), expert_offsets.clone(), false);
        step::<B, C, _, 2>([&x, &weight], y, || GroupedGemm { x: rows, weight: matrices, expert_offsets })
    }
}
