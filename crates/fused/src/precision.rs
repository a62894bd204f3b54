use burn::tensor::{DType, Tensor};

/// `x` in f32 where it is of a shorter float (bf16, f16), else as it is.
pub fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::BF16 | DType::F16 => x.cast(DType::F32),
        _ => x,
    }
}
