//! Checks that the host runs ahead of a device: no operation and no layer reads a result back in its forward or
//! backward.
#![cfg(feature = "cpu-jit")]

use burn::tensor::{DType, Device, Int, Tensor};
use fused::cube::unreadable;
use fused::{DropoutKey, dropout, embedding, gelu, layer_norm, linear_cross_entropy_transposed, silu_mul};
use moe::MoeConfig;

fn gradient<const D: usize, const E: usize>(x: Tensor<D>, op: impl Fn(Tensor<D>) -> Tensor<E>) -> Tensor<D> {
    let x = x.autodiff().require_grad();
    let gradients = op(x.clone()).backward();
    x.grad(&gradients).expect("a gradient of x")
}

/// Checks forward and backward of an operation on a tensor like `x`.
fn ahead<const D: usize, const E: usize>(x: Tensor<D>, op: impl Fn(Tensor<D>) -> Tensor<E>) {
    // The first call may try several products, which waits for the device.
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
        // Makes the gradient depend on the table.
        silu_mul(y.clone(), y)
    });
    ahead(x(), |x| linear_cross_entropy_transposed(x.clone(), x, ids.clone().reshape([6]), 0.0).cross_entropy);
}

#[test]
fn a_layer_reads_nothing_on_its_way() {
    let device = &Device::cpu();
    let config = MoeConfig { num_experts: 4, moe_intermediate_size: 16, n_shared_experts: 1, ..MoeConfig::default() };
    let layer = config.init(16, &device.clone().autodiff());
    ahead(Tensor::<3>::ones([2, 8, 16], (device, DType::F32)), |x_btd| layer.forward(x_btd, None).y_btd);
}
