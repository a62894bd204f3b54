//! A small model with tied ends, and its training as one graph and in shards.

#![allow(dead_code, reason = "each test file uses a part of it")]

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamW, AdamWConfig, AdamWState, Optimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use fsdp::{Category, Fsdp, FsdpConfig, FsdpError, Memory, Strategy, UnitId, Units};
use std::ops::Range;
use test_kit::{on_ranks, tracked};

pub const WIDTH: usize = 24;
pub const STEPS: usize = 5;
pub const LR: f64 = 0.01;
pub const CLIP: f64 = 0.5;
pub const AUX: f64 = 0.1;

pub const STRATEGIES: [Strategy; 6] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::ShardGradOp,
    Strategy::FullShard,
    Strategy::HybridShard,
    Strategy::Block,
];

#[derive(Module, Debug)]
pub struct Ends {
    pub tied: Linear,
    pub norm: LayerNorm,
}

#[derive(Module, Debug)]
pub struct Block {
    pub norm: LayerNorm,
    pub up: Linear,
    pub down: Linear,
}

#[derive(Module, Debug)]
pub struct Model {
    pub ends: Ends,
    pub blocks: Vec<Block>,
}

#[derive(Clone)]
pub struct Batch {
    pub x: Tensor<3>,
    pub target: Tensor<3>,
}

impl Ends {
    pub fn embed(&self, batch: &Batch) -> Tensor<3> {
        self.tied.forward(batch.x.clone().cast(self.tied.weight.val().dtype()))
    }

    pub fn loss(&self, x: Tensor<3>, batch: &Batch) -> Tensor<1> {
        let y = self.norm.forward(x).matmul(self.tied.weight.val().transpose().unsqueeze());
        (y.cast(DType::F32) - batch.target.clone()).powi_scalar(2).mean()
    }
}

impl Block {
    pub fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Option<Tensor<1>>) {
        let hidden = gelu(linear(&self.up, self.norm.forward(x.clone())));
        let aux = hidden.clone().cast(DType::F32).powi_scalar(2).mean() * AUX;
        (x + linear(&self.down, hidden), Some(aux))
    }
}

/// A product whose weight gradients can be deferred.
fn linear(of: &Linear, x: Tensor<3>) -> Tensor<3> {
    fused::linear(x, of.weight.val(), of.bias.as_ref().map(Param::val))
}

pub fn model(device: &Device) -> Model {
    model_of(device, 0x2545_f491_4f6c_dd1d)
}

/// Creates a different model for each seed.
pub fn model_of(device: &Device, seed: u64) -> Model {
    let block = || Block {
        norm: LayerNormConfig::new(WIDTH).init(device),
        up: LinearConfig::new(WIDTH, 40).init(device),
        down: LinearConfig::new(40, WIDTH).init(device),
    };
    let ends = Ends {
        tied: LinearConfig::new(10, WIDTH).with_bias(false).init(device),
        norm: LayerNormConfig::new(WIDTH).init(device),
    };
    Model { ends, blocks: (0..3).map(|_| block()).collect() }.map(&mut Fix(seed))
}

/// Sets values that are the same in every run: for an unlucky draw, AdamW amplifies an error of 1e-7 to 1e-5.
struct Fix(u64);

impl Fix {
    fn values<const D: usize>(&mut self, shape: [usize; D], most: f32, device: &Device) -> Tensor<D> {
        let mut value = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            most * ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0)
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| value()).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

impl ModuleMapper for Fix {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        let (shape, device) = (value.dims(), value.device());
        let is_gain = value.clone().equal_elem(1.0).all().into_scalar::<bool>();
        let value = if is_gain { value } else { self.values(shape, (shape[0] as f32).powf(-0.5), &device) };
        param.map(|_| value)
    }
}

pub fn global_batch(device: &Device) -> Batch {
    let mut fix = Fix(0x9e37_79b9_7f4a_7c15);
    let mut random = || fix.values([8, 3, 10], 1.7, device);
    Batch { x: random(), target: random() }
}

/// Loss, gradient norm and auxiliary loss of each step.
pub type Curve = Vec<[f64; 3]>;

pub fn one_graph(mut model: Model, batch: &Batch) -> Curve {
    let mut states = vec![];
    let mut curve = vec![];
    for _ in 0..STEPS {
        model = tracked(model);
        let (mut x, mut aux) = (model.ends.embed(batch), Tensor::zeros([1], &batch.x.device()));
        for block in &model.blocks {
            let (y, block_aux) = block.forward(x);
            (x, aux) = (y, aux + block_aux.unwrap());
        }
        let loss = model.ends.loss(x, batch);
        let mut gradients = (loss.clone() + aux.clone()).backward();
        let mut norm = Norm { gradients: &gradients, square: 0.0 };
        model.visit(&mut norm);
        let norm = norm.square.sqrt();
        curve.push([f64::from(loss.into_scalar::<f32>()), norm, f64::from(aux.into_scalar::<f32>())]);
        let scale = (CLIP / (norm + 1e-6)).min(1.0);
        model = model.map(&mut Update { gradients: &mut gradients, states: &mut states, scale, next: 0 });
    }
    curve
}

struct Norm<'a> {
    gradients: &'a Gradients,
    square: f64,
}

impl ModuleVisitor for Norm<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients).unwrap();
        self.square += f64::from(gradient.powi_scalar(2).sum().into_scalar::<f32>());
    }
}

struct Update<'a> {
    gradients: &'a mut Gradients,
    states: &'a mut Vec<Option<AdamWState<1>>>,
    scale: f64,
    next: usize,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        let (shape, len) = (value.shape(), value.shape().num_elements());
        let gradient = value.grad_remove(self.gradients).unwrap().reshape([len]) * self.scale;
        let decay = if D >= 2 { 0.1 } else { 0.0 };
        let adamw: AdamW = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(decay).build();
        self.states.resize_with(self.states.len().max(self.next + 1), || None);
        let state = self.states[self.next].take();
        let (value, state) = adamw.step(LR, value.inner().reshape([len]), gradient, state);
        self.states[self.next] = state;
        self.next += 1;
        Param::initialized(param.id, value.reshape(shape))
    }
}

pub fn units(model: Model) -> Units<Batch> {
    named_units(model).0
}

/// Returns the units with their ids.
pub fn named_units(model: Model) -> (Units<Batch>, UnitId<Ends>, Vec<UnitId<Block>>) {
    let mut units = Units::new();
    let ends = units.add("ends", model.ends);
    units.first(ends, Ends::embed);
    let mut blocks = vec![];
    for (i, block) in model.blocks.into_iter().enumerate() {
        let block = units.add(format!("block {i}"), block);
        units.then(block, |block: &Block, x: Tensor<3>, _| block.forward(x));
        blocks.push(block);
    }
    units.last(ends, Ends::loss);
    (units, ends, blocks)
}

impl Batch {
    /// Returns a range of the batch's sequences.
    pub fn part(&self, range: Range<usize>) -> Self {
        Self { x: self.x.clone().slice([range.clone()]), target: self.target.clone().slice([range]) }
    }
}

pub fn sharded(
    model: &Model,
    batch: &Batch,
    config: &FsdpConfig,
    ranks: usize,
    micro_batches: usize,
) -> Vec<(Curve, Memory)> {
    let (model, batch, config) = (model.clone(), batch.clone(), config.clone());
    let results = on_ranks(ranks, move |comm| {
        let mut fsdp = Fsdp::new(units(model.clone()), comm, config.clone())?;
        let (rank, ranks) = fsdp.data_parallel();
        let parts = ranks * micro_batches;
        let part = |i: usize| batch.part(i * 8 / parts..(i + 1) * 8 / parts);
        let mine: Vec<Batch> = (rank * micro_batches..(rank + 1) * micro_batches).map(part).collect();
        let mut curve = vec![];
        for _ in 0..STEPS {
            let report = fsdp.train_step(&mine, LR)?;
            curve.push([report.loss, report.grad_norm, report.aux_loss]);
        }
        Ok::<_, FsdpError>((curve, fsdp.memory()))
    });
    assert!(results.iter().all(|(curve, _)| *curve == results[0].0), "every rank reports the same");
    results
}

pub fn config(strategy: Strategy) -> FsdpConfig {
    FsdpConfig { strategy, clip_grad_norm: Some(CLIP), ..FsdpConfig::default() }
}

/// Trains with every configuration of the table, and lists all that do not match `expected`.
pub fn all_train_as(expected: &Curve, model: &Model, batch: &Batch, table: &[(FsdpConfig, usize, usize)]) {
    let mut wrong = vec![];
    for (config, ranks, micro_batches) in table {
        let (curve, memory) = &sharded(model, batch, config, *ranks, *micro_batches)[0];
        let differs = |(found, expected): (&[f64; 3], &[f64; 3])| {
            found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() / expected > 1e-5)
        };
        if let Some(step) = curve.iter().zip(expected).position(differs) {
            let (found, expected) = (curve[step], expected[step]);
            wrong.push(format!(
                "{ranks} ranks, {micro_batches} micro-batches, step {step}: {found:?} is not {expected:?}\n{config:?}"
            ));
        }
        assert_eq!(memory.now[Category::Gathered] + memory.now[Category::Activations], 0, "at rest: {memory}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
