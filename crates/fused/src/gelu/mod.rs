//! GELU in its tanh form (arXiv 1606.08415), as in GPT-2.
//!
//! ```text
//! y  = 0.5 x (1 + tanh(u)) = x s,   u = sqrt(2/pi) (x + 0.044715 x^3),   s = sigmoid(2u) = 1 / (1 + exp(-2u))
//! dx = dy (s + x s (1 - s) 2u'),    2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//! ```
//!
//! It works element by element in f32 and rounds once. The backward keeps `x`, in its dtype.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use crate::ops::FusedOps;
use burn::backend::Dispatch;
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

pub(crate) fn forward_cpu<T: Element>(x: &[T]) -> Vec<T> {
    // SAFETY: `forward` sets all of `y`.
    unsafe { over_rows(1, x.len(), [x], |_, [x], y| forward(x, y)) }
}

pub(crate) fn backward_cpu<T: Element>(x: &[T], dy: &[T]) -> Vec<T> {
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
