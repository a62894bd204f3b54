use crate::{FsdpError, Precision};
use comm::{Axis, MeshShape};
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
    /// Every block's input; its backward runs the forward again. The last block, whose backward follows at once but under `gpipe`, is not run
    /// twice.
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
    /// Replicas of `hybrid_shard`, 2 if None; each consists of `world_size / dp_replicate` ranks. For the others it must be None.
    pub dp_replicate: Option<usize>,
    /// Ranks over which stacks of experts ([`Units::experts`](crate::Units::experts)) are spread, each group of them having all; they are sharded
    /// over the ranks with the same experts. 1 for none.
    pub ep: usize,
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
            pipeline: PipelineConfig::default(),
            strategy: Strategy::FullShard,
            dp_replicate: None,
            ep: 1,
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

    /// How so many ranks are laid out. Under `ddp` nothing is sharded, and the ranks that have the experts together take the place of shards.
    ///
    /// # Errors
    /// If the sizes do not divide each other.
    pub fn mesh(&self, world_size: usize) -> Result<MeshShape, FsdpError> {
        let ranks = self.validate_pipeline(world_size)?;
        let replicas = match self.strategy {
            Strategy::Ddp => ranks / self.ep.max(1),
            Strategy::HybridShard => self.replicas(),
            _ => 1,
        };
        let shards = ranks / replicas.max(1);
        if self.ep == 0 || replicas * shards != ranks || !shards.is_multiple_of(self.ep) {
            let of = if self.strategy == Strategy::HybridShard { " of a replica" } else { "" };
            let (ep, stages) = (self.ep, self.pipeline.stages);
            let fits = (1..=shards.max(1)).rev().find(|fits| *fits <= ep && shards.is_multiple_of(*fits)).unwrap_or(1);
            return Err(FsdpError::Config(format!(
                "ep {ep} does not divide the {shards} ranks{of} that share experts ({world_size} ranks{}): take ep {fits}, say",
                if stages > 1 { format!(", pp {stages}") } else { String::new() },
            )));
        }
        let (pp, ep) = (self.pipeline.stages, self.ep);
        Ok(MeshShape::new(&[(Axis::Pp, pp), (Axis::DpReplicate, replicas), (Axis::DpShard, shards), (Axis::Ep, ep)]))
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

    /// Whether the backward gathers the parameters of call `i` again, where they are gathered at all; the same on all ranks. Not for the
    /// last call, whose backward follows at once, nor where the memory that a graph holds cannot be taken away, nor in a pipeline.
    pub(crate) fn regathers(&self, i: usize, calls: usize, frees_kept_memory: bool) -> bool {
        let is_last = i + 1 == calls;
        self.reshard_after_forward
            && !is_last
            && !self.keeps_gathered()
            && (self.recomputes(i, calls) || frees_kept_memory)
    }

    /// Whether what is gathered stays until the last micro-batch's backward: in a pipeline some micro-batch needs it most of the time.
    pub(crate) fn keeps_gathered(&self) -> bool {
        self.pipeline.stages > 1 || self.pipeline.schedule.splits_backward()
    }

    /// Refuses a pipeline that so many ranks cannot make; returns the ranks of a stage.
    fn validate_pipeline(&self, world_size: usize) -> Result<usize, FsdpError> {
        let refuse = |reason: String| Err(FsdpError::Config(reason));
        let PipelineConfig { stages, schedule, virtual_stages, .. } = self.pipeline;
        let cut = stages.saturating_mul(virtual_stages) > 1 || schedule.splits_backward();
        self.pipeline.of_a_round()?;
        if !world_size.is_multiple_of(stages) {
            let fits = world_size.next_multiple_of(stages);
            return refuse(format!("pp {stages} does not divide the world size, {world_size}: take {fits} ranks, say"));
        }
        if cut && self.strategy == Strategy::Block {
            return refuse(format!(
                "pp {stages} with strategy block, which places blocks on ranks by itself: take full_shard"
            ));
        }
        if cut && self.wrap != Wrap::Block {
            return refuse(format!(
                "pp {stages} with wrap {}: stages are cut between blocks; take wrap block",
                self.wrap
            ));
        }
        Ok(world_size / stages)
    }

    /// Refuses what makes no sense on so many ranks, or together.
    pub fn validate(&self, world_size: usize) -> Result<(), FsdpError> {
        let refuse = |reason: String| Err(FsdpError::Config(reason));
        let world_size = self.validate_pipeline(world_size)?;
        let replicas = self.replicas();
        if let (Some(replicas), false) = (self.dp_replicate, self.strategy == Strategy::HybridShard) {
            return refuse(format!("dp_replicate {replicas} without strategy hybrid_shard: leave it out"));
        }
        if self.strategy == Strategy::HybridShard
            && (replicas < 2 || !world_size.is_multiple_of(replicas) || world_size / replicas < 2)
        {
            let fits = replicas.max(2).checked_mul(world_size.div_ceil(replicas.max(2)).max(2));
            return refuse(format!(
                "hybrid_shard with dp_replicate {replicas} on {}{}: it needs at least 2 replicas of at least 2 ranks each, and as \
                 many ranks in each; take a world size that is a multiple of dp_replicate{}, or full_shard",
                if world_size == 1 { "1 rank".into() } else { format!("{world_size} ranks") },
                if self.pipeline.stages > 1 { " of a stage" } else { "" },
                fits.and_then(|fits| fits.checked_mul(self.pipeline.stages))
                    .map_or(String::new(), |fits| format!(" (such as {fits})")),
            ));
        }
        self.mesh(world_size * self.pipeline.stages)?;
        if self.strategy == Strategy::Block {
            if self.ep > 1 {
                return refuse(format!(
                    "ep {} with strategy block, where one rank computes all of a block: take full_shard",
                    self.ep
                ));
            }
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
