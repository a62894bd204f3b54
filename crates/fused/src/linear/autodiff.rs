//! The steps of the tape of linear layers.

use super::{Again, LinearOps, ProductOps};
use crate::gelu::GeluBackwardOps;
use crate::gelu::autodiff::Gelu;
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor, TensorMetadata};

/// Records the product `y` of `x` and `weight`, plus a bias, on the tape.
pub(crate) fn linear_step<B: ProductOps, C: CheckpointStrategy>(
    inputs: [&FloatTensor<Autodiff<B, C>>; 3],
    y: FloatTensor<B>,
    transposed: bool,
    again: Option<Again>,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let [x, weight, _] = inputs;
    step::<B, C, _, 3>(inputs, y, || Linear::<B> {
        x: again.map_or_else(|| Kept::Here(x.primitive().clone()), Kept::Again),
        weight: weight.primitive().clone(),
        transposed,
    })
}

#[derive(Debug, Clone)]
struct Linear<B: Backend> {
    x: Kept<B>,
    weight: FloatTensor<B>,
    transposed: bool,
}

impl<B: ProductOps> Gradient<B, 3> for Linear<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    const WEIGHT: Option<usize> = Some(1);

    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let x = match self.x {
            Kept::Again(_) if !wanted[1] => B::float_empty([0, 0].into(), &d_y.device(), d_y.dtype().into()),
            x => x.rows(),
        };
        let (d_x, d_weight, d_bias) = B::fused_linear_backward(x, self.weight, d_y, self.transposed, wanted);
        let mut wanted = wanted.into_iter();
        [d_x, d_weight, d_bias].map(|gradient| wanted.next().expect("three of both").then_some(gradient))
    }

    /// `x^T dy` does not need the weight itself, only that one exists.
    fn of_weight_alone(self) -> Self {
        let none = B::float_empty([0, 0].into(), &self.weight.device(), self.weight.dtype().into());
        Self { weight: none, ..self }
    }

    fn of_weight_into(self, d_y: FloatTensor<B>, flat: FloatTensor<B>, start: usize) -> FloatTensor<B> {
        let x = self.x.rows();
        let (a, b) = if self.transposed { (d_y, x) } else { (x, d_y) };
        B::fused_product_into(B::float_transpose(a), b, flat, start)
    }
}

/// The rows that the gradient of a matrix needs, kept or recomputed.
#[derive(Debug, Clone)]
enum Kept<B: Backend> {
    Here(FloatTensor<B>),
    Again(Again),
}

impl<B: Backend> Kept<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn rows(self) -> FloatTensor<B> {
        match self {
            Self::Here(x) => x,
            Self::Again(again) => {
                again.rows().try_into_primitive::<B>().expect("the rows are on the gradient's backend")
            }
        }
    }
}

/// The gradient of a sum of two tensors.
#[derive(Debug, Clone)]
pub(crate) struct Add;

impl<B: Backend> Gradient<B, 2> for Add {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        [Some(d_y.clone()), Some(d_y)]
    }
}

impl<B: LinearOps + ProductOps + GeluBackwardOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        again: Option<Again>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        linear_step::<B, C>(inputs, B::fused_linear(rows, matrix, added, transposed, None), transposed, again)
    }

    /// Computes everything at once; the tape records two steps.
    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        again: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        let (y, pre) = B::fused_linear_gelu(rows, matrix, added, None);
        let tracked = linear_step::<B, C>(inputs, pre.clone(), false, again);
        (step::<B, C, _, 1>([&tracked], y, || Gelu::<B>(pre)), tracked)
    }

    /// Computes everything at once; the tape records two steps, the first of which has no value.
    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        let y = B::fused_linear_add(rows, matrix, added, residual.primitive().clone());
        let tracked = linear_step::<B, C>(inputs, y.clone(), false, None);
        step::<B, C, _, 2>([&tracked, &residual], y, || Add)
    }
}
