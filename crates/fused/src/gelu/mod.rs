//! GELU in its tanh form (arXiv 1606.08415), as in GPT-2.
//!
//! ```text
//! y  = 0.5 x (1 + tanh(u)) = x s,   u = sqrt(2/pi) (x + 0.044715 x^3),   s = sigmoid(2u) = 1 / (1 + exp(-2u))
//! dx = dy (s + x s (1 - s) 2u'),    2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//! ```
//!
//! It works element by element in f32 and rounds once. The backward keeps `x`, in its dtype.

pub(crate) mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use cpu::math::{GELU_CUBIC, GELU_FACTOR, gelu as of_one, over_rows, sigmoid};
use cpu::{Element, vectorised};
use std::mem::MaybeUninit;

/// Applies GELU in its tanh form to a tensor of any shape.
///
/// # Panics
/// If `x` is not f32, bf16 or f16.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Call("gelu").float("x", x.dtype());
    Tensor::from_dispatch(Dispatch::fused_gelu(x.into_dispatch()))
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait GeluOps: Backend {
    /// Maps `x` to `gelu(x)`.
    #[fusion(meta = |x| x.clone())]
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Its gradient.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait GeluBackwardOps: Backend {
    /// Maps `x` and the gradient of `gelu(x)` to that of `x`.
    #[fusion(meta = |x, _| x.clone())]
    fn fused_gelu_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl GeluOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = contiguous(&x);
        with_float!(x.dtype(), T => float(forward_cpu::<T>(slice(&x)), x.shape()))
    }
}

impl GeluBackwardOps for Flex {
    fn fused_gelu_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (contiguous(&x), contiguous(&d_y));
        with_float!(x.dtype(), T => float(backward_cpu::<T>(slice(&x), slice(&d_y)), x.shape()))
    }
}

fn forward_cpu<T: Element>(x: &[T]) -> Vec<T> {
    // SAFETY: `forward` sets all of `y`.
    unsafe { over_rows(1, x.len(), [x], |_, [x], y| forward(x, y)) }
}

fn backward_cpu<T: Element>(x: &[T], dy: &[T]) -> Vec<T> {
    // SAFETY: `backward` sets all of `dx`.
    unsafe { over_rows(1, x.len(), [x, dy], |_, [x, dy], dx| backward(x, dy, dx)) }
}

vectorised! {
    fn forward<T: Element>(x: &[T], y: &mut [MaybeUninit<T>]) {
        for (y, x) in y.iter_mut().zip(x) {
            y.write(T::from_f32(of_one(x.to_f32())));
        }
    }
}

vectorised! {
    fn backward<T: Element>(x: &[T], dy: &[T], dx: &mut [MaybeUninit<T>]) {
        for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
            let (x, dy) = (x.to_f32(), dy.to_f32());
            let s = sigmoid(GELU_FACTOR * (x + GELU_CUBIC * x * x * x));
            dx.write(T::from_f32(dy * (s + x * s * (1.0 - s) * GELU_FACTOR * (1.0 + 3.0 * GELU_CUBIC * x * x))));
        }
    }
}
