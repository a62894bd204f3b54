//! Why a step did not happen.

use comm::CommError;

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
    /// A stage of a pipeline that hands over numbers of another batch.
    #[error(
        "rank {from} has sent rank {rank} numbers of {} sequences of length {}, whose own micro-batch has {} of length {}: give the ranks of all stages \
         the same batches, and the same model",
        found[0],
        found[1],
        expected[0],
        expected[1]
    )]
    Shape {
        /// The rank that got them.
        rank: usize,
        /// The rank that sent them.
        from: usize,
        /// Their sequences and length.
        found: [usize; 2],
        /// Those of the receiver's micro-batch.
        expected: [usize; 2],
    },
    /// The ranks were given different initial values.
    #[error(
        "unit {0} has not the same initial values on all ranks: make it from the same seed everywhere, or make it once and give each rank a clone"
    )]
    Values(String),
    /// Copies of a unit that are not the same on all ranks.
    #[error(
        "unit {unit} is not the same on ranks {} and {}, which hold copies of it: a device or its memory has failed, or the ranks run different \
         programs; go on from the last checkpoint",
        ranks[0],
        ranks[1]
    )]
    Copies {
        /// Its name.
        unit: String,
        /// Two ranks that differ.
        ranks: [usize; 2],
    },
    /// A state that does not fit the model.
    #[error("{0}")]
    State(String),
    /// Options that do not go together.
    #[error("{0}")]
    Config(String),
}
