//! The interface of a transport between ranks, and the properties of a call on which ranks must agree.

use crate::{CommError, Cost, Payload, Reduce, Summands};
use burn::tensor::{DType, Device};
use std::fmt;
use std::sync::Arc;

/// A transport that moves tensors between the ranks of a group: threads ([`local`](crate::run_ranks)) or processes
/// (`mpi`).
///
/// [`Communicator`](crate::Communicator) can build every collective from [`exchange`](Self::exchange). An engine may
/// override the default methods with faster implementations. Every call blocks until all ranks have made it, fails on
/// all ranks if one does not, and returns what it cost this rank.
pub trait Engine: Send + Sync {
    /// Returns this rank's number in the group.
    fn rank(&self) -> usize;

    /// Returns the number of ranks in the group, N.
    fn world_size(&self) -> usize;

    /// Returns the device on which results arrive.
    fn device(&self) -> &Device;

    /// Returns the number of the machine of a rank in the group. Without other knowledge, all ranks are on one machine.
    fn machine(&self, _rank: usize) -> usize {
        0
    }

    /// Sends `parts[i]` to rank i and returns what each rank sent to this one, in rank order. `None` sends nothing;
    /// both ends know where parts are missing.
    ///
    /// # Errors
    /// Returns an error on every rank if one of them fails, is late, or calls with a different signature.
    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>>;

    /// Concatenates all ranks' shards.
    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        let (shards, cost) = self.exchange(signature, vec![Some(shard); self.world_size()])?;
        Ok((Payload::cat(shards.into_iter().flatten().collect()), cost))
    }

    /// Returns all ranks' contributions to this rank's chunk; `full` has N equal chunks.
    fn chunks(&self, signature: &Signature, full: Payload) -> Metered<Summands> {
        let (n, len) = (self.world_size(), full.len());
        let parts = (0..n).map(|to| Some(full.clone().slice(to * len / n..(to + 1) * len / n))).collect();
        let (chunks, cost) = self.exchange(signature, parts)?;
        Ok((Summands::new(chunks.into_iter().flatten().collect()), cost))
    }

    /// Combines all ranks' tensors in one round, for small tensors. A tensor on the CPU stays there, whatever the
    /// rank's device.
    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Metered<Payload> {
        let len = tensor.len();
        let (all, cost) = self.all_gather(signature, tensor)?;
        let parts = (0..self.world_size()).map(|rank| all.clone().slice(rank * len..(rank + 1) * len));
        Ok((Summands::new(parts.collect()).reduce(how), cost))
    }

    /// Moves nothing and returns when every rank has made a call with this signature. Ranks that
    /// [have agreed](Self::expect_agreement) need not wait for each other, except in a barrier.
    fn agree(&self, signature: &Signature) -> Result<Cost, CommError>;

    /// Notes that all ranks of the group will make the same calls in the same order from now on
    /// ([`Communicator::expect_agreement`](crate::Communicator::expect_agreement)).
    fn expect_agreement(&self) {}

    /// Sends a payload to rank `to`, which receives payloads in the order of sending ([`recv`](Self::recv)). The call
    /// may return before the payload is received, which moves while both ranks compute.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError>;

    /// Returns the next payload from rank `from`. One that was on the CPU there is on the CPU here, whatever the rank's
    /// device.
    fn recv(&self, from: usize) -> Result<Payload, CommError>;

    /// Does the same as [`recv`](Self::recv) if the payload has come, and otherwise returns `None` at once. An engine
    /// that cannot tell waits.
    fn try_recv(&self, from: usize) -> Result<Option<Payload>, CommError> {
        self.recv(from).map(Some)
    }

    /// Creates a group from some of this group's ranks, including this one, given in ascending order. Every rank of
    /// this group calls it, each with its own new group; the new groups are disjoint.
    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError>;

    /// Returns an error if this rank knows that a rank of the world has failed. It waits for no rank. `collective` is
    /// the call in which it asks.
    fn check(&self, _collective: Collective) -> Result<(), CommError> {
        Ok(())
    }

    /// Tells the other ranks that this one has failed; their current and future calls return an error with `reason`.
    fn abort(&self, reason: &str);
}

/// The result of a call, and what the call cost this rank.
pub type Metered<T> = Result<(T, Cost), CommError>;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the methods of the same names are documented")]
pub enum Collective {
    AllGather,
    ReduceScatter,
    /// Combined in this way.
    AllReduce(Reduce),
    /// From this root.
    Broadcast(usize),
    /// To this root.
    Gather(usize),
    /// From this root.
    Scatter(usize),
    AllToAll,
    /// To this rank.
    Send(usize),
    /// From this rank.
    Recv(usize),
    Barrier,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Broadcast(rank) | Self::Scatter(rank) | Self::Recv(rank) => write!(f, " from rank {rank}"),
            Self::Gather(rank) | Self::Send(rank) => write!(f, " to rank {rank}"),
            Self::AllReduce(Reduce::Mean) => f.write_str(" (mean)"),
            Self::AllReduce(Reduce::Max) => f.write_str(" (max)"),
            _ => Ok(()),
        }
    }
}

impl Collective {
    /// Returns the name of the method.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast(_) => "broadcast",
            Self::Gather(_) => "gather",
            Self::Scatter(_) => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Send(_) => "send",
            Self::Recv(_) => "recv",
            Self::Barrier => "barrier",
        }
    }
}

/// The properties on which the ranks of a group must agree when they enter a call. `None` means that the value may
/// differ or that only some ranks know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The call.
    pub collective: Collective,
    /// Number of elements. In an `all_to_all`, it says that all parts are equal.
    pub len: Option<usize>,
    /// Element type.
    pub dtype: Option<DType>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        match (self.len, self.dtype) {
            (Some(len), Some(dtype)) => write!(f, " of [{len}] {dtype:?}"),
            (None, Some(dtype)) => write!(f, " of {dtype:?}"),
            _ => Ok(()),
        }
    }
}

impl Signature {
    /// Returns an error unless all signatures, given in rank order, are equal.
    pub(crate) fn agree(signatures: &[Self]) -> Result<(), CommError> {
        match signatures.iter().position(|other| *other != signatures[0]) {
            Some(other_rank) => Err(CommError::Mismatch {
                first: signatures[0].to_string(),
                other_rank,
                other: signatures[other_rank].to_string(),
            }),
            None => Ok(()),
        }
    }
}
