//! Counts the kernels that a layer launches, forward and backward.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Tensor};
use fused::cube::{launches, testing};
use moe::MoeConfig;

#[test]
fn a_layer_launches_few_kernels() {
    let device = &testing::device().autodiff();
    let config = MoeConfig { num_experts: 4, moe_intermediate_size: 16, n_shared_experts: 1, ..MoeConfig::default() };
    let layer = config.init(16, device);
    let run = || {
        let x_btd = Tensor::<3>::ones([2, 8, 16], (device, DType::F32)).require_grad();
        let gradients = layer.forward(x_btd.clone(), None).y_btd.backward();
        x_btd.grad(&gradients).expect("a gradient of x").into_data();
    };
    // The first call tries some products.
    run();
    let names = launches(run);
    // It was 50 when this was written. Six of them make the table of tiles, once per grouped product.
    assert!(names.len() <= 56, "{} launches: {names:#?}", names.len());
}
