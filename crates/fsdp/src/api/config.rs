//! The distribution of a model over ranks, and its training: strategies, wrapping, recomputation, pipeline.

mod validate;

use crate::{FsdpError, Optimizers, Precision};
use schedule::{Pipeline, Prefetch, Schedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a rank keeps of the parameters, gradients and optimizer state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Keeps everything on every rank; gradients are all-reduced.
    Ddp,
    /// Keeps 1/N of the optimizer state (ZeRO-1).
    Zero1,
    /// Keeps 1/N of the gradients and the optimizer state (ZeRO-2). PyTorch's `SHARD_GRAD_OP`, which also shards
    /// parameters between steps, is `full_shard` with `reshard_after_forward: false`.
    ShardGradOp,
    /// Keeps 1/N of everything; parameters are gathered just before use (ZeRO-3, FSDP).
    #[default]
    FullShard,
    /// Keeps 1/S of everything inside groups of S ranks, with replicas across the groups (HSDP).
    HybridShard,
    /// Keeps 1/N of everything. Each block is gathered to one rank, which alone computes it, and activations move from
    /// rank to rank.
    Block,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 6] =
        [Self::Ddp, Self::Zero1, Self::ShardGradOp, Self::FullShard, Self::HybridShard, Self::Block];

    /// Returns what is sharded.
    pub(crate) fn shards(self) -> Sharded {
        let [parameters, gradients, optimizer] = match self {
            Self::Ddp => [false, false, false],
            Self::Zero1 => [false, false, true],
            Self::ShardGradOp => [false, true, true],
            Self::FullShard | Self::HybridShard | Self::Block => [true, true, true],
        };
        Sharded { parameters, gradients, optimizer }
    }

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Zero1 => "zero1",
            Self::ShardGradOp => "shard_grad_op",
            Self::FullShard => "full_shard",
            Self::HybridShard => "hybrid_shard",
            Self::Block => "block",
        }
    }
}

/// What a strategy shards instead of keeping it whole on every rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharded {
    pub parameters: bool,
    /// Gradients that wait for the step.
    pub gradients: bool,
    /// The optimizer state, including the fp32 masters.
    pub optimizer: bool,
}

/// The modules that form one unit, which is kept, gathered and freed together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(!try_from, !into)]
pub enum Wrap {
    /// Each block separately, and the modules before and after the blocks.
    #[default]
    #[schemars(rename = "block")]
    Block,
    /// Consecutive modules that together have at least MIN_PARAMS parameters.
    #[schemars(rename = "size:MIN_PARAMS")]
    Size(usize),
}

/// What a forward keeps for its backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(!try_from, !into)]
pub enum ActivationCheckpointing {
    /// Every block's activations: fast, but needs the most memory.
    #[default]
    #[schemars(rename = "none")]
    None,
    /// Every block's input; the backward runs the forward again. The last call of a forward is not recomputed, because
    /// its backward follows at once, except under `gpipe`.
    #[schemars(rename = "full")]
    Full,
    /// Like `full` for every K-th block and like `none` for the others.
    #[schemars(rename = "every:K")]
    Every(usize),
}

/// How a model is divided among the stages of a pipeline, which have the same number of ranks, and the order in which
/// the stages work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineConfig {
    /// Number of stages; 1 for no pipeline.
    pub stages: usize,
    /// The order in which stages work on micro-batches.
    pub schedule: Schedule,
    /// Number of chunks of the model per stage.
    pub virtual_stages: usize,
    /// Number of calls per chunk; if empty, calls are distributed so that chunks have about the same number of
    /// parameters.
    pub calls: Vec<usize>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { stages: 1, schedule: Schedule::OneFOneB, virtual_stages: 1, calls: vec![] }
    }
}

impl PipelineConfig {
    /// Returns the pipeline of a step with `micro_batches` micro-batches.
    pub fn of(&self, micro_batches: usize) -> Result<Pipeline, FsdpError> {
        Pipeline::new(self.schedule, self.stages, self.virtual_stages, micro_batches)
            .map_err(|error| FsdpError::Config(error.to_string()))
    }

    /// Returns the pipeline for a number of micro-batches that every schedule accepts; the placement of chunks does not
    /// depend on it.
    pub(crate) fn of_a_round(&self) -> Result<Pipeline, FsdpError> {
        self.of(self.stages)
    }
}

/// How units are trained.
#[derive(Debug, Clone)]
pub struct FsdpConfig {
    /// The stages of a pipeline; everything below applies to the ranks of one stage.
    pub pipeline: PipelineConfig,
    /// What is sharded.
    pub strategy: Strategy,
    /// Number of replicas within a stage; each has the same number of ranks, over which `strategy` shards. With more
    /// than one replica, sharding is hybrid, and `full_shard` is the same as `hybrid_shard`. `None` means 2 for
    /// `hybrid_shard` and 1 otherwise. Under `ddp`, if given, it must be the number of copies.
    pub dp_replicate: Option<usize>,
    /// Number of ranks over which stacks of experts ([`Units::experts`](crate::Units::experts)) are distributed;
    /// together such a group has all experts. Experts are sharded over the ranks with the same experts. 1 for no expert
    /// parallelism.
    pub ep: usize,
    /// Number of ranks over which matrices are cut ([`Units::tensor_parallel`](crate::Units::tensor_parallel));
    /// together such a group computes the same sequences. These ranks also shard parameters that are not cut, because
    /// each has its own rows. 1 for no tensor parallelism.
    pub tp: usize,
    /// Number of ranks that each hold a part of every sequence's rows, through all layers; these ranks also shard
    /// parameters. 1 for no context parallelism.
    pub cp: usize,
    /// What forms a unit.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward and gathered again for the backward. They always stay
    /// gathered in pipelines and with schedules that defer weight gradients.
    pub reshard_after_forward: bool,
    /// What is recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// The types in which parameters are gathered and gradients are reduced.
    pub precision: Precision,
    /// Whether shards, gradients and optimizer state rest in CPU memory, where the optimizer also steps. Gradients of
    /// micro-batches are also accumulated there; with fp32 reductions over several ranks, the order of additions
    /// differs from that without offload.
    pub cpu_offload: bool,
    /// When the forward gathers parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward gathers parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated only with a step's last micro-batch: less traffic, but each rank keeps whole
    /// gradients until then. `None` does so if whole parameters are kept as long: with `full_shard` and `hybrid_shard`
    /// in a pipeline. `ddp` and `zero1` always do so, because they keep whole gradients anyway.
    pub no_sync: Option<bool>,
    /// The optimizers of the parameters. Kiln's [`FusedAdamW`](fused::FusedAdamW), the default, decays matrices only,
    /// not vectors (norm gains, biases).
    pub optimizers: Optimizers,
    /// Gradients with a larger global norm are scaled down to this norm.
    pub clip_grad_norm: Option<f64>,
    /// Returns the bytes that this rank's computing threads have allocated and not freed, if an allocator counts them;
    /// the difference over a forward is what its graph keeps. Without it, a graph counts as its input alone.
    pub allocated: Option<fn() -> isize>,
}

impl Default for FsdpConfig {
    fn default() -> Self {
        Self {
            pipeline: PipelineConfig::default(),
            strategy: Strategy::FullShard,
            dp_replicate: None,
            ep: 1,
            tp: 1,
            cp: 1,
            wrap: Wrap::Block,
            reshard_after_forward: true,
            activation_checkpointing: ActivationCheckpointing::None,
            precision: Precision::default(),
            cpu_offload: false,
            forward_prefetch: Prefetch::Pre,
            backward_prefetch: Prefetch::Pre,
            no_sync: None,
            optimizers: Optimizers::default(),
            clip_grad_norm: None,
            allocated: None,
        }
    }
}

impl FsdpConfig {
    /// Returns the number of replicas of what a stage shards; 1 under `ddp`, which shards nothing.
    pub fn replicas(&self) -> usize {
        match self.strategy {
            Strategy::Ddp => 1,
            Strategy::HybridShard => self.dp_replicate.unwrap_or(2),
            _ => self.dp_replicate.unwrap_or(1),
        }
    }

    /// Returns whether gradients are sent to their shards only with a step's last micro-batch and stay whole until
    /// then.
    pub fn reduces_once(&self) -> bool {
        let shards = self.strategy.shards();
        !shards.gradients || self.no_sync.unwrap_or(shards.parameters && self.keeps_gathered())
    }

    /// Returns whether gathered parameters stay until the last micro-batch's backward: in a pipeline, some micro-batch
    /// needs them at most times.
    pub(crate) fn keeps_gathered(&self) -> bool {
        self.pipeline.stages > 1 || self.pipeline.schedule.splits_backward()
    }
}

impl fmt::Display for Wrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("block"),
            Self::Size(min_params) => write!(f, "size:{min_params}"),
        }
    }
}

impl FromStr for Wrap {
    type Err = FsdpError;

    fn from_str(text: &str) -> Result<Self, FsdpError> {
        // `size:1e9` is a whole number, too.
        let whole = |number: f64| (number.fract() == 0.0 && (0.0..1e15).contains(&number)).then_some(number as usize);
        let number = |text: &str| text.parse().ok().or_else(|| whole(text.parse().ok()?));
        let size = || number(text.strip_prefix("size:")?).map(Self::Size);
        match text {
            "block" => Ok(Self::Block),
            _ => size().ok_or_else(|| {
                FsdpError::Config(format!("unknown wrap `{text}`, expected `block` or `size:MIN_PARAMS`"))
            }),
        }
    }
}

impl fmt::Display for ActivationCheckpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Full => f.write_str("full"),
            Self::Every(k) => write!(f, "every:{k}"),
        }
    }
}

impl FromStr for ActivationCheckpointing {
    type Err = FsdpError;

    fn from_str(text: &str) -> Result<Self, FsdpError> {
        let every = || text.strip_prefix("every:")?.parse().ok().map(Self::Every);
        match text {
            "none" => Ok(Self::None),
            "full" => Ok(Self::Full),
            _ => every().ok_or_else(|| {
                FsdpError::Config(format!(
                    "unknown activation checkpointing `{text}`, expected `none`, `full` or `every:K`"
                ))
            }),
        }
    }
}

/// Implements serde's conversions with `Display` and `FromStr`.
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = FsdpError;

            fn try_from(text: String) -> Result<Self, FsdpError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

as_text!(Wrap);
as_text!(ActivationCheckpointing);
