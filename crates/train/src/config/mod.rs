//! The description of a run: one [`Config`], read from YAML (a preset or a file) and `--set` overrides.
//!
//! A file may inherit from another (`base: other.yaml`, `base: preset:gpt2`). Every key except `model.type` has a
//! default. An unknown key or a value of the wrong type is an error that names the key and its origin.

mod adaptive;
mod buckets;
mod check;
mod data_source;
mod describe;
mod differences;
mod family;
mod fewer_ranks;
pub(crate) mod learning_rate;
mod length;
mod load;
mod parallel;
mod precision;
mod presets;
mod resilience;
mod schema;
mod sizes;
mod synonyms;
#[cfg(test)]
mod tests;
mod validate;

use comm::Timeouts;
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use adaptive::{AdaptedKey, Adaptive, AdaptiveRow};
pub(crate) use check::{EXACT, keys, last_part, nearest, whole};
pub use data_source::{DataConfig, Validation};
pub use describe::reference;
pub use learning_rate::LrSchedule;
pub use load::Source;
pub(crate) use load::{file_with, is_overridden};
pub use model::ModelConfig;
pub use parallel::ParallelConfig;
pub use precision::{ParamType, PrecisionConfig};
pub use presets::{PRESETS, Preset, preset, presets};
pub(crate) use presets::{add_family, has_added, preset_meant};
pub use resilience::ResilienceConfig;
pub(crate) use synonyms::{names_of, strategy_called, synonyms, value_called};
pub(crate) use validate::MAX_RANKS;

/// The configuration of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The preset this configuration is based on; filled in automatically. `--resume latest --model NAME` searches by
    /// it.
    pub preset: Option<String>,
    /// The model's family and shape, with the names of Hugging Face's `config.json`.
    pub model: ModelConfig,
    /// The experts of a DeepSeek or a Llama; null for a model without experts.
    pub moe: Option<MoeConfig>,
    /// Training and validation data.
    pub data: DataConfig,
    /// Length of the run, batch sizes, validation and samples.
    pub train: TrainConfig,
    /// AdamW and its learning rate schedule.
    pub optim: OptimConfig,
    /// How the run is spread over ranks.
    pub parallel: ParallelConfig,
    /// How ranks exchange tensors, and how long they wait for each other.
    pub comm: CommConfig,
    /// When checkpoints are saved.
    pub checkpoint: CheckpointConfig,
    /// What a run does about failures.
    pub resilience: ResilienceConfig,
    /// What is logged during the run.
    pub metrics: MetricsConfig,
}

/// Length of the run, batch sizes, validation and samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps; 0 if `epochs` determines them. Flag: `--steps`.
    pub steps: usize,
    /// Passes over the training tokens, instead of `steps`; may be fractional, such as 0.5. Rounded up to whole steps,
    /// which the run writes to its `config.yaml` as `steps`. Flag: `--epochs`.
    pub epochs: Option<f64>,
    /// Global batch size: sequences per optimizer step, over all ranks, which take its micro-batches in turn. Flag:
    /// `--batch-size`.
    pub global_batch_size: usize,
    /// Sequences per micro-batch on each rank; gradients are accumulated over micro-batches. At most the rank's share
    /// of the global batch. null means the whole share, or in a pipeline a size that gives four micro-batches per
    /// stage.
    pub micro_batch_size: Option<usize>,
    /// Tokens per sequence; at most the model's context. Flag: `--seq-len`.
    pub seq_len: usize,
    /// Seed of the initial parameters and the data order. Flag: `--seed`.
    pub seed: u64,
    /// Steps between validations; 0 validates only at the end.
    pub val_every: usize,
    /// Number of consecutive validations without a lower loss after which training ends early; null trains all `steps`.
    /// Requires `val_every`, and `checkpoint.keep` of at least 1.
    pub patience: Option<usize>,
    /// Batches of `global_batch_size` sequences per validation, for each source of `data.validation`; 0 means the whole
    /// validation split.
    pub val_batches: usize,
    /// Steps between samples; 0 generates one only at the end.
    pub sample_every: usize,
    /// Tokens per sample, a text that the model generates; 0 disables samples.
    pub sample_tokens: usize,
    /// Weight of the z-loss, the mean square of the logits' log-sum-exp, which keeps logits from drifting; PaLM uses
    /// 1e-4 (arXiv 2204.02311). Applied in training only, and reported as part of `aux_loss`.
    pub z_loss_coef: f64,
    /// Weight of the mean multi-token prediction loss, if `model.mtp_depth` is above 0 (DeepSeek-V3, arXiv 2412.19437:
    /// 0.3 for the first 10 of 14.8 trillion tokens, then 0.1). Applied in training only, and reported as part of
    /// `aux_loss`.
    pub mtp_loss_coef: f64,
    /// What to do if a loss or a gradient is infinite or NaN.
    pub on_non_finite: OnNonFinite,
    /// Maximum number of consecutive steps that `on_non_finite: skip` may skip before the run ends with an error. Steps
    /// that fp16 skips to halve its loss scale do not count.
    pub max_skips: usize,
    /// Device of the ranks: `cpu`; `cuda`, `vulkan` or `metal` (assigned in turn if there are several); a single one,
    /// such as `cuda:1`; or `auto`, which uses a GPU if Kiln is built for it and finds one, else `cpu`. Flag: `--device`.
    pub device: String,
}

/// What to do if a loss or a gradient is infinite or NaN. Parameters are not updated in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// The run ends with an error.
    Stop,
    /// The step is skipped, and the run continues.
    Skip,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 300,
            epochs: None,
            global_batch_size: 32,
            micro_batch_size: None,
            seq_len: 128,
            seed: 1337,
            val_every: 0,
            patience: None,
            val_batches: 16,
            sample_every: 0,
            sample_tokens: 200,
            z_loss_coef: 0.0,
            mtp_loss_coef: 0.3,
            on_non_finite: OnNonFinite::Stop,
            max_skips: 10,
            device: "auto".into(),
        }
    }
}

/// AdamW, and a learning rate that warms up linearly and then follows a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimConfig {
    /// Peak learning rate, reached after the warm-up. The flag `--lr` sets it and scales `min_lr` in proportion.
    pub lr: f64,
    /// Learning rate at the end, unless `schedule` is `constant`.
    pub min_lr: f64,
    /// Shape of the learning rate after the warm-up.
    pub schedule: LrSchedule,
    /// Number of decay steps at the end of a `wsd` schedule; null means a tenth of `train.steps`.
    pub decay_steps: Option<usize>,
    /// Number of steps in which the learning rate rises from 0 to `lr`.
    pub warmup_steps: usize,
    /// Decay rate of the running mean of the gradients.
    pub beta1: f64,
    /// Decay rate of the running mean of the squared gradients.
    pub beta2: f64,
    /// Added to the denominator of the update.
    pub epsilon: f64,
    /// Decoupled weight decay. Applies to matrices only, not to biases and norms.
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down to it. 0 disables clipping.
    pub clip_grad_norm: f64,
}

impl Default for OptimConfig {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            min_lr: 1e-4,
            schedule: LrSchedule::Cosine,
            decay_steps: None,
            warmup_steps: 20,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_grad_norm: 1.0,
        }
    }
}

/// How ranks exchange tensors, and how long they wait for each other. A rank that is late ends the run with an error that
/// names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommConfig {
    /// Timeout of a collective, in seconds.
    pub timeout_seconds: u64,
    /// Timeout until all ranks have met for the first time, in seconds, if longer than `timeout_seconds`: one process
    /// may have data to prepare while the others wait.
    pub init_timeout_seconds: u64,
    /// Whether tensors between CUDA GPUs move by NCCL, with one rank on each GPU; needs a build with `--features nccl`.
    /// Otherwise they move by copies between the GPUs of a process, and between processes by MPI.
    pub nccl: bool,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self { timeout_seconds: comm::TIMEOUT.as_secs(), init_timeout_seconds: 1800, nccl: false }
    }
}

impl CommConfig {
    /// The timeouts of the ranks.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let (call, init) = (self.timeout_seconds, self.init_timeout_seconds);
        Timeouts { init: Duration::from_secs(init.max(call)), call: Duration::from_secs(call) }
    }
}

/// When checkpoints are saved, to resume from with `--resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between checkpoints, in addition to those of the last step and the best validations; 0 saves only those.
    pub every: usize,
    /// Minutes between checkpoints by rank 0's clock, in addition to `every`; null disables them.
    pub every_minutes: Option<f64>,
    /// Number of newest checkpoints to keep; 0 saves none, not even of the last step.
    pub keep: usize,
    /// Steps between milestones, checkpoints in addition to `every` that are never removed; 0 disables them.
    pub keep_every: usize,
    /// Whether a new best validation saves a checkpoint, which is kept in addition to the newest.
    pub keep_best: bool,
    /// Seconds in which a checkpoint must be completely written on all disks; otherwise the run ends with an error that
    /// names the ranks. Training continues meanwhile, until the next checkpoint.
    pub timeout: u64,
    /// Where each checkpoint is copied in the background: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
    /// `az://CONTAINER/PREFIX` or `file:///FOLDER`; null copies none. It requires a build with `--features cloud`. Nothing
    /// is removed there.
    pub upload: Option<String>,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 100, every_minutes: None, keep: 2, keep_every: 0, keep_best: true, timeout: 3600, upload: None }
    }
}

/// What is logged during the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Steps between records of memory, communication and expert load, in addition to the first and the last step; 0
    /// records only those.
    pub every: usize,
    /// Peak performance of a device in the parameters' type, in 10^12 floating-point operations per second; null
    /// reports no MFU.
    pub peak_tflops: Option<f64>,
    /// Whether every rank logs each step in runs of more than 16 ranks, instead of rank 0 only; warnings are always
    /// logged.
    pub all_logs: bool,
    /// Steps whose operations every rank times, after the first two of the process; `train profile` draws them.
    pub profile_steps: usize,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { every: 10, peak_tflops: None, all_logs: false, profile_steps: 0 }
    }
}
