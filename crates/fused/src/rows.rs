//! Conversion of tensors to rows of their last dimension, and back.
//!
//! Burn reads a 0 in a new shape as "keep this dimension", so `[b, 0, d]` cannot become `[0, d]`, but `[0, b, d]` can.

use burn::tensor::Tensor;

/// Reshapes `[.., d]` to `[n, d]`, where `d` is not 0.
pub(crate) fn to_rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let shape = x.dims();
    let rows = [shape[..D - 1].iter().product(), shape[D - 1]];
    match shape.iter().position(|len| *len == 0) {
        Some(dim) => x.swap_dims(0, dim).reshape(rows),
        None => x.reshape(rows),
    }
}

/// Reshapes `[n, d]` to `[.., d]`, where `d` is not 0. A result with two dimensions of 0 is not tracked.
pub(crate) fn from_rows<const D: usize>(rows: Tensor<2>, mut shape: [usize; D]) -> Tensor<D> {
    let mut empty = (0..D).filter(|dim| shape[*dim] == 0);
    match (empty.next(), empty.next()) {
        (None, _) => rows.reshape(shape),
        (Some(dim), None) => {
            shape.swap(0, dim);
            rows.reshape(shape).swap_dims(0, dim)
        }
        _ => Tensor::zeros(shape, (&rows.device(), rows.dtype())),
    }
}
