use burn::tensor::{Device, Tensor};
use std::fmt;
use std::time::Duration;

/// The collectives of one rank in a group of ranks.
///
/// All methods block until every rank of the group has made the same call, and return an error on every rank if one of
/// them does not. `N` is [`world_size`](Self::world_size). Tensors are flat: reshaping is the caller's and free.
pub trait Communicator: Send + Sync {
    /// This rank's number, from 0 to N - 1.
    fn rank(&self) -> usize;

    /// How many ranks the group has, N.
    fn world_size(&self) -> usize;

    /// The device this rank computes on, and on which it gets its results.
    fn device(&self) -> &Device;

    /// The ranks' tensors one after another in rank order: `[n]` becomes `[N * n]`.
    fn all_gather(&self, shard: Tensor<1>) -> Result<Tensor<1>, CommError>;

    /// Chunk `rank` of the sum of the ranks' tensors: `[N * n]` becomes `[n]`.
    fn reduce_scatter(&self, full: Tensor<1>) -> Result<Tensor<1>, CommError> {
        self.reduce_scatter_onto(full, None)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) that goes on with a sum: chunk `rank` of `((onto + t_0) + t_1) + ...`, `onto` being this
    /// rank's chunk so far. Gradients of many micro-batches so have one order of addition, however many ranks computed them.
    fn reduce_scatter_onto(&self, full: Tensor<1>, onto: Option<Tensor<1>>) -> Result<Tensor<1>, CommError>;

    /// The sum of the ranks' tensors: `[n]` stays `[n]`.
    fn all_reduce(&self, tensor: Tensor<1>) -> Result<Tensor<1>, CommError>;

    /// Rank `root`'s tensor; the others' must have its shape and dtype.
    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> Result<Tensor<1>, CommError>;

    /// Returns when every rank has called it.
    fn barrier(&self) -> Result<(), CommError>;

    /// Tells the other ranks that this one has failed: their calls under way and to come return an error with `reason`.
    fn abort(&self, reason: &str);
}

/// What a rank asked for when it entered a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// [`Communicator::all_gather`]
    AllGather,
    /// [`Communicator::reduce_scatter`]
    ReduceScatter,
    /// [`Communicator::all_reduce`]
    AllReduce,
    /// [`Communicator::broadcast`] from this root.
    Broadcast(usize),
    /// [`Communicator::barrier`]
    Barrier,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllGather => f.write_str("all_gather"),
            Self::ReduceScatter => f.write_str("reduce_scatter"),
            Self::AllReduce => f.write_str("all_reduce"),
            Self::Broadcast(root) => write!(f, "broadcast from rank {root}"),
            Self::Barrier => f.write_str("barrier"),
        }
    }
}

/// Why a collective did not happen.
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
    /// Some ranks did not make the call in time.
    #[error("{collective} on rank {rank}: no sign of rank(s) {missing:?} within {timeout:?}")]
    Timeout {
        /// The rank that reports this.
        rank: usize,
        /// The call that could not be completed.
        collective: Collective,
        /// The ranks that did not come.
        missing: Vec<usize>,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// The ranks called different collectives, or with tensors of different shape or dtype.
    #[error("ranks disagree: rank 0 calls {first}, rank {other_rank} calls {other}")]
    Mismatch {
        /// Rank 0's call.
        first: String,
        /// The first rank whose call differs.
        other_rank: usize,
        /// Its call.
        other: String,
    },
    /// A tensor that cannot be split over the ranks, or a root that does not exist.
    #[error("{collective} on rank {rank}: {reason}")]
    BadArgument {
        /// The rank that reports this.
        rank: usize,
        /// The call.
        collective: Collective,
        /// What is wrong with it.
        reason: String,
    },
}
