//! Errors of training steps.

use checkpoint::CheckpointError;
use comm::CommError;

/// The reason why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsdpError {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The communication thread ended after an error that was returned earlier.
    #[error("the communication thread of rank {rank} has ended")]
    CommThread {
        /// The rank.
        rank: usize,
    },
    /// The calls of the units do not follow one another: they are not one first call, any number of others and one last
    /// call, or one takes other tensors than the one before it returns.
    #[error("{0}")]
    Calls(String),
    /// A step has no micro-batches, or a different number on some ranks.
    #[error("{0}")]
    MicroBatches(String),
    /// A pipeline stage sent activations or gradients of another batch.
    #[error(
        "rank {from} has sent rank {rank} numbers of {} sequences of length {}, whose own micro-batch has {} of length {}: give the ranks of all stages \
         the same batches, and the same model",
        found[0],
        found[1],
        expected[0],
        expected[1]
    )]
    Shape {
        /// The receiving rank.
        rank: usize,
        /// The sending rank.
        from: usize,
        /// Number and length of the received sequences.
        found: [usize; 2],
        /// Number and length of the sequences in the receiver's micro-batch.
        expected: [usize; 2],
    },
    /// The ranks were given different initial values.
    #[error(
        "unit {0} has not the same initial values on all ranks: make it once and give each rank a clone, or in processes make it from the same seed \
         (threads share Burn's generator)"
    )]
    Values(String),
    /// Ranks would run steps that do not fit together.
    #[error(
        "rank {} would not run the same step as rank {}: give all ranks the same units and calls, and the same options of \
         FsdpConfig (pipeline, prefetch, reshard_after_forward, no_sync, activation_checkpointing)",
        ranks[1],
        ranks[0]
    )]
    Outline {
        /// Two ranks that differ.
        ranks: [usize; 2],
    },
    /// Copies of a unit differ between ranks.
    #[error(
        "unit {unit} is not the same on ranks {} and {}, which hold copies of it{}: a device or its memory has failed, or the ranks run different \
         programs; resume from the last checkpoint",
        ranks[0],
        ranks[1],
        majority.map_or(String::new(), |alike| format!(" (rank {} differs from {alike} that agree)", ranks[1]))
    )]
    Copies {
        /// The unit's name.
        unit: String,
        /// Two ranks that differ.
        ranks: [usize; 2],
        /// The number of ranks whose copy is that of the first of the two, if they are a majority.
        majority: Option<usize>,
    },
    /// A state does not fit the model.
    #[error("{0}")]
    State(String),
    /// Options conflict.
    #[error("{0}")]
    Config(String),
}
