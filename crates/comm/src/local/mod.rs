//! The engine whose ranks are threads of one process.
//!
//! Each call is one *round* of its group: every rank posts its tensors, the last one to arrive publishes the results,
//! and all ranks leave with them. A rank cannot start round `i + 1` before round `i` is complete, so a group has at
//! most two live rounds.
//!
//! ```text
//! rank 0  post ......................... wait | take
//! rank 1      post ..................... wait | take
//! rank 2          post, combine, publish      | take
//! ```
//!
//! A rank posts once, to all ranks, and is woken once. A round of N ranks costs N posts and N - 1 wakes, whatever other
//! groups do at the same time. A result that is the same for all ranks is computed once.
//!
//! Ranks that share a device share its memory, and the last rank to arrive computes the common results. If the ranks of
//! a group have several devices, a round only tells each rank what the others posted. Each rank then copies what it
//! needs to its own device on its own thread, so all copy at once and each byte moves once.
//!
//! A world and all groups that are split off from it share one [`World`]: the first failure in any group ends all of
//! them.

#[cfg_attr(not(feature = "cuda"), path = "no_cards.rs")]
pub(crate) mod cards;
mod group;
mod parcel;
mod same;
#[cfg(test)]
mod tests;
mod world;

use crate::engine::Metered;
use crate::{Collective, CommError, Cost, Engine, Payload, Reduce, Signature, Summands, Timeouts};
use burn::tensor::Device;
use group::{Group, GroupState, Outcome, Post, Wait};
use parcel::{Parcel, fetch, fetch_whole, join};
use same::{Made, Same};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use world::{Failure, GroupId, World};

/// A rank that is a thread of this process; created by [`LocalEngine::world`].
///
/// When a rank drops it and all engines split off from it, the others learn that the rank has left: a call that still
/// needs it fails at once instead of at the timeout.
pub struct LocalEngine {
    /// This rank's number in the group.
    rank: usize,
    device: Device,
    /// Whether the group has several devices; the same on all its ranks.
    several_devices: bool,
    round: AtomicU64,
    splits: AtomicU64,
    group: Arc<Group>,
    world: Arc<World>,
}

impl LocalEngine {
    /// Creates one engine per device, in rank order; `timeouts` limits how long a rank waits for the others. A device's
    /// autodiff is dropped: results are not tracked.
    pub fn world(devices: Vec<Device>, timeouts: impl Into<Timeouts>) -> Vec<Self> {
        let machines = vec![0; devices.len()];
        Self::on_machines(devices, machines, timeouts)
    }

    /// Does the same as [`world`](Self::world), as if each rank were on the machine with the given number.
    pub(crate) fn on_machines(devices: Vec<Device>, machines: Vec<usize>, timeouts: impl Into<Timeouts>) -> Vec<Self> {
        let devices: Vec<Device> = devices.into_iter().map(Device::without_autodiff).collect();
        let (n, world) = (devices.len(), World::new(devices.clone(), machines, timeouts.into()));
        let rank = |(rank, device)| Self::new(rank, rank, device, vec![], || (0..n).collect(), world.clone());
        devices.into_iter().enumerate().map(rank).collect()
    }

    fn new(
        rank: usize,
        world_rank: usize,
        device: Device,
        id: GroupId,
        members: impl FnOnce() -> Vec<usize>,
        world: Arc<World>,
    ) -> Self {
        let group = world.join(id, world_rank, members);
        let several_devices = group.members.iter().any(|member| world.devices[*member] != device);
        let (round, splits) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { rank, device, several_devices, round, splits, group, world }
    }

    /// Returns this rank's number in the world.
    fn world_rank(&self) -> usize {
        self.group.members[self.rank]
    }

    /// Returns whether a rank of the group has a different device from this one.
    fn is_elsewhere(&self, rank: usize) -> bool {
        self.world.devices[self.group.members[rank]] != self.device
    }

    /// Returns the cost of a round in which this rank receives so many bytes from each other rank.
    fn cost_of(&self, bytes: usize) -> Cost {
        Cost { control: POSTS, ..Cost::from_each(self, bytes) }
    }

    /// Prepares the same payload for all ranks.
    fn for_all(&self, payload: Payload) -> Post {
        Parcel::all(vec![Some(payload)], |_| self.several_devices)
    }

    /// Meets the other ranks: posts `mine` and returns the result of `combine`, which the last rank to arrive applies
    /// to all posts.
    fn meet<T: Send + Sync + 'static>(
        &self,
        signature: &Signature,
        mine: Post,
        combine: impl FnOnce(Vec<Post>) -> T,
    ) -> Result<Arc<T>, CommError> {
        let (n, id) = (self.group.members.len(), self.round.fetch_add(1, Ordering::Relaxed));
        let mut state = self.group.lock();
        self.check_failure(&state, signature.collective)?;
        if let Some((signatures, posts)) = state.post(id, n, self.rank, (signature.clone(), mine)) {
            drop(state);
            let outcome = Signature::agree(&signatures).map(|()| Arc::new(combine(posts)) as Outcome);
            state = self.group.lock();
            // If the world failed meanwhile, the round is gone and fails on all ranks, never on some of them.
            if let Some(round) = state.rounds.get_mut(&id) {
                round.outcome = Some(outcome);
            }
            let taken = state.take(id, n);
            drop(state); // otherwise the woken ranks would wait for this lock
            self.group.met.notify_all();
            match taken {
                Some(outcome) => return outcome.map(of_this_call),
                None => state = self.group.lock(),
            }
        }
        self.wait(state, Wait::Round(id), signature.collective, |state| state.take(id, n)).map(of_this_call)
    }

    /// Waits until `done` returns a result.
    fn wait<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, GroupState>,
        what: Wait,
        collective: Collective,
        mut done: impl FnMut(&mut GroupState) -> Option<Result<T, CommError>>,
    ) -> Result<T, CommError> {
        let (start, timeout) = (Instant::now(), self.timeout(what));
        let arrival = match what {
            Wait::Round(_) => None,
            Wait::Peer(from) => Some(state.arrival(from, self.rank)),
        };
        state.waits.insert(self.rank, what);
        let result = loop {
            if let Some(outcome) = done(&mut state) {
                break outcome;
            }
            if let Err(error) = self.check_failure(&state, collective) {
                break Err(error);
            }
            if let Some(lost) = state.lost(self.rank, what) {
                drop(state);
                self.fail(self.group.members[lost], LEFT.into());
                state = self.group.lock();
                continue;
            }
            let patience = timeout.saturating_sub(start.elapsed());
            if patience.is_zero() {
                drop(state);
                let late = self.fail_late(what, collective, timeout);
                state = self.group.lock();
                match late {
                    Some(missing) => {
                        break Err(CommError::Timeout { rank: self.world_rank(), collective, missing, timeout });
                    }
                    None => continue,
                }
            }
            let condition = arrival.as_deref().unwrap_or(&self.group.met);
            state = condition.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
            state.wakes += 1;
        };
        state.waits.remove(&self.rank);
        result
    }

    /// Returns the timeout of a wait.
    fn timeout(&self, what: Wait) -> Duration {
        let met = match what {
            Wait::Round(id) => id,
            Wait::Peer(_) => self.round.load(Ordering::Relaxed),
        };
        let Timeouts { init, call } = self.world.timeouts;
        if self.group.id.is_empty() && met == 0 { init } else { call }
    }

    /// Returns an error if the world has failed.
    fn check_failure(&self, state: &GroupState, collective: Collective) -> Result<(), CommError> {
        match state.failure.as_deref() {
            Some(Failure { failed, reason, .. }) => {
                let (rank, failed, reason) = (self.world_rank(), *failed, reason.clone());
                Err(CommError::RankFailed { rank, collective, failed, reason })
            }
            None => Ok(()),
        }
    }

    /// Returns a message on this rank's device, or on the CPU if it was there.
    fn here(&self, parcel: Parcel) -> Payload {
        if parcel.is_on_cpu() {
            return parcel.into_payload();
        }
        fetch(&[(&parcel, 0..parcel.len())], &self.device).swap_remove(0)
    }

    fn fail(&self, failed: usize, reason: String) {
        self.world.fail(Failure { reporter: self.world_rank(), failed, reason });
    }

    /// Handles a timeout: returns the ranks to blame, unless the wait ended in another way at the last moment.
    fn fail_late(&self, what: Wait, collective: Collective, timeout: Duration) -> Option<Vec<usize>> {
        let has_come = |state: &GroupState| match what {
            Wait::Round(id) => state.rounds.get(&id).is_some_and(|round| round.outcome.is_some()),
            Wait::Peer(from) => state.has_mail(from, self.rank),
        };
        let reason = format!("kept {collective} waiting for {timeout:?}");
        self.world.fail_late(&self.group, self.rank, what, has_come, reason)
    }

    /// Returns whether the world has ended and this rank was the first to notice.
    pub(crate) fn failed_first(&self) -> bool {
        self.world.first_to_notice(self.world_rank())
    }

    /// Computes one tensor for all ranks from their tensors in rank order. Ranks that share a device share its memory.
    /// The last rank to arrive computes it if all ranks share one device; otherwise the first rank on each device does.
    fn same_for_all(
        &self,
        signature: &Signature,
        mine: Payload,
        make: impl FnOnce(Vec<Payload>) -> Payload,
        make_here: impl FnOnce(&[Parcel]) -> Payload,
    ) -> Result<Payload, CommError> {
        let combine = |posts: Vec<Post>| match self.several_devices {
            true => Same::OfParcels(parcels(posts).collect(), Made::default()),
            false => Same::Here(make(parcels(posts).map(Parcel::into_payload).collect()).handed_over()),
        };
        let same = self.meet(signature, self.for_all(mine), combine)?;
        Ok(same.on(&self.device, make_here))
    }
}

/// Restores the type of an outcome; all ranks agree on the call, so it is the type that this call combines.
fn of_this_call<T: Send + Sync + 'static>(outcome: Outcome) -> Arc<T> {
    outcome.downcast().unwrap_or_else(|_| unreachable!("one call makes one thing"))
}

/// Returns the parcels of posts with one tensor each.
fn parcels(posts: Vec<Post>) -> impl Iterator<Item = Parcel> {
    posts.into_iter().flatten().flatten()
}

/// Number of control messages in a round.
const POSTS: usize = 1;

/// The reason why a rank is lost.
const LEFT: &str = "left before the call was complete";

impl Engine for LocalEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.group.members.len()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn machine(&self, rank: usize) -> usize {
        self.world.machines[self.group.members[rank]]
    }

    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Metered<Vec<Option<Payload>>> {
        let posts = self.meet(signature, Parcel::all(parts, |to| self.is_elsewhere(to)), |posts| posts)?;
        let mine = || posts.iter().map(|parts| parts[self.rank].as_ref());
        let parts: Vec<_> = mine().flatten().map(|part| (part, 0..part.len())).collect();
        let mut found = fetch(&parts, &self.device).into_iter();
        let found: Vec<_> = mine().map(|part| part.and_then(|_| found.next())).collect();
        let bytes_from = found.iter().enumerate().filter_map(|(from, part)| Some((from, part.as_ref()?.bytes())));
        let cost = Cost { control: POSTS, ..Cost::received(self, bytes_from) };
        Ok((found, cost))
    }

    fn agree(&self, signature: &Signature) -> Result<Cost, CommError> {
        self.meet(signature, vec![], drop).map(|_| self.cost_of(0))
    }

    /// Ranks that share a device share the gathered buffer, which is built once.
    fn all_gather(&self, signature: &Signature, shard: Payload) -> Metered<Payload> {
        let cost = self.cost_of(shard.bytes());
        let full = self.same_for_all(signature, shard, Payload::cat, |parcels| join(parcels, &self.device))?;
        Ok((full, cost))
    }

    /// The last rank to arrive adds for all; with several devices, one rank on each does.
    fn all_reduce(&self, signature: &Signature, tensor: Payload, how: Reduce) -> Metered<Payload> {
        let cost = self.cost_of(tensor.bytes());
        let reduce = |tensors| Summands::new(tensors).reduce(how);
        if tensor.is_on_cpu() {
            // Host numbers are added on the host, wherever the ranks compute.
            let all = |posts: Vec<Post>| reduce(parcels(posts).map(Parcel::into_payload).collect()).handed_over();
            let total = self.meet(signature, Parcel::all(vec![Some(tensor)], |_| false), all)?;
            return Ok((total.as_ref().clone(), cost));
        }
        let reduce_here = |parcels: &[Parcel]| reduce(fetch_whole(parcels, &self.device));
        Ok((self.same_for_all(signature, tensor, reduce, reduce_here)?, cost))
    }

    /// Each rank reads its chunk from all ranks' tensors.
    fn chunks(&self, signature: &Signature, full: Payload) -> Metered<Summands> {
        let chunk = full.len() / self.world_size();
        let cost = self.cost_of(chunk * full.dtype().size());
        let (mine, range) = (self.for_all(full), self.rank * chunk..(self.rank + 1) * chunk);
        if !self.several_devices {
            let all = |posts| Summands::new(parcels(posts).map(Parcel::into_payload).collect());
            return Ok((self.meet(signature, mine, all)?.part(range), cost));
        }
        let all = self.meet(signature, mine, |posts| parcels(posts).collect::<Vec<_>>())?;
        let parts: Vec<_> = all.iter().map(|parcel| (parcel, range.clone())).collect();
        Ok((Summands::new(fetch(&parts, &self.device)), cost))
    }

    /// Returns at once.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        let (what, collective) = (Wait::Peer(to), Collective::Send(to));
        let parcel = Parcel::all(vec![Some(payload)], |_| self.is_elsewhere(to)).swap_remove(0);
        let mut state = self.group.lock();
        self.check_failure(&state, collective)?;
        if state.lost(self.rank, what).is_some() {
            drop(state);
            self.fail(self.group.members[to], LEFT.into());
            return self.check_failure(&self.group.lock(), collective);
        }
        state.send(self.rank, to, parcel.expect("one was given"));
        Ok(())
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        let take = |state: &mut GroupState| state.receive(from, self.rank).map(Ok);
        let parcel = self.wait(self.group.lock(), Wait::Peer(from), Collective::Recv(from), take)?;
        Ok(self.here(parcel))
    }

    fn try_recv(&self, from: usize) -> Result<Option<Payload>, CommError> {
        let (mut state, collective) = (self.group.lock(), Collective::Recv(from));
        if let Some(parcel) = state.receive(from, self.rank) {
            drop(state);
            return Ok(Some(self.here(parcel)));
        }
        let lost = state.lost(self.rank, Wait::Peer(from));
        self.check_failure(&state, collective)?;
        drop(state);
        if let Some(lost) = lost {
            self.fail(self.group.members[lost], LEFT.into());
            self.check_failure(&self.group.lock(), collective)?;
        }
        Ok(None)
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        let rank = members.iter().position(|rank| *rank == self.rank).expect("this rank is a member");
        let split = (self.splits.fetch_add(1, Ordering::Relaxed), members[0]);
        let id = self.group.id.iter().copied().chain([split]).collect();
        let in_world = || members.iter().map(|rank| self.group.members[*rank]).collect();
        Ok(Arc::new(Self::new(rank, self.world_rank(), self.device.clone(), id, in_world, self.world.clone())))
    }

    fn check(&self, collective: Collective) -> Result<(), CommError> {
        self.check_failure(&self.group.lock(), collective)
    }

    fn abort(&self, reason: &str) {
        self.fail(self.world_rank(), format!("failed: {reason}"));
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.world.leave(&self.group, self.world_rank());
    }
}
