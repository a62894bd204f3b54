//! How a model is spread over ranks and trained: strategies, wrapping, recomputation, pipeline.

mod validate;

use crate::{FsdpError, Precision};
use fused::AdamW;
use schedule::{Pipeline, Schedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a rank keeps of the parameters, gradients and optimizer state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Everything, on every rank; gradients are all-reduced.
    Ddp,
    /// 1/N of the optimizer state (ZeRO-1).
    Zero1,
    /// 1/N of gradients and optimizer state (ZeRO-2). PyTorch's `SHARD_GRAD_OP`, which also shards parameters between
    /// steps, is `full_shard` with `reshard_after_forward: false`.
    ShardGradOp,
    /// 1/N of everything; parameters are gathered just before use (ZeRO-3, FSDP).
    #[default]
    FullShard,
    /// 1/S of everything inside groups of S ranks, and replicas across the groups (HSDP).
    HybridShard,
    /// 1/N of everything; each block is computed by one rank only, to which it is gathered, and activations travel from
    /// rank to rank.
    Block,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ddp, Self::Zero1, Self::ShardGradOp, Self::FullShard, Self::HybridShard, Self::Block];

    /// What is in shards.
    pub(crate) fn shards(self) -> Sharded {
        let [parameters, gradients, optimizer] = match self {
            Self::Ddp => [false, false, false],
            Self::Zero1 => [false, false, true],
            Self::ShardGradOp => [false, true, true],
            Self::FullShard | Self::HybridShard | Self::Block => [true, true, true],
        };
        Sharded { parameters, gradients, optimizer }
    }

    /// Its name in configurations.
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

/// What a strategy has in shards, and not whole on every rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharded {
    pub parameters: bool,
    /// Those that wait for the step.
    pub gradients: bool,
    /// And the fp32 masters with it.
    pub optimizer: bool,
}

/// Which modules are one unit: kept, gathered and freed together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(!try_from, !into)]
pub enum Wrap {
    /// Each block alone, and what stands before and after the blocks.
    #[default]
    #[schemars(rename = "block")]
    Block,
    /// As many that follow each other as have together at least so many parameters.
    #[schemars(rename = "size:MIN_PARAMS")]
    Size(usize),
}

/// What is kept of a forward for its backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(!try_from, !into)]
pub enum ActivationCheckpointing {
    /// Every block's activations: fast, and needs the most memory.
    #[default]
    #[schemars(rename = "none")]
    None,
    /// Every block's input; its backward runs the forward again. The last block, whose backward follows at once but
    /// under `gpipe`, is not run twice.
    #[schemars(rename = "full")]
    Full,
    /// As `full` for every K-th block, as `none` for the others.
    #[schemars(rename = "every:K")]
    Every(usize),
}

/// When the parameters of the next block are sent for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// When it needs them: behind all other communication.
    None,
    /// Before the block at hand computes: the way there is hidden behind it, and two blocks are gathered at a time.
    #[default]
    Pre,
    /// After the block at hand has computed, before its gradients are reduced: one block is gathered at a time.
    Post,
}

/// How a model is cut over the stages of a pipeline, each of as many ranks, and in which order these work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineConfig {
    /// Stages; 1 for no pipeline.
    pub stages: usize,
    /// The order.
    pub schedule: Schedule,
    /// Chunks of the model that each stage has.
    pub virtual_stages: usize,
    /// How many calls each chunk has; none: dealt so that chunks have about as many parameters.
    pub calls: Vec<usize>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { stages: 1, schedule: Schedule::OneFOneB, virtual_stages: 1, calls: vec![] }
    }
}

impl PipelineConfig {
    /// The pipeline of a step of so many micro-batches.
    pub fn of(&self, micro_batches: usize) -> Result<Pipeline, FsdpError> {
        Pipeline::new(self.schedule, self.stages, self.virtual_stages, micro_batches)
            .map_err(|error| FsdpError::Config(error.to_string()))
    }

    /// The pipeline of a number of micro-batches that every schedule takes: where chunks are does not depend on it.
    pub(crate) fn of_a_round(&self) -> Result<Pipeline, FsdpError> {
        self.of(self.stages)
    }
}

/// How units are trained.
#[derive(Debug, Clone)]
pub struct FsdpConfig {
    /// Stages of a pipeline; what follows is about the ranks of each.
    pub pipeline: PipelineConfig,
    /// What is sharded.
    pub strategy: Strategy,
    /// Replicas within a stage, each of as many ranks, over which `strategy` shards: with more than one it is hybrid,
    /// and `full_shard` is `hybrid_shard`. None: 2 for `hybrid_shard`, and 1 for the others. Under `ddp` the number of
    /// copies, if it is given.
    pub dp_replicate: Option<usize>,
    /// Ranks over which stacks of experts ([`Units::experts`](crate::Units::experts)) are spread, each group of them
    /// having all; they are sharded over the ranks with the same experts. 1 for none.
    pub ep: usize,
    /// Ranks over which matrices are cut ([`Units::tensor_parallel`](crate::Units::tensor_parallel)), each group of
    /// them computing the same sequences. What is not cut is sharded over them too, for each has rows of its own. 1 for
    /// none.
    pub tp: usize,
    /// Ranks that have a part of each sequence's rows each, through all layers; to parameters they are data ranks. 1
    /// for none.
    pub cp: usize,
    /// What is a unit.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward and gathered again for the backward. They stay in
    /// pipelines, and with schedules that put gradients of weights off.
    pub reshard_after_forward: bool,
    /// What is recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// In which types parameters are gathered and gradients are reduced.
    pub precision: Precision,
    /// Whether shards, gradients and optimizer state rest in the memory of the CPU, and the optimizer steps there.
    /// Gradients of micro-batches are added up there too, with fp32 reductions over several ranks in another order than
    /// elsewhere.
    pub cpu_offload: bool,
    /// When the forward sends for parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward sends for parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated with a step's last micro-batch only: less traffic, and each rank keeps whole
    /// gradients until then. None: where whole parameters are kept as long, which is `full_shard` and `hybrid_shard` in
    /// a pipeline. `ddp` and `zero1`, which keep whole gradients anyway, always do so.
    pub no_sync: Option<bool>,
    /// The optimizer. Its weight decay is for matrices; vectors (norm gains, biases) do not decay.
    pub adamw: AdamW,
    /// Gradients whose global norm is above this are scaled down to it.
    pub clip_grad_norm: Option<f64>,
    /// Bytes that this rank's computing threads have allocated and not freed so far, where an allocator counts them:
    /// what a forward's graph keeps is the difference. Without it a graph is counted by its input alone.
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
            adamw: AdamW::default(),
            clip_grad_norm: None,
            allocated: None,
        }
    }
}

impl FsdpConfig {
    /// Replicas of what a stage shards; 1 under `ddp`, which shards nothing.
    pub fn replicas(&self) -> usize {
        match self.strategy {
            Strategy::Ddp => 1,
            Strategy::HybridShard => self.dp_replicate.unwrap_or(2),
            _ => self.dp_replicate.unwrap_or(1),
        }
    }

    /// Whether the backward runs the forward of call `i` of so many again.
    pub(crate) fn recomputes(&self, i: usize, calls: usize) -> bool {
        // Under gpipe all other micro-batches come in between.
        let is_last = i + 1 == calls && self.pipeline.schedule != Schedule::Gpipe;
        !is_last
            && match self.activation_checkpointing {
                ActivationCheckpointing::None => false,
                ActivationCheckpointing::Full => true,
                ActivationCheckpointing::Every(k) => (i + 1).is_multiple_of(k),
            }
    }

    /// Whether the backward gathers the parameters of call `i` again, where they are gathered at all. Not for the last
    /// call, whose backward follows at once, nor in a pipeline.
    pub(crate) fn regathers(&self, i: usize, calls: usize) -> bool {
        let is_last = i + 1 == calls;
        self.reshard_after_forward && !is_last && !self.keeps_gathered()
    }

    /// Whether gradients go to their shards with a step's last micro-batch only, and wait whole until then.
    pub fn reduces_once(&self) -> bool {
        let shards = self.strategy.shards();
        !shards.gradients || self.no_sync.unwrap_or(shards.parameters && self.keeps_gathered())
    }

    /// Whether what is gathered stays until the last micro-batch's backward: in a pipeline some micro-batch needs it
    /// most of the time.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = || text.strip_prefix("size:")?.parse().ok().map(Self::Size);
        match text {
            "block" => Ok(Self::Block),
            _ => size().ok_or(format!("unknown wrap `{text}`, expected `block` or `size:MIN_PARAMS`")),
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let every = || text.strip_prefix("every:")?.parse().ok().map(Self::Every);
        match text {
            "none" => Ok(Self::None),
            "full" => Ok(Self::Full),
            _ => every()
                .ok_or(format!("unknown activation checkpointing `{text}`, expected `none`, `full` or `every:K`")),
        }
    }
}

/// Serde by way of `Display` and `FromStr`.
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
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
