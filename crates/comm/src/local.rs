//! The engine whose ranks are threads of one process.
//!
//! Each call is one *round* of its group: every rank posts its tensors, the last one to arrive publishes what all get, all leave with
//! the result. A rank cannot start round `i + 1` before round `i` is complete, so at most two rounds of a group are alive.
//!
//! ```text
//! rank 0  post ......................... wait | take
//! rank 1      post ..................... wait | take
//! rank 2          post, combine, publish      | take
//! ```
//!
//! A world and all groups that are split off from it share one [`World`]: the first failure in any of them ends them all.

use crate::{Collective, CommError, Engine, Payload, Signature};
use burn::tensor::Device;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A rank of the engine whose ranks are threads of one process; made by [`LocalEngine::world`].
///
/// Dropping it tells the others that the rank has left: a call that still needs it fails at once, instead of at the timeout.
pub struct LocalEngine {
    /// This rank's number in the group.
    rank: usize,
    device: Device,
    group: GroupId,
    /// The group's ranks, by their numbers in the world.
    members: Vec<usize>,
    round: AtomicU64,
    splits: AtomicU64,
    world: Arc<World>,
}

/// 0 is the world.
type GroupId = u64;

struct World {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    rounds: HashMap<(GroupId, u64), Round>,
    /// Sent and not yet received, by group, sender and receiver.
    mail: HashMap<(GroupId, usize, usize), VecDeque<Payload>>,
    /// Groups that were split off: by parent, number of the split there, and first member.
    groups: HashMap<(GroupId, u64, usize), GroupId>,
    /// Groups and ranks of them whose engine was dropped.
    left: HashSet<(GroupId, usize)>,
    failure: Option<Failure>,
}

/// The first failure: it ends the world. Ranks are numbered as in the world.
#[derive(Clone)]
struct Failure {
    /// The rank that noticed it.
    reporter: usize,
    /// The rank that failed.
    failed: usize,
    /// What became of it.
    reason: String,
}

struct Round {
    posts: Vec<Option<(Signature, Vec<Option<Payload>>)>>,
    /// The rank that came last, and combines the posts.
    combiner: Option<usize>,
    outcome: Option<Result<Arc<Posts>, CommError>>,
    taken: usize,
}

/// What each rank gave, by rank.
type Posts = Vec<Vec<Option<Payload>>>;

type Combine = fn(Posts) -> Posts;

/// Copies between devices in opposite directions at once may each wait for the other's stream: they are made one after another.
static COPIES: Mutex<()> = Mutex::new(());

impl LocalEngine {
    /// One engine per device, in rank order; a rank waits at most `timeout` for the others.
    pub fn world(devices: Vec<Device>, timeout: Duration) -> Vec<Self> {
        let members: Vec<usize> = (0..devices.len()).collect();
        let world = Arc::new(World { timeout, state: Mutex::default(), changed: Condvar::new() });
        let rank = |(rank, device)| Self::new(rank, device, 0, members.clone(), world.clone());
        devices.into_iter().enumerate().map(rank).collect()
    }

    fn new(rank: usize, device: Device, group: GroupId, members: Vec<usize>, world: Arc<World>) -> Self {
        Self { rank, device, group, members, round: AtomicU64::new(0), splits: AtomicU64::new(0), world }
    }

    /// This rank's number in the world.
    fn world_rank(&self) -> usize {
        self.members[self.rank]
    }

    /// Meets the other ranks: posts `parts`, and returns what the last rank made of all posts with `combine`.
    fn meet(
        &self,
        signature: &Signature,
        parts: Vec<Option<Payload>>,
        combine: Combine,
    ) -> Result<Arc<Posts>, CommError> {
        let n = self.members.len();
        let id = (self.group, self.round.fetch_add(1, Ordering::Relaxed));
        let mut state = self.world.lock();
        self.check_failure(&mut state, Self::missing, id, signature.collective)?;
        let new = || Round { posts: vec![None; n], combiner: None, outcome: None, taken: 0 };
        let round = state.rounds.entry(id).or_insert_with(new);
        round.posts[self.rank] = Some((signature.clone(), parts));

        if round.posts.iter().all(Option::is_some) {
            let posts = round.posts.iter_mut().map(|post| post.take().expect("all are there"));
            let (signatures, posts): (Vec<_>, Posts) = posts.unzip();
            round.combiner = Some(self.rank);
            drop(state);
            let outcome = Signature::agree(&signatures).map(|()| Arc::new(combine(posts)));
            state = self.world.lock();
            // If the world failed meanwhile, the round is gone and fails for all: never for some.
            if let Some(round) = state.rounds.get_mut(&id) {
                round.outcome = Some(outcome);
            }
            let taken = take(&mut state, id, n);
            drop(state); // or those that are woken would wait for it
            self.world.changed.notify_all();
            match taken {
                Some(outcome) => return outcome,
                None => state = self.world.lock(),
            }
        }
        self.wait(state, id, signature.collective, Self::missing, |state| take(state, id, n))
    }

    /// Waits until `done` gives something; `missing` says which ranks of the group are waited for.
    fn wait<Id: Copy, T>(
        &self,
        mut state: MutexGuard<'_, State>,
        id: Id,
        collective: Collective,
        missing: fn(&Self, &State, Id) -> Vec<usize>,
        done: impl Fn(&mut State) -> Option<Result<T, CommError>>,
    ) -> Result<T, CommError> {
        let (start, timeout) = (Instant::now(), self.world.timeout);
        loop {
            if let Some(outcome) = done(&mut state) {
                return outcome;
            }
            self.check_failure(&mut state, missing, id, collective)?;
            let patience = timeout.saturating_sub(start.elapsed());
            if patience.is_zero() {
                let missing: Vec<usize> = missing(self, &state, id).iter().map(|rank| self.members[*rank]).collect();
                self.fail(&mut state, missing[0], format!("did not enter {collective} within {timeout:?}"));
                return Err(CommError::Timeout { rank: self.world_rank(), collective, missing, timeout });
            }
            state = self
                .world
                .changed
                .wait_timeout(state, patience)
                .map_or_else(|poisoned| poisoned.into_inner().0, |woken| woken.0);
        }
    }

    /// An error if the world has failed, or if a rank that is still needed has left.
    fn check_failure<Id>(
        &self,
        state: &mut State,
        missing: fn(&Self, &State, Id) -> Vec<usize>,
        id: Id,
        collective: Collective,
    ) -> Result<(), CommError> {
        let gone = missing(self, state, id).into_iter().find(|rank| state.left.contains(&(self.group, *rank)));
        if let Some(gone) = gone {
            self.fail(state, self.members[gone], "left before the call was complete".into());
        }
        match state.failure.clone() {
            Some(Failure { failed, reason, .. }) => {
                Err(CommError::RankFailed { rank: self.world_rank(), collective, failed, reason })
            }
            None => Ok(()),
        }
    }

    /// Ends the world, unless it has ended: rounds that are not complete never will be, complete ones can still be taken.
    fn fail(&self, state: &mut State, failed: usize, reason: String) {
        state.failure.get_or_insert(Failure { reporter: self.world_rank(), failed, reason });
        state.rounds.retain(|_, round| round.outcome.is_some());
        self.world.changed.notify_all();
    }

    /// Whether the world has ended and this rank was the first to notice.
    pub(crate) fn failed_first(&self) -> bool {
        self.world.lock().failure.as_ref().is_some_and(|failure| failure.reporter == self.world_rank())
    }

    /// The other ranks of the group that a round still waits for.
    fn missing(&self, state: &State, id: (GroupId, u64)) -> Vec<usize> {
        let others = (0..self.members.len()).filter(|rank| *rank != self.rank);
        match state.rounds.get(&id) {
            Some(Round { combiner: Some(combiner), .. }) => others.filter(|rank| rank == combiner).collect(),
            Some(round) => others.filter(|rank| round.posts[*rank].is_none()).collect(),
            None => others.collect(),
        }
    }

    fn here(&self, payload: &Payload) -> Payload {
        on_device(payload, &self.device)
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn on_device(payload: &Payload, device: &Device) -> Payload {
    if payload.device() == *device {
        return payload.clone();
    }
    let _one_at_a_time = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    payload.to_device(device)
}

/// The outcome of a round, if there is one; the last rank to take it removes the round.
fn take(state: &mut State, id: (GroupId, u64), world_size: usize) -> Option<Result<Arc<Posts>, CommError>> {
    let round = state.rounds.get_mut(&id)?;
    let outcome = round.outcome.clone()?;
    round.taken += 1;
    if round.taken == world_size {
        state.rounds.remove(&id);
    }
    Some(outcome)
}

impl Engine for LocalEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn exchange(&self, signature: &Signature, parts: Vec<Option<Payload>>) -> Result<Vec<Option<Payload>>, CommError> {
        let posts = self.meet(signature, parts, |posts| posts)?;
        Ok(posts.iter().map(|parts| parts[self.rank].as_ref().map(|part| self.here(part))).collect())
    }

    /// Ranks that share a device share the gathered buffer: it is made once.
    fn all_gather(&self, signature: &Signature, shard: Payload) -> Result<Payload, CommError> {
        let full = self.meet(signature, vec![Some(shard)], |posts| {
            let shards: Vec<Payload> = posts.into_iter().flatten().flatten().collect();
            let device = shards[0].device();
            vec![vec![Some(Payload::cat(shards.iter().map(|shard| on_device(shard, &device)).collect()))]]
        })?;
        Ok(self.here(full[0][0].as_ref().expect("made above")))
    }

    /// Returns at once.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        let mut state = self.world.lock();
        self.check_failure(&mut state, |_, _, to| vec![to], to, Collective::Send(to))?;
        state.mail.entry((self.group, self.rank, to)).or_default().push_back(payload);
        self.world.changed.notify_all();
        Ok(())
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        let mailbox = (self.group, from, self.rank);
        let payload = self.wait(
            self.world.lock(),
            from,
            Collective::Recv(from),
            |_, _, from| vec![from],
            |state| state.mail.get_mut(&mailbox).and_then(VecDeque::pop_front).map(Ok),
        )?;
        Ok(self.here(&payload))
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        let rank = members.iter().position(|rank| *rank == self.rank).expect("this rank is a member");
        let split = self.splits.fetch_add(1, Ordering::Relaxed);
        let mut state = self.world.lock();
        let next = state.groups.len() as GroupId + 1;
        let group = *state.groups.entry((self.group, split, members[0])).or_insert(next);
        let members = members.iter().map(|rank| self.members[*rank]).collect();
        Ok(Arc::new(Self::new(rank, self.device.clone(), group, members, self.world.clone())))
    }

    fn abort(&self, reason: &str) {
        self.fail(&mut self.world.lock(), self.world_rank(), format!("failed: {reason}"));
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.world.lock().left.insert((self.group, self.rank));
        self.world.changed.notify_all();
    }
}
