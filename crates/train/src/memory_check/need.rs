//! What a run will need, row by row.

use super::activations;
use crate::config::{Config, ModelConfig};
use crate::expert_loads::ExpertLoads;
use crate::units::units;
use burn::tensor::Device;
use fsdp::{Category, FloatType, ForecastRun, Strategy};
use std::ops::{Index, IndexMut};

/// Where the ranks of a run are: how many one machine has, and on how many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub ranks: usize,
    pub devices: usize,
    /// Whether they are threads of one process.
    pub threads: bool,
}

/// Memory that ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Host,
    Device,
}

/// What ranks need of a memory that they share, at the moment when that is most.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    pub place: Place,
    /// How many ranks share it.
    pub ranks: usize,
    /// What the one with the most needs, and what all of them do.
    pub of_rank: Rows,
    pub of_all: Rows,
}

/// What takes memory: the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    Parameters,
    Gradients,
    Optimizer,
    Gathered,
    Activations,
    /// Gradients of a backward under way, and the optimizer's copies.
    Working,
    /// Parameters and moments as they were when the checkpoint under way was begun.
    Checkpoint,
    /// The whole model, at the end on rank 0.
    Sample,
    /// The program, and what the allocator holds of freed memory that nothing else fits in.
    Allocator,
}

/// Bytes of each row. Not integers: these would overflow for a model that nobody could train.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rows([f64; Row::ALL.len()]);

/// Code and tables of the program, and what the threads of a rank take; measured.
const PROGRAM: f64 = 60e6;
const OF_A_RANK: f64 = 20e6;
/// What the allocator holds in reserve, as a share of what is in use; measured.
const RESERVE: f64 = 0.2;
/// Of a model with more blocks than this the rest is extrapolated.
const BLOCKS: usize = 1000;

/// What a run needs of each memory that its ranks on a machine share: of the device with the most, and where shards are offloaded of the
/// host.
pub fn of_run(config: &Config, machine: Machine) -> Vec<Need> {
    let (ranks, model) = of_a_device(config, machine);
    let of_rank = *ranks.iter().max_by(|a, b| a.total().total_cmp(&b.total())).expect("a device has a rank");
    let of_all = together(config, &ranks, machine.threads);
    let place = if on_cpu(config) { Place::Host } else { Place::Device };
    let need = |place, ranks, rows: [Rows; 2]| {
        let sample = if place == Place::Host && !on_cpu(config) { 0.0 } else { model };
        let [of_rank, of_all] = rows.map(|rows| rows.at_the_end(sample).max(rows).with_allocator(place, ranks));
        Need { place, ranks, of_rank, of_all }
    };
    if on_cpu(config) || !config.parallel.cpu_offload {
        return vec![need(place, ranks.len(), [of_rank, of_all].map(|rows| rows.with_checkpoint(config)))];
    }
    let devices = machine.devices as f64;
    let of_host = [of_rank.rest(), of_all.rest().map(|bytes| bytes * devices)].map(|rows| rows.with_checkpoint(config));
    vec![
        need(place, ranks.len(), [of_rank, of_all].map(Rows::without_rest)),
        need(Place::Host, machine.ranks, of_host),
    ]
}

/// Sequences of a rank's micro-batch, and micro-batches of a step.
pub fn micro_batches(config: &Config) -> (usize, usize) {
    let share = (config.train.global_batch_size / config.parallel.data_parallel_size()).max(1);
    let micro = config.train.micro_batch_size.map_or(share, |micro| micro.min(share));
    (micro, share / micro)
}

fn on_cpu(config: &Config) -> bool {
    config.train.device == "cpu"
}

/// The rows of each rank of the device with the most; and the bytes of the model, if rank 0 puts it together for a sample.
fn of_a_device(config: &Config, machine: Machine) -> (Vec<Rows>, f64) {
    let ranks = machine.ranks.div_ceil(machine.devices);
    let (first, model) = of_rank(config, 0);
    let sample = if first[Row::Parameters] < model && config.train.sample_tokens > 0 { model } else { 0.0 };
    if config.parallel.strategy != Strategy::Block {
        return (vec![first; ranks], sample);
    }
    let all: Vec<Rows> = (0..config.parallel.gpus).map(|rank| of_rank(config, rank).0).collect();
    let of_device = |device| all.iter().skip(device).step_by(machine.devices).copied().collect();
    let total = |ranks: &Vec<Rows>| ranks.iter().map(Rows::total).sum::<f64>();
    let most = match machine.threads {
        true => (0..machine.devices).map(of_device).max_by(|a, b| total(a).total_cmp(&total(b))),
        false => all.iter().max_by(|a, b| a.total().total_cmp(&b.total())).map(|most| vec![*most; ranks]),
    };
    (most.expect("there is a rank"), sample)
}

/// Of a rank in a step, and the bytes of the model in fp32.
fn of_rank(config: &Config, rank: usize) -> (Rows, f64) {
    let with_blocks = |blocks| {
        let mut config = config.clone();
        match &mut config.model {
            ModelConfig::Gpt2(shape) => shape.n_layer = blocks,
            ModelConfig::DeepSeek(shape) => shape.num_hidden_layers = blocks,
        }
        forecast(&config, rank)
    };
    let blocks = match &config.model {
        ModelConfig::Gpt2(shape) => shape.n_layer,
        ModelConfig::DeepSeek(shape) => shape.num_hidden_layers,
    };
    if blocks <= BLOCKS {
        return forecast(config, rank);
    }
    let [half, full] = [BLOCKS / 2, BLOCKS].map(with_blocks);
    let times = (blocks - BLOCKS) as f64 / (BLOCKS / 2) as f64;
    let beyond = |half: f64, full: f64| full + (full - half) * times;
    (Rows(std::array::from_fn(|row| beyond(half.0.0[row], full.0.0[row]))), beyond(half.1, full.1))
}

fn forecast(config: &Config, rank: usize) -> (Rows, f64) {
    let (units, _) = units(config, &ExpertLoads::default(), &Device::flex());
    let (sequences, micro_batches) = micro_batches(config);
    let calls = activations::calls(config, sequences);
    let (world_size, on_cpu) = (config.parallel.gpus, on_cpu(config));
    let run = ForecastRun { world_size, rank, micro_batches, calls: &calls, on_cpu };
    let forecast = units.forecast(&config.parallel.fsdp(&config.optim), run).expect("the configuration is validated");
    let mut rows = Rows::default();
    for (row, category) in [
        (Row::Parameters, Category::Parameters),
        (Row::Gradients, Category::Gradients),
        (Row::Optimizer, Category::Optimizer),
        (Row::Gathered, Category::Gathered),
        (Row::Activations, Category::Activations),
    ] {
        rows[row] = forecast.most[category] as f64;
    }
    rows[Row::Working] = forecast.working as f64;
    (rows, forecast.model as f64)
}

/// The ranks of a device. Threads share what an `all_gather` makes for all of them.
fn together(config: &Config, ranks: &[Rows], threads: bool) -> Rows {
    let mut all = ranks.iter().fold(Rows::default(), |sum, rows| Rows(std::array::from_fn(|row| sum.0[row] + rows.0[row])));
    if threads {
        let most = |row: Row| ranks.iter().map(|rows| rows[row]).fold(0.0, f64::max);
        all[Row::Gathered] = most(Row::Gathered);
        if matches!(config.parallel.strategy, Strategy::Zero1 | Strategy::ShardGradOp) {
            // Each rank's own copy, until the first step has made a new one for all, and moments.
            let shards = match config.parallel.precision.param {
                FloatType::Fp32 => 0.0,
                _ => all.shard(),
            };
            let shared = most(Row::Parameters) + shards;
            all[Row::Parameters] = shared.max(all[Row::Parameters] - all[Row::Optimizer]);
        }
    }
    all
}

impl Row {
    pub const ALL: [Self; 9] = [
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Gathered,
        Self::Activations,
        Self::Working,
        Self::Checkpoint,
        Self::Sample,
        Self::Allocator,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Rows {
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self(self.0.map(of))
    }

    fn max(self, other: Self) -> Self {
        if self.total() > other.total() { self } else { other }
    }

    /// The shard in fp32: AdamW's two moments of it are the row `optimizer`.
    fn shard(&self) -> f64 {
        self[Row::Optimizer] / 2.0
    }

    /// What rests between steps, and gradients on their way there.
    fn rest(self) -> Self {
        let mut rest = Self::default();
        rest[Row::Parameters] = self.shard();
        rest[Row::Gradients] = self.shard().min(self[Row::Gradients]);
        rest[Row::Optimizer] = self[Row::Optimizer];
        rest
    }

    fn without_rest(self) -> Self {
        let rest = self.rest();
        Self(std::array::from_fn(|row| (self.0[row] - rest.0[row]).max(0.0)))
    }

    /// A tensor that is being written is not overwritten by the next step, which makes a new one.
    fn with_checkpoint(mut self, config: &Config) -> Self {
        let every = config.checkpoint.every;
        if config.checkpoint.keep > 0 && every > 0 && every < config.train.steps {
            self[Row::Checkpoint] = 3.0 * self.shard();
        }
        self
    }

    /// When rank 0 has put the model together for the sample.
    fn at_the_end(self, model: f64) -> Self {
        let mut end = Self::default();
        end[Row::Parameters] = self[Row::Parameters];
        end[Row::Optimizer] = self[Row::Optimizer];
        end[Row::Sample] = model;
        end
    }

    fn with_allocator(mut self, place: Place, ranks: usize) -> Self {
        let program = if place == Place::Host { PROGRAM + OF_A_RANK * ranks as f64 } else { 0.0 };
        self[Row::Allocator] = RESERVE * self.total() + program;
        self
    }
}

impl Index<Row> for Rows {
    type Output = f64;

    fn index(&self, row: Row) -> &f64 {
        &self.0[row as usize]
    }
}

impl IndexMut<Row> for Rows {
    fn index_mut(&mut self, row: Row) -> &mut f64 {
        &mut self.0[row as usize]
    }
}
