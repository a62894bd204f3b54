//! The fastest layouts of a model on a cluster.
//!
//! ```text
//! pp, schedule, tp, ep, strategy, micro-batch, recomputation (see `candidates` for their values)
//!   ── valid? ── may fit? ──> sorted by estimated time ──> the first whose forecast memory fits ──> simulated
//! ```
//!
//! The estimate adds up the time of one micro-batch over all calls, the bubble in closed form, and what of the sharded
//! parameters' communication is longer than the computation. Simulations have the last word.

use crate::config::Config;
use crate::plan::estimate::{Estimate, MicroBatch};
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
    /// Bytes that the smallest layout needs per device, if none fits: a bound from below of all, or the forecast of the
    /// one that is estimated to be the smallest.
    pub smallest: usize,
}

/// Finds the fastest layouts of a run with its number of ranks, sequences per step and context parallelism. Keys that are
/// `fixed` keep their values.
///
/// # Errors
/// If a simulation fails.
pub(crate) fn search(config: &Config, cluster: &Cluster, fixed: &dyn Fn(&str) -> bool) -> Result<Found, PlanError> {
    let candidates = candidates(config, cluster, fixed);
    let valid = candidates.len();
    // The costs of a micro-batch are the same for all stages, schedules and strategies.
    let key = |config: &Config| (config.parallel.tp, config.parallel.ep, config.micro_batch_size());
    let different: HashMap<_, &Config> = candidates.iter().map(|config| (key(config), config)).collect();
    let micro_batches: HashMap<_, MicroBatch> =
        different.into_par_iter().map(|(key, config)| (key, MicroBatch::new(config, cluster))).collect();
    let estimate = |config: Config| (Estimate::new(&config, cluster, micro_batches[&key(&config)]), config);
    let mut estimates: Vec<(Estimate, Config)> = candidates.into_par_iter().map(estimate).collect();
    // Forecasts take much longer than estimates.
    let least = estimates.iter().map(|(of, _)| of.at_least).fold(f64::INFINITY, f64::min);
    estimates.retain(|(of, _)| of.at_least <= cluster.device.memory);
    // What is far from fitting comes last.
    let ranks = if cluster.is_cpu() { config.parallel.gpus.min(cluster.devices_per_node) } else { 1 };
    let is_large = |of: &Estimate| ranks as f64 * of.bytes > LARGE * cluster.device.memory;
    estimates.sort_by(|(a, _), (b, _)| is_large(a).cmp(&is_large(b)).then(a.seconds.total_cmp(&b.seconds)));
    let mut smallest = 0;
    let (mut fitting, mut examined) = first_fitting(estimates.iter().map(|(_, config)| config), cluster);
    if fitting.is_empty() {
        estimates.sort_by(|(a, _), (b, _)| a.bytes.total_cmp(&b.bytes));
        smallest = estimates.first().map_or(least as usize, |(_, config)| device_memory(config, cluster).most);
        let (small, more) = first_fitting(estimates.iter().map(|(_, config)| config), cluster);
        (fitting, examined) = (small, (examined + more).min(valid));
    }
    let layouts = in_parallel(&fitting, |(config, memory)| {
        summary(config, cluster).map(|time| Layout { config: config.clone(), time, memory: memory.clone() })
    });
    let mut best = layouts.into_iter().collect::<Result<Vec<Layout>, PlanError>>()?;
    best.sort_by(|a, b| a.time.step.total_cmp(&b.time.step));
    best.truncate(SHOWN);
    Ok(Found { best, valid, examined, smallest })
}

/// Returns the first layouts whose memory fits, with that, and the number of layouts that were examined.
fn first_fitting<'a>(
    mut layouts: impl Iterator<Item = &'a Config>,
    cluster: &Cluster,
) -> (Vec<(Config, DeviceMemory)>, usize) {
    let (mut fitting, mut examined) = (vec![], 0);
    while fitting.len() < SIMULATED && examined < FORECAST {
        let some: Vec<&Config> = layouts.by_ref().take(SIMULATED).collect();
        if some.is_empty() {
            break;
        }
        let memories = in_parallel(&some, |config| fitting_memory(config, cluster));
        examined += some.len();
        let both = some.into_iter().cloned().zip(memories);
        fitting.extend(both.filter_map(|(config, memory)| Some((config, memory?))));
    }
    fitting.truncate(SIMULATED);
    (fitting, examined)
}

/// Returns the memory of a layout if it fits. That of a pipeline's first stage is looked at first.
fn fitting_memory(config: &Config, cluster: &Cluster) -> Option<DeviceMemory> {
    let alone = config.parallel.pp == 1 || cluster.is_cpu();
    let first_fits = alone || memory_check::of_rank(config, 0).total() <= cluster.device.memory;
    first_fits.then(|| device_memory(config, cluster)).filter(|memory| memory.fits)
}

/// Maps items on all cores, in their order.
fn in_parallel<T: Sync, U: Send>(items: &[T], map: impl Fn(&T) -> U + Send + Sync) -> Vec<U> {
    items.par_iter().map(map).collect()
}

/// The time of a step: with many micro-batches, from two steps with fewer, since each further one takes as long as the
/// one before.
pub(crate) fn summary(config: &Config, cluster: &Cluster) -> Result<Summary, PlanError> {
    let of = |config: &Config| Ok(step_time(config, cluster, Assumptions::default())?.summary());
    let (all, round) = (config.micro_batches(), config.parallel.pp * config.parallel.virtual_stages.unwrap_or(1));
    let [few, more] = [2 * round, 3 * round];
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

/// Valid layouts, with the values of docs/plan.md for each key that is not `fixed`.
fn candidates(config: &Config, cluster: &Cluster, fixed: &dyn Fn(&str) -> bool) -> Vec<Config> {
    let (given, train) = (&config.parallel, &config.train);
    let (gpus, blocks) = (given.gpus, config.model.blocks());
    let experts = config.expert_layers().map_or(1, |(_, experts)| experts);
    let divisors = |of: usize, most: usize| (1..=of.min(most)).filter(|size| of.is_multiple_of(*size)).collect();
    let powers = |most: usize| (0..).map(|exponent| 1 << exponent).take_while(|size| *size <= most).collect();
    let or_given = |key: &str, given: usize, values: Vec<usize>| if fixed(key) { vec![given] } else { values };
    let micro_batches = match train.micro_batch_size {
        Some(size) => or_given("train.micro_batch_size", size, powers(16)),
        None => powers(16),
    };
    let schedules = match fixed("parallel.schedule") {
        true => vec![(given.schedule, given.virtual_stages)],
        false => vec![(Schedule::OneFOneB, None), (Schedule::Interleaved1F1B, Some(2)), (Schedule::ZeroBubble, None)],
    };
    let strategies = match fixed("parallel.strategy") {
        true => vec![given.strategy],
        false => vec![Strategy::FullShard, Strategy::Zero1],
    };
    let recomputations = match fixed("parallel.activation_checkpointing") {
        true => vec![given.activation_checkpointing],
        false => vec![ActivationCheckpointing::None, ActivationCheckpointing::Full],
    };
    let mut found = vec![];
    for pp in or_given("parallel.pp", given.pp, divisors(gpus, blocks + 1)) {
        let of_stage = gpus / pp;
        let schedules = if pp == 1 { &[(Schedule::OneFOneB, None)] } else { &schedules[..] };
        let tp = or_given("parallel.tp", given.tp, powers(cluster.devices_per_node.min(of_stage)));
        let ep = or_given("parallel.ep", given.ep, divisors(experts, of_stage));
        let axes = tp.iter().flat_map(|tp| ep.iter().map(move |ep| (tp, ep)));
        let kinds = axes.flat_map(|axes| schedules.iter().map(move |schedule| (axes, schedule)));
        let sizes = kinds.flat_map(|kinds| micro_batches.iter().map(move |size| (kinds, size)));
        let memory =
            || strategies.iter().flat_map(|strategy| recomputations.iter().map(move |again| (strategy, again)));
        let all = sizes.flat_map(|sizes| memory().map(move |memory| (sizes, memory)));
        for ((((tp, ep), (schedule, virtual_stages)), micro_batch), (strategy, recomputation)) in all {
            let mut config = config.clone();
            let parallel = &mut config.parallel;
            (parallel.pp, parallel.tp, parallel.ep) = (pp, *tp, *ep);
            (parallel.schedule, parallel.virtual_stages, parallel.stages) = (*schedule, *virtual_stages, None);
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
    found.into_par_iter().filter(|config| config.validate().is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    /// Layouts that are left out unseen do not fit.
    #[test]
    fn no_forecast_is_below_the_bound() {
        for (preset, gpus, cluster) in [("gpt2-124m", 8, "h100-sxm"), ("llama3-8b", 32, "h100-sxm")] {
            let settings = [format!("parallel.gpus={gpus}"), "train.global_batch_size=512".into()];
            let mut config = Config::load(Source::Preset(preset), &settings).unwrap();
            let cluster = Cluster::named(cluster).unwrap();
            config.train.device = cluster.kind().into();
            config.parallel.precision.choose(cluster.kind());
            let layouts = candidates(&config, &cluster, &|_| false);
            assert!(layouts.len() > 20, "{preset}");
            let mut parts = vec![];
            for config in layouts.iter().step_by(layouts.len() / 20) {
                let of = Estimate::new(config, &cluster, MicroBatch::new(config, &cluster));
                let forecast = device_memory(config, &cluster).most as f64;
                assert!(of.at_least <= forecast, "{} of {forecast}: {:?}", of.at_least, config.parallel);
                parts.push(of.at_least / forecast);
            }
            assert!(parts.iter().sum::<f64>() > 0.3 * parts.len() as f64, "{preset}: {parts:?}");
        }
    }
}
