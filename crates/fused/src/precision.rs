use burn::tensor::{DType, Tensor};

/// `x` in f32 where it is of a shorter float (bf16, f16), else as it is.
pub fn widened<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::BF16 | DType::F16 => x.cast(DType::F32),
        _ => x,
    }
}

/// `op` of `x`, in f32 where `x` is of a shorter float, and rounded to that again: once, and not at every step of a formula.
pub(crate) fn rounded<const D: usize>(x: Tensor<D>, op: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    op(widened(x)).cast(dtype)
}
