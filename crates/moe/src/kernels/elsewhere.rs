//! Operations on backends without kernels.
//!
//! Operations with gradients are composed of Burn's operations. Operations on integers, which have no gradients, run on
//! the CPU with `flex`: the result is the same, and the device waits for it.

use burn::tensor::{Device, Int, Tensor};

/// Runs an operation of integers on the CPU.
pub(super) fn on_cpu<const D: usize, const E: usize>(
    x: Tensor<D, Int>,
    op: impl FnOnce(Tensor<D, Int>) -> Tensor<E, Int>,
) -> Tensor<E, Int> {
    let device = x.device();
    op(x.to_device(&Device::flex())).to_device(&device)
}

/// Indices for Burn's operations: of the device's own type, because LibTorch gathers by i64 and WebGPU has only i32.
/// A -1 becomes 0; the caller masks the values at these places.
pub(super) fn indices<const D: usize>(x: Tensor<D, Int>) -> Tensor<D, Int> {
    let dtype = x.device().settings().int_dtype;
    x.cast(dtype).clamp_min(0)
}
