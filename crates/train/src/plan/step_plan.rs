//! What a step takes on a cluster: its timeline, and its figures.

use crate::config::Config;
use crate::plan::memory_check::{Machine, Row, of_run};
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

/// Bytes on the device that needs the most, as a run checks them before it starts; on a CPU those of a node's ranks.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeviceMemory {
    pub most: usize,
    pub fits: bool,
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
    let ranks = config.parallel.gpus.min(cluster.devices_per_node);
    let devices = if cluster.is_cpu() { 1 } else { ranks };
    // Threads are those of one machine's ranks.
    let threads = cluster.is_cpu() && config.parallel.gpus == ranks;
    let needs = of_run(config, Machine { ranks, devices, threads });
    let rows = needs.first().expect("a device is needed").of_all;
    let of_rows = Row::ALL.into_iter().map(|row| (row.name(), rows[row] as usize));
    DeviceMemory {
        most: rows.total() as usize,
        fits: rows.total() <= cluster.device.memory,
        rows: of_rows.filter(|(_, bytes)| *bytes > 0).collect(),
    }
}
