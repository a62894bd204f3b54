//! Ordinary modules of Burn, sharded: frozen parameters, LoRA, autodiff devices, dropout and buffers. What they compute
//! is compared with Burn's own autodiff and optimizer on one device.

#[path = "common/net.rs"]
mod net;

use burn::module::{Lora, Module, ParamGroup};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use comm::{Communicator, LocalEngine};
use fsdp::{ActivationCheckpointing, Calls, Fsdp, FsdpConfig, FsdpError, Strategy};
use fused::FusedAdamW;
use net::{Batch, LR, Net, STEPS, Trained, adamw, assert_alike, batch, calls, configs, net, of, on_ranks_with};
use std::sync::Arc;
use test_kit::{Values, on_ranks};

#[derive(Module, Debug)]
struct WithBuffers {
    input: Linear,
    norm: BatchNorm,
}

/// Trains on one device with Burn's AdamW. Returns the losses and the trained values by path.
fn by_burn(net: Net) -> Trained {
    let mut net = net.train();
    let FusedAdamW { beta1, beta2, epsilon, .. } = adamw();
    let config = AdamWConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32);
    let mut optimizer: ModuleOptimizer = config.with_epsilon(epsilon as f32).with_weight_decay(0.0).init();
    let (calls, batch, mut losses) = (calls(), batch(), vec![]);
    for _ in 0..STEPS {
        let loss = calls.run(&net, &batch).loss;
        losses.push(f64::from(loss.clone().into_scalar::<f32>()));
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(LR, net, gradients);
    }
    (losses, Values::of(&net).by_path())
}

#[test]
fn frozen_parameters_stay_and_the_others_train_as_with_burn() {
    let whole = net(&Device::flex(), 0.0);
    let groups = [
        ParamGroup::from_predicate("input"),
        ParamGroup::from_any_predicates(vec!["layers.1", "norm"]),
        ParamGroup::all().exclude(ParamGroup::from_predicate("layers.0.linear")),
    ];
    for group in groups {
        let net = whole.clone().freeze_group(group);
        let expected = by_burn(net.clone());
        assert!(
            Values::of(&whole).by_path().iter().any(|(path, before)| expected.1[path] == *before),
            "nothing is frozen"
        );
        for (config, ranks) in configs() {
            assert_alike(on_ranks_with(&net, &config, ranks), &expected);
        }
    }
}

#[test]
fn lora_of_burn_trains_under_every_strategy() {
    let net = net(&Device::flex(), 0.0).apply_lora(Lora::new(4, 8.0));
    let expected = by_burn(net.clone());
    assert!(expected.1.keys().any(|path| path.contains("lora")), "{:?}", expected.1.keys());
    for (config, ranks) in configs() {
        assert_alike(on_ranks_with(&net, &config, ranks), &expected);
    }
}

#[test]
fn a_frozen_parameter_takes_no_memory_of_the_optimizer() {
    let bytes = |net: Net| {
        on_ranks(2, move |comm| {
            let mut fsdp = Fsdp::new(calls().into_units(net.clone()), comm, FsdpConfig::default())?;
            fsdp.train_step(&[batch()], LR)?;
            Ok::<_, FsdpError>(fsdp.memory().now[fsdp::Category::Optimizer])
        })[0]
    };
    let net = net(&Device::flex(), 0.0);
    let of_input = ParamGroup::from_predicate("input");
    let (all, some) = (bytes(net.clone()), bytes(net.freeze_group(of_input)));
    assert!(some < all, "{some} of {all}");
}

#[test]
fn modules_and_ranks_on_autodiff_devices_train_as_on_plain_ones() {
    let [on_plain, on_autodiff] = [Device::flex(), Device::flex().autodiff()].map(|device| net(&device, 0.0));
    let expected = by_burn(on_plain);
    assert_alike(on_ranks_with(&on_autodiff, &of(Strategy::FullShard), 2), &expected);
    let losses = comm::run_ranks(vec![Device::flex().autodiff(); 2], comm::TIMEOUT, move |comm| {
        let mut fsdp = Fsdp::new(calls().into_units(on_autodiff.clone()), comm, of(Strategy::FullShard))?;
        Ok::<_, FsdpError>(fsdp.train_step(&[batch()], LR)?.loss)
    });
    assert!((losses.expect("no rank fails")[0] - expected.0[0]).abs() < 1e-5 * expected.0[0]);
}

#[test]
fn dropout_is_on_in_training_and_refused_where_it_would_be_recomputed() {
    let losses = |dropout| on_ranks_with(&net(&Device::flex(), dropout), &of(Strategy::FullShard), 2).0;
    assert!((losses(0.5)[0] - losses(0.0)[0]).abs() > 1e-3 * losses(0.0)[0]);
    let config = FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..of(Strategy::FullShard) };
    let message = refused(calls().into_units(net(&Device::flex(), 0.5)), config.clone());
    assert!(message.contains("layers.0.dropout may draw random numbers"), "{message}");
    // A frozen layer draws none.
    let frozen = ParamGroup::from_predicate("dropout");
    on_ranks_with(&net(&Device::flex(), 0.5).freeze_group(frozen), &config, 2);
}

#[test]
fn buffers_and_frozen_modules_are_refused_by_name() {
    let mut calls = Calls::<WithBuffers, Batch>::new();
    calls.first("input", |net: &WithBuffers| &net.input, |linear, x: &Batch| linear.forward(x.clone()));
    calls.last("norm", |net: &WithBuffers| &net.norm, |norm, x: Tensor<3>, _| norm.forward(x).mean());
    let device = Device::flex();
    let net_with =
        WithBuffers { input: LinearConfig::new(8, 3).init(&device), norm: BatchNormConfig::new(3).init(&device) };
    let message = refused(calls.into_units(net_with), FsdpConfig::default());
    assert!(message.contains("norm.running_mean is a buffer"), "{message}");
    let message = refused(self::calls().into_units(net(&device, 0.0).freeze()), FsdpConfig::default());
    assert!(message.contains("every parameter is frozen"), "{message}");
}

#[test]
#[should_panic(expected = "parameter weight [16, 16] is not the model's layers.1.linear.weight")]
fn a_part_that_is_not_at_its_path_is_refused() {
    let mut calls = Calls::<Net, Batch>::new();
    calls.first("input", |net: &Net| &net.input, |linear, x: &Batch| linear.forward(x.clone()));
    for i in 0..2 {
        let forward = |linear: &Linear, x: Tensor<3>, _: &Batch| linear.forward(x);
        calls.then(format!("layers.{i}.linear"), |net: &Net| &net.layers[0].linear, forward);
    }
    calls.into_units(net(&Device::flex(), 0.0));
}

#[test]
fn two_units_of_one_name_are_refused() {
    let linear = LinearConfig::new(8, 8).init(&Device::flex());
    let mut units = fsdp::Units::<Batch>::new();
    let [first, last] = [(); 2].map(|()| units.add("layer", linear.clone()));
    units.first(first, |linear: &Linear, x| linear.forward(x.clone()));
    units.last(last, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).mean());
    let message = refused(units, FsdpConfig::default());
    assert!(message.contains("two units are called layer"), "{message}");
}

fn refused(units: fsdp::Units<Batch>, config: FsdpConfig) -> String {
    let engine = LocalEngine::world(vec![Device::flex()], comm::TIMEOUT).remove(0);
    Fsdp::new(units, Communicator::new(Arc::new(engine)), config).expect_err("it is refused").to_string()
}
