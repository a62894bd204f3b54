use crate::Precision;
use comm::CommError;
use fused::AdamW;
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
    /// 1/N of gradients and optimizer state (ZeRO-2). PyTorch's `SHARD_GRAD_OP`, which also shards parameters between steps, is
    /// `full_shard` with `reshard_after_forward: false`.
    ShardGradOp,
    /// 1/N of everything; parameters are gathered just before use (ZeRO-3, FSDP).
    #[default]
    FullShard,
    /// 1/S of everything inside groups of S ranks, and replicas across the groups (HSDP).
    HybridShard,
    /// 1/N of everything; each block is computed by one rank only, to which it is gathered, and activations travel from rank to rank.
    Block,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ddp, Self::Zero1, Self::ShardGradOp, Self::FullShard, Self::HybridShard, Self::Block];

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
    /// Every block's input; its backward runs the forward again. The last block, whose backward follows at once, is not run twice.
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

/// How units are trained.
#[derive(Debug, Clone)]
pub struct FsdpConfig {
    /// What is sharded.
    pub strategy: Strategy,
    /// Replicas of `hybrid_shard`, 2 if None; each consists of `world_size / dp_replicate` ranks. For the others it must be None.
    pub dp_replicate: Option<usize>,
    /// What is a unit.
    pub wrap: Wrap,
    /// Whether gathered parameters are freed after the forward and gathered again for the backward. Where a graph is kept on a GPU they
    /// stay nevertheless, for its memory cannot be taken away: recompute there.
    pub reshard_after_forward: bool,
    /// What is recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// In which types parameters are gathered and gradients are reduced.
    pub precision: Precision,
    /// Whether shards and optimizer state rest in the memory of the CPU, and the optimizer steps there.
    pub cpu_offload: bool,
    /// When the forward sends for parameters.
    pub forward_prefetch: Prefetch,
    /// When the backward sends for parameters.
    pub backward_prefetch: Prefetch,
    /// Whether gradients are communicated with a step's last micro-batch only: less traffic, and each rank keeps whole gradients until
    /// then. `ddp` and `zero1`, which keep whole gradients anyway, always do so.
    pub no_sync: bool,
    /// The optimizer. Its weight decay is for matrices; vectors (norm gains, biases) do not decay.
    pub adamw: AdamW,
    /// Gradients whose global norm is above this are scaled down to it.
    pub clip_grad_norm: Option<f64>,
    /// Bytes that this rank's computing threads have allocated and not freed so far, where an allocator counts them: what a forward's
    /// graph keeps is the difference. Without it a graph is counted by its input alone.
    pub allocated: Option<fn() -> isize>,
}

impl Default for FsdpConfig {
    fn default() -> Self {
        Self {
            strategy: Strategy::FullShard,
            dp_replicate: None,
            wrap: Wrap::Block,
            reshard_after_forward: true,
            activation_checkpointing: ActivationCheckpointing::None,
            precision: Precision::default(),
            cpu_offload: false,
            forward_prefetch: Prefetch::Pre,
            backward_prefetch: Prefetch::Pre,
            no_sync: false,
            adamw: AdamW::default(),
            clip_grad_norm: None,
            allocated: None,
        }
    }
}

impl FsdpConfig {
    /// Replicas of `hybrid_shard`.
    pub(crate) fn replicas(&self) -> usize {
        self.dp_replicate.unwrap_or(2)
    }

    /// Whether the backward runs the forward of call `i` of so many again.
    pub(crate) fn recomputes(&self, i: usize, calls: usize) -> bool {
        let is_last = i + 1 == calls;
        !is_last
            && match self.activation_checkpointing {
                ActivationCheckpointing::None => false,
                ActivationCheckpointing::Full => true,
                ActivationCheckpointing::Every(k) => (i + 1).is_multiple_of(k),
            }
    }

    /// Whether the backward gathers the parameters of call `i` again, where they are gathered at all; the same on all ranks. Not for the
    /// last call, whose backward follows at once, nor where the memory that a graph holds cannot be taken away.
    pub(crate) fn regathers(&self, i: usize, calls: usize, frees_kept_memory: bool) -> bool {
        let is_last = i + 1 == calls;
        self.reshard_after_forward && !is_last && (self.recomputes(i, calls) || frees_kept_memory)
    }

    /// Refuses what makes no sense on so many ranks, or together.
    pub fn validate(&self, world_size: usize) -> Result<(), FsdpError> {
        let refuse = |reason: String| Err(FsdpError::Config(reason));
        let replicas = self.replicas();
        if let (Some(replicas), false) = (self.dp_replicate, self.strategy == Strategy::HybridShard) {
            return refuse(format!("dp_replicate {replicas} without strategy hybrid_shard: leave it out"));
        }
        if self.strategy == Strategy::HybridShard
            && (replicas < 2 || !world_size.is_multiple_of(replicas) || world_size / replicas < 2)
        {
            let fits = replicas.max(2).checked_mul(world_size.div_ceil(replicas.max(2)).max(2));
            return refuse(format!(
                "hybrid_shard with dp_replicate {replicas} on {}: it needs at least 2 replicas of at least 2 ranks each, and as \
                 many ranks in each; take a world size that is a multiple of dp_replicate{}, or full_shard",
                if world_size == 1 { "1 rank".into() } else { format!("{world_size} ranks") },
                fits.map_or(String::new(), |fits| format!(" (such as {fits})")),
            ));
        }
        if self.strategy == Strategy::Block {
            if let Wrap::Size(_) = self.wrap {
                return refuse(format!(
                    "wrap {} with strategy block: it places blocks on ranks one by one; take wrap block",
                    self.wrap
                ));
            }
            if self.no_sync {
                return refuse(
                    "no_sync with strategy block: the rank that computes a block keeps none of its gradients; leave it out"
                        .into(),
                );
            }
        }
        let gathers = matches!(self.strategy, Strategy::FullShard | Strategy::HybridShard | Strategy::Block);
        if !gathers && !self.reshard_after_forward {
            return refuse(format!(
                "reshard_after_forward false with strategy {}: it never gathers parameters, so there is nothing to keep; leave \
                 it out",
                self.strategy.name()
            ));
        }
        if let Some(limit) = self.clip_grad_norm.filter(|limit| !limit.is_finite() || *limit <= 0.0) {
            return refuse(format!("clip_grad_norm {limit}: give a number above 0, or none for no limit"));
        }
        match self.activation_checkpointing {
            ActivationCheckpointing::Every(0) => {
                refuse("activation_checkpointing every:0: give every:1 for all calls, or none".into())
            }
            _ => Ok(()),
        }
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

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
pub enum FsdpError {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The communication thread ended, after an error that was returned earlier.
    #[error("the communication thread of rank {rank} has ended")]
    CommThread {
        /// The rank.
        rank: usize,
    },
    /// The calls of the units are not one first, any others, one last.
    #[error("a forward needs one first call, then any number of others, then one last: {0}")]
    Calls(String),
    /// The micro-batches of a step are none, or not as many on every rank.
    #[error("{0}")]
    MicroBatches(String),
    /// The ranks were given different initial values.
    #[error(
        "unit {0} has not the same initial values on all ranks: make it from the same seed everywhere, or make it once and give each rank a clone"
    )]
    Values(String),
    /// A state that does not fit the model.
    #[error("{0}")]
    State(String),
    /// Options that do not go together.
    #[error("{0}")]
    Config(String),
}
