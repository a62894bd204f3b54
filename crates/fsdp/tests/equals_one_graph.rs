//! Every strategy, on any number of ranks, trains as one autodiff graph of the whole model on one device does.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamW, AdamWConfig, AdamWState, Optimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use comm::run_ranks;
use fsdp::{ActivationCheckpointing, AtRest, Fsdp, FsdpConfig, FsdpError, Strategy, Units};
use std::time::Duration;

const WIDTH: usize = 24;
const STEPS: usize = 5;
const LR: f64 = 0.01;
const CLIP: f64 = 0.5;
const AUX: f64 = 0.1;

#[derive(Module, Debug)]
struct Ends {
    tied: Linear,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Model {
    ends: Ends,
    blocks: Vec<Block>,
}

#[derive(Clone)]
struct Batch {
    x: Tensor<3>,
    target: Tensor<3>,
}

impl Ends {
    fn embed(&self, batch: &Batch) -> Tensor<3> {
        self.tied.forward(batch.x.clone())
    }

    fn loss(&self, x: Tensor<3>, batch: &Batch) -> Tensor<1> {
        let y = self.norm.forward(x).matmul(self.tied.weight.val().transpose().unsqueeze());
        (y - batch.target.clone()).powi_scalar(2).mean()
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Option<Tensor<1>>) {
        let hidden = gelu(self.up.forward(self.norm.forward(x.clone())));
        let aux = hidden.clone().powi_scalar(2).mean() * AUX;
        (x + self.down.forward(hidden), Some(aux))
    }
}

fn model(device: &Device) -> Model {
    let block = || Block {
        norm: LayerNormConfig::new(WIDTH).init(device),
        up: LinearConfig::new(WIDTH, 40).init(device),
        down: LinearConfig::new(40, WIDTH).init(device),
    };
    let ends = Ends {
        tied: LinearConfig::new(10, WIDTH).with_bias(false).init(device),
        norm: LayerNormConfig::new(WIDTH).init(device),
    };
    // Reading every value once fixes it: clones share lazily made values only until they are made.
    let model = Model { ends, blocks: (0..3).map(|_| block()).collect() };
    model.visit(&mut Touch);
    model
}

struct Touch;

impl ModuleVisitor for Touch {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        param.val();
    }
}

fn global_batch(device: &Device) -> Batch {
    let random = || Tensor::random([8, 3, 10], Distribution::Normal(0.0, 1.0), device);
    Batch { x: random(), target: random() }
}

/// Loss and gradient norm of each step.
type Curve = Vec<[f64; 2]>;

fn one_graph(mut model: Model, batch: &Batch) -> Curve {
    let mut states = vec![];
    let mut curve = vec![];
    for _ in 0..STEPS {
        model = model.map(&mut Track);
        let (mut x, mut aux) = (model.ends.embed(batch), Tensor::zeros([1], &batch.x.device()));
        for block in &model.blocks {
            let (y, block_aux) = block.forward(x);
            (x, aux) = (y, aux + block_aux.unwrap());
        }
        let loss = model.ends.loss(x, batch);
        let mut gradients = (loss.clone() + aux).backward();
        let mut norm = Norm { gradients: &gradients, square: 0.0 };
        model.visit(&mut norm);
        let norm = norm.square.sqrt();
        curve.push([f64::from(loss.into_scalar::<f32>()), norm]);
        let scale = (CLIP / (norm + 1e-6)).min(1.0);
        model = model.map(&mut Update { gradients: &mut gradients, states: &mut states, scale, next: 0 });
    }
    curve
}

struct Track;

impl ModuleMapper for Track {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(param.id, param.val().inner().autodiff().require_grad())
    }
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

fn units(model: Model) -> Units<Batch> {
    let mut units = Units::new();
    let ends = units.add("ends", model.ends);
    units.first(ends, Ends::embed);
    for (i, block) in model.blocks.into_iter().enumerate() {
        let block = units.add(format!("block {i}"), block);
        units.then(block, Block::forward);
    }
    units.last(ends, Ends::loss);
    units
}

fn sharded(model: &Model, batch: &Batch, config: &FsdpConfig, ranks: usize, micro_batches: usize) -> (Curve, AtRest) {
    let results = run_ranks(vec![Device::flex(); ranks], Duration::from_secs(60), |comm| {
        let rank = comm.rank();
        let mut fsdp = Fsdp::new(units(model.clone()), comm, config.clone())?;
        let parts = ranks * micro_batches;
        let part = |i: usize| {
            let range = i * 8 / parts..(i + 1) * 8 / parts;
            Batch { x: batch.x.clone().slice([range.clone()]), target: batch.target.clone().slice([range]) }
        };
        let mine: Vec<Batch> = (rank * micro_batches..(rank + 1) * micro_batches).map(part).collect();
        let mut curve = vec![];
        for _ in 0..STEPS {
            let report = fsdp.train_step(&mine, LR)?;
            curve.push([report.loss, report.grad_norm]);
        }
        Ok::<_, FsdpError>((curve, fsdp.at_rest()))
    })
    .unwrap();
    assert!(results.iter().all(|(curve, _)| *curve == results[0].0), "every rank reports the same");
    results.into_iter().next().unwrap()
}

#[test]
fn every_strategy_on_any_number_of_ranks_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    assert!(expected[0][1] > CLIP, "the test must clip");
    for strategy in [Strategy::Ddp, Strategy::FullShard] {
        for activation_checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
            for (ranks, micro_batches) in [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2)] {
                let config = FsdpConfig {
                    strategy,
                    activation_checkpointing,
                    clip_grad_norm: Some(CLIP),
                    ..FsdpConfig::default()
                };
                let (curve, _) = sharded(&model, &batch, &config, ranks, micro_batches);
                for (step, (found, expected)) in curve.iter().zip(&expected).enumerate() {
                    for (found, expected) in found.iter().zip(expected) {
                        let difference = (found - expected).abs() / expected;
                        assert!(
                            difference < 1e-5,
                            "{strategy:?} {activation_checkpointing:?} ranks {ranks} micro-batches {micro_batches} \
                             step {step}: {found} is not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn full_shard_rests_on_one_nth_of_parameters_and_moments() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let whole = sharded(&model, &batch, &FsdpConfig::default(), 1, 1).1;
    assert_eq!(whole.optimizer, 2 * whole.parameters);
    for ranks in [2, 4] {
        let part = sharded(&model, &batch, &FsdpConfig::default(), ranks, 1).1;
        // A unit's buffer is a multiple of 512 bytes for each rank: at most so much padding for each of the four units.
        let padding = 4 * 512;
        assert!(part.parameters >= whole.parameters / ranks && part.parameters <= whole.parameters / ranks + padding);
        assert_eq!(part.optimizer, 2 * part.parameters);
        let replica =
            sharded(&model, &batch, &FsdpConfig { strategy: Strategy::Ddp, ..Default::default() }, ranks, 1).1;
        assert_eq!(replica, whole);
    }
}
