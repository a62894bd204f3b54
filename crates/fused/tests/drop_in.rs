//! Compares what takes the place of something of Burn's with that.

use burn::module::{Module, Param, ParamGroup};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData, module};
use fused::{FusedAdamW, LinearCrossEntropyConfig};

use test_kit::{Values, assert_close, floats, random, random_tensor};

fn leaf<const D: usize>(seed: u64, shape: [usize; D], dtype: DType) -> Tensor<D> {
    random_tensor(seed, shape, &Device::flex()).cast(dtype).autodiff().require_grad()
}

/// Sizes and options of a call of `attention`.
struct Call {
    /// b, heads, heads of keys and values, t, s, d, dv.
    sizes: [usize; 7],
    options: AttentionModuleOptions,
    mask: bool,
    bias: bool,
    dtype: DType,
}

/// Checks result and gradients, with every query head given its own keys and values for Burn.
fn attention_agrees(case: &str, of: Call) {
    let [b, heads, kv_heads, t, s, d, dv] = of.sizes;
    // By position, as linear layers give them.
    let q = leaf(1, [b, t, heads, d], of.dtype);
    let (k, v) = (leaf(2, [b, s, kv_heads, d], of.dtype), leaf(3, [b, s, kv_heads, dv], of.dtype));
    let bias = of.bias.then(|| leaf(4, [b, heads, t, s], of.dtype));
    let mask: Option<Tensor<4, Bool>> =
        of.mask.then(|| random_tensor(5, [b, heads, t, s], &Device::flex()).greater_elem(0.3).autodiff());
    let cotangent = random_tensor::<4>(6, [b, heads, t, dv], &Device::flex()).cast(of.dtype).autodiff();
    let group: Vec<i64> = (0..heads).map(|head| (head * kv_heads / heads) as i64).collect();
    let group = Tensor::<1, Int>::from_data(TensorData::new(group, [heads]), &Device::flex()).autodiff();
    let run = |ours: bool| {
        let [query, key, value] = [&q, &k, &v].map(|tensor| tensor.clone().swap_dims(1, 2));
        let y = match ours {
            true => fused::attention(query, key, value, mask.clone(), bias.clone(), of.options),
            false => {
                let [key, value] = [key, value].map(|tensor| tensor.select(1, group.clone()));
                module::attention(query, key, value, mask.clone(), bias.clone(), of.options)
            }
        };
        let gradients = (y.clone() * cotangent.clone()).sum().backward();
        let leaves = [Some(&q), Some(&k), Some(&v), bias.as_ref()];
        let gradients = leaves.into_iter().flatten().map(|leaf| leaf.grad(&gradients).expect("tracked"));
        std::iter::once(y.inner()).chain(gradients).collect::<Vec<_>>()
    };
    for (i, (found, expected)) in run(true).into_iter().zip(run(false)).enumerate() {
        assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()));
        let what = ["result", "gradient of q", "gradient of k", "gradient of v", "gradient of the bias"][i];
        assert_close(&format!("{case}: {what}"), &floats(found), &floats(expected), 1e-5);
    }
}

#[test]
fn attention_is_burns_with_its_gradients() {
    let plain = AttentionModuleOptions::default();
    let causal = AttentionModuleOptions { is_causal: true, ..plain };
    let scaled = AttentionModuleOptions { scale: Some(0.3), ..causal };
    let negative = AttentionModuleOptions { scale: Some(-0.3), ..causal };
    let capped = AttentionModuleOptions { softcap: Some(2.0), ..causal };
    let (same, grouped) = ([2, 3, 3, 9, 9, 8, 8], [2, 6, 2, 9, 9, 8, 4]);
    let check = |case: &str, sizes, options, mask, bias, dtype| {
        attention_agrees(case, Call { sizes, options, mask, bias, dtype })
    };
    for (case, sizes) in [
        ("equal lengths", same),
        ("grouped queries", grouped),
        ("one head of keys", [1, 4, 1, 5, 5, 8, 8]),
        ("more keys", [2, 3, 3, 4, 11, 8, 8]),
        ("more keys, grouped", [2, 6, 3, 4, 11, 8, 8]),
        ("fewer keys", [2, 6, 3, 11, 4, 8, 8]),
        ("one query", [2, 2, 2, 1, 7, 8, 8]),
        ("one key", [2, 2, 2, 7, 1, 8, 8]),
        ("several tiles", [1, 2, 1, 150, 170, 16, 16]),
    ] {
        for (name, options) in [("not causal", plain), ("causal", causal), ("scaled", scaled)] {
            check(&format!("{case}, {name}"), sizes, options, false, false, DType::F32);
        }
    }
    for sizes in [same, grouped] {
        for (mask, bias) in [(true, false), (false, true), (true, true)] {
            for options in [plain, causal] {
                check(&format!("mask {mask}, bias {bias}"), sizes, options, mask, bias, DType::F32);
            }
        }
        check("softcap", sizes, capped, false, false, DType::F32);
        check("negative scale", sizes, negative, false, false, DType::F32);
        check("f64", sizes, causal, false, false, DType::F64);
    }
}

/// Loss and gradients of `x` and the weight: with these pad tokens, fused or by Burn.
fn cross_entropy(targets: &[i64], pads: Option<Vec<usize>>, fused: Option<bool>) -> [Vec<f32>; 3] {
    let (n, d, vocab) = (targets.len(), 6, 11);
    let (x, weight) = (leaf(1, [n, d], DType::F32), leaf(2, [d, vocab], DType::F32));
    let device = x.device();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [n]), &device);
    let ours = LinearCrossEntropyConfig::new().with_pad_tokens(pads.clone()).init();
    let loss = match fused {
        Some(false) => ours.forward(x.clone(), weight.clone(), targets),
        Some(true) => ours.forward_transposed(x.clone(), weight.clone().transpose(), targets),
        None => {
            let loss = CrossEntropyLossConfig::new().with_pad_tokens(pads).init(&device);
            loss.forward(x.clone().matmul(weight.clone()), targets)
        }
    };
    let gradients = (loss.clone() * 3.0).backward();
    [floats(loss), floats(x.grad(&gradients).unwrap()), floats(weight.grad(&gradients).unwrap())]
}

/// 300 rows make two chunks. The first chunk may have no target that counts.
#[test]
fn cross_entropy_is_burns_with_ignored_targets() {
    for n in [4, 300] {
        let targets: Vec<i64> = random(3, n).iter().map(|x| 1 + (x.abs() * 1e4) as i64 % 10).collect();
        let padded: Vec<i64> = (0..).zip(&targets).map(|(i, target)| if i % 3 > 0 { 0 } else { *target }).collect();
        let at_the_end: Vec<i64> = (0..n).map(|i| if i + 2 < n { 0 } else { targets[i] }).collect();
        for (targets, pads) in [
            (&targets, None),
            (&targets, Some(vec![])),
            (&targets, Some(vec![0])),
            (&padded, None),
            (&padded, Some(vec![0])),
            (&padded, Some(vec![0, 4, 100])),
            (&at_the_end, Some(vec![0])),
        ] {
            let expected = cross_entropy(targets, pads.clone(), None);
            for transposed in [false, true] {
                let found = cross_entropy(targets, pads.clone(), Some(transposed));
                for (what, (found, expected)) in ["loss", "x", "weight"].iter().zip(found.iter().zip(&expected)) {
                    assert_close(&format!("{n} rows, pads {pads:?}: {what}"), found, expected, 1e-5);
                }
            }
        }
    }
}

#[test]
fn negative_targets_are_ignored_as_pad_tokens_are() {
    let of = |pad| cross_entropy(&[3, pad, 10, pad, 1], Some(vec![7]), Some(false));
    assert_eq!(of(-100), of(7));
    assert_eq!(of(-1), of(7));
}

/// Burn divides 0 by 0.
#[test]
fn a_batch_of_padding_has_a_loss_of_0_without_gradient() {
    let [loss, ..] = cross_entropy(&[2, 2, 2], Some(vec![2]), None);
    assert!(loss[0].is_nan());
    let all = cross_entropy(&[2, 2, 2], Some(vec![2]), Some(false));
    assert!(all.iter().flatten().all(|value| *value == 0.0), "{all:?}");
}

#[test]
#[should_panic(expected = "a target is not in the vocabulary of 11")]
fn a_target_beyond_the_vocabulary_is_refused() {
    cross_entropy(&[2, 11], Some(vec![2]), Some(false));
}

#[derive(Module, Debug)]
struct Model {
    norm: LayerNorm,
    linear: Linear,
    scale: Param<Tensor<3>>,
}

impl Model {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        Self {
            norm: LayerNormConfig::new(8).init(&device),
            linear: Linear {
                weight: Param::from_tensor(random_tensor(1, [8, 4], &device)),
                ..LinearConfig::new(8, 4).init(&device)
            },
            scale: Param::from_tensor(random_tensor(2, [1, 5, 4], &device)),
        }
    }

    fn step(self, optim: &mut ModuleOptimizer, step: u64) -> Self {
        let x = random_tensor::<3>(100 + step, [2, 5, 8], &Device::flex().autodiff());
        let loss = (self.linear.forward(self.norm.forward(x)) * self.scale.val()).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &self);
        optim.step(1e-2 / (step + 1) as f64, self, gradients)
    }
}

fn steps(model: Model, optim: &mut ModuleOptimizer, steps: std::ops::Range<u64>) -> Model {
    steps.fold(model, |model, step| model.step(optim, step))
}

const ADAMW: FusedAdamW = FusedAdamW { beta1: 0.8, beta2: 0.97, epsilon: 1e-6, weight_decay: 0.3 };

/// The second optimizer of each exempts biases from weight decay.
#[test]
fn adamw_is_burns_with_equal_settings() {
    let burns = AdamWConfig::new().with_beta_1(0.8).with_beta_2(0.97).with_epsilon(1e-6).with_weight_decay(0.3);
    let biases = || ParamGroup::from_predicate("bias");
    let mut burns =
        ModuleOptimizer::from(burns.build()).with_group(biases(), burns.with_weight_decay(0.0).build(), None);
    let mut ours = ModuleOptimizer::from(ADAMW).with_group(biases(), FusedAdamW { weight_decay: 0.0, ..ADAMW }, None);
    let model = Model::new();
    let expected = Values::of(&steps(model.clone(), &mut burns, 0..5)).by_path();
    for (path, found) in Values::of(&steps(model, &mut ours, 0..5)).by_path() {
        assert_close(&path, &found, &expected[&path], 1e-6);
    }
}

#[test]
fn adamw_goes_on_from_its_record_bit_for_bit() {
    let new = || ModuleOptimizer::from(ADAMW);
    let mut optim = new();
    let model = steps(Model::new(), &mut optim, 0..3);
    let mut loaded = new().from_bytes(optim.into_bytes().unwrap()).unwrap();
    let expected = Values::of(&steps(model.clone(), &mut optim, 3..5)).by_path();
    let afresh = Values::of(&steps(model.clone(), &mut new(), 3..5)).by_path();
    assert_eq!(Values::of(&steps(model, &mut loaded, 3..5)).by_path(), expected);
    assert_ne!(afresh, expected, "without the record");
}

/// A parameter of bf16 takes the step of its f32 value, rounded, and keeps f32 moments.
#[test]
fn adamw_steps_parameters_of_16_bits() {
    use burn::optim::Optimizer;
    let device = Device::flex();
    let parameter = random_tensor::<2>(1, [3, 4], &device).cast(DType::BF16);
    let gradient = random_tensor::<2>(2, [3, 4], &device).cast(DType::BF16);
    let (found, state) = ADAMW.step(1e-2, parameter.clone(), gradient.clone(), None);
    let (expected, _) = ADAMW.step(1e-2, parameter.cast(DType::F32), gradient.cast(DType::F32), None);
    assert_eq!(found.dtype(), DType::BF16);
    assert_eq!(
        state.map(|state| (state.mean.dtype(), state.square.dims(), state.steps)),
        Some((DType::F32, [3, 4], 1))
    );
    assert_eq!(floats(found), floats(expected.cast(DType::BF16)));
}
