//! What a step takes on a cluster: its time line, and its figures.

use crate::config::Config;
use crate::plan::layout::different_ranks;
use crate::plan::memory_check::forecast;
use crate::plan::step_time::{Assumptions, step_time};
use fsdp::Category;
use plan::{Cluster, PlanError, Summary, Timeline};
use serde::Serialize;

/// The part of a device's memory that tensors can fill; the rest is the driver's, and fragments.
const USABLE: f64 = 0.94;

/// A planned step.
#[derive(Debug, Clone)]
pub(crate) struct StepPlan {
    pub timeline: Timeline,
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
        let devices = if cluster.device.shared_cores > 0 { gpus.div_ceil(cluster.devices_per_node) } else { gpus };
        let peak = devices as f64 * if half { peak.bf16 } else { peak.fp32 };
        let flops = config.flops().per_token(config.train.seq_len as f64);
        Self { tokens_per_second, mfu: tokens_per_second * flops / peak }
    }
}

/// Bytes on the device that needs the most.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeviceMemory {
    pub most: usize,
    pub fits: bool,
    pub rows: Vec<(&'static str, usize)>,
}

impl StepPlan {
    pub fn new(config: &Config, cluster: &Cluster) -> Result<Self, PlanError> {
        let timeline = step_time(config, cluster, Assumptions::default())?;
        let time = timeline.summary();
        let Rates { tokens_per_second, mfu } = Rates::new(config, cluster, time.step);
        let tokens_per_step = config.train.global_batch_size * config.train.seq_len;
        let memory = device_memory(config, cluster);
        let figures = Figures { time, tokens_per_step, tokens_per_second, mfu, memory };
        Ok(Self { timeline, figures })
    }
}

/// Returns the memory of the rank that needs the most.
pub(crate) fn device_memory(config: &Config, cluster: &Cluster) -> DeviceMemory {
    let forecasts = different_ranks(config).into_iter().map(|rank| forecast(config, rank));
    let most = forecasts.max_by_key(|forecast| forecast.most.total() + forecast.working).expect("there is a rank");
    let rows = Category::ALL.into_iter().map(|category| (category.name(), most.most[category]));
    let rows = rows.chain([("working", most.working)]).filter(|(_, bytes)| *bytes > 0).collect();
    let most = most.most.total() + most.working;
    DeviceMemory { most, fits: most as f64 <= USABLE * cluster.device.memory, rows }
}
