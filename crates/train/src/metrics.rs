use crate::expert_loads::LayerLoad;
use crate::layout::LayoutTable;
use crate::machine::Machine;
use burn::tensor::Device;
use comm::TrafficTable;
use fsdp::{Category, Memory};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A training step.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct StepMetrics {
    /// Number of the step, from 1.
    pub step: usize,
    /// Cross entropy of the global batch before the step, in nats per token.
    pub loss: f64,
    pub lr: f64,
    /// The balance loss of the experts, 0 without.
    pub aux_loss: f64,
    /// Global norm of the gradient before clipping; in JSON null where it is beyond fp16.
    pub grad_norm: f64,
    /// Whether the gradients were beyond fp16, and the parameters stayed as they were.
    pub skipped: bool,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Of a row in this step, where there are rows of several lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq_len: Option<usize>,
    pub tokens_per_second: f64,
    /// 10^12 floating-point operations of the model a second and device; see [`flops`](crate::flops).
    pub tflops: f64,
    /// Their share of `metrics.peak_tflops`, where that is given.
    pub mfu: Option<f64>,
    pub step_seconds: f64,
    /// Of these, waiting for data.
    pub data_wait_seconds: f64,
    /// What the step before has spent on a checkpoint, beside what is done while training goes on.
    pub checkpoint_seconds: f64,
    /// Since the process has begun to train.
    pub elapsed_seconds: f64,
    /// Standard deviations of loss and gradient norm above the mean of the 100 steps before.
    pub loss_z: Option<f64>,
    pub grad_norm_z: Option<f64>,
    /// Bytes of this rank at most so far, for the user.
    #[serde(skip)]
    pub memory: usize,
    /// How often the data were gone through so far, for the user.
    #[serde(skip)]
    pub epoch: f64,
}

/// A process that begins to train: what the run is, and where.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ProcessMetrics<'a> {
    /// When, as in 2026-11-21T21:45:07Z.
    pub started: String,
    /// Steps made before.
    pub step: usize,
    pub version: &'static str,
    /// The command line.
    pub command: String,
    #[serde(flatten)]
    pub machine: Machine,
    pub device: &'a str,
    pub ranks: usize,
    pub strategy: String,
    pub data: &'a str,
    pub train_tokens: u64,
    pub val_tokens: u64,
    /// None where only the tokens are known.
    pub bytes_per_token: Option<f64>,
    pub parameters: usize,
    pub global_batch_size: usize,
    pub micro_batch_size: usize,
    pub seq_len: usize,
    /// Of several ranks.
    #[serde(skip_serializing_if = "LayoutTable::is_empty")]
    pub layout: LayoutTable,
}

/// Text from the trained model.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SampleMetrics<'a> {
    pub step: usize,
    pub sample: &'a str,
}

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EventMetrics<'a> {
    pub step: usize,
    pub event: &'a str,
}

/// A validation.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ValMetrics<'a> {
    pub step: usize,
    /// Cross entropy, in nats per token; of several sets the mean of theirs.
    pub val_loss: f64,
    /// That of each set that has a name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub val_losses: BTreeMap<&'a str, f64>,
}

/// What a rank uses: bytes by category, and what it has received so far by collective.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct UsageMetrics {
    pub step: usize,
    /// Whose it is; in `metrics.jsonl` always 0.
    #[serde(skip)]
    pub rank: usize,
    pub memory: BTreeMap<&'static str, MemoryMetrics>,
    /// What the device's allocator holds for all its ranks, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceMetrics>,
    pub traffic: BTreeMap<&'static str, TrafficMetrics>,
}

/// What a step took of each stage of a pipeline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StageMetrics {
    pub step: usize,
    pub stages: Vec<StageSeconds>,
}

/// Seconds of a stage, the mean of its ranks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct StageSeconds {
    /// Of forwards and backwards.
    pub compute_seconds: f64,
    /// In which it waited for another stage.
    pub wait_seconds: f64,
}

impl fmt::Display for StageMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |(i, stage): (usize, &StageSeconds)| {
            let percent = 100.0 * stage.wait_seconds / (stage.compute_seconds + stage.wait_seconds);
            format!("stage {i} computes {:.3} s and waits {percent:.0}%", stage.compute_seconds)
        };
        let stages: Vec<_> = self.stages.iter().enumerate().map(share).collect();
        f.write_str(&stages.join("; "))
    }
}

/// Where a step's tokens went.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ExpertMetrics {
    pub step: usize,
    pub experts: Vec<LayerMetrics>,
}

/// The experts of one layer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LayerMetrics {
    /// Number of the block, from 0.
    pub layer: usize,
    /// Choices of each expert, on all ranks.
    pub assigned: Vec<f64>,
    /// The busiest expert's choices over the mean of all.
    pub max_ratio: f64,
    /// Standard deviation of the choices over their mean.
    pub cv: f64,
    /// Share of the choices that no expert took.
    pub dropped: f64,
    /// Sum of the gates of each expert.
    pub gate_mass: Vec<f64>,
}

impl ExpertMetrics {
    pub fn new(step: usize, loads: Vec<LayerLoad>) -> Self {
        let layer = |load: LayerLoad| LayerMetrics {
            layer: load.layer,
            max_ratio: load.max_ratio(),
            cv: load.cv(),
            dropped: load.dropped_share(),
            assigned: load.assigned,
            gate_mass: load.gate_mass,
        };
        Self { step, experts: loads.into_iter().map(layer).collect() }
    }
}

impl fmt::Display for ExpertMetrics {
    /// One line: the mean over layers, and the worst of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.experts.len() as f64;
        let mean = |of: fn(&LayerMetrics) -> f64| self.experts.iter().map(of).sum::<f64>() / layers;
        let most = self.experts.iter().map(|layer| layer.max_ratio).fold(0.0, f64::max);
        let (cv, dropped) = (mean(|layer| layer.cv), mean(|layer| layer.dropped) * 100.0);
        write!(f, "experts: load CV {cv:.2}, busiest {most:.2} of the mean, dropped {dropped:.1}%")
    }
}

/// Bytes of one category.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct MemoryMetrics {
    /// Between steps.
    pub at_rest: usize,
    /// The most since the start.
    pub peak: usize,
}

/// Bytes of a device.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct DeviceMetrics {
    pub in_use: u64,
    /// The same, and what is kept for reuse.
    pub reserved: u64,
}

/// One kind of collective since the start.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct TrafficMetrics {
    pub calls: u64,
    pub bytes: u64,
    pub seconds: f64,
}

impl UsageMetrics {
    pub fn new(step: usize, rank: usize, memory: &Memory, device: &Device, traffic: &TrafficTable) -> Self {
        let device = device
            .memory_pool_usage()
            .map(|usage| DeviceMetrics { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved });
        let category = |category: Category| {
            (category.name(), MemoryMetrics { at_rest: memory.now[category], peak: memory.peak[category] })
        };
        let traffic = traffic.0.iter().map(|(name, traffic)| {
            let seconds = traffic.time.as_secs_f64();
            (*name, TrafficMetrics { calls: traffic.calls, bytes: traffic.bytes, seconds })
        });
        Self { step, rank, memory: Category::ALL.map(category).into(), device, traffic: traffic.collect() }
    }
}

impl UsageMetrics {
    /// The peak of each category.
    pub fn memory_line(&self) -> String {
        let megabytes = |bytes: f64| bytes / 1e6;
        let memory = |(name, bytes): (&&str, &MemoryMetrics)| format!("{name} {:.1}", megabytes(bytes.peak as f64));
        let memory: Vec<_> = self.memory.iter().map(memory).collect();
        let device = self.device.map(|DeviceMetrics { in_use, reserved }| {
            let (in_use, reserved) = (megabytes(in_use as f64), megabytes(reserved as f64));
            format!("; its device now: {in_use:.1} in use, {reserved:.1} reserved")
        });
        format!("rank {}, MB at most: {}{}", self.rank, memory.join(", "), device.unwrap_or_default())
    }

    /// The traffic of each collective, if there was any.
    pub fn traffic_line(&self) -> Option<String> {
        let traffic = |(name, traffic): (&&str, &TrafficMetrics)| {
            format!("{name} {:.1} in {:.1} s", traffic.bytes as f64 / 1e6, traffic.seconds)
        };
        let traffic: Vec<_> = self.traffic.iter().filter(|(_, traffic)| traffic.bytes > 0).map(traffic).collect();
        (!traffic.is_empty()).then(|| format!("rank {}, MB received: {}", self.rank, traffic.join(", ")))
    }
}
