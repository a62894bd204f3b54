//! What describes a run: one [`Config`], read from YAML (a preset or a file) and `--set` overrides.
//!
//! A file may inherit from another (`base: other.yaml`, `base: preset:gpt2`), every key but `model.type` has a default,
//! and a key that does not exist or a value of the wrong type is an error that names the key and where it stands.

mod check;
mod error;
mod load;
mod presets;
#[cfg(test)]
mod tests;
mod validate;

use comm::Timeouts;
use data::TokenizerSpec;
use fsdp::{ActivationCheckpointing, AdamW, FsdpConfig, Precision, Prefetch, Strategy, Wrap};
use model::{DeepSeekConfig, Gpt2Config};
use moe::MoeConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use crate::schedule::LrSchedule;
pub use error::ConfigError;
pub use load::Source;
pub use presets::{PRESETS, Preset, preset};

/// Everything that describes a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The model's family (`type`) and shape.
    pub model: ModelConfig,
    /// The experts of a DeepSeek; null for a model without.
    pub moe: Option<MoeConfig>,
    /// What is learned from.
    pub data: DataConfig,
    /// How long and in which portions.
    pub train: TrainConfig,
    /// AdamW and its learning rate's schedule.
    pub optim: OptimConfig,
    /// How the run is spread over ranks.
    pub parallel: ParallelConfig,
    /// How long ranks wait for each other.
    pub comm: CommConfig,
    /// When the run's state is saved.
    pub checkpoint: CheckpointConfig,
    /// What is written down on the way.
    pub metrics: MetricsConfig,
}

impl Config {
    /// Which blocks have experts, and how many; None for a model without.
    pub fn expert_layers(&self) -> Option<(Vec<usize>, usize)> {
        let ModelConfig::DeepSeek(shape) = &self.model else { return None };
        let layers: Vec<usize> = (shape.first_k_dense_replace..shape.num_hidden_layers).collect();
        let experts = self.moe.as_ref()?.num_experts;
        (!layers.is_empty()).then_some((layers, experts))
    }
}

/// A model's shape; `type` in the `model` section says which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ModelConfig {
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// DeepSeek-V2/V3: latent attention and experts.
    DeepSeek(DeepSeekConfig),
}

impl ModelConfig {
    /// The values of `type`.
    pub const TYPES: [&str; 2] = ["gpt2", "deepseek"];

    /// Tokens in the vocabulary; 0 until the data tells.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Gpt2(shape) => shape.vocab_size,
            Self::DeepSeek(shape) => shape.vocab_size,
        }
    }

    /// The longest context, in tokens, and the key that sets it.
    pub fn context(&self) -> (&'static str, usize) {
        match self {
            Self::Gpt2(shape) => ("model.n_positions", shape.n_positions),
            Self::DeepSeek(shape) => ("model.max_position_embeddings", shape.max_position_embeddings),
        }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::Gpt2(Gpt2Config::default())
    }
}

/// What is learned from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// `rust-crates`, the default corpus (Rust source that the build has put on disk), `shakespeare`, or the path of a file or folder:
    /// text, JSONL, Parquet, each as it is or in gzip or zstd, tokens (`.bin`), or what `train prepare` has made.
    pub source: String,
    /// `byte`, `char`, `gpt2` or the path of a Hugging Face tokenizer; null for bytes, or for that of prepared data.
    pub tokenizer: Option<TokenizerSpec>,
    /// The field of JSONL, or the column of Parquet, that holds the text.
    pub text_field: String,
    /// The share of the tokens, at the end, that validates; null for a tenth, but at most 10 million tokens.
    pub val_fraction: Option<f64>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self { source: data::DEFAULT_SOURCE.into(), tokenizer: None, text_field: "text".into(), val_fraction: None }
    }
}

impl DataConfig {
    /// The same for the data crate.
    pub(crate) fn options(&self, progress: bool) -> data::OpenOptions {
        data::OpenOptions {
            tokenizer: self.tokenizer.clone(),
            text_field: self.text_field.clone(),
            val_fraction: self.val_fraction,
            progress,
            ..data::OpenOptions::default()
        }
    }
}

/// How long and in which portions the model is trained, and what is measured on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps.
    pub steps: usize,
    /// Sequences per optimizer step, over all ranks; a multiple of `parallel.gpus`, but for `parallel.strategy: block`.
    pub global_batch_size: usize,
    /// Sequences a rank computes at once, a divisor of its share of the global batch; the whole share if that is smaller, or if
    /// this is null.
    pub micro_batch_size: Option<usize>,
    /// Tokens of a sequence; at most the model's context.
    pub seq_len: usize,
    /// Seed of the initial parameters and of the order of the data.
    pub seed: u64,
    /// Steps between validations; 0 for one at the end only.
    pub val_every: usize,
    /// Batches of `global_batch_size` sequences in a validation; 0 for the whole validation split.
    pub val_batches: usize,
    /// Tokens of the text generated at the end; 0 for none.
    pub sample_tokens: usize,
    /// What happens when a loss or a gradient is infinite or no number.
    pub on_non_finite: OnNonFinite,
    /// The device of the ranks.
    pub device: String,
}

/// What happens when a loss or a gradient is infinite or no number. The parameters stay as they were in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// The run ends with an error.
    Stop,
    /// The step is left out, and the run goes on.
    Skip,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 300,
            global_batch_size: 32,
            micro_batch_size: None,
            seq_len: 128,
            seed: 1337,
            val_every: 0,
            val_batches: 16,
            sample_tokens: 200,
            on_non_finite: OnNonFinite::Stop,
            device: "cpu".into(),
        }
    }
}

/// AdamW, and a learning rate that warms up linearly and then follows a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimConfig {
    /// The highest learning rate, reached after the warm-up.
    pub lr: f64,
    /// What the learning rate falls to at the end, unless `schedule` is `constant`.
    pub min_lr: f64,
    /// How it goes on after the warm-up.
    pub schedule: LrSchedule,
    /// Steps of the decay at the end of a `wsd`; null for a tenth of `train.steps`.
    pub decay_steps: Option<usize>,
    /// Steps in which the learning rate rises from 0 to `lr`.
    pub warmup_steps: usize,
    /// Decay of the mean of the gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// What is added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay, of matrices only: not of biases and norms.
    pub weight_decay: f64,
    /// The norm of all gradients together that a step does not exceed; 0 for no limit.
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

/// How the run is spread over ranks; see [`FsdpConfig`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Number of ranks (the world size).
    pub gpus: usize,
    /// What each rank holds of the parameters.
    pub strategy: Strategy,
    /// Replicas of `hybrid_shard`; null for 2.
    pub dp_replicate: Option<usize>,
    /// What is gathered together: each block, or `size:MIN_PARAMS`.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward.
    pub reshard_after_forward: bool,
    /// Which activations are recomputed in the backward instead of kept.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Types of parameters and of gradients on their way.
    pub precision: Precision,
    /// Whether shards and optimizer state rest in the CPU's memory.
    pub cpu_offload: bool,
    /// When the forward sends for parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward sends for parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated with a step's last micro-batch only.
    pub no_sync: bool,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        let fsdp = FsdpConfig::default();
        Self {
            gpus: 1,
            strategy: fsdp.strategy,
            dp_replicate: fsdp.dp_replicate,
            wrap: fsdp.wrap,
            reshard_after_forward: fsdp.reshard_after_forward,
            activation_checkpointing: fsdp.activation_checkpointing,
            precision: fsdp.precision,
            cpu_offload: fsdp.cpu_offload,
            forward_prefetch: fsdp.forward_prefetch,
            backward_prefetch: fsdp.backward_prefetch,
            no_sync: fsdp.no_sync,
        }
    }
}

impl ParallelConfig {
    /// Ranks that share a batch: all, but under `block` each computes a part of the model for all of it.
    pub fn data_parallel_size(&self) -> usize {
        if self.strategy == Strategy::Block { 1 } else { self.gpus }
    }

    /// The same with the optimizer, for the sharding layer.
    pub fn fsdp(&self, optim: &OptimConfig) -> FsdpConfig {
        FsdpConfig {
            strategy: self.strategy,
            dp_replicate: self.dp_replicate,
            wrap: self.wrap,
            reshard_after_forward: self.reshard_after_forward,
            activation_checkpointing: self.activation_checkpointing,
            precision: self.precision,
            cpu_offload: self.cpu_offload,
            forward_prefetch: self.forward_prefetch,
            backward_prefetch: self.backward_prefetch,
            no_sync: self.no_sync,
            adamw: AdamW {
                beta1: optim.beta1,
                beta2: optim.beta2,
                epsilon: optim.epsilon,
                weight_decay: optim.weight_decay,
            },
            clip_grad_norm: (optim.clip_grad_norm > 0.0).then_some(optim.clip_grad_norm),
            allocated: None,
        }
    }
}

/// How long ranks wait for each other. One that is late ends the run, with an error that names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommConfig {
    /// Seconds that a rank waits for the others in a collective.
    pub timeout_seconds: u64,
    /// The same until all ranks have met for the first time, if that is longer: one process may have data to prepare, the others not.
    pub init_timeout_seconds: u64,
}

impl Default for CommConfig {
    fn default() -> Self {
        Self { timeout_seconds: comm::TIMEOUT.as_secs(), init_timeout_seconds: 1800 }
    }
}

impl CommConfig {
    /// The same for the ranks.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let (call, init) = (self.timeout_seconds, self.init_timeout_seconds);
        Timeouts { init: Duration::from_secs(init.max(call)), call: Duration::from_secs(call) }
    }
}

/// When the run's state is saved, to go on from with `--resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between checkpoints, beside that of the last step; 0 for that one only.
    pub every: usize,
    /// How many checkpoints are kept, the newest ones; 0 for none, not even of the last step.
    pub keep: usize,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every: 100, keep: 2 }
    }
}

/// What is written down on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Steps between records of memory, communication and load of the experts, beside those of the first and the last step; 0 for
    /// these only.
    pub every: usize,
    /// 10^12 floating-point operations a second that a device can do in the type of the parameters; null: no MFU is reported.
    pub peak_tflops: Option<f64>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { every: 10, peak_tflops: None }
    }
}
