//! Counts the kernels that an operation launches in its forward and backward.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Int, Tensor};
use fused::cube::{launches, testing};
use fused::{
    AdamWState, AdamWStep, DropoutKey, FusedAdamW, RopeTable, adamw, dropout, embedding, gelu, layer_norm,
    linear_cross_entropy_transposed, rms_norm, rope, silu_mul, sum_of_squares,
};

/// Returns the kernels of this crate that the second call of `run` launches; the first may also try kernels.
fn ours(run: impl Fn()) -> Vec<String> {
    run();
    let names = launches(&run).into_iter().filter(|name| name.contains("fused::"));
    names.map(|name| name.split("::").filter(|part| part.ends_with("_kernel")).collect()).collect()
}

/// Runs forward and backward of `op`.
fn trained<const D: usize>(op: impl Fn() -> Tensor<D>) -> Vec<String> {
    ours(|| {
        let y = op();
        let gradients = y.clone().backward();
        y.into_data();
        drop(gradients);
    })
}

#[test]
fn operations_launch_few_kernels() {
    let device = &testing::device().autodiff();
    let x = &Tensor::<2>::ones([6, 8], (device, DType::F32)).require_grad();
    let gain = &Tensor::<1>::ones([8], (device, DType::F32)).require_grad();
    let ids = &Tensor::<2, Int>::zeros([2, 3], device);
    assert_eq!(trained(|| gelu(x.clone())), ["gelu_kernel", "gelu_backward_kernel"]);
    assert_eq!(trained(|| silu_mul(x.clone(), x.clone())), ["silu_mul_kernel", "silu_mul_backward_kernel"]);
    let key = DropoutKey::derive(1, 2, 3, 4);
    assert_eq!(trained(|| dropout(x.clone(), 0.5, key)), ["dropout_kernel"; 2]);
    let table = RopeTable::new((0..24).map(f64::from), 1.0, 4, device);
    assert_eq!(trained(|| rope(x.clone().reshape([1, 1, 6, 8]), &table)), ["rope_kernel"; 2]);
    let norm = ["norm_kernel", "norm_backward_kernel", "norm_add_pieces_kernel"];
    assert_eq!(trained(|| rms_norm(x.clone(), gain.clone(), 1e-5)), norm);
    assert_eq!(trained(|| layer_norm(x.clone(), gain.clone(), Some(gain.clone()), 1e-5)), norm);
    let (matrix, none) = (&Tensor::<2>::ones([8, 8], (device, DType::F32)), None);
    let sum =
        || fused::linear_add_layer_norm(x.clone(), matrix.clone(), none.clone(), x.clone(), gain.clone(), None, 1e-5);
    assert_eq!(trained(|| sum().into_iter().fold(x.clone(), Tensor::add)), [&["add_norm_kernel"], &norm[1..]].concat());
    let backward =
        ["count", "scan", "scan_blocks", "place", "parts", "sum"].map(|part| format!("embedding_{part}_kernel"));
    let expected: Vec<String> = std::iter::once("embedding_kernel".into()).chain(backward).collect();
    assert_eq!(trained(|| embedding(x.clone(), ids.clone())), expected);
    let targets = || ids.clone().reshape([6]);
    let found = trained(|| linear_cross_entropy_transposed(x.clone(), x.clone(), targets(), 0.0).cross_entropy);
    assert_eq!(found, ["cross_entropy_loss_kernel", "cross_entropy_mean_kernel"]);

    let values = Tensor::<1>::ones([48], (&testing::device(), DType::F32));
    assert_eq!(ours(|| _ = sum_of_squares(values.clone())), ["sum_of_squares_kernel"]);
    let parts = || (0..9).map(|i| (48 * i, values.clone())).collect();
    let flat = || _ = fused::flatten(parts(), 9 * 48, DType::F32, &testing::device()).into_data();
    assert_eq!(ours(flat), ["flatten_kernel"; 2]);
    let clip = || {
        let sum = fused::add_sum_of_squares(values.zeros_like().narrow(0, 0, 2), values.clone(), 1.0);
        _ = fused::clip_factor(sum, fused::ClipRule { count: 1.0, limit: Some(1.0) }).into_data();
    };
    assert_eq!(ours(clip), ["sum_of_squares_kernel", "sum_of_squares_add_parts_kernel", "clip_factor_kernel"]);
    let step = AdamWStep { lr: 0.1, decayed: 48, gradient_scale: 1.0, factor: None, copy: None };
    let steps = |count| {
        let run = || {
            let (mut parameter, mut state) = (values.clone(), AdamWState::new(&values));
            for _ in 0..count {
                parameter = adamw(&FusedAdamW::default(), &step, parameter, values.clone(), &mut state).0;
            }
            parameter.into_data();
        };
        launches(run).len()
    };
    // The first step copies the parameter, which has another owner; the others update it in place.
    assert_eq!([steps(2) - steps(1), steps(3) - steps(2)], [1, 1]);
}
