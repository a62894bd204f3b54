//! The first stage of a call: the ranks agree on it, and each learns what comes to it.

use super::header::{Header, due_part};
use super::world::receive_header;
use super::{LEFT, MpiEngine, NOT_A_HEADER, Polled, REFUSED, Tag, Transfers};
use crate::engine::Metered;
use crate::payload::Part;
use crate::{Collective, CommError, Cost, Payload, Signature};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl MpiEngine {
    /// Runs the first stage of a call: returns every rank's header for this rank, in rank order. `parts` is what this
    /// rank gives.
    pub(super) fn meet(&self, signature: &Signature, parts: &[Option<Payload>]) -> Result<Vec<Header>, CommError> {
        let collective = signature.collective;
        self.check_failure(collective)?;
        let free_group = self.world.free_group.load(Ordering::Relaxed);
        let header = |rank: usize| Header {
            signature: Some(signature.clone()),
            part: parts.get(rank).and_then(Option::as_ref).map(|part| (part.len(), part.dtype())),
            free_group,
            on_cpu: false,
        };
        let mut sending = Transfers::default();
        for (rank, world_rank) in self.others() {
            sending.send(header(rank).to_bytes(), [world_rank], self.tag(Tag::Header));
        }
        let mut found = vec![None; self.members.len()];
        found[self.rank] = Some(header(self.rank));
        self.wait(collective, || {
            let mut missing = Vec::new();
            for (rank, world_rank) in self.others() {
                if found[rank].is_none() {
                    match self.next_header(rank) {
                        Some(Some(header)) => found[rank] = Some(header),
                        Some(None) => return Polled::Lost(world_rank, NOT_A_HEADER.into()),
                        None => missing.push(world_rank),
                    }
                }
                if found[rank].as_ref().is_some_and(|header| header.signature.is_none()) {
                    return Polled::Lost(world_rank, LEFT.into());
                }
            }
            match sending.done() {
                Err(rank) => Polled::Lost(rank, REFUSED.into()),
                Ok(true) if missing.is_empty() => Polled::Done(()),
                Ok(_) => {
                    missing.extend(sending.waiting_for());
                    Polled::Missing(missing)
                }
            }
        })?;
        self.met.store(true, Ordering::Relaxed);
        let headers: Vec<Header> = found.into_iter().flatten().collect();
        let signatures: Vec<_> = headers.iter().filter_map(|header| header.signature.clone()).collect();
        Signature::agree(&signatures)?;
        Ok(headers)
    }

    /// Returns the next header of a rank of the group; see [`receive_header`].
    fn next_header(&self, rank: usize) -> Option<Option<Header>> {
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner)[rank].pop_front();
        early.map(Some).or_else(|| receive_header(self.members[rank], self.tag(Tag::Header)))
    }

    /// Returns whether a rank has left, as its last header says. Headers of calls that this rank makes later are kept.
    pub(super) fn has_left(&self, rank: usize) -> bool {
        let early = &mut self.early.lock().unwrap_or_else(PoisonError::into_inner)[rank];
        while let Some(Some(header)) = receive_header(self.members[rank], self.tag(Tag::Header)) {
            early.push_back(header);
        }
        early.back().is_some_and(|header| header.signature.is_none())
    }

    /// Whether the ranks make such a call without headers if they all know its sizes.
    pub(super) fn skips_headers(&self, collective: Collective) -> bool {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
        let may = matches!(collective, AllGather | ReduceScatter | AllReduce(_) | Broadcast(_) | AllToAll);
        may && self.agreed.load(Ordering::Relaxed)
    }

    /// Returns the parts that come to this rank in a call: what all ranks know, or what they announce.
    pub(super) fn parts_of(&self, signature: &Signature, parts: &[Option<Payload>]) -> Metered<Vec<Option<Part>>> {
        let Signature { collective, len, dtype } = *signature;
        let Some(whole) = len.zip(dtype).filter(|_| self.skips_headers(collective)) else {
            let coming = self.coming(signature, &self.meet(signature, parts)?)?;
            return Ok((coming, self.headers()));
        };
        self.check_failure(collective)?;
        let n = self.members.len();
        let from = |rank| match collective {
            _ if rank == self.rank => None,
            Collective::Broadcast(root) => (rank == root).then_some(whole),
            _ => Some((whole.0 / n, whole.1)),
        };
        Ok(((0..n).map(from).collect(), Cost::default()))
    }

    /// Returns the cost of the first stage of a call.
    pub(super) fn headers(&self) -> Cost {
        Cost { control: self.members.len() - 1, ..Cost::default() }
    }

    /// Returns the parts that the ranks have announced to this one.
    fn coming(&self, signature: &Signature, headers: &[Header]) -> Result<Vec<Option<Part>>, CommError> {
        let n = self.members.len();
        let part = |(from, header)| match due_part(signature, header, [from, self.rank], n) {
            _ if from == self.rank => Ok(None),
            Ok(part) => Ok(part),
            Err(reason) => Err(self.lost(signature.collective, from, reason)),
        };
        headers.iter().enumerate().map(part).collect()
    }
}
