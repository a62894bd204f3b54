//! The fastest layouts of a model on a cluster.
//!
//! ```text
//! every combination of pp, schedule, tp, ep, strategy, micro-batch, recomputation
//!   ── valid? ──> estimated memory fits? ──> sorted by estimated time ──> the first few simulated, their memory forecast
//! ```
//!
//! The estimate adds up the time of one micro-batch over all calls, the bubble in closed form, and what of the sharded
//! parameters' communication is longer than the computation. Simulations have the last word.

use crate::config::Config;
use crate::plan::estimate::{Estimate, MicroBatch};
use crate::plan::step_plan::{DeviceMemory, device_memory};
use crate::plan::step_time::{Assumptions, step_time};
use fsdp::{ActivationCheckpointing, Strategy};
use plan::{Cluster, PlanError, Summary};
use schedule::Schedule;
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Layouts that are shown.
const SHOWN: usize = 5;
/// Layouts that are simulated: more than are shown, because estimates may be in another order.
const SIMULATED: usize = 8;
/// Layouts whose memory is forecast at most.
const FORECAST: usize = 100;

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
    /// Layouts whose memory fits by the estimate.
    pub fit: usize,
}

/// Finds the fastest layouts of a run with its number of ranks, sequences per step and context parallelism.
///
/// # Errors
/// If a simulation fails.
pub(crate) fn search(config: &Config, cluster: &Cluster) -> Result<Found, PlanError> {
    let candidates = candidates(config, cluster);
    let valid = candidates.len();
    // The costs of a micro-batch are the same for all stages, schedules and strategies.
    let mut micro_batches = HashMap::new();
    let mut estimates: Vec<(f64, Config)> = candidates
        .into_iter()
        .filter_map(|config| {
            let key = (config.parallel.tp, config.parallel.ep, config.micro_batch_size());
            let of = *micro_batches.entry(key).or_insert_with(|| MicroBatch::new(&config, cluster));
            let Estimate { seconds, bytes } = Estimate::new(&config, cluster, of);
            (bytes <= cluster.device.memory).then_some((seconds, config))
        })
        .collect();
    estimates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let fit = estimates.len();
    estimates.truncate(FORECAST);
    let (next, layouts) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        let found = || layouts.lock().expect("no thread panics with it").len();
        while found() < SIMULATED
            && let Some((_, config)) = estimates.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let memory = device_memory(config, cluster);
            if memory.fits {
                let layout = summary(config, cluster).map(|time| Layout { config: config.clone(), time, memory });
                layouts.lock().expect("no thread panics with it").push(layout);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let layouts = layouts.into_inner().expect("no thread panics with it");
    let mut best = layouts.into_iter().collect::<Result<Vec<Layout>, PlanError>>()?;
    best.sort_by(|a, b| a.time.step.total_cmp(&b.time.step));
    best.truncate(SHOWN);
    Ok(Found { best, valid, fit })
}

/// The time of a step: with many micro-batches, from two steps with fewer, since each further one takes as long as the
/// one before.
fn summary(config: &Config, cluster: &Cluster) -> Result<Summary, PlanError> {
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

/// Every valid layout.
fn candidates(config: &Config, cluster: &Cluster) -> Vec<Config> {
    let (gpus, blocks) = (config.parallel.gpus, config.model.blocks());
    let experts = config.expert_layers().map_or(1, |(_, experts)| experts);
    let divisors = |of: usize, most: usize| (1..=of.min(most)).filter(move |size| of.is_multiple_of(*size));
    let powers =
        |most: usize| std::iter::successors(Some(1), |size| Some(2 * size)).take_while(move |size| *size <= most);
    let mut found = vec![];
    for pp in divisors(gpus, blocks + 1) {
        let schedules: &[(Schedule, Option<usize>)] = match pp {
            1 => &[(Schedule::OneFOneB, None)],
            _ => &[(Schedule::OneFOneB, None), (Schedule::Interleaved1F1B, Some(2)), (Schedule::ZeroBubble, None)],
        };
        for (tp, ep) in
            powers(cluster.devices_per_node).flat_map(|tp| divisors(experts, gpus / pp).map(move |ep| (tp, ep)))
        {
            let mut config = config.clone();
            let parallel = &mut config.parallel;
            (parallel.pp, parallel.tp, parallel.ep) = (pp, tp, ep);
            (parallel.dp_shard, parallel.dp_replicate, parallel.stages) = (None, None, None);
            for micro_batch in powers(16) {
                for (schedule, virtual_stages) in schedules {
                    for strategy in [Strategy::FullShard, Strategy::Zero1] {
                        for recomputation in [ActivationCheckpointing::None, ActivationCheckpointing::Full] {
                            let parallel = &mut config.parallel;
                            (parallel.schedule, parallel.virtual_stages) = (*schedule, *virtual_stages);
                            (parallel.strategy, parallel.activation_checkpointing) = (strategy, recomputation);
                            config.train.micro_batch_size = Some(micro_batch);
                            let per_rank = config.train.global_batch_size / config.parallel.data_parallel_size();
                            if micro_batch <= per_rank.max(1) && config.validate().is_ok() {
                                found.push(config.clone());
                            }
                        }
                    }
                }
            }
        }
    }
    found
}
