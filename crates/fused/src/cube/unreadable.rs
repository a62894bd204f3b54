//! A tensor that shows whether a computation reads something back.

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

/// The CPU runtime has no instructions for planes; on a GPU it compiles.
#[cube(launch)]
fn broken_kernel(x: &[f32], y: &mut [f32]) {
    y[0] = plane_sum(x[0]);
}

/// A tensor of the shape of `x`, f32 on CubeCL's CPU runtime and without autodiff, that nobody can read.
///
/// It is made by a kernel that does not compile there. CubeCL leaves out whatever launch would read its result, and
/// whoever reads a number that depends on it gets an error. So a forward and a backward that read something on their
/// way panic, and those that do not end in gradients that cannot be read: the host ran ahead of the device.
///
/// # Panics
/// If the result can be read, as on other devices.
pub fn unreadable<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let x = Tensor::<D>::from_dispatch(Dispatch::unreadable(x.into_dispatch()));
    x.clone().try_into_data().expect_err("made by a kernel that does not compile");
    x
}

/// The kernel, since all are.
#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    vec![KernelCase::new("unreadable", |gpu| {
        let (s, d, t) = (gpu.settings(CubeDim::new_1d(1)), gpu.device(), gpu.target());
        broken_kernel::BrokenKernel::new(s, d, t, buffer(), buffer())
    })]
}
