//! Why a collective did not happen.

use crate::Collective;
use std::any::Any;
use std::time::Duration;

/// Why a collective did not happen. Ranks are numbered as in the world, also by a communicator that was split off; only
/// the root in the name of a call is the number that the caller gave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
        /// What became of it.
        reason: String,
    },
    /// The call was not complete in time.
    #[error("{collective} on rank {rank}: no sign of {} within {timeout:?}", ranks(missing))]
    Timeout {
        /// The rank that reports this.
        rank: usize,
        /// The call that could not be completed.
        collective: Collective,
        /// The ranks that did not come; where these wait for others themselves, those.
        missing: Vec<usize>,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// The ranks called different collectives, or with tensors of different shape or dtype. Numbers are those of the
    /// group.
    #[error("ranks disagree: rank 0 calls {first}, rank {other_rank} calls {other}")]
    Mismatch {
        /// Rank 0's call.
        first: String,
        /// The first rank whose call differs.
        other_rank: usize,
        /// Its call.
        other: String,
    },
    /// What cannot be communicated so: a tensor that cannot be split over the ranks, a root that does not exist.
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

/// `rank 1`, `ranks 1, 2`.
pub(crate) fn ranks(numbers: &[usize]) -> String {
    let list: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if numbers.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// What a panic that was caught says.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
