//! What a step takes on a cluster: its timeline, and its figures.

use crate::config::Config;
use crate::plan::memory_check::{self, AVAILABLE_SIZES, Machine, Need, Pool, Row, of_run, what_helps};
use crate::plan::search::summary;
use crate::plan::step_time::{Assumptions, step_time};
use plan::{Cluster, PlanError, Summary, Timeline};
use serde::Serialize;

/// A planned step.
#[derive(Debug, Clone)]
pub(crate) struct StepPlan {
    /// `None` if the step is so long that its time follows from those of shorter ones.
    pub timeline: Option<Timeline>,
    pub figures: Figures,
}

/// The figures of a planned step.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    /// Seconds.
    pub time: Summary,
    pub tokens_per_step: usize,
    pub tokens_per_second: f64,
    /// Model FLOPs per second, as a fraction of the devices' peak.
    pub mfu: f64,
    pub memory: DeviceMemory,
}

/// The speed of a run.
pub(crate) struct Rates {
    pub tokens_per_second: f64,
    /// See [`Figures::mfu`].
    pub mfu: f64,
}

impl Rates {
    /// The speed of a run whose steps take these seconds.
    pub fn new(config: &Config, cluster: &Cluster, step: f64) -> Self {
        let tokens_per_second = (config.train.global_batch_size * config.train.seq_len) as f64 / step;
        let peak = &cluster.device.peak;
        let half = config.parallel.precision.param().dtype().size() < size_of::<f32>();
        let gpus = config.parallel.gpus;
        let devices = if cluster.is_cpu() { cluster.nodes_of(gpus) } else { gpus };
        let peak = devices as f64 * if half { peak.bf16 } else { peak.fp32 };
        let flops = config.flops().per_token(config.train.seq_len as f64);
        Self { tokens_per_second, mfu: tokens_per_second * flops / peak }
    }
}

/// Bytes on the device that needs the most, as a run checks them before it starts; on a CPU those of a node's ranks. Of
/// several lengths of rows, that which needs the most counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DeviceMemory {
    pub most: usize,
    /// With `parallel.cpu_offload`: bytes of a node's CPU memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<usize>,
    /// Whether they fit into the device and, where that is known, into the node's CPU memory.
    pub fits: bool,
    /// What `most` would be without checkpoints on the way.
    #[serde(skip)]
    pub without_checkpoints: usize,
    pub rows: Vec<(String, usize)>,
}

/// Micro-batches of all stages above which a step is not simulated as a whole.
const LONG: usize = 1 << 15;

impl StepPlan {
    pub fn new(config: &Config, cluster: &Cluster) -> Result<Self, PlanError> {
        let is_long = config.micro_batches() * config.parallel.pp > LONG;
        let timeline = (!is_long).then(|| step_time(config, cluster, Assumptions::default())).transpose()?;
        let time = match &timeline {
            Some(timeline) => timeline.summary(),
            None => summary(config, cluster)?,
        };
        let Rates { tokens_per_second, mfu } = Rates::new(config, cluster, time.step);
        let tokens_per_step = config.train.global_batch_size * config.train.seq_len;
        let memory = device_memory(config, cluster);
        let figures = Figures { time, tokens_per_step, tokens_per_second, mfu, memory };
        Ok(Self { timeline, figures })
    }
}

/// Returns the memory of the device that needs the most.
pub(crate) fn device_memory(config: &Config, cluster: &Cluster) -> DeviceMemory {
    let of_lengths: Vec<Vec<Need>> =
        config.by_length().iter().map(|config| of_run(config, machine(config, cluster))).collect();
    let most = |pool| {
        let needs = of_lengths.iter().flatten().filter(|need| need.pool == pool);
        needs.max_by(|a, b| a.of_all.total().total_cmp(&b.of_all.total()))
    };
    let (device, host) = match most(Pool::Device) {
        Some(device) => (device, most(Pool::Host)),
        None => (most(Pool::Host).expect("a run needs memory"), None),
    };
    let rows = device.of_all;
    let of_rows = Row::ALL.into_iter().map(|row| (row.name(), rows[row] as usize));
    DeviceMemory {
        most: rows.total() as usize,
        without_checkpoints: memory_check::without_checkpoints(config, rows) as usize,
        host: host.map(|need| need.of_all.total() as usize),
        fits: [Some(device), host].into_iter().flatten().all(|need| share(need, cluster) <= 1.0),
        rows: of_rows.filter(|(_, bytes)| *bytes > 0).collect(),
    }
}

/// What would help a run that does not fit.
pub(crate) fn help(config: &Config, cluster: &Cluster) -> String {
    let machine = machine(config, cluster);
    let of_cluster = [cluster.device.memory];
    let sizes: &[f64] = if cluster.is_cpu() { &AVAILABLE_SIZES } else { &of_cluster };
    // To offload is no advice where nobody knows whether there is room.
    let is_unknown = !cluster.is_cpu() && cluster.host_memory.is_none() && !config.parallel.cpu_offload;
    let share = |need: &Need| match need.pool {
        Pool::Host if is_unknown => f64::INFINITY,
        _ => share(need, cluster),
    };
    what_helps(config, machine, machine.devices, sizes, &share)
}

/// A node of a cluster.
fn machine(config: &Config, cluster: &Cluster) -> Machine {
    let ranks = config.parallel.gpus.min(cluster.devices_per_node);
    let devices = if cluster.is_cpu() { 1 } else { ranks };
    // Threads are those of one machine's ranks.
    Machine { ranks, devices, threads: cluster.is_cpu() && config.parallel.gpus == ranks }
}

/// The part of a memory that a need takes; 0 if nobody knows how large it is.
fn share(need: &Need, cluster: &Cluster) -> f64 {
    let has = match need.pool {
        Pool::Host if !cluster.is_cpu() => cluster.host_memory.unwrap_or(f64::INFINITY),
        _ => cluster.device.memory,
    };
    need.of_all.total() / has
}
