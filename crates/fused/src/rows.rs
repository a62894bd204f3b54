//! Tensors as rows of their last dimension, and back.
//!
//! In a new shape Burn takes a 0 for "as it was", so `[b, 0, d]` does not become `[0, d]`; `[0, b, d]` does.

use burn::tensor::Tensor;

/// `[.., d]`, where `d` is not 0, to `[n, d]`.
pub(crate) fn to_rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let shape = x.dims();
    let rows = [shape[..D - 1].iter().product(), shape[D - 1]];
    match shape.iter().position(|len| *len == 0) {
        Some(dim) => x.swap_dims(0, dim).reshape(rows),
        None => x.reshape(rows),
    }
}

/// `[n, d]`, where `d` is not 0, to `[.., d]`. What has two dimensions of 0 is not tracked.
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
