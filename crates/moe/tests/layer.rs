//! Compares the layer with a naive one in f64 that works token by token: values, capacity, balance and gradients.

mod naive;

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Int, IntDType, Tensor, TensorData};
use moe::kernels::route::count;
use moe::{MoeConfig, MoeLayer, NoiseKey, Overflow, ScoreFunc, router_z_loss, sequence_balance_loss};
use naive::{BIAS, Case, DOWN, GATE, Numbers, ROUTER, Reference, SHARED, UP, X, reference};
use proptest::prelude::*;
use test_kit::{assert_close, floats, largest, random};

fn tensor<const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<D> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// Makes the layer with these numbers, and its input. If `tracked`, all of them require gradients, even the selection
/// bias.
fn layer(case: &Case, numbers: &Numbers, tracked: bool) -> (MoeLayer, Tensor<3>) {
    fn bound<const D: usize>(values: &[f64], shape: [usize; D], tracked: bool) -> Tensor<D> {
        let tensor = tensor(values, shape);
        if tracked { tensor.autodiff().require_grad() } else { tensor }
    }
    fn param<const D: usize>(values: &[f64], shape: [usize; D], tracked: bool) -> Param<Tensor<D>> {
        Param::initialized(ParamId::new(), bound(values, shape, tracked))
    }
    let (d, e, h) = (case.shape_btd[2], case.config.num_experts, case.config.moe_intermediate_size);
    let mut layer = case.config.init(d, &Device::flex());
    layer.router.proj.weight = param(&numbers[ROUTER], [d, e], tracked);
    layer.router.bias = layer.router.bias.map(|_| param(&numbers[BIAS], [e], tracked));
    layer.experts.gate_proj = param(&numbers[GATE], [e, d, h], tracked);
    layer.experts.up_proj = param(&numbers[UP], [e, d, h], tracked);
    layer.experts.down_proj = param(&numbers[DOWN], [e, h, d], tracked);
    if let Some(shared) = &mut layer.shared_experts {
        let h = h * case.config.n_shared_experts;
        let [gate, up, down] = SHARED.map(|weight| &numbers[weight]);
        shared.gate_proj.weight = param(gate, [d, h], tracked);
        shared.up_proj.weight = param(up, [d, h], tracked);
        shared.down_proj.weight = param(down, [h, d], tracked);
    }
    (layer, bound(&numbers[X], case.shape_btd, tracked))
}

#[track_caller]
fn assert_near(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_close(what, found, expected, tolerance * largest(expected, 1.0));
}

fn equals_the_reference(case: &Case) {
    let numbers = case.numbers(2e-6);
    let expected = reference(case, &numbers);
    let (layer, x) = layer(case, &numbers, false);
    let found = layer.forward(x, None);
    assert_eq!(found.y_btd.dims(), case.shape_btd);
    assert_near("y", &floats(found.y_btd), &expected.y, 1e-5);
    assert_near("balance loss", &floats(found.aux_loss.unwrap()), &[0.5 * expected.balance], 1e-5);
}

fn cases() -> impl Strategy<Value = Case> {
    let experts = (1..=4usize, 1..=4usize, any::<bool>()).prop_flat_map(|(n_group, per_group, selection_bias)| {
        let per_group = if selection_bias && n_group > 1 { per_group.max(2) } else { per_group };
        let chosen =
            (1..=n_group).prop_flat_map(move |topk_group| (Just(topk_group), 1..=(topk_group * per_group).min(8)));
        (Just((n_group, n_group * per_group, selection_bias)), chosen)
    });
    let rules = (any::<bool>(), any::<bool>(), prop_oneof![Just(1.0), Just(2.5)], 0..=2usize, 1..=5usize);
    let shape = [1..=3usize, 1..=9, 1..=5];
    let quarters = prop_oneof![Just(None), (1..=8usize).prop_map(Some)];
    (shape, quarters, experts, rules, any::<u32>()).prop_map(|(shape, quarters, experts, rules, seed)| {
        let ((n_group, num_experts, selection_bias), (topk_group, top_k)) = experts;
        let (sigmoid, norm_topk_prob, routed_scaling_factor, n_shared_experts, moe_intermediate_size) = rules;
        let score_func = if sigmoid { ScoreFunc::Sigmoid } else { ScoreFunc::Softmax };
        let config = MoeConfig {
            num_experts,
            top_k,
            moe_intermediate_size,
            n_shared_experts,
            score_func,
            selection_bias,
            n_group,
            topk_group,
            norm_topk_prob,
            routed_scaling_factor,
            ..MoeConfig::default()
        };
        Case::new(shape, quarters, config, seed.into())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_layer_equals_the_naive_one(case in cases()) {
        equals_the_reference(&case);
    }
}

/// A configuration that uses every rule at once.
fn everything() -> MoeConfig {
    MoeConfig {
        num_experts: 8,
        top_k: 3,
        moe_intermediate_size: 3,
        n_shared_experts: 2,
        score_func: ScoreFunc::Sigmoid,
        selection_bias: true,
        n_group: 4,
        topk_group: 2,
        routed_scaling_factor: 2.5,
        ..MoeConfig::default()
    }
}

#[test]
fn the_layer_equals_the_naive_one_at_the_smallest_sizes() {
    for (b, t, e, k) in [(1, 1, 1, 1), (1, 1, 4, 2), (2, 1, 4, 4), (2, 7, 1, 1), (3, 5, 4, 4), (2, 5, 4, 1)] {
        for quarters in [None, Some(1), Some(4), Some(5)] {
            let config = MoeConfig { num_experts: e, top_k: k, moe_intermediate_size: 2, ..MoeConfig::default() };
            equals_the_reference(&Case::new([b, t, 3], quarters, config, 1));
        }
    }
}

#[test]
fn without_tokens_there_is_no_output_and_no_loss() {
    for (shape_btd, quarters) in [([2, 0, 4], None), ([0, 3, 4], None), ([2, 0, 4], Some(4)), ([0, 3, 4], Some(4))] {
        let config = MoeConfig { capacity_factor: quarters.map(f64::from), aux_loss_coef: 0.5, ..everything() };
        let layer = config.init(4, &Device::flex());
        let output = layer.forward(Tensor::zeros(shape_btd, &Device::flex()), None);
        assert_eq!(output.y_btd.dims(), shape_btd);
        assert!(output.aux_loss.is_none());
    }
}

/// Bit for bit: in evaluation the result for a token does not depend on later tokens. In training with a capacity it
/// may.
#[test]
fn evaluation_is_that_of_a_dropless_layer_without_noise() {
    let limited = MoeConfig { router_noise: 0.5, ..everything() };
    for limited in [limited.clone(), MoeConfig { overflow: Overflow::Reroute, ..limited }] {
        let case = Case::new([2, 9, 6], Some(1), limited, 5);
        let numbers = case.numbers(2e-6);
        let (layer, x) = layer(&case, &numbers, false);
        let dropless = Case { config: MoeConfig { capacity_factor: None, ..everything() }, ..case.clone() };
        let expected = self::layer(&dropless, &numbers, false).0.forward(x.clone(), None);
        let found = layer.evaluate(x.clone());
        assert_eq!(floats(found.y_btd.clone()), floats(expected.y_btd));
        assert_ne!(floats(found.y_btd.clone()), floats(layer.forward(x.clone(), None).y_btd));
        let first = layer.evaluate(x.slice([0..2, 0..4, 0..6])).y_btd;
        assert_eq!(floats(first), floats(found.y_btd.slice([0..2, 0..4, 0..6])));
    }
}

/// Bit for bit, with all rules in use: capacity, rerouting, noise, groups, shared experts.
#[test]
fn a_sequence_has_the_same_output_and_gradients_alone_and_in_any_batch() {
    let reroute = MoeConfig { overflow: Overflow::Reroute, router_noise: 0.05, ..everything() };
    for ([b, t, d], h) in [([5, 33, 48], 40), ([4, 2, 64], 64), ([6, 1, 512], 16), ([3, 9, 600], 8)] {
        for (quarters, rules) in [(None, everything()), (Some(4), everything()), (Some(3), reroute.clone())] {
            let case = Case::new([b, t, d], quarters, MoeConfig { moe_intermediate_size: h, ..rules }, 3);
            let (layer, x_btd) = layer(&case, &case.numbers(2e-6), true);
            let cotangent: Tensor<3> = tensor(&random(5, b * t * d), [b, t, d]);
            let run = |from: usize, to: usize| {
                let part = |x: Tensor<3>| Tensor::from_inner(x.inner().slice([from..to, 0..t, 0..d]));
                let (x, noise) = (part(x_btd.clone()).require_grad(), NoiseKey { key: 9, first_row: from as u32 });
                let y = layer.forward(x.clone(), Some(noise)).y_btd;
                let gradients = (y.clone() * part(cotangent.clone())).sum().backward();
                [floats(y), floats(x.grad(&gradients).unwrap())]
            };
            let batch = run(0, b);
            for (from, to) in (0..b).flat_map(|from| (from + 1..=b).map(move |to| (from, to))) {
                let expected = batch.each_ref().map(|values| values[from * t * d..to * t * d].to_vec());
                assert_eq!(run(from, to), expected, "sequences {from} to {to} of {b}");
            }
        }
    }
}

#[test]
fn the_z_loss_is_the_mean_square_of_the_log_of_the_summed_exponentials() {
    let logits = random(4, 6 * 5);
    let z = |logits: &[f64]| {
        let square = |row: &[f64]| row.iter().map(|x| x.exp()).sum::<f64>().ln().powi(2);
        logits.chunks(5).map(square).sum::<f64>() / 6.0
    };
    let logits_ne = tensor::<2>(&logits, [6, 5]).autodiff().require_grad();
    let found = router_z_loss(logits_ne.clone());
    assert_near("z-loss", &floats(found.clone()), &[z(&logits)], 1e-6);
    let gradient = floats(logits_ne.grad(&found.backward()).unwrap());
    let difference = |i: usize| {
        let at = |step: f64| {
            let mut logits = logits.clone();
            logits[i] += step;
            z(&logits)
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    };
    assert_near("gradient", &gradient, &(0..30).map(difference).collect::<Vec<_>>(), 1e-5);

    let rules = MoeConfig { z_loss_coef: 0.25, ..everything() };
    let case = Case::new([2, 3, 4], None, rules.clone(), 1);
    let numbers = case.numbers(2e-6);
    let with = layer(&case, &numbers, false);
    let without =
        layer(&Case { config: MoeConfig { z_loss_coef: 0.0, ..case.config.clone() }, ..case.clone() }, &numbers, false);
    let aux =
        |(layer, x): (MoeLayer, Tensor<3>)| f64::from(layer.forward(x, None).aux_loss.unwrap().into_scalar::<f32>());
    let logits = with.0.router.forward(with.1.clone().reshape([6, 4]), 3, None).logits_ne;
    let z = f64::from(router_z_loss(logits).into_scalar::<f32>());
    assert!((aux(with) - aux(without) - 0.25 * z).abs() < 1e-6);
}

#[test]
fn the_balance_loss_is_one_for_even_loads_and_scores_and_more_for_uneven_ones() {
    let loss = |score: [f32; 4], experts: [[i64; 2]; 4]| {
        let experts_kn = Tensor::<2, Int>::from_ints(experts, &Device::flex()).transpose().cast(IntDType::I32);
        floats(sequence_balance_loss(Tensor::from_floats([score; 4], &Device::flex()), count(experts_kn, 2, 4)))
    };
    let (even, uneven) = ([[0, 1], [2, 3], [3, 0], [2, 1]], [[0, 1], [1, 0], [0, 1], [0, 1]]);
    assert_near("even", &loss([0.25; 4], even), &[1.0], 1e-6);
    assert_near("even sigmoids that do not add up to 1", &loss([0.7; 4], even), &[1.0], 1e-6);
    assert_near("even loads", &loss([0.4, 0.4, 0.1, 0.1], even), &[1.0], 1e-6);
    assert_near("uneven loads of high scores", &loss([0.4, 0.4, 0.1, 0.1], uneven), &[1.6], 1e-6);
}

/// Compares the gradient of `sum(y * cotangent) + balance loss` with central differences of the reference.
fn has_the_gradients_of_the_reference(case: &Case) {
    let [b, t, d] = case.shape_btd;
    let numbers = case.numbers(1e-3); // far from ties, compared with the step of 1e-5
    assert_eq!(reference(case, &numbers).dropped > 0, case.quarters.is_some(), "drops are part of the case");
    let cotangent = random(99, b * t * d);
    let loss = |numbers: &Numbers| {
        let Reference { y, balance, .. } = reference(case, numbers);
        y.iter().zip(&cotangent).map(|(y, cotangent)| y * cotangent).sum::<f64>() + 0.5 * balance
    };
    let difference = |which: usize, i: usize| {
        let at = |step: f64| {
            let mut numbers = numbers.clone();
            numbers[which][i] += step;
            loss(&numbers)
        };
        (at(1e-5) - at(-1e-5)) / 2e-5
    };

    let (layer, x) = layer(case, &numbers, true);
    let found = layer.forward(x.clone(), None);
    let weighted = (found.y_btd * tensor(&cotangent, case.shape_btd)).sum() + found.aux_loss.unwrap();
    assert_near("loss", &floats(weighted.clone()), &[loss(&numbers)], 1e-5);
    let gradients = weighted.backward();

    let check = |what: &str, which: usize, found: Option<Vec<f32>>| {
        let expected: Vec<f64> = (0..numbers[which].len()).map(|i| difference(which, i)).collect();
        assert!(expected.iter().any(|value| *value != 0.0), "{what} has an effect");
        assert_near(what, &found.expect(what), &expected, 2e-5);
    };
    let router = &layer.router;
    check("x", X, x.grad(&gradients).map(floats));
    check("router", ROUTER, router.proj.weight.val().grad(&gradients).map(floats));
    check("gate", GATE, layer.experts.gate_proj.val().grad(&gradients).map(floats));
    check("up", UP, layer.experts.up_proj.val().grad(&gradients).map(floats));
    check("down", DOWN, layer.experts.down_proj.val().grad(&gradients).map(floats));
    if let Some(shared) = &layer.shared_experts {
        for (which, linear) in SHARED.into_iter().zip([&shared.gate_proj, &shared.up_proj, &shared.down_proj]) {
            check("shared", which, linear.weight.val().grad(&gradients).map(floats));
        }
    }
    assert_eq!(router.bias.is_some(), case.config.selection_bias);
    assert!(router.bias.iter().all(|bias| bias.val().grad(&gradients).is_none()), "the selection bias has a gradient");
}

#[test]
fn gradients_equal_finite_differences_of_the_naive_layer() {
    let top_1 = MoeConfig { top_k: 1, norm_topk_prob: false, moe_intermediate_size: 4, ..MoeConfig::default() };
    let top_2 = MoeConfig { top_k: 2, norm_topk_prob: true, ..top_1.clone() };
    let v2 = MoeConfig { n_group: 4, topk_group: 2, n_shared_experts: 1, top_k: 3, ..top_1.clone() };
    for config in [top_1, top_2, v2, everything()] {
        for quarters in [None, Some(3)] {
            has_the_gradients_of_the_reference(&Case::new([2, 6, 4], quarters, config.clone(), 7));
        }
    }
}

#[test]
fn the_selection_bias_of_a_new_layer_is_zero_and_asks_for_no_gradient() {
    let layer = everything().init(4, &Device::flex().autodiff());
    let bias = layer.router.bias.unwrap();
    assert!(!bias.val().is_require_grad());
    assert_eq!(floats(bias.val()), [0.0; 8]);
    assert!(layer.router.proj.weight.val().is_require_grad());
}
