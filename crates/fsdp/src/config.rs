use comm::CommError;
use fused::AdamW;
use serde::{Deserialize, Serialize};

/// What a rank keeps of the parameters, gradients and optimizer state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Everything, on every rank; gradients are all-reduced.
    Ddp,
    /// 1/N of everything; parameters are gathered just before use (ZeRO-3, FSDP).
    #[default]
    FullShard,
}

/// What is kept of a forward for its backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCheckpointing {
    /// Every unit's graph, and with it the unit's gathered parameters: fast, and needs the most memory.
    #[default]
    None,
    /// Every unit's input; its backward runs the forward again. The last unit, whose backward follows at once, is not run twice.
    Full,
}

/// How units are trained.
#[derive(Debug, Clone, Default)]
pub struct FsdpConfig {
    /// What is sharded.
    pub strategy: Strategy,
    /// What is recomputed.
    pub activation_checkpointing: ActivationCheckpointing,
    /// The optimizer. Its weight decay is for matrices; vectors (norm gains, biases) do not decay.
    pub adamw: AdamW,
    /// Gradients whose global norm is above this are scaled down to it.
    pub clip_grad_norm: Option<f64>,
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
pub enum FsdpError {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The communication thread ended.
    #[error("the communication thread of rank {rank} has ended")]
    CommThread {
        /// The rank.
        rank: usize,
    },
    /// The calls of the units are not one first, any others, one last.
    #[error("a forward needs one first call, then any number of others, then one last: {0}")]
    Calls(String),
}
