//! The gate of a SwiGLU (arXiv 2002.05202).
//!
//! ```text
//! y = silu(gate) * up,   silu(g) = g s,   s = 1 / (1 + exp(-g))
//! backward   d_up = dy g s,   d_gate = dy up s (1 + g (1 - s))
//! ```
//!
//! It works element by element in f32 and rounds once. The backward keeps `gate` and `up`, in their dtype.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::backend::has_kernels;
use crate::check::Call;
use crate::precision::widened;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, activation};
use cpu::math::{TASK, over_rows, sigmoid};
use cpu::{Element, Pieces, team, vectorised, written};
use std::mem::MaybeUninit;

/// Computes `silu(gate) * up` for two tensors of one shape and dtype.
///
/// # Panics
/// If their shapes or types differ, or if they are not f32, bf16 or f16.
pub fn silu_mul<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    let call = Call("silu_mul");
    call.float("gate", gate.dtype());
    call.dtype("up", up.dtype(), gate.dtype());
    call.shape("up", up.dims(), gate.dims());
    if !has_kernels(&gate.device()) {
        let dtype = gate.dtype();
        return (activation::silu(widened(gate)) * widened(up)).cast(dtype);
    }
    Tensor::from_dispatch(Dispatch::fused_silu_mul(gate.into_dispatch(), up.into_dispatch()))
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait SiluMulOps: Backend {
    /// Maps `gate` and `up` to `silu(gate) * up`.
    #[fusion(meta = |gate, _| gate.clone())]
    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Its gradient.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait SiluMulBackwardOps: Backend {
    /// Returns the gradients of `gate` and `up`.
    #[fusion(meta = |gate, up, _| (gate.clone(), up.clone()))]
    fn fused_silu_mul_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl SiluMulOps for Flex {
    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gate, up) = (contiguous(&gate), contiguous(&up));
        with_float!(gate.dtype(), T => float(forward_cpu::<T>(slice(&gate), slice(&up)), gate.shape()))
    }
}

impl SiluMulBackwardOps for Flex {
    fn fused_silu_mul_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (gate, up, d_y) = (contiguous(&gate), contiguous(&up), contiguous(&d_y));
        with_float!(gate.dtype(), T => {
            let (d_gate, d_up) = backward_cpu::<T>(slice(&gate), slice(&up), slice(&d_y));
            (float(d_gate, gate.shape()), float(d_up, gate.shape()))
        })
    }
}

fn forward_cpu<T: Element>(gate: &[T], up: &[T]) -> Vec<T> {
    // SAFETY: `forward` sets all of `y`.
    unsafe { over_rows(1, gate.len(), [gate, up], |_, [gate, up], y| forward(gate, up, y)) }
}

/// Returns the gradients of gate and up.
fn backward_cpu<T: Element>(gate: &[T], up: &[T], dy: &[T]) -> (Vec<T>, Vec<T>) {
    let mut d_up = vec![];
    let write = |d_gate: &mut [MaybeUninit<T>]| {
        // SAFETY: `gradients` sets all of both outputs.
        d_up = unsafe { written(gate.len(), |d_up| gradients(gate, up, dy, d_gate, d_up)) };
    };
    // SAFETY: as above.
    let d_gate = unsafe { written(gate.len(), write) };
    (d_gate, d_up)
}

/// Sets all of `d_gate` and `d_up`.
fn gradients<T: Element>(gate: &[T], up: &[T], dy: &[T], d_gate: &mut [MaybeUninit<T>], d_up: &mut [MaybeUninit<T>]) {
    let (d_gate, d_up) = (Pieces::new(d_gate), Pieces::new(d_up));
    team::for_each(gate.len().div_ceil(TASK), |i| {
        let piece = i * TASK..gate.len().min((i + 1) * TASK);
        // SAFETY: the parts of tasks are disjoint.
        let (d_gate, d_up) = unsafe { (d_gate.part(i, TASK), d_up.part(i, TASK)) };
        backward(&gate[piece.clone()], &up[piece.clone()], &dy[piece], d_gate, d_up);
    });
}

vectorised! {
    fn forward<T: Element>(gate: &[T], up: &[T], y: &mut [MaybeUninit<T>]) {
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            let gate = gate.to_f32();
            y.write(T::from_f32(gate * sigmoid(gate) * up.to_f32()));
        }
    }
}

vectorised! {
    /// Uses `silu'(g) = s + g s (1 - s)` with `s = sigmoid(g)`.
    fn backward<T: Element>(gate: &[T], up: &[T], dy: &[T], d_gate: &mut [MaybeUninit<T>], d_up: &mut [MaybeUninit<T>]) {
        let outputs = d_gate.iter_mut().zip(d_up);
        for ((d_gate, d_up), ((gate, up), dy)) in outputs.zip(gate.iter().zip(up).zip(dy)) {
            let (gate, dy) = (gate.to_f32(), dy.to_f32());
            let s = sigmoid(gate);
            d_up.write(T::from_f32(dy * gate * s));
            d_gate.write(T::from_f32(dy * up.to_f32() * s * (1.0 + gate * (1.0 - s))));
        }
    }
}
