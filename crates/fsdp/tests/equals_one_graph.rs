//! Every strategy, on any number of ranks, trains as one autodiff graph of the whole model on one device does.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamW, AdamWConfig, AdamWState, Optimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{DType, Device, Distribution, Gradients, Tensor};
use comm::run_ranks;
use fsdp::{
    ActivationCheckpointing, Category, FloatType, Fsdp, FsdpConfig, FsdpError, Layout, Memory, Precision, Prefetch,
    Strategy, Units, Wrap,
};
use std::time::Duration;

const WIDTH: usize = 24;
const STEPS: usize = 5;
const LR: f64 = 0.01;
const CLIP: f64 = 0.5;
const AUX: f64 = 0.1;

const STRATEGIES: [Strategy; 6] = [
    Strategy::Ddp,
    Strategy::Zero1,
    Strategy::ShardGradOp,
    Strategy::FullShard,
    Strategy::HybridShard,
    Strategy::Block,
];

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
        self.tied.forward(batch.x.clone().cast(self.tied.weight.val().dtype()))
    }

    fn loss(&self, x: Tensor<3>, batch: &Batch) -> Tensor<1> {
        let y = self.norm.forward(x).matmul(self.tied.weight.val().transpose().unsqueeze());
        (y.cast(DType::F32) - batch.target.clone()).powi_scalar(2).mean()
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Option<Tensor<1>>) {
        let hidden = gelu(self.up.forward(self.norm.forward(x.clone())));
        let aux = hidden.clone().cast(DType::F32).powi_scalar(2).mean() * AUX;
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

/// Loss, gradient norm and auxiliary loss of each step.
type Curve = Vec<[f64; 3]>;

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
        units.then(block, |block: &Block, x, _| block.forward(x));
    }
    units.last(ends, Ends::loss);
    units
}

fn sharded(
    model: &Model,
    batch: &Batch,
    config: &FsdpConfig,
    ranks: usize,
    micro_batches: usize,
) -> Vec<(Curve, Memory)> {
    let (model, batch, config) = (model.clone(), batch.clone(), config.clone());
    let results = run_ranks(vec![Device::flex(); ranks], Duration::from_secs(60), move |comm| {
        let mut fsdp = Fsdp::new(units(model.clone()), comm, config.clone())?;
        let (rank, ranks) = fsdp.data_parallel();
        let parts = ranks * micro_batches;
        let part = |i: usize| {
            let range = i * 8 / parts..(i + 1) * 8 / parts;
            Batch { x: batch.x.clone().slice([range.clone()]), target: batch.target.clone().slice([range]) }
        };
        let mine: Vec<Batch> = (rank * micro_batches..(rank + 1) * micro_batches).map(part).collect();
        let mut curve = vec![];
        for _ in 0..STEPS {
            let report = fsdp.train_step(&mine, LR)?;
            curve.push([report.loss, report.grad_norm, report.aux_loss]);
        }
        Ok::<_, FsdpError>((curve, fsdp.memory()))
    })
    .unwrap();
    assert!(results.iter().all(|(curve, _)| *curve == results[0].0), "every rank reports the same");
    results
}

fn config(strategy: Strategy) -> FsdpConfig {
    FsdpConfig { strategy, clip_grad_norm: Some(CLIP), ..FsdpConfig::default() }
}

/// Trains in every way that is asked for, and lists all that do not train as `expected`.
fn all_train_as(expected: &Curve, model: &Model, batch: &Batch, table: &[(FsdpConfig, usize, usize)]) {
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

#[test]
fn every_strategy_on_any_number_of_ranks_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    assert!(expected[0][1] > CLIP, "the test must clip");
    let mut table = vec![];
    for strategy in STRATEGIES {
        for activation_checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
            for (ranks, micro_batches) in [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)] {
                let config = FsdpConfig { activation_checkpointing, ..config(strategy) };
                // Eight sequences are not shared by three ranks; under `block` they need not be.
                let fits = ranks != 3 || strategy == Strategy::Block;
                if fits && config.validate(ranks).is_ok() {
                    table.push((config, ranks, micro_batches));
                }
            }
        }
    }
    all_train_as(&expected, &model, &batch, &table);
}

#[test]
fn every_policy_trains_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    let full = config(Strategy::FullShard);
    let policies = [
        FsdpConfig { wrap: Wrap::Size(1), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(2000), ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(3000), activation_checkpointing: ActivationCheckpointing::Full, ..full.clone() },
        FsdpConfig { wrap: Wrap::Size(usize::MAX), ..full.clone() },
        FsdpConfig { reshard_after_forward: false, ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(2), ..full.clone() },
        FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(3), ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::None, backward_prefetch: Prefetch::None, ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::Post, backward_prefetch: Prefetch::Post, ..full.clone() },
        FsdpConfig { forward_prefetch: Prefetch::Post, backward_prefetch: Prefetch::None, ..config(Strategy::Block) },
        FsdpConfig { no_sync: true, ..full.clone() },
        FsdpConfig { no_sync: true, ..config(Strategy::ShardGradOp) },
        FsdpConfig { no_sync: true, ..config(Strategy::HybridShard) },
        FsdpConfig { cpu_offload: true, ..full.clone() },
        FsdpConfig { reshard_after_forward: false, ..config(Strategy::Block) },
    ];
    let table: Vec<_> = policies.into_iter().map(|config| (config, 4, 2)).collect();
    all_train_as(&expected, &model, &batch, &table);
}

#[test]
fn at_most_two_units_are_gathered_at_once_and_one_without_prefetch() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    for strategy in [Strategy::FullShard, Strategy::HybridShard, Strategy::Block] {
        for activation_checkpointing in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
            for (prefetch, units) in [(Prefetch::Pre, 2), (Prefetch::Post, 1), (Prefetch::None, 1)] {
                let config = FsdpConfig {
                    activation_checkpointing,
                    forward_prefetch: prefetch,
                    backward_prefetch: prefetch,
                    ..config(strategy)
                };
                let sizes = Layout::of(&model.blocks[0], 4).padded_len() * 4;
                for (_, memory) in sharded(&model, &batch, &config, 4, 2) {
                    let gathered = memory.peak[Category::Gathered];
                    assert!(gathered <= units * sizes, "{strategy:?} {prefetch:?}: {gathered} of units of {sizes}");
                    assert!(gathered > 0);
                }
            }
        }
    }
}

#[test]
fn bf16_trains_nearly_as_one_graph() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let expected = one_graph(model.clone(), &batch);
    for reduce in [FloatType::Fp32, FloatType::Bf16] {
        for strategy in STRATEGIES {
            let precision = Precision { param: FloatType::Bf16, reduce };
            let config = FsdpConfig { precision, ..config(strategy) };
            let (curve, _) = &sharded(&model, &batch, &config, 4, 1)[0];
            for (found, expected) in curve.iter().zip(&expected) {
                assert!(
                    (found[0] - expected[0]).abs() < 0.02 * expected[0],
                    "{strategy:?}: {found:?}, not {expected:?}"
                );
            }
        }
    }
}

#[test]
fn an_overflow_of_fp16_changes_nothing_and_halves_the_scale() {
    let device = Device::flex();
    let (model, batch) = (model(&device), global_batch(&device));
    let precision = Precision { param: FloatType::Fp16, reduce: FloatType::Fp16 };
    for strategy in [Strategy::Ddp, Strategy::FullShard, Strategy::Block] {
        let (config, model, batch) = (FsdpConfig { precision, ..config(strategy) }, model.clone(), batch.clone());
        let reports = run_ranks(vec![Device::flex(); 2], Duration::from_secs(60), move |comm| {
            let mut fsdp = Fsdp::new(units(model.clone()), comm, config.clone())?;
            // At the first scale, 65536, the gradients of this loss are beyond fp16's 65504.
            let large = Batch { x: batch.x.clone() * 3.0, target: batch.target.clone() * 100.0 };
            (0..20).map(|_| fsdp.train_step(std::slice::from_ref(&large), LR)).collect::<Result<Vec<_>, FsdpError>>()
        })
        .unwrap();
        let reports = &reports[0];
        assert!(reports[0].skipped, "the first step overflows");
        assert!(reports.iter().filter(|report| !report.skipped).count() >= 10, "a scale that fits is found");
        for two in reports.windows(2) {
            assert_eq!(two[0].skipped, two[0].loss == two[1].loss, "a skipped step changes nothing: {two:?}");
        }
        assert!(reports[19].loss < reports[0].loss);
    }
}

#[test]
fn ranks_that_were_given_different_models_or_batches_all_get_an_error() {
    let device = Device::flex();
    let (models, batch) = ([model(&device), model(&device)], global_batch(&device));
    for strategy in [Strategy::Ddp, Strategy::FullShard] {
        let errors = |own_models: bool, batches: [usize; 2]| {
            let (models, batch) = (models.clone(), batch.clone());
            run_ranks(vec![Device::flex(); 2], Duration::from_secs(60), move |comm| {
                let rank = comm.rank();
                let model = models[if own_models { rank } else { 0 }].clone();
                let step = |mut fsdp: Fsdp<Batch>| fsdp.train_step(&vec![batch.clone(); batches[rank]], LR);
                let result = Fsdp::new(units(model), comm, config(strategy)).and_then(step);
                Ok::<_, FsdpError>(result.err().map(|error| error.to_string()).unwrap_or_default())
            })
            .unwrap()
        };
        let all_contain = |errors: Vec<String>, part: &str| {
            assert!(errors.iter().all(|error| error.contains(part)), "{errors:?}");
        };
        all_contain(errors(true, [1, 1]), "unit ends has not the same initial values");
        all_contain(errors(false, [0, 0]), "at least one micro-batch");
        if strategy == Strategy::Ddp {
            all_contain(errors(false, [1, 2]), "the 2 ranks together 3");
        }
        all_contain(errors(false, [1, 1]), "");
    }
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let refused = |config: FsdpConfig, ranks, reason: &str| {
        let message = config.validate(ranks).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    };
    let hybrid = config(Strategy::HybridShard);
    refused(hybrid.clone(), 3, "on 3 ranks");
    refused(hybrid.clone(), 2, "such as 4");
    refused(FsdpConfig { dp_replicate: Some(1), ..hybrid }, 4, "at least 2 replicas");
    refused(FsdpConfig { dp_replicate: Some(2), ..config(Strategy::Ddp) }, 4, "without strategy hybrid_shard");
    refused(FsdpConfig { wrap: Wrap::Size(5), ..config(Strategy::Block) }, 4, "wrap size:5 with strategy block");
    refused(FsdpConfig { no_sync: true, ..config(Strategy::Block) }, 4, "no_sync with strategy block");
    refused(FsdpConfig { reshard_after_forward: false, ..config(Strategy::Zero1) }, 4, "never gathers");
    let every_0 = ActivationCheckpointing::Every(0);
    refused(FsdpConfig { activation_checkpointing: every_0, ..config(Strategy::Ddp) }, 4, "every:0");
}
