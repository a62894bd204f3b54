//! The rounds of which collectives consist.

use super::{Communicator, whole};
use crate::engine::Metered;
use crate::{Collective, CommError, Cost, Payload, Reduce, Signature, Summands};

impl Communicator {
    /// Runs an [`all_reduce`](Self::all_reduce) of a small tensor: every rank receives everything.
    pub(super) fn reduce_at_once(&self, tensor: Payload, how: Reduce) -> Metered<Payload> {
        let collective = Collective::AllReduce(how);
        self.check_tracked(collective, &tensor)?;
        if self.world_size() == 1 {
            return Ok((tensor, Cost::default()));
        }
        self.engine.all_reduce(&whole(collective, &tensor), tensor, how)
    }

    /// Runs an [`all_reduce`](Self::all_reduce) of a large tensor, padded to N equal chunks: each rank reduces one
    /// chunk.
    pub(super) fn reduce_in_chunks(&self, tensor: Payload, how: Reduce) -> Metered<Payload> {
        let (collective, n, len) = (Collective::AllReduce(how), self.world_size(), tensor.len());
        let padded = match len.next_multiple_of(n) - len {
            0 => tensor,
            missing => Payload::cat(vec![tensor.clone(), tensor.zeros_like(missing)]),
        };
        let (chunks, scattered) = self.chunks(collective, padded)?;
        let (all, gathered) = self.all_gather_as(collective, chunks.reduce(how))?;
        Ok((all.slice(0..len), scattered + gathered))
    }

    /// Returns the gathered tensor.
    pub(super) fn all_gather_as(&self, collective: Collective, shard: Payload) -> Metered<Payload> {
        self.check_tracked(collective, &shard)?;
        if self.world_size() == 1 {
            return Ok((shard, Cost::default()));
        }
        self.engine.all_gather(&whole(collective, &shard), shard)
    }

    /// Returns all ranks' contributions to this rank's chunk.
    pub(super) fn chunks(&self, collective: Collective, full: Payload) -> Metered<Summands> {
        let (n, len) = (self.world_size(), full.len());
        if len % n != 0 {
            return Err(self.bad_argument(collective, format!("{len} elements cannot be split over {n} ranks")));
        }
        self.check_tracked(collective, &full)?;
        if n == 1 {
            return Ok((Summands::new(vec![full]), Cost::default()));
        }
        self.engine.chunks(&whole(collective, &full), full)
    }

    /// Runs a collective that consists of one exchange.
    pub(super) fn call(
        &self,
        signature: &Signature,
        parts: Vec<Option<Payload>>,
    ) -> Result<Vec<Option<Payload>>, CommError> {
        self.metered(signature, || {
            parts.iter().flatten().try_for_each(|part| self.check_tracked(signature.collective, part))?;
            if self.world_size() == 1 { Ok((parts, Cost::default())) } else { self.engine.exchange(signature, parts) }
        })
    }
}
