//! A network of Burn's own layers, its calls and a batch.

#![allow(dead_code, reason = "each test file uses a part of it")]

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use fsdp::{
    ActivationCheckpointing, Calls, Fsdp, FsdpConfig, FsdpError, Optimizers, PipelineConfig, Schedule, Strategy,
};
use fused::FusedAdamW;
use std::collections::BTreeMap;
use test_kit::{Values, on_ranks};

/// Losses, and the trained values by path.
pub type Trained = (Vec<f64>, BTreeMap<String, Vec<f32>>);

pub const LR: f64 = 0.01;
pub const STEPS: usize = 4;

#[derive(Module, Debug)]
pub struct Layer {
    pub norm: LayerNorm,
    pub linear: Linear,
    pub dropout: Dropout,
}

#[derive(Module, Debug)]
pub struct Net {
    pub input: Linear,
    pub layers: Vec<Layer>,
    pub output: Linear,
}

/// Inputs, `[b, t, 8]`; the network learns their absolute values.
pub type Batch = Tensor<3>;

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = gelu(self.linear.forward(self.norm.forward(x.clone())));
        x + self.dropout.forward(hidden)
    }
}

pub fn net(device: &Device, dropout: f64) -> Net {
    device.seed(7);
    let layer = |_| {
        let (linear, drop) = (LinearConfig::new(16, 16).init(device), DropoutConfig::new(dropout).init());
        let dropout = if dropout == 0.0 { drop.freeze() } else { drop };
        Layer { norm: LayerNormConfig::new(16).init(device), linear, dropout }
    };
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let net = Net { input: linear(8, 16), layers: (0..2).map(layer).collect(), output: linear(16, 8) };
    Values::of(&net); // draws all of them now, in this order
    net
}

pub fn calls() -> Calls<Net, Batch> {
    let mut calls = Calls::new();
    calls.first("input", |net: &Net| &net.input, |linear, x: &Batch| linear.forward(x.clone()));
    for i in 0..2 {
        let forward = |layer: &Layer, x: Tensor<3>, _: &Batch| layer.forward(x);
        calls.then(format!("layers.{i}"), move |net: &Net| &net.layers[i], forward);
    }
    let loss = |linear: &Linear, x, batch: &Batch| (linear.forward(x) - batch.clone().abs()).powi_scalar(2).mean();
    calls.last("output", |net: &Net| &net.output, loss);
    calls
}

pub fn batch() -> Batch {
    let values: Vec<f32> = (0..8 * 3 * 8).map(|i| (i as f32 * 0.7).sin() * 1.5).collect();
    Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).reshape([8, 3, 8])
}

pub fn adamw() -> FusedAdamW {
    FusedAdamW { weight_decay: 0.0, ..FusedAdamW::default() }
}

/// Returns a rank's share of the sequences, as two micro-batches.
pub fn micro_batches(fsdp: &Fsdp<Batch>) -> Vec<Batch> {
    let (rank, ranks) = fsdp.data_parallel();
    let (of, len) = (2 * ranks, 8 / (2 * ranks));
    (0..2).map(|i| (2 * rank + i) % of * len).map(|i| batch().slice(i..i + len)).collect()
}

/// Trains on ranks, each with its share of the sequences and two micro-batches.
pub fn on_ranks_with(net: &Net, config: &FsdpConfig, ranks: usize) -> Trained {
    let (net, config) = (net.clone(), config.clone());
    let mut results = on_ranks(ranks, move |comm| {
        let mut fsdp = Fsdp::new(calls().into_units(net.clone()), comm, config.clone())?;
        let mine = micro_batches(&fsdp);
        let losses = (0..STEPS).map(|_| Ok(fsdp.train_step(&mine, LR)?.loss)).collect::<Result<Vec<_>, FsdpError>>()?;
        let trained = fsdp.gather_model(net.clone(), true)?.expect("it is kept");
        Ok::<_, FsdpError>((losses, Values::of(&trained).by_path()))
    });
    results.remove(0)
}

#[track_caller]
pub fn assert_alike(found: Trained, expected: &Trained) {
    for (found, expected) in found.0.iter().zip(&expected.0) {
        assert!((found - expected).abs() < 1e-5 * expected, "a loss of {found}, not {expected}");
    }
    assert!(found.1.keys().eq(expected.1.keys()), "{:?} are not {:?}", found.1.keys(), expected.1.keys());
    for (path, expected) in &expected.1 {
        // AdamW's first steps have the size of the learning rate, whatever a gradient's: 1e-3 of it is rounding.
        let alike =
            found.1[path].iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-3 * LR as f32);
        assert!(alike, "{path}: {:?} are not {expected:?}", found.1[path]);
    }
}

pub fn of(strategy: Strategy) -> FsdpConfig {
    FsdpConfig { strategy, optimizers: Optimizers::new(adamw()), ..FsdpConfig::default() }
}

/// Every strategy, and those pipelines and checkpointing that treat gradients and weights differently.
pub fn configs() -> Vec<(FsdpConfig, usize)> {
    let full = of(Strategy::FullShard);
    let pipeline = |schedule| FsdpConfig {
        pipeline: PipelineConfig { stages: 2, schedule, ..PipelineConfig::default() },
        ..full.clone()
    };
    let mut configs: Vec<_> = Strategy::ALL.into_iter().map(|strategy| (of(strategy), 4)).collect();
    configs.push((of(Strategy::Ddp), 1));
    configs.push((FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..full.clone() }, 2));
    configs.push((FsdpConfig { cpu_offload: true, ..full.clone() }, 2));
    configs.push((pipeline(Schedule::OneFOneB), 4));
    configs.push((pipeline(Schedule::ZeroBubble), 2));
    configs
}
