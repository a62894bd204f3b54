//! The rounds of which collectives consist.

use super::{Communicator, whole};
use crate::meter::Cost;
use crate::{Collective, CommError, Payload, Reduce, Signature, Summands};

impl Communicator {
    /// Runs an [`all_reduce`](Self::all_reduce) of a small tensor: every rank receives everything.
    pub(super) fn reduce_at_once(&self, tensor: Payload, how: Reduce) -> Result<(Payload, Cost), CommError> {
        let (collective, others, bytes) = (Collective::AllReduce(how), self.world_size() - 1, tensor.bytes());
        self.check_tracked(collective, &tensor)?;
        if others == 0 {
            return Ok((tensor, Cost::default()));
        }
        let total = self.engine.all_reduce(&whole(collective, &tensor), tensor, how)?;
        Ok((total, self.cost(collective, others * bytes)))
    }

    /// Runs an [`all_reduce`](Self::all_reduce) of a large tensor, padded to N equal chunks: each rank reduces one
    /// chunk.
    pub(super) fn reduce_in_chunks(&self, tensor: Payload, how: Reduce) -> Result<(Payload, Cost), CommError> {
        let (collective, n, len) = (Collective::AllReduce(how), self.world_size(), tensor.len());
        let padded = match len.next_multiple_of(n) - len {
            0 => tensor,
            missing => Payload::cat(vec![tensor.clone(), tensor.zeros_like(missing)]),
        };
        let (chunks, scattered) = self.chunks(collective, padded)?;
        let (all, gathered) = self.all_gather_as(collective, chunks.reduce(how))?;
        let cost = Cost { bytes: scattered.bytes + gathered.bytes, control: scattered.control + gathered.control };
        Ok((all.slice(0..len), cost))
    }

    /// Returns the gathered tensor and the cost.
    pub(super) fn all_gather_as(&self, collective: Collective, shard: Payload) -> Result<(Payload, Cost), CommError> {
        self.check_tracked(collective, &shard)?;
        if self.world_size() == 1 {
            return Ok((shard, Cost::default()));
        }
        let (signature, own) = (whole(collective, &shard), shard.bytes());
        let full = self.engine.all_gather(&signature, shard)?;
        let bytes = full.bytes() - own;
        Ok((full, self.cost(collective, bytes)))
    }

    /// Returns all ranks' contributions to this rank's chunk, and the cost.
    pub(super) fn chunks(&self, collective: Collective, full: Payload) -> Result<(Summands, Cost), CommError> {
        let (n, len, bytes) = (self.world_size(), full.len(), full.bytes());
        if len % n != 0 {
            return Err(self.bad_argument(collective, format!("{len} elements cannot be split over {n} ranks")));
        }
        self.check_tracked(collective, &full)?;
        if n == 1 {
            return Ok((Summands::new(vec![full]), Cost::default()));
        }
        let chunks = self.engine.chunks(&whole(collective, &full), full)?;
        Ok((chunks, self.cost(collective, bytes / n * (n - 1))))
    }

    /// Runs a collective that consists of one exchange.
    pub(super) fn call(
        &self,
        signature: &Signature,
        parts: Vec<Option<Payload>>,
    ) -> Result<Vec<Option<Payload>>, CommError> {
        self.metered(signature, || self.exchange(signature, parts))
    }

    /// Returns the parts that the ranks gave to this one, and the cost.
    fn exchange(
        &self,
        signature: &Signature,
        parts: Vec<Option<Payload>>,
    ) -> Result<(Vec<Option<Payload>>, Cost), CommError> {
        parts.iter().flatten().try_for_each(|part| self.check_tracked(signature.collective, part))?;
        if self.world_size() == 1 {
            return Ok((parts, Cost::default()));
        }
        let found = self.engine.exchange(signature, parts)?;
        let others = found.iter().enumerate().filter(|(from, _)| *from != self.rank());
        let bytes = others.filter_map(|(_, part)| part.as_ref()).map(Payload::bytes).sum();
        Ok((found, self.cost(signature.collective, bytes)))
    }

    /// Returns the cost of one round that received this many bytes.
    pub(super) fn cost(&self, collective: Collective, bytes: usize) -> Cost {
        Cost { bytes, control: self.engine.control_messages(collective) }
    }
}
