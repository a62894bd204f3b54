//! What a transport of tensors between ranks provides, and what ranks must agree on when they enter a call.

use crate::{CommError, Payload, Reduce, Summands};
use burn::tensor::{DType, Device};
use std::fmt;
use std::sync::Arc;

/// What moves tensors between the ranks of a group: threads ([`local`](crate::run_ranks)), or processes (`mpi`).
///
/// [`Communicator`](crate::Communicator) can make every collective of [`exchange`](Self::exchange); an engine may know
/// a shorter way for those that have a default here. Every call blocks until all ranks have made it, and fails on all
/// ranks if one does not.
pub trait Engine: Send + Sync {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has, N.
    fn world_size(&self) -> usize;

    /// The device on which results arrive.
    fn device(&self) -> &Device;

    /// Gives `parts[i]` to rank i and returns what each rank gave this one, in rank order. Where there is no part,
    /// nothing is sent; both ends know of that.
    ///
    /// # Errors
    /// On every rank, if one of them fails, is late, or comes with another signature.
    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Result<Vec<Option<Payload>>, CommError>;

    /// All ranks' shards, one after another.
    fn all_gather(&self, signature: &Signature, shard: Payload) -> Result<Payload, CommError> {
        let shards = self.exchange(signature, vec![Some(shard); self.world_size()])?;
        Ok(Payload::cat(shards.into_iter().flatten().collect()))
    }

    /// What all ranks give of this rank's chunk, of the N equal ones of `full`.
    fn chunks(&self, signature: &Signature, full: Payload) -> Result<Summands, CommError> {
        let (n, len) = (self.world_size(), full.len());
        let parts = (0..n).map(|to| Some(full.clone().slice(to * len / n..(to + 1) * len / n))).collect();
        Ok(Summands::new(self.exchange(signature, parts)?.into_iter().flatten().collect()))
    }

    /// All ranks' tensors combined, in one round: for few bytes. What is on the CPU stays there, whatever the rank's
    /// device is.
    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Result<Payload, CommError> {
        let len = tensor.len();
        let all = self.all_gather(signature, tensor)?;
        let parts = (0..self.world_size()).map(|rank| all.clone().slice(rank * len..(rank + 1) * len));
        Ok(Summands::new(parts.collect()).reduce(how))
    }

    /// Returns when every rank has called it.
    fn barrier(&self, signature: &Signature) -> Result<(), CommError> {
        self.exchange(signature, vec![None; self.world_size()]).map(drop)
    }

    /// How many messages beside tensors this rank sends in a call, so that all agree on it: one to each other rank, or
    /// fewer.
    fn control_messages(&self) -> usize {
        self.world_size() - 1
    }

    /// Hands a payload to rank `to`, which [`recv`](Self::recv)s in the order of sending. May return before it is
    /// received.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError>;

    /// The next payload from rank `from`.
    fn recv(&self, from: usize) -> Result<Payload, CommError>;

    /// Whether messages come while no thread of this rank asks for them.
    fn receives_unasked(&self) -> bool {
        true
    }

    /// A group of some of this group's ranks, given in ascending order, of which this rank is one. Every rank of the
    /// group calls it, each with its own new group; the new groups are disjoint.
    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError>;

    /// Tells the other ranks that this one has failed: their calls under way and to come return an error with `reason`.
    fn abort(&self, reason: &str);
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the methods of the same names are documented")]
pub enum Collective {
    AllGather,
    ReduceScatter,
    /// Combined so.
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
    /// The method's name.
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

/// What the ranks of a group must agree on when they enter a call. None: each may differ, or only some know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The call.
    pub collective: Collective,
    /// Number of elements.
    pub len: Option<usize>,
    /// Their type.
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
    /// An error unless all ranks, given in rank order, enter with the same.
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
