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
use crate::format::{bytes, human};
use crate::plan::step_plan::{DeviceMemory, Rates, device_memory};
use crate::plan::step_time::{Assumptions, OPTIMIZER_BYTES, collective_of, step_time};
use crate::plan::workload::workload;
use comm::Axis;
use fsdp::{ActivationCheckpointing, CallTraffic, Received, Strategy};
use model::{ParameterSpec, Sharding};
use plan::{Cluster, Collective, Group, Pass, PlanError, Summary};
use schedule::Schedule;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const FP32: f64 = 4.0;
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

/// A micro-batch on the ranks that compute it together, over all stages: seconds, and bytes of activations.
#[derive(Debug, Clone, Copy)]
struct MicroBatch {
    forward: f64,
    recompute: f64,
    input: f64,
    weights: f64,
    /// What calls exchange in the forward and in the backward.
    exchanged: [f64; 2],
    graphs: f64,
    inputs: f64,
    largest: f64,
    /// Parameters of the model, and of a rank that has all stages.
    model: f64,
    parameters: f64,
}

impl MicroBatch {
    fn new(config: &Config, cluster: &Cluster) -> Self {
        let (family, workload) = (config.family(), workload(config, 0));
        let mesh = config.fsdp().mesh(config.parallel.gpus).expect("the configuration is validated");
        let (calls, bytes, work) = (family.traffic(&workload), family.memory(&workload), family.work(&workload));
        let seconds = |pass| work.iter().map(|work| work.seconds(pass, &cluster.device)).sum::<f64>();
        let groups = [Axis::Tp, Axis::Cp, Axis::Ep].map(|axis| (axis, Group::new(mesh.group(0, &[axis]), cluster)));
        let exchange = |((axis, name), bytes): (&(Axis, &'static str), &usize)| {
            let (_, group) = groups.iter().find(|(known, _)| known == axis).expect("calls exchange over these axes");
            if *bytes == 0 { 0.0 } else { cluster.communicate(collective_of(name), *bytes as f64, group) }
        };
        let exchanged = |of: fn(&CallTraffic) -> &Received| calls.iter().flat_map(of).map(exchange).sum::<f64>();
        let parts = |parameter: &ParameterSpec| match parameter.sharding {
            Sharding::Replicated => 1.0,
            Sharding::Tensor(_) => config.parallel.tp as f64,
            Sharding::Experts => config.parallel.ep as f64,
        };
        Self {
            forward: seconds(Pass::Forward),
            recompute: seconds(Pass::Recompute),
            input: seconds(Pass::Input),
            weights: seconds(Pass::Weights),
            exchanged: [exchanged(|call| &call.forward), exchanged(|call| &call.backward)],
            graphs: bytes.iter().map(|call| call.graph as f64).sum(),
            inputs: bytes.iter().map(|call| call.input as f64).sum(),
            largest: bytes.iter().map(|call| call.graph as f64).fold(0.0, f64::max),
            model: family.parameter_count(),
            parameters: family.parameters().iter().map(|parameter| parameter.len() / parts(parameter)).sum(),
        }
    }
}

/// A layout's seconds per step and bytes per device, roughly.
struct Estimate {
    seconds: f64,
    bytes: f64,
}

impl Estimate {
    fn new(config: &Config, cluster: &Cluster, of: MicroBatch) -> Self {
        let (parallel, device) = (&config.parallel, &cluster.device);
        let (pp, m) = (parallel.pp as f64, config.micro_batches() as f64);
        let recomputes = parallel.activation_checkpointing != ActivationCheckpointing::None;
        let [forward, backward] = of.exchanged;
        let again = if recomputes { of.recompute + forward } else { 0.0 };
        let micro_batch = (of.forward + forward + again + of.input + of.weights + backward) / pp;
        let bubble = match parallel.schedule {
            Schedule::ZeroBubble => micro_batch - of.weights / pp,
            schedule => micro_batch / parallel.virtual_stages.unwrap_or(schedule.default_virtual_stages()) as f64,
        };
        let computed = m * micro_batch + (pp - 1.0) * bubble;
        // In a pipeline, and under zero1, parameters are gathered once and gradients reduced once.
        let (of_stage, element) = (of.parameters / pp, config.parallel.precision.param().dtype().size() as f64);
        let again_and_again = parallel.strategy == Strategy::FullShard && parallel.pp == 1;
        let shards = Group::new((0..parallel.gpus / parallel.pp).collect(), cluster);
        let gathered = cluster.communicate(Collective::AllGather, of_stage * element, &shards);
        let reduced = cluster.communicate(Collective::ReduceScatter, of_stage * FP32, &shards);
        let shown = match again_and_again {
            true => m * (2.0 * gathered + reduced) - computed,
            false => gathered + reduced - computed / m,
        };
        let shard = of.model / parallel.gpus as f64;
        let stepped = OPTIMIZER_BYTES * shard / (device.memory_bandwidth * device.efficiency.memory);
        // Parameters, gradient and moments in fp32; what is gathered; the micro-batches in flight.
        let in_flight = m.min(pp);
        let activations = match recomputes {
            true => of.inputs / pp * in_flight + of.largest,
            false => of.graphs / pp * in_flight,
        };
        let two_units = if again_and_again { (2.0 / config.model.blocks() as f64).min(1.0) } else { 1.0 };
        let bytes = 4.0 * FP32 * shard + two_units * of_stage * (element + FP32) + activations;
        Self { seconds: computed + shown.max(0.0) + stepped, bytes }
    }
}

impl Found {
    /// A table of the layouts, what the fastest one waits for, and its configuration.
    pub fn text(&self, config: &Config, cluster: &Cluster) -> String {
        let Self { best, valid, fit } = self;
        let gpus = config.parallel.gpus;
        let mut text = format!(
            "{} on {gpus} of {}: {valid} valid layouts, {fit} fit by the estimate\n\n{:>12}{:>14}{:>8}{:>12}   layout\n",
            config.describe_model(),
            cluster.name,
            "step, ms",
            "tokens/s",
            "MFU",
            "memory",
        );
        for layout in best {
            let Rates { tokens_per_second, mfu } = Rates::new(&layout.config, cluster, layout.time.step);
            text += &format!(
                "{:>12.1}{:>14}{:>7.1}%{:>12}   {}\n",
                1e3 * layout.time.step,
                human(tokens_per_second as usize),
                100.0 * mfu,
                bytes(layout.memory.most),
                layout.describe()
            );
        }
        let fastest = &best[0];
        let part = |seconds: f64| format!("{:.0}%", 100.0 * seconds / fastest.time.step);
        let mut parts = vec![format!("{} computation", part(fastest.time.compute))];
        parts.extend(
            fastest.time.exposed.iter().map(|(axes, seconds)| format!("{} waiting for {axes}", part(*seconds))),
        );
        parts.push(format!("{} waiting for stages", part(fastest.time.bubble)));
        text + &format!("\nthe fastest: {}\n\n{}", parts.join(", "), fastest.yaml())
    }

    /// The layouts as JSON.
    pub fn json(&self, cluster: &Cluster) -> String {
        let layout = |layout: &Layout| {
            let Rates { tokens_per_second, mfu } = Rates::new(&layout.config, cluster, layout.time.step);
            json!({
                "time": layout.time, "memory": layout.memory, "tokens_per_second": tokens_per_second, "mfu": mfu,
                "set": layout.settings(),
            })
        };
        let found =
            json!({ "valid": self.valid, "fit": self.fit, "best": self.best.iter().map(layout).collect::<Vec<_>>() });
        serde_json::to_string_pretty(&found).expect("figures are plain data")
    }
}

impl Layout {
    /// The keys that the search has set, with their values.
    fn settings(&self) -> BTreeMap<&'static str, Value> {
        let parallel = &self.config.parallel;
        let mut settings = BTreeMap::from([
            ("parallel.gpus", json!(parallel.gpus)),
            ("parallel.strategy", json!(parallel.strategy)),
            ("parallel.activation_checkpointing", json!(parallel.activation_checkpointing)),
            ("train.micro_batch_size", json!(self.config.micro_batch_size())),
            ("parallel.pp", json!(parallel.pp)),
            ("parallel.tp", json!(parallel.tp)),
            ("parallel.ep", json!(parallel.ep)),
        ]);
        if parallel.pp > 1 {
            settings.insert("parallel.schedule", json!(parallel.schedule));
            if let Some(virtual_stages) = parallel.virtual_stages {
                settings.insert("parallel.virtual_stages", json!(virtual_stages));
            }
        }
        settings
    }

    /// One line: the axes that are more than one, the strategy, the micro-batch, recomputation.
    fn describe(&self) -> String {
        let parallel = &self.config.parallel;
        let axes = [("tp", parallel.tp), ("ep", parallel.ep), ("cp", parallel.cp)];
        let mut parts: Vec<String> =
            axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}")).collect();
        if parallel.pp > 1 {
            parts.insert(0, format!("pp {} ({})", parallel.pp, parallel.schedule.name()));
        }
        parts.push(parallel.strategy.name().into());
        parts.push(format!("micro-batches of {}", self.config.micro_batch_size()));
        if parallel.activation_checkpointing != ActivationCheckpointing::None {
            parts.push("recomputation".into());
        }
        parts.join(", ")
    }

    /// The part of a configuration file that gives this layout.
    fn yaml(&self) -> String {
        let mut sections = BTreeMap::<&str, String>::new();
        for (key, value) in self.settings() {
            let (section, key) = key.split_once('.').expect("keys have a section");
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            *sections.entry(section).or_default() += &format!("  {key}: {value}\n");
        }
        sections.into_iter().map(|(section, keys)| format!("{section}:\n{keys}")).collect::<String>().trim_end().into()
    }
}
