//! The fastest layouts of a model on a cluster.
//!
//! ```text
//! pp, schedule, tp, cp, ep, strategy, micro-batch, recomputation (see `candidates`), offload
//!   ── valid? ── may fit? ──> sorted by estimated time ──> the first whose forecast memory fits ──> simulated
//! ```
//!
//! The estimate adds up the time of one micro-batch over all calls, the bubble in closed form or a bound of it, what of
//! the sharded parameters' communication is longer than the computation, and offload. Simulations have the last word.

#[cfg(test)]
mod tests;

use crate::config::{Config, ParallelConfig};
use crate::plan::estimate::{Estimate, MicroBatch, groups};
use crate::plan::memory_check;
use crate::plan::step_plan::{DeviceMemory, device_memory};
use crate::plan::step_time::{Assumptions, step_time};
use fsdp::{ActivationCheckpointing, Strategy};
use plan::{Cluster, PlanError, Summary};
use rayon::prelude::*;
use schedule::Schedule;
use std::collections::HashMap;

/// Layouts that are shown.
const SHOWN: usize = 5;
/// Estimated part of the memory above which a layout is looked at last: forecasts, with the allocator's reserve, are up to
/// twice the estimates.
const LARGE: f64 = 0.7;
/// Layouts that are simulated: more than are shown, because estimates may be in another order.
const SIMULATED: usize = 8;
/// Layouts whose memory is forecast at most: the fastest, and if none of them fits the smallest.
const FORECAST: usize = 160;

/// A layout and what is planned for it.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub config: Config,
    pub time: Summary,
    pub memory: DeviceMemory,
}

/// What a search has found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The fastest layouts that fit, at most five.
    pub best: Vec<Layout>,
    /// Valid layouts.
    pub valid: usize,
    /// Layouts whose memory was forecast.
    pub examined: usize,
    /// Whether these include those that are estimated to be the smallest.
    pub smallest_too: bool,
    /// Layouts that are estimated to be faster than all that fit, and may fit without checkpoints on the way.
    pub without_checkpoints: usize,
    /// The smallest layout that was examined, and what it needs at least, if none fits.
    pub smallest: Option<(Needs, Config)>,
}

/// Bytes of the memory that is too small for a layout. What fits into the devices is smaller than what does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Of a node's CPU memory.
    OfHost(usize),
    /// Per device.
    OfDevice(usize),
}

/// Why a layout does not fit.
#[derive(Debug, Clone, Copy)]
struct TooLarge {
    needs: Needs,
    /// Whether it may fit without checkpoints on the way.
    fits_without_checkpoints: bool,
}

/// Finds the fastest layouts of a run with its number of ranks and sequences per step. Keys that are `fixed` keep their
/// values. Layouts with `cpu_offload` count if the cluster has `offload`, and `host_memory` for the states.
///
/// # Errors
/// If a simulation fails.
pub(crate) fn search(config: &Config, cluster: &Cluster, fixed: &dyn Fn(&str) -> bool) -> Result<Found, PlanError> {
    let mut candidates = candidates(config, cluster, fixed);
    if !config.parallel.cpu_offload && !fixed("parallel.cpu_offload") && may_offload(config, cluster) {
        let mut offloading = candidates.clone();
        offloading.iter_mut().for_each(|config| config.parallel.cpu_offload = true);
        candidates.append(&mut offloading);
    }
    let valid = candidates.len();
    // The costs of a micro-batch are the same for all stages, schedules and strategies.
    let key = |config: &Config| {
        let ParallelConfig { tp, cp, ep, .. } = config.parallel;
        (tp, cp, ep, config.micro_batch_size())
    };
    let different: HashMap<_, &Config> = candidates.iter().map(|config| (key(config), config)).collect();
    let micro_batches: HashMap<_, MicroBatch> =
        different.into_par_iter().map(|(key, config)| (key, MicroBatch::new(config, cluster))).collect();
    let groups = groups(&candidates, cluster);
    let estimate = |config: Config| (Estimate::new(&config, cluster, micro_batches[&key(&config)], &groups), config);
    let mut estimates: Vec<(Estimate, Config)> = candidates.into_par_iter().map(estimate).collect();
    // Forecasts take much longer than estimates.
    let least = estimates.iter().min_by(|(a, _), (b, _)| a.at_least[0].total_cmp(&b.at_least[0]));
    let least = least.map(|(of, config)| (Needs::OfDevice(of.at_least[0] as usize), config.clone()));
    let has = cluster.device.memory;
    let unsaved = estimates.iter().filter(|(of, _)| of.at_least[0] > has && of.at_least[1] <= has);
    let unsaved: Vec<f64> = unsaved.map(|(of, _)| of.seconds).collect();
    estimates.retain(|(of, _)| of.at_least[0] <= has);
    // What is far from fitting comes last.
    let ranks = if cluster.is_cpu() { config.parallel.gpus.min(cluster.devices_per_node) } else { 1 };
    let is_large = |of: &Estimate| ranks as f64 * of.bytes > LARGE * has;
    let mut order: Vec<&(Estimate, Config)> = estimates.iter().collect();
    order.sort_by(|(a, _), (b, _)| is_large(a).cmp(&is_large(b)).then(a.seconds.total_cmp(&b.seconds)));
    let mut all = first_fitting(&order, cluster);
    let smallest_too = all.iter().all(|(_, memory)| memory.is_err());
    let without_checkpoints = match smallest_too {
        true => 0,
        false => {
            let faster = all.iter().map_while(|(_, memory)| memory.as_ref().err());
            let of_fitting = order.get(all.iter().take_while(|(_, memory)| memory.is_err()).count());
            let seconds = of_fitting.map_or(0.0, |(of, _)| of.seconds);
            faster.filter(|of| of.fits_without_checkpoints).count()
                + unsaved.iter().filter(|unsaved| **unsaved < seconds).count()
        }
    };
    if smallest_too {
        order.sort_by(|(a, _), (b, _)| a.bytes.total_cmp(&b.bytes));
        all.extend(first_fitting(&order, cluster));
    }
    let examined = all.len().min(valid);
    let needs = all.iter().filter_map(|(config, memory)| Some((memory.as_ref().err()?.needs, *config)));
    let smallest = needs.min_by_key(|(needs, _)| *needs).map(|(needs, config)| (needs, config.clone())).or(least);
    let fits = |(config, memory): (&Config, Result<DeviceMemory, TooLarge>)| Some((config.clone(), memory.ok()?));
    let fitting: Vec<(Config, DeviceMemory)> = all.into_iter().filter_map(fits).take(SIMULATED).collect();
    let layouts = in_parallel(&fitting, |(config, memory)| {
        summary(config, cluster).map(|time| Layout { config: config.clone(), time, memory: memory.clone() })
    });
    let mut best = layouts.into_iter().collect::<Result<Vec<Layout>, PlanError>>()?;
    best.sort_by(|a, b| a.time.step.total_cmp(&b.time.step));
    // With one rank that shards, strategies are the same.
    best.dedup_by(|b, a| a.time == b.time && a.memory == b.memory && is_same(&a.config, &b.config));
    best.truncate(SHOWN);
    Ok(Found { best, valid, examined, smallest_too, without_checkpoints, smallest })
}

/// Whether a run's states may fit into the CPU memory of its nodes, at rates that are known.
fn may_offload(config: &Config, cluster: &Cluster) -> bool {
    let gpus = config.parallel.gpus;
    let shard = 4.0 * config.parameter_count() as f64 / gpus as f64;
    let of_node = gpus.min(cluster.devices_per_node) as f64 * memory_check::at_least(config, shard, 0.0)[0];
    !cluster.is_cpu() && cluster.offload.is_some() && cluster.host_memory.is_some_and(|has| of_node <= has)
}

/// Whether layouts differ by their strategy only.
fn is_same(a: &Config, b: &Config) -> bool {
    let strategy = a.parallel.strategy;
    a.parallel == ParallelConfig { strategy, ..b.parallel.clone() } && a.micro_batch_size() == b.micro_batch_size()
}

/// Examines layouts until enough fit, and returns their memory.
fn first_fitting<'a>(
    layouts: &[&'a (Estimate, Config)],
    cluster: &Cluster,
) -> Vec<(&'a Config, Result<DeviceMemory, TooLarge>)> {
    let mut examined: Vec<(&Config, Result<DeviceMemory, TooLarge>)> = vec![];
    for some in layouts.chunks(SIMULATED).take(FORECAST / SIMULATED) {
        if examined.iter().filter(|(_, memory)| memory.is_ok()).count() >= SIMULATED {
            break;
        }
        let memories = in_parallel(some, |(_, config)| fitting_memory(config, cluster));
        examined.extend(some.iter().map(|(_, config)| config).zip(memories));
    }
    examined
}

/// Returns the memory of a layout if it fits. That of a pipeline's first stage is looked at first.
fn fitting_memory(config: &Config, cluster: &Cluster) -> Result<DeviceMemory, TooLarge> {
    let has = cluster.device.memory;
    let [first, without] = match config.parallel.pp == 1 || cluster.is_cpu() {
        true => [0.0; 2],
        false => memory_check::of_device_alone(config, 0),
    };
    if first > has {
        return Err(TooLarge { needs: Needs::OfDevice(first as usize), fits_without_checkpoints: without <= has });
    }
    let memory = device_memory(config, cluster);
    match (memory.fits, memory.host.filter(|_| memory.most as f64 <= has)) {
        (true, _) => Ok(memory),
        (_, Some(host)) => Err(TooLarge { needs: Needs::OfHost(host), fits_without_checkpoints: false }),
        _ => Err(TooLarge {
            needs: Needs::OfDevice(memory.most),
            fits_without_checkpoints: memory.without_checkpoints as f64 <= has,
        }),
    }
}

/// Maps items on all cores, in their order.
fn in_parallel<T: Sync, U: Send>(items: &[T], map: impl Fn(&T) -> U + Send + Sync) -> Vec<U> {
    items.par_iter().map(map).collect()
}

/// The time of a step: with many micro-batches, from two steps with fewer, since each further round of the pipeline takes
/// as long as the one before. What does not fill a round makes the first rounds of an interleaved pipeline larger, so
/// the same rest is kept, with as many rounds.
pub(crate) fn summary(config: &Config, cluster: &Cluster) -> Result<Summary, PlanError> {
    let of = |config: &Config| Ok(step_time(config, cluster, Assumptions::default())?.summary());
    let (all, pp, virtual_stages) = (config.micro_batches(), config.parallel.pp, config.parallel.virtual_stages());
    let rest = if config.parallel.schedule == Schedule::Interleaved1F1B { all % pp } else { 0 };
    // Chunks of unequal cost take a few rounds until each further one takes as long as the one before.
    let rounds = rest.max(4 * virtual_stages);
    let [few, more] = [rounds, rounds + virtual_stages].map(|rounds| rounds * pp + rest);
    if all <= more {
        return of(config);
    }
    let (few_of, more_of) = (of(&with_micro_batches(config, few))?, of(&with_micro_batches(config, more))?);
    let times = (all - more) as f64 / (more - few) as f64;
    Ok(more_of.extended(&few_of, times))
}

fn with_micro_batches(config: &Config, count: usize) -> Config {
    let mut config = config.clone();
    let size = config.micro_batch_size();
    config.train.global_batch_size = count * size * config.parallel.data_parallel_size();
    config.train.micro_batch_size = Some(size);
    config
}

/// Tokens of a sequence that context parallelism leaves each rank at least.
const LEAST_TOKENS: usize = 512;

/// Valid layouts, with the values of docs/plan.md for each key that is not `fixed`.
fn candidates(config: &Config, cluster: &Cluster, fixed: &dyn Fn(&str) -> bool) -> Vec<Config> {
    let (given, train) = (&config.parallel, &config.train);
    let (gpus, blocks) = (given.gpus, config.model.blocks());
    let experts = config.expert_layers().map_or(1, |(_, experts)| experts);
    let divisors = |of: usize, most: usize| (1..=of.min(most)).filter(|size| of.is_multiple_of(*size)).collect();
    let powers = |most: usize| (0..).map(|exponent| 1 << exponent).take_while(|size| *size <= most).collect();
    let or_given = |key: &str, given: usize, values: Vec<usize>| if fixed(key) { vec![given] } else { values };
    let micro_batches = match train.micro_batch_size {
        Some(size) => or_given("train.micro_batch_size", size, powers(64)),
        None => powers(64),
    };
    let mut schedules = match fixed("parallel.schedule") {
        true => vec![(given.schedule, given.virtual_stages)],
        false => vec![
            (Schedule::OneFOneB, None),
            (Schedule::Interleaved1F1B, Some(2)),
            (Schedule::Interleaved1F1B, Some(4)),
            (Schedule::ZeroBubble, None),
            (Schedule::ZbV, None),
        ],
    };
    if fixed("parallel.virtual_stages") {
        schedules.iter_mut().for_each(|(_, virtual_stages)| *virtual_stages = given.virtual_stages);
        schedules.dedup();
    }
    let cp = match config.family().context_parallel() {
        true => or_given("parallel.cp", given.cp, powers((train.seq_len / LEAST_TOKENS).max(1))),
        false => vec![given.cp],
    };
    // A larger micro-batch cut in pieces has as many tokens on a rank as a smaller whole one, which exchanges less.
    let (least, smallest) = (cp[0], micro_batches[0]);
    let pieces = cp.iter().flat_map(|cp| micro_batches.iter().map(move |size| (*cp, *size)));
    let pieces: Vec<(usize, usize)> = pieces.filter(|(cp, size)| *cp == least || *size == smallest).collect();
    let strategies = match fixed("parallel.strategy") {
        true => vec![given.strategy],
        false => vec![Strategy::FullShard, Strategy::Zero1],
    };
    let recomputations = match fixed("parallel.activation_checkpointing") {
        true => vec![given.activation_checkpointing],
        false => vec![ActivationCheckpointing::Full, ActivationCheckpointing::None, ActivationCheckpointing::Every(2)],
    };
    let mut found = vec![];
    for pp in or_given("parallel.pp", given.pp, divisors(gpus, blocks + 2)) {
        let of_stage = gpus / pp;
        let schedules = if pp == 1 { &[(Schedule::OneFOneB, None)] } else { &schedules[..] };
        let tp = or_given("parallel.tp", given.tp, powers(cluster.devices_per_node.min(of_stage)));
        let ep = or_given("parallel.ep", given.ep, divisors(experts, of_stage));
        let axes = tp.iter().flat_map(|tp| ep.iter().map(move |ep| (tp, ep)));
        let kinds = axes.flat_map(|axes| schedules.iter().map(move |schedule| (axes, schedule)));
        let sizes = kinds.flat_map(|kinds| pieces.iter().map(move |piece| (kinds, piece)));
        let memory =
            || strategies.iter().flat_map(|strategy| recomputations.iter().map(move |again| (strategy, again)));
        let all = sizes.flat_map(|sizes| memory().map(move |memory| (sizes, memory)));
        for ((((tp, ep), (schedule, virtual_stages)), (cp, micro_batch)), (strategy, recomputation)) in all {
            let mut config = config.clone();
            let parallel = &mut config.parallel;
            (parallel.pp, parallel.tp, parallel.cp, parallel.ep) = (pp, *tp, *cp, *ep);
            (parallel.schedule, parallel.virtual_stages) = (*schedule, *virtual_stages);
            parallel.stages = parallel.stages.take().filter(|_| fixed("parallel.stages"));
            (parallel.strategy, parallel.activation_checkpointing) = (*strategy, *recomputation);
            parallel.dp_shard = parallel.dp_shard.filter(|_| fixed("parallel.dp_shard"));
            parallel.dp_replicate = parallel.dp_replicate.filter(|_| fixed("parallel.dp_replicate"));
            config.train.micro_batch_size = Some(*micro_batch);
            let per_rank = config.train.global_batch_size / config.parallel.data_parallel_size().max(1);
            if *micro_batch <= per_rank.max(1) {
                found.push(config);
            }
        }
    }
    // The error of an invalid layout would name one that fits, which takes longer than to leave it out.
    found.into_par_iter().filter(|config| config.is_laid_out() && config.validate().is_ok()).collect()
}
