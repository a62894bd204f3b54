//! The engine whose ranks are processes on one machine or several: feature `mpi`.
//!
//! It uses only non-blocking messages, because MPI's own collectives wait forever if a rank is missing. A call has two
//! stages. First each rank tells each other rank in a [`Header`] which call it makes and what it will send. If all
//! ranks make the same call, the parts follow.
//!
//! ```text
//! rank 0  header to 1, 2 | headers from 1, 2: agree? | part to 1, 2 | parts from 1, 2
//! rank 1  header to 0, 2 | headers from 0, 2: agree? | part to 0, 2 | parts from 0, 2
//! ```
//!
//! Every rank sees the same headers, so all ranks get the same error if they disagree. Messages between two ranks with
//! the same tag arrive in the order of sending, which separates rounds. Groups that are split off have their own tags.
//! Each wait also looks for a third kind of message: the mark of a failed rank.
//!
//! Once ranks have compared what they are going to do, calls whose sizes all know start with the second stage
//! ([`Communicator::expect_agreement`](crate::Communicator::expect_agreement)).
//!
//! A call in flight at that moment succeeds on the ranks that have received all their parts and fails on the others. No
//! rank gets further than that call: the next one cannot complete, because the failed rank sends no header. A killed
//! process cannot send a mark. `mpirun` then ends the others, and their calls never return.

mod agreement;
mod header;
mod mail;
mod transfers;
mod world;

pub use world::MpiWorld;

use crate::engine::Metered;
use crate::payload::Part;
use crate::{Collective, CommError, Cost, Engine, Payload, Signature, Timeouts};
use burn::tensor::{Bytes, DType, Device, TensorData};
use header::Header;
use mail::Received;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use transfers::Transfers;
use world::World;

/// The tag of a failed rank's mark, which holds its number in eight bytes and the reason.
const ABORT: i32 = 0;

/// The kinds of messages in a group; each has its own tag.
#[derive(Clone, Copy)]
enum Tag {
    Header = 1,
    Part = 2,
    MailHeader = 3,
    Mail = 4,
}

impl Tag {
    /// Returns the tag of such messages in a group.
    fn of(self, group: u64) -> i32 {
        (group * 4) as i32 + self as i32
    }
}

/// Number of groups for which there are tags; MPI guarantees tags up to 32767.
const MAX_GROUPS: u64 = 32767 / 4;

/// A rank that is a process started by `mpirun`; created by [`MpiWorld`].
///
/// When it is dropped, the others learn that the rank has left: a call that still needs it fails at once instead of at
/// the timeout.
pub struct MpiEngine {
    /// This rank's number in the group.
    rank: usize,
    group: u64,
    /// The world numbers of the group's ranks.
    members: Vec<usize>,
    device: Device,
    timeouts: Timeouts,
    /// Whether all ranks of the world have been in a call together.
    met: AtomicBool,
    /// Whether all ranks have agreed on what follows.
    agreed: AtomicBool,
    /// Headers that have come during calls without headers, by rank of the group.
    early: Mutex<Vec<VecDeque<Header>>>,
    world: Arc<World>,
}

/// The result of polling the messages.
enum Polled<T> {
    Done(T),
    /// The ranks that are still missing, by world number.
    Missing(Vec<usize>),
    /// A rank that is needed and will not arrive, with the reason.
    Lost(usize, String),
}

impl MpiEngine {
    fn new(group: u64, members: Vec<usize>, device: Device, timeouts: Timeouts, world: Arc<World>) -> Self {
        let rank = members.iter().position(|rank| *rank == world.rank).expect("this rank is a member");
        let met = AtomicBool::new(group != 0); // group 0 is the world
        let early = Mutex::new(vec![VecDeque::new(); members.len()]);
        let agreed = AtomicBool::new(false);
        Self { rank, group, members, device, timeouts, met, agreed, early, world }
    }

    fn tag(&self, tag: Tag) -> i32 {
        tag.of(self.group)
    }

    /// Returns the other ranks' numbers in the group and in the world.
    fn others(&self) -> impl Iterator<Item = (usize, usize)> {
        self.members.iter().copied().enumerate().filter(|(rank, _)| *rank != self.rank)
    }

    /// Ends the world because of a rank of this group.
    fn lost(&self, collective: Collective, rank: usize, reason: String) -> CommError {
        let failed = self.members[rank];
        self.world.fail(failed, reason.clone());
        let named = CommError::RankFailed { rank: self.world.rank, collective, failed, reason };
        self.check_failure(collective).err().unwrap_or(named)
    }

    /// Waits for messages and returns the received ones.
    fn finish(&self, collective: Collective, mut transfers: Transfers) -> Result<Vec<Bytes>, CommError> {
        let without_headers = self.skips_headers(collective);
        self.wait(collective, || match transfers.done() {
            Ok(true) => Polled::Done(()),
            Ok(false) => {
                let missing: Vec<usize> = transfers.waiting_for().collect();
                let gone = self
                    .others()
                    .find(|(rank, world)| without_headers && missing.contains(world) && self.has_left(*rank));
                // What it has sent before has come by now.
                match gone.filter(|_| transfers.done() == Ok(false)) {
                    Some((_, world)) if transfers.waiting_for().any(|rank| rank == world) => {
                        Polled::Lost(world, LEFT.into())
                    }
                    _ => Polled::Missing(missing),
                }
            }
            Err(rank) => Polled::Lost(rank, REFUSED.into()),
        })?;
        Ok(transfers.into_received())
    }

    /// Polls the messages until `look` is done, a rank has failed, or the time is up.
    fn wait<T>(&self, collective: Collective, mut look: impl FnMut() -> Polled<T>) -> Result<T, CommError> {
        let Timeouts { init, call } = self.timeouts;
        let (start, timeout) = (Instant::now(), if self.met.load(Ordering::Relaxed) { call } else { init });
        for looks in 0u32.. {
            let step = look();
            if let Polled::Done(result) = step {
                return Ok(result);
            }
            self.check_failure(collective)?; // a failed rank reports why before it leaves
            match step {
                Polled::Lost(rank, reason) => self.world.fail(rank, reason),
                Polled::Missing(missing) if start.elapsed() >= timeout => {
                    self.world.fail(missing[0], format!("did not enter {collective} within {timeout:?}"));
                    return Err(CommError::Timeout { rank: self.world.rank, collective, missing, timeout });
                }
                _ if looks < SPINS => thread::yield_now(),
                _ => thread::sleep(NAP),
            }
        }
        unreachable!("the time is up before")
    }

    /// Returns an error if the world has failed.
    fn check_failure(&self, collective: Collective) -> Result<(), CommError> {
        match self.world.failure() {
            Some((failed, reason)) => Err(CommError::RankFailed { rank: self.world.rank, collective, failed, reason }),
            None => Ok(()),
        }
    }

    /// Returns a message on this rank's device, or on the CPU if it was there.
    fn here(&self, Received { part: (len, dtype), on_cpu, bytes }: Received) -> Payload {
        let data = TensorData::from_bytes(bytes, [len], dtype);
        Payload::from_data(data, &if on_cpu { Device::flex() } else { self.device.clone() })
    }

    fn payload(&self, bytes: Bytes, len: usize, dtype: DType) -> Payload {
        Payload::from_data(TensorData::from_bytes(bytes, [len], dtype), &self.device)
    }
}

/// The reasons why a rank is lost.
const LEFT: &str = "left before the call was complete";
const REFUSED: &str = "cannot be reached: MPI has returned an error";
const NOT_A_HEADER: &str = "sent what is no header: do all processes run the same build?";

/// A wait first yields to other processes, in case messages come soon; then it sleeps, in case there are fewer cores
/// than processes.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

/// Allocates memory for `len` elements, aligned for them, so that a tensor can be created from it without a copy.
fn buffer(len: usize, dtype: DType) -> Bytes {
    match dtype.size() {
        1 => Bytes::from_elems(vec![0u8; len]),
        2 => Bytes::from_elems(vec![0u16; len]),
        4 => Bytes::from_elems(vec![0u32; len]),
        _ => Bytes::from_elems(vec![0u64; len]),
    }
}

fn bytes_of(payload: Payload) -> Bytes {
    payload.into_data().into_bytes()
}

impl Engine for MpiEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn machine(&self, rank: usize) -> usize {
        self.world.machines[self.members[rank]]
    }

    fn exchange(&self, signature: &Signature, mut parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        let (coming, headers) = self.parts_of(signature, &parts)?;
        let (mut transfers, tag) = (Transfers::default(), self.tag(Tag::Part));
        for (rank, world_rank) in self.others() {
            if let Some((len, dtype)) = coming[rank] {
                transfers.receive(buffer(len, dtype), [(world_rank, 0..len * dtype.size())], tag);
            }
        }
        for (rank, world_rank) in self.others() {
            if let Some(part) = parts[rank].take() {
                transfers.send(bytes_of(part), [world_rank], tag);
            }
        }
        let mut received = self.finish(signature.collective, transfers)?.into_iter();
        for (rank, _) in self.others() {
            parts[rank] =
                coming[rank].map(|(len, dtype)| self.payload(received.next().expect("one for each part"), len, dtype));
        }
        let bytes = |(from, part): (usize, Option<Part>)| part.map(|(len, dtype)| (from, len * dtype.size()));
        let cost = Cost::received(self, coming.into_iter().enumerate().filter_map(bytes));
        Ok((parts, headers + cost))
    }

    /// Every shard arrives at its place in the result.
    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        let agreement = self.agree(signature)?;
        let (n, len, dtype, size) = (self.members.len(), shard.len(), shard.dtype(), shard.bytes());
        let device = if shard.is_on_cpu() { Device::flex() } else { self.device.clone() };
        let (mut full, own) = (buffer(n * len, dtype), bytes_of(shard));
        full[self.rank * size..(self.rank + 1) * size].copy_from_slice(&own);
        let (mut transfers, tag) = (Transfers::default(), self.tag(Tag::Part));
        transfers.receive(full, self.others().map(|(rank, from)| (from, rank * size..(rank + 1) * size)), tag);
        transfers.send(own, self.others().map(|(_, to)| to), tag);
        let full = self.finish(signature.collective, transfers)?.remove(0);
        let full = Payload::from_data(TensorData::from_bytes(full, [n * len], dtype), &device);
        Ok((full, agreement + Cost::from_each(self, size)))
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        if self.agreed.load(Ordering::Relaxed) && signature.collective != Collective::Barrier {
            return self.check_failure(signature.collective).map(|()| Cost::default());
        }
        self.meet(signature, &[]).map(|_| self.headers())
    }

    /// Returns at once; the tensor is kept until it is received.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        let collective = Collective::Send(to);
        self.check_failure(collective)?;
        let (part, on_cpu) = ((payload.len(), payload.dtype()), payload.is_on_cpu());
        if let Err(rank) = self.world.mail.send(self.group, self.members[to], part, on_cpu, bytes_of(payload)) {
            self.world.fail(rank, REFUSED.into());
        }
        self.check_failure(collective)
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        let (collective, world_rank) = (Collective::Recv(from), self.members[from]);
        self.check_failure(collective)?;
        let look = || self.world.mail.look_for_part(self.group, world_rank, collective);
        self.wait(collective, look).map(|received| self.here(received))
    }

    fn try_recv(&self, from: usize) -> Result<Option<Payload>, CommError> {
        let (collective, world_rank) = (Collective::Recv(from), self.members[from]);
        let found = self.world.mail.look_for_part(self.group, world_rank, collective);
        if let Polled::Done(received) = found {
            return Ok(Some(self.here(received)));
        }
        self.check_failure(collective)?; // a failed rank reports why before it leaves
        if let Polled::Lost(rank, reason) = found {
            self.world.fail(rank, reason);
        }
        self.check_failure(collective).map(|()| None)
    }

    fn expect_agreement(&self) {
        self.agreed.store(true, Ordering::Relaxed);
    }

    /// All new groups of a split get the same number, the first one that is free on all ranks. The groups are disjoint,
    /// so no two ranks meet in two groups with that number.
    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        let headers = self.meet(&Signature { collective: Collective::Barrier, len: None, dtype: None }, &[])?;
        let group = headers.iter().map(|header| header.free_group).max().expect("a group has ranks");
        if group >= MAX_GROUPS {
            return Err(CommError::Engine(format!("MPI has no tags for more than {MAX_GROUPS} groups of ranks")));
        }
        self.world.free_group.fetch_max(group + 1, Ordering::Relaxed);
        let members = members.iter().map(|rank| self.members[*rank]).collect();
        Ok(Arc::new(Self::new(group, members, self.device.clone(), self.timeouts, self.world.clone())))
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.check_failure(collective)
    }

    fn abort(&self, reason: &str) {
        self.world.fail(self.world.rank, format!("failed: {reason}"));
    }
}

impl Drop for MpiEngine {
    /// Waits until sent messages are received, at most as long as for any call.
    fn drop(&mut self) {
        let to = match self.world.mail.look_for_sent(self.group) {
            Polled::Missing(missing) => missing.first().copied(),
            _ => None,
        };
        // A failure shows in the next call of another engine.
        let _ = self.wait(Collective::Send(to.unwrap_or_default()), || self.world.mail.look_for_sent(self.group));
        self.world.mail.leave(self.group);
        if self.world.failure().is_some() {
            return;
        }
        let mut marks = Transfers::default();
        for tag in [Tag::Header, Tag::MailHeader] {
            marks.send(Header::LEFT.to_bytes(), self.others().map(|(_, to)| to), self.tag(tag));
        }
        let _ = marks.done(); // messages this short are sent at once; if not, dropping them only leaks 64 bytes
    }
}
