//! Errors of collectives.

use crate::{Collective, rank_list};
use std::any::Any;
use std::time::Duration;

/// The reason why a collective failed. Ranks have their world numbers, even in a communicator that was split off. Only
/// the root in the name of a call has the number that the caller passed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Another rank failed, or left before it made the call.
    #[error("{collective} on rank {rank}: rank {failed} {reason}")]
    RankFailed {
        /// The rank that reports this.
        rank: usize,
        /// The call that could not be completed.
        collective: Collective,
        /// The rank that failed.
        failed: usize,
        /// What happened to it.
        reason: String,
    },
    /// The call did not complete in time.
    #[error("{collective} on rank {rank}: no sign of {} within {timeout:?}", rank_list(missing))]
    Timeout {
        /// The rank that reports this.
        rank: usize,
        /// The call that could not be completed.
        collective: Collective,
        /// The ranks that did not arrive. With threads, a rank that itself waits for others is replaced by the ranks
        /// that it waits for.
        missing: Vec<usize>,
        /// How long this rank waited.
        timeout: Duration,
    },
    /// The ranks called different collectives, or passed tensors of different shapes or dtypes. Numbers are those of
    /// the group.
    #[error("ranks disagree: rank 0 calls {first}, rank {other_rank} calls {other}")]
    Mismatch {
        /// Rank 0's call.
        first: String,
        /// The first rank whose call differs.
        other_rank: usize,
        /// Its call.
        other: String,
    },
    /// The arguments are invalid, for example a tensor that cannot be split over the ranks or a root that does not
    /// exist.
    #[error("{collective} on rank {rank}: {reason}")]
    BadArgument {
        /// The rank that reports this.
        rank: usize,
        /// The call.
        collective: Collective,
        /// What is wrong with it.
        reason: String,
    },
    /// The engine cannot be started or has failed.
    #[error("{0}")]
    Engine(String),
}

impl CommError {
    /// Returns the same error as one of another call, of which the failed call was a step.
    pub(crate) fn in_call(mut self, call: Collective) -> Self {
        match &mut self {
            Self::RankFailed { collective, .. }
            | Self::Timeout { collective, .. }
            | Self::BadArgument { collective, .. } => *collective = call,
            Self::Mismatch { .. } | Self::Engine(_) => {}
        }
        self
    }
}

/// Returns the message of a caught panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
