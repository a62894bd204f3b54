//! The steps of the tape: a product, a sum and a norm.

use super::LinearAddNormOps;
use crate::linear::ProductOps;
use crate::linear::autodiff::{Add, linear_step};
use crate::norm::autodiff::Norm;
use crate::norm::{NormBackwardOps, NormRule};
use crate::step::step;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchKindConversion, DispatchTensor};

impl<B: LinearAddNormOps + ProductOps + NormBackwardOps, C: CheckpointStrategy> LinearAddNormOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    /// Computes everything at once; the tape records three steps: the product, which has no value, the sum and the
    /// norm.
    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [rows, matrix, added] = [&x, &weight, &bias].map(|input| input.primitive().clone());
        let [stream, factors, terms] = [&residual, &gain, &norm_bias].map(|input| input.primitive().clone());
        let (h, y) = B::fused_linear_add_norm(rows, matrix, added, stream, factors.clone(), terms, rule);
        let product = linear_step::<B, C>([&x, &weight, &bias], h.clone(), false, None);
        let sum = step::<B, C, _, 2>([&product, &residual], h.clone(), || Add);
        let y = step::<B, C, _, 3>([&sum, &gain, &norm_bias], y, || Norm::<B> { x: h, gain: factors, rule });
        (sum, y)
    }
}
