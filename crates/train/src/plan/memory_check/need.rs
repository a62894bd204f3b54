//! The memory need of a run, row by row.

use super::rows::{MemoryRows, Row};
use crate::config::Config;
use crate::host::device;
use crate::plan::layout::different_ranks;
use crate::plan::units::units;
use crate::plan::workload::workload;
use burn::tensor::Device;
use fsdp::{Bytes, Category, FloatType, Forecast, ForecastRun, Strategy};
use model::{ExpertLoads, Parallel};
use schedule::Op;

/// Placement of a run's ranks on a machine: how many, and on how many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub ranks: usize,
    pub devices: usize,
    /// Whether the ranks are threads of one process.
    pub threads: bool,
}

/// A kind of memory that ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    Host,
    Device,
}

/// The peak need of ranks that share a memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    pub pool: Pool,
    /// Number of ranks that share it.
    pub ranks: usize,
    /// The need of the largest rank, and of all ranks together.
    pub of_rank: MemoryRows,
    pub of_all: MemoryRows,
}

/// Code and tables of the program, and the threads of a rank; measured.
const PROGRAM: f64 = 60e6;
const OF_A_RANK: f64 = 20e6;
/// Allocator reserve as a fraction of what is in use; measured. It is larger if ranks pass memory to each other.
const RESERVE: f64 = 0.3;
const RESERVE_OF_RANKS: f64 = 0.4;
/// Shards that a checkpoint holds while it is written: parameters and two moments.
const CHECKPOINTED: f64 = 3.0;
/// Models with more blocks are extrapolated from this many.
const BLOCKS: usize = 1000;

/// The need of each memory that a run's ranks on a machine share: the memory of the fullest device and, with offloaded
/// shards, the CPU's.
pub fn of_run(config: &Config, machine: Machine) -> Vec<Need> {
    let ranks = of_a_device(config, machine);
    let of_rank = *ranks.iter().max_by(|a, b| a.total().total_cmp(&b.total())).expect("a device has a rank");
    let of_all = together(config, &ranks, machine.threads && machine.devices == 1);
    let reserve = reserve(config);
    let need = |pool, ranks: usize, of_rank: MemoryRows, of_all: MemoryRows| {
        let with_allocator = |mut rows: MemoryRows, ranks: usize| {
            let processes = if machine.threads { 1 } else { ranks };
            let program = PROGRAM * processes as f64 + OF_A_RANK * ranks as f64;
            rows[Row::Allocator] = reserve * rows.total() + if pool == Pool::Host { program } else { 0.0 };
            rows
        };
        Need { pool, ranks, of_rank: with_allocator(of_rank, 1), of_all: with_allocator(of_all, ranks) }
    };
    if on_cpu(config) || !config.parallel.cpu_offload {
        let pool = if on_cpu(config) { Pool::Host } else { Pool::Device };
        return vec![need(pool, ranks.len(), of_rank, of_all)];
    }
    let of_host = of_all.rest().with(MemoryRows::default(), |bytes, _| bytes * machine.devices as f64);
    vec![
        need(Pool::Device, ranks.len(), without_rest(of_rank), without_rest(of_all)),
        need(Pool::Host, machine.ranks, of_rank.rest(), of_host),
    ]
}

/// The rows without what rests on the CPU.
fn without_rest(rows: MemoryRows) -> MemoryRows {
    rows.with(rows.rest(), |all, rest| (all - rest).max(0.0))
}

/// What a rank needs of a device that it has alone, and that without checkpoints on the way.
pub fn of_device_alone(config: &Config, rank: usize) -> [f64; 2] {
    let rows = of_rank(config, rank);
    let mut rows = if config.parallel.cpu_offload { without_rest(rows) } else { rows };
    rows[Row::Allocator] = reserve(config) * rows.total();
    [rows.total(), without_checkpoints(config, rows)]
}

/// The sum of the rows without checkpoints on the way.
pub fn without_checkpoints(config: &Config, rows: MemoryRows) -> f64 {
    rows.total() - (1.0 + reserve(config)) * rows[Row::Checkpoint]
}

fn reserve(config: &Config) -> f64 {
    if config.parallel.gpus > 1 { RESERVE_OF_RANKS } else { RESERVE }
}

/// What some rank needs at least, all told, if the shards of the ranks have a mean of `shard` bytes in fp32 and if at
/// some moment of the step each rank holds at least `held` bytes besides its parameters and moments in fp32, again as a
/// mean; the other moment is that of the optimizer's steps, when each rank has the gradients of its shard. Also without
/// checkpoints on the way.
pub fn at_least(config: &Config, shard: f64, held: f64) -> [f64; 2] {
    let saved = if config.saves_on_the_way() { CHECKPOINTED * shard } else { 0.0 };
    [saved, 0.0].map(|saved| (1.0 + reserve(config)) * (3.0 * shard + held.max(shard) + saved))
}

/// The micro-batch size of a rank, and its micro-batches per step.
pub fn micro_batches(config: &Config) -> (usize, usize) {
    (config.micro_batch_size(), config.micro_batches())
}

/// Forecasts a rank's memory from shapes alone.
pub fn forecast(config: &Config, rank: usize) -> Forecast {
    forecasts(config, &[rank]).remove(0)
}

/// Forecasts the memory of ranks.
fn forecasts(config: &Config, ranks: &[usize]) -> Vec<Forecast> {
    let units = units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &Device::flex());
    let micro_batches = config.micro_batches();
    let calls = config.family().memory(&workload(config, ranks[0]));
    let run =
        ForecastRun { world_size: config.parallel.gpus, ranks, micro_batches, calls: &calls, on_cpu: on_cpu(config) };
    units.forecast(&config.fsdp(), run).expect("the configuration is validated")
}

/// The operations of the ranks in a step, each with the bytes that a rank holds after it.
pub fn over_step(config: &Config, ranks: &[usize]) -> Vec<Vec<(Op, Bytes)>> {
    let units = units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &Device::flex());
    let calls = config.family().memory(&workload(config, ranks[0]));
    let (world_size, micro_batches, on_cpu) = (config.parallel.gpus, config.micro_batches(), on_cpu(config));
    let run = ForecastRun { world_size, ranks, micro_batches, calls: &calls, on_cpu };
    units.memory_over_step(&config.fsdp(), run).expect("the configuration is validated")
}

fn on_cpu(config: &Config) -> bool {
    device::meant(&config.train.device) == "cpu"
}

/// The rows of each rank on the fullest device.
fn of_a_device(config: &Config, machine: Machine) -> Vec<MemoryRows> {
    let ranks = machine.ranks.div_ceil(machine.devices);
    let is_block = config.parallel.strategy == Strategy::Block;
    if !is_block && config.parallel.pp == 1 {
        return vec![of_rank(config, different_ranks(config)[0]); ranks];
    }
    // Each stands for as many ranks.
    let different = rows_of(config, &different_ranks(config));
    let alike = config.parallel.gpus / different.len();
    let all: Vec<MemoryRows> = different.into_iter().flat_map(|rows| vec![rows; alike]).collect();
    let of_device = |device| all.iter().skip(device).step_by(machine.devices).copied().collect();
    let total = |ranks: &Vec<MemoryRows>| ranks.iter().map(MemoryRows::total).sum::<f64>();
    let most = match machine.threads {
        true => (0..machine.devices).map(of_device).max_by(|a, b| total(a).total_cmp(&total(b))),
        false => all.iter().max_by(|a, b| a.total().total_cmp(&b.total())).map(|most| vec![*most; ranks]),
    };
    most.expect("there is a rank")
}

/// The rows of one rank, without the allocator.
pub fn of_rank(config: &Config, rank: usize) -> MemoryRows {
    let with_blocks = |count| {
        let mut config = config.clone();
        config.model.set_blocks(count);
        rows_of(&config, &[rank]).remove(0)
    };
    let count = config.model.blocks();
    // A stage's memory does not grow linearly with the blocks like a whole model's.
    if count <= BLOCKS || config.parallel.pp > 1 {
        return with_blocks(count);
    }
    let times = (count - BLOCKS) as f64 / (BLOCKS / 2) as f64;
    with_blocks(BLOCKS / 2).with(with_blocks(BLOCKS), |half, full| full + (full - half) * times)
}

fn rows_of(config: &Config, ranks: &[usize]) -> Vec<MemoryRows> {
    forecasts(config, ranks).iter().map(|forecast| rows(config, forecast)).collect()
}

fn rows(config: &Config, forecast: &Forecast) -> MemoryRows {
    let mut rows = MemoryRows::default();
    for category in Category::ALL {
        let row = match category {
            Category::Parameters => Row::Parameters,
            Category::Gradients => Row::Gradients,
            Category::Optimizer => Row::Optimizer,
            Category::Gathered => Row::Gathered,
            Category::Activations => Row::Activations,
        };
        rows[row] = forecast.most[category] as f64;
    }
    rows[Row::Working] = forecast.working as f64;
    if config.saves_on_the_way() {
        rows[Row::Checkpoint] = CHECKPOINTED * rows.shard();
    }
    rows
}

/// The fp32 bytes that rank 0 needs to gather the whole model at the end; 0 if it already holds all of it.
pub fn of_whole_model(config: &Config) -> f64 {
    let forecast = forecast(config, 0);
    let shard = forecast.most[Category::Optimizer] / 2; // the optimizer holds two moments
    if shard < forecast.model { forecast.model as f64 } else { 0.0 }
}

/// Adds up the ranks of a device.
///
/// If all ranks are on one device, threads of a replica share the result of an `all_gather`; on several devices each
/// has a copy. With experts or columns spread over ranks, ranks with different parts share no gathered parameters, so
/// nothing is counted as shared.
fn together(config: &Config, ranks: &[MemoryRows], shares: bool) -> MemoryRows {
    let of_replica = (config.parallel.gpus / config.parallel.pp / config.fsdp_without_chunks().replicas()).max(1);
    let mut all = ranks.iter().fold(MemoryRows::default(), |sum, rows| sum.with(*rows, |sum, bytes| sum + bytes));
    if shares && config.parallel.ep * config.parallel.tp == 1 {
        let most_of = |ranks: &[MemoryRows], row: Row| ranks.iter().map(|rows| rows[row]).fold(0.0, f64::max);
        // Each stage and each replica has its own.
        let most = |row: Row| ranks.chunks(of_replica).map(|replica| most_of(replica, row)).sum::<f64>();
        all[Row::Gathered] = most(Row::Gathered);
        if matches!(config.parallel.strategy, Strategy::Zero1 | Strategy::ShardGradOp) {
            // Each rank has its own copy until the first step creates a shared one and the moments.
            let shards = if config.parallel.precision.param() == FloatType::Fp32 { 0.0 } else { all.shard() };
            let shared = most(Row::Parameters) + shards;
            all[Row::Parameters] = shared.max(all[Row::Parameters] - all[Row::Optimizer]);
        }
    }
    all
}
