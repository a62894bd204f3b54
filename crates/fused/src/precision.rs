//! Widening of 16-bit floats.

use burn::tensor::{DType, Tensor};

/// Returns `x` in f32 if it is of a 16-bit float (bf16 or f16), otherwise unchanged.
pub fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::BF16 | DType::F16 => x.cast(DType::F32),
        _ => x,
    }
}
