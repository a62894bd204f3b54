//! A tensor that reveals whether a computation reads results back to the host.

use super::launch::{Elements, empty_like};
#[cfg(feature = "offline")]
use super::offline::{KernelCase, buffer};
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use cubecl::prelude::*;

#[backend_extension(Cube, Fusion)]
trait Unreadable: Backend {
    #[fusion(meta = like)]
    fn unreadable(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

fn like(x: &TensorSpec) -> TensorSpec {
    x.clone()
}

impl Unreadable for CubeBackend {
    fn unreadable(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let y = empty_like(&x);
        let (count, dim) = (CubeCount::new_single(), CubeDim::new_1d(1));
        broken_kernel::launch(&y.client, count, dim, x.elements(), y.clone().elements());
        y
    }
}

/// Compiles on a GPU, but not on the CPU runtime, which has no plane instructions.
#[cube(launch)]
fn broken_kernel(x: &[f32], y: &mut [f32]) {
    y[0] = plane_sum(x[0]);
}

/// Returns a tensor of the shape of `x` that cannot be read: f32, on CubeCL's CPU runtime, without autodiff.
///
/// The kernel that makes it does not compile there. CubeCL skips every launch that would read its result, and reading a
/// number that depends on it fails. So a forward and backward panic if they read anything back. If they do not panic,
/// their gradients cannot be read, which shows that the host ran ahead of the device.
///
/// # Panics
/// If the result can be read, as on other devices.
pub fn unreadable<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let x = Tensor::<D>::from_dispatch(Dispatch::unreadable(x.into_dispatch()));
    x.clone().try_into_data().expect_err("made by a kernel that does not compile");
    x
}

/// Lists the kernel, because every kernel must be listed.
#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    vec![KernelCase::new("unreadable", |gpu| {
        let (s, d, t) = (gpu.settings(CubeDim::new_1d(1)), gpu.device(), gpu.target());
        broken_kernel::BrokenKernel::new(s, d, t, buffer(), buffer())
    })]
}
