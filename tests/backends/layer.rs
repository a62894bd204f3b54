//! The expert layer on a backend without kernels, compared with `flex`: `bash scripts/check-backends.sh`.

// Burn will remove NdArray. Until then, it is the backend without kernels that needs neither a library nor a device.
#![allow(deprecated)]

use burn::module::{Module, Param};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Int, Tensor};
use moe::kernels::grouped_gemm::{grouped_gemm, rows_gradient, weight_gradient};
use moe::{MoeConfig, MoeLayer, MoeOutput, NoiseKey, Overflow, ScoreFunc};

const WIDTH: usize = 12;
const NOISE: NoiseKey = NoiseKey { key: 7, first_row: 3 };

fn configs() -> Vec<(&'static str, MoeConfig)> {
    let plain = MoeConfig::new(8).with_aux_loss_coef(0.1).with_z_loss_coef(0.01);
    let deepseek = plain
        .clone()
        .with_score_func(ScoreFunc::Sigmoid)
        .with_selection_bias(true)
        .with_bias_update_speed(0.01)
        .with_n_group(4)
        .with_topk_group(2)
        .with_top_k(3)
        .with_n_shared_experts(2)
        .with_routed_scaling_factor(2.5);
    let limited = deepseek.clone().with_capacity_factor(Some(0.7)).with_router_noise(0.1);
    vec![
        ("softmax", plain.clone().with_norm_topk_prob(false)),
        ("sigmoid in groups with a bias and shared experts", deepseek),
        ("with a capacity and noise", limited.clone()),
        ("rerouted", limited.with_overflow(Overflow::Reroute)),
    ]
}

/// A layer with the parameters of `of`, each tracked as there.
fn on(device: &Device, config: &MoeConfig, of: &MoeLayer) -> MoeLayer {
    fn moved<const D: usize>(from: &Param<Tensor<D>>, device: &Device) -> Param<Tensor<D>> {
        Param::from_data(from.val().into_data(), device)
    }
    let mut layer = config.init(WIDTH, device);
    layer.router.proj.weight = moved(&of.router.proj.weight, device);
    layer.router.bias = of.router.bias.as_ref().map(|bias| moved(bias, device).no_grad());
    layer.experts.gate_proj = moved(&of.experts.gate_proj, device);
    layer.experts.up_proj = moved(&of.experts.up_proj, device);
    layer.experts.down_proj = moved(&of.experts.down_proj, device);
    if let (Some(shared), Some(of)) = (&mut layer.shared_experts, &of.shared_experts) {
        shared.gate_proj.weight = moved(&of.gate_proj.weight, device);
        shared.up_proj.weight = moved(&of.up_proj.weight, device);
        shared.down_proj.weight = moved(&of.down_proj.weight, device);
    }
    layer
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i64> {
    tensor.into_data().iter::<i64>().collect()
}

/// Everything that can be read from an output.
fn numbers(output: &MoeOutput) -> (Vec<Vec<i64>>, Vec<Vec<f32>>) {
    let stats = &output.stats;
    let counts = [stats.assigned_e(), stats.kept_e(), stats.dropped_e()].map(ints).to_vec();
    let aux_loss = output.aux_loss.clone().expect("its coefficients are not 0");
    (counts, vec![floats(output.y_btd.clone()), floats(aux_loss), floats(stats.gate_mass_e())])
}

/// Choices and counts, and outputs and gradients, of a layer and of its evaluation.
fn run(layer: MoeLayer, x: &Tensor<3>, device: &Device) -> (Vec<Vec<i64>>, Vec<Vec<f32>>) {
    let x = Tensor::<3>::from_data(x.to_data(), device).require_grad();
    let [b, t, d] = x.dims();
    let routing = layer.router.forward(x.clone().reshape([b * t, d]), t, Some(NOISE));
    let output = layer.forward(x.clone(), Some(NOISE));
    let (mut counts, mut values) = numbers(&output);
    let (more_counts, more_values) = numbers(&layer.evaluate(x.clone()));
    counts.extend(more_counts.into_iter().chain([ints(routing.candidates_cn)]));
    values.extend(more_values);

    let loss = output.y_btd.powi_scalar(2).sum() + output.aux_loss.expect("as above");
    let gradients = loss.backward();
    fn of<const D: usize>(leaf: Tensor<D>, gradients: &burn::tensor::Gradients) -> Vec<f32> {
        floats(leaf.grad(gradients).expect("a gradient"))
    }
    values.push(of(x, &gradients));
    values.push(of(layer.router.proj.weight.val(), &gradients));
    for weight in [&layer.experts.gate_proj, &layer.experts.up_proj, &layer.experts.down_proj] {
        values.push(of(weight.val(), &gradients));
    }
    if let Some(shared) = &layer.shared_experts {
        values.extend([&shared.gate_proj, &shared.down_proj].map(|linear| of(linear.weight.val(), &gradients)));
    }
    if let Some(bias) = layer.update_bias(&output.stats).router.bias {
        values.push(floats(bias.val()));
    }
    (counts, values)
}

#[test]
fn attention_without_kernels_is_computed_by_burn() {
    let options = || AttentionModuleOptions { is_causal: true, ..Default::default() };
    let device = Device::ndarray();
    let [q, k, v] = [(); 3].map(|()| Tensor::<4>::random([2, 4, 5, 8], Distribution::Default, &device));
    let found = fused::attention(q.clone(), k.clone(), v.clone(), None, None, options());
    let expected = burn::tensor::module::attention(q, k, v, None, None, options());
    assert_eq!(floats(found), floats(expected));
}

#[test]
fn a_layer_on_ndarray_routes_and_trains_like_on_flex() {
    let (flex, other) = (Device::flex().autodiff(), Device::ndarray().autodiff());
    flex.seed(1);
    for (name, config) in configs() {
        let layer = config.init(WIDTH, &flex);
        let x = Tensor::<3>::random([3, 10, WIDTH], Distribution::Normal(0.0, 1.0), &flex);
        let (found_counts, found) = run(on(&other, &config, &layer), &x, &other);
        let (counts, expected) = run(layer, &x, &flex);
        assert_eq!(found_counts, counts, "{name}");
        assert_near(name, &found, &expected);
    }
}

fn assert_near(name: &str, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let largest = expected.iter().fold(1.0f32, |largest, value| largest.max(value.abs()));
        assert_eq!(found.len(), expected.len(), "{name}: {i}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * largest, "{name}: {i}: {found}, expected {expected}");
        }
    }
}

/// Segments of 3, 0, 2 and 0 rows, and two rows after them.
#[test]
fn products_of_segments_have_the_gradients_of_flex() {
    let (flex, other) = (Device::flex(), Device::ndarray());
    let random = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &flex);
    let (x, d_y, weight) = (random([7, 5]), random([7, 6]), random([4 * 5, 6]).reshape([4, 5, 6]));
    for ends in [[0, 3, 3, 5, 5], [0; 5]] {
        let all = |device: &Device| {
            let offsets = Tensor::<1, Int>::from_data(ends, (device, burn::tensor::DType::I32));
            let [x, d_y] = [&x, &d_y].map(|rows| rows.clone().to_device(device));
            let weight = weight.clone().to_device(device);
            let y = floats(grouped_gemm(x.clone(), weight.clone(), &offsets));
            let d_x = floats(rows_gradient(d_y.clone(), weight, &offsets));
            vec![y, d_x, floats(weight_gradient(x, d_y, &offsets))]
        };
        assert_near("segments", &all(&other), &all(&flex));
    }
}

#[test]
fn without_tokens_there_is_no_output_and_no_loss() {
    let device = Device::ndarray();
    for shape in [[2, 0, WIDTH], [0, 3, WIDTH]] {
        for (name, config) in configs() {
            let output = config.init(WIDTH, &device).forward(Tensor::zeros(shape, &device), None);
            assert_eq!((output.y_btd.dims(), output.aux_loss.is_none()), (shape, true), "{name}");
        }
    }
}
