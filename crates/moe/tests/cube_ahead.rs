//! The host runs ahead of a device: no operation and no step of a layer, forward or backward, waits for a number of it.
//!
//! The input is made by a kernel that does not compile. CubeCL leaves out whatever launch would read its result, and whoever reads a number
//! that depends on it gets an error. So a forward and a backward that read something on their way panic, and those that do not end in gradients that
//! cannot be read.
#![cfg(feature = "cpu-jit")]

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_cubecl::CubeBackend;
use cubecl::prelude::*;
use fused::cube::launch::empty_like;
use fused::{DropoutKey, dropout, embedding, gelu, layer_norm, linear_cross_entropy_transposed, silu_mul};
use moe::{MoeConfig, MoeLayer};

#[backend_extension(Cube, Fusion)]
trait Unreadable: Backend {
    /// A tensor of the shape of `x` that nobody can read.
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
        broken_kernel::launch(&y.client, count, dim, x.into_buffer_arg(), y.clone().into_buffer_arg());
        y
    }
}

/// The CPU runtime has no instructions for planes.
#[cube(launch)]
fn broken_kernel(x: &[f32], y: &mut [f32]) {
    y[0] = plane_sum(x[0]);
}

fn unreadable<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let x = Tensor::<D>::from_dispatch(Dispatch::unreadable(x.into_dispatch()));
    x.clone().try_into_data().expect_err("made by a kernel that does not compile");
    x
}

fn gradient<const D: usize, const E: usize>(x: Tensor<D>, op: impl Fn(Tensor<D>) -> Tensor<E>) -> Tensor<D> {
    let x = x.autodiff().require_grad();
    let gradients = op(x.clone()).backward();
    x.grad(&gradients).expect("a gradient of x")
}

/// Forward and backward of an operation of a tensor like `x`.
fn ahead<const D: usize, const E: usize>(x: Tensor<D>, op: impl Fn(Tensor<D>) -> Tensor<E>) {
    // At the first time products may be tried, which waits.
    gradient(x.clone(), &op).try_into_data().expect("a gradient that can be read");
    gradient(unreadable(x), &op).try_into_data().expect_err("it depends on what cannot be read");
}

#[test]
fn operations_read_nothing_on_their_way() {
    let device = &Device::cpu();
    let x = || Tensor::<2>::ones([6, 8], (device, DType::F32));
    let ids = Tensor::<2, Int>::zeros([2, 3], &device.clone().autodiff());
    let gain = Tensor::<1>::ones([8], (&device.clone().autodiff(), DType::F32));
    ahead(x(), |x| gelu(layer_norm(silu_mul(x.clone(), x), gain.clone(), None, 1e-5)));
    ahead(x(), |weight| {
        let y = dropout(embedding(weight, ids.clone()), 0.5, DropoutKey::derive(1, 2, 3, 4));
        // So that the gradient depends on the table.
        silu_mul(y.clone(), y)
    });
    ahead(x(), |x| linear_cross_entropy_transposed(x.clone(), x, ids.clone().reshape([6]), 0.0).cross_entropy);
}

#[test]
fn a_layer_reads_nothing_on_its_way() {
    let device = &Device::cpu();
    let config = MoeConfig { num_experts: 4, moe_intermediate_size: 16, n_shared_experts: 1, ..MoeConfig::default() };
    let layer = MoeLayer::new(16, &config, &device.clone().autodiff());
    ahead(Tensor::<3>::ones([2, 8, 16], (device, DType::F32)), |x_btd| layer.forward(x_btd, None).y_btd);
}
