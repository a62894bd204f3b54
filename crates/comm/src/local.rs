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

use crate::{Collective, CommError, Engine, Payload, Signature, Timeouts};
use burn::tensor::Device;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A rank of the engine whose ranks are threads of one process; made by [`LocalEngine::world`].
///
/// Dropping it, and all that were split off from it, tells the others that the rank has left: a call that still needs it fails at
/// once, instead of at the timeout.
pub struct LocalEngine {
    /// This rank's number in the group.
    rank: usize,
    device: Device,
    id: GroupId,
    /// The group's ranks, by their numbers in the world.
    members: Vec<usize>,
    round: AtomicU64,
    splits: AtomicU64,
    world: Arc<World>,
}

/// How a group came of the world, for each split on the way: the number of the split in its parent, and the first member there.
type GroupId = Vec<(u64, usize)>;

struct World {
    timeouts: Timeouts,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// From the first rank's joining to the last one's leaving.
    groups: HashMap<GroupId, Group>,
    /// How many engines each rank has, in all groups; who has none has left. Not one by one: a rank that fails drops those of its
    /// groups before it can tell why.
    engines: HashMap<usize, usize>,
    failure: Option<Failure>,
}

/// Ranks are numbered as in the group, but in `waits`.
#[derive(Default)]
struct Group {
    rounds: HashMap<u64, Round>,
    /// Sent and not yet received, by sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Payload>>,
    /// Ranks that are in a call, and whom each of them waits for; numbered as in the world.
    waits: HashMap<usize, Vec<usize>>,
    /// How many of its engines were dropped.
    left: usize,
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

/// What a rank waits for.
#[derive(Clone, Copy)]
enum Wait {
    Round(u64),
    /// Mail from this rank, or that it takes some.
    Peer(usize),
}

/// Copies between devices in opposite directions at once may each wait for the other's stream: they are made one after another.
static COPIES: Mutex<()> = Mutex::new(());

impl LocalEngine {
    /// One engine per device, in rank order; a rank waits at most so long for the others.
    pub fn world(devices: Vec<Device>, timeouts: impl Into<Timeouts>) -> Vec<Self> {
        let members: Vec<usize> = (0..devices.len()).collect();
        let world = Arc::new(World { timeouts: timeouts.into(), state: Mutex::default(), changed: Condvar::new() });
        let rank = |(rank, device)| Self::new(rank, device, vec![], members.clone(), world.clone());
        devices.into_iter().enumerate().map(rank).collect()
    }

    fn new(rank: usize, device: Device, id: GroupId, members: Vec<usize>, world: Arc<World>) -> Self {
        let mut state = world.lock();
        state.groups.entry(id.clone()).or_default();
        *state.engines.entry(members[rank]).or_default() += 1;
        drop(state);
        Self { rank, device, id, members, round: AtomicU64::new(0), splits: AtomicU64::new(0), world }
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
        combine: impl FnOnce(Posts) -> Posts,
    ) -> Result<Arc<Posts>, CommError> {
        let (n, id) = (self.members.len(), self.round.fetch_add(1, Ordering::Relaxed));
        let mut state = self.world.lock();
        self.check_failure(&mut state, Wait::Round(id), signature.collective)?;
        let new = || Round { posts: vec![None; n], combiner: None, outcome: None, taken: 0 };
        let round = self.group(&mut state).rounds.entry(id).or_insert_with(new);
        round.posts[self.rank] = Some((signature.clone(), parts));

        if round.posts.iter().all(Option::is_some) {
            let posts = round.posts.iter_mut().map(|post| post.take().expect("all are there"));
            let (signatures, posts): (Vec<_>, Posts) = posts.unzip();
            round.combiner = Some(self.rank);
            drop(state);
            let outcome = Signature::agree(&signatures).map(|()| Arc::new(combine(posts)));
            state = self.world.lock();
            // If the world failed meanwhile, the round is gone and fails for all: never for some.
            if let Some(round) = self.group(&mut state).rounds.get_mut(&id) {
                round.outcome = Some(outcome);
            }
            let taken = self.group(&mut state).take(id, n);
            drop(state); // or those that are woken would wait for it
            self.world.changed.notify_all();
            match taken {
                Some(outcome) => return outcome,
                None => state = self.world.lock(),
            }
        }
        self.wait(state, Wait::Round(id), signature.collective, |group| group.take(id, n))
    }

    /// Waits until `done` gives something.
    fn wait<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        what: Wait,
        collective: Collective,
        done: impl Fn(&mut Group) -> Option<Result<T, CommError>>,
    ) -> Result<T, CommError> {
        let (start, timeout, rank) = (Instant::now(), self.timeout(what), self.world_rank());
        let result = loop {
            if let Some(outcome) = done(self.group(&mut state)) {
                break outcome;
            }
            if let Err(error) = self.check_failure(&mut state, what, collective) {
                break Err(error);
            }
            let missing = self.missing(&mut state, what).into_iter().map(|rank| self.members[rank]).collect();
            let patience = timeout.saturating_sub(start.elapsed());
            if patience.is_zero() {
                let missing = state.late(missing);
                self.fail(&mut state, missing[0], format!("kept {collective} waiting for {timeout:?}"));
                break Err(CommError::Timeout { rank, collective, missing, timeout });
            }
            self.group(&mut state).waits.insert(rank, missing);
            let woken = self.world.changed.wait_timeout(state, patience);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        self.group(&mut state).waits.remove(&rank);
        result
    }

    /// How long that is waited for.
    fn timeout(&self, what: Wait) -> Duration {
        let met = match what {
            Wait::Round(id) => id,
            Wait::Peer(_) => self.round.load(Ordering::Relaxed),
        };
        let Timeouts { init, call } = self.world.timeouts;
        if self.id.is_empty() && met == 0 { init } else { call }
    }

    /// An error if the world has failed, or if a rank that is still needed has left.
    fn check_failure(&self, state: &mut State, what: Wait, collective: Collective) -> Result<(), CommError> {
        let mut missing = self.missing(state, what).into_iter().map(|rank| self.members[rank]);
        if let Some(gone) = missing.find(|rank| !state.engines.contains_key(rank)) {
            self.fail(state, gone, "left before the call was complete".into());
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
        state.groups.values_mut().for_each(|group| group.rounds.retain(|_, round| round.outcome.is_some()));
        self.world.changed.notify_all();
    }

    /// Whether the world has ended and this rank was the first to notice.
    pub(crate) fn failed_first(&self) -> bool {
        self.world.lock().failure.as_ref().is_some_and(|failure| failure.reporter == self.world_rank())
    }

    /// The ranks of the group that are waited for.
    fn missing(&self, state: &mut State, what: Wait) -> Vec<usize> {
        let id = match what {
            Wait::Peer(rank) => return vec![rank],
            Wait::Round(id) => id,
        };
        let others = (0..self.members.len()).filter(|rank| *rank != self.rank);
        match self.group(state).rounds.get(&id) {
            Some(Round { combiner: Some(combiner), .. }) => others.filter(|rank| rank == combiner).collect(),
            Some(round) => others.filter(|rank| round.posts[*rank].is_none()).collect(),
            None => others.collect(),
        }
    }

    fn group<'a>(&self, state: &'a mut State) -> &'a mut Group {
        state.groups.get_mut(&self.id).expect("a group lives as long as its ranks")
    }

    fn here(&self, payload: &Payload) -> Payload {
        if payload.device() == self.device {
            return payload.clone();
        }
        let _one_at_a_time = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
        payload.to_device(&self.device)
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Who is to blame that `missing` are missing: they, unless they wait for others themselves, in any group, but then those.
    /// Ranks that wait for each other in a circle are all to blame.
    fn late(&self, missing: Vec<usize>) -> Vec<usize> {
        let waits_of = |rank| self.groups.values().filter_map(move |group| group.waits.get(&rank)).flatten();
        let (mut known, mut next) = (missing.clone(), 0);
        while next < known.len() {
            let new: Vec<usize> = waits_of(known[next]).copied().filter(|rank| !known.contains(rank)).collect();
            known.extend(new);
            next += 1;
        }
        known.retain(|rank| waits_of(*rank).next().is_none());
        known.sort_unstable();
        if known.is_empty() { missing } else { known }
    }
}

impl Group {
    /// The outcome of a round, if there is one; the last rank to take it removes the round.
    fn take(&mut self, id: u64, world_size: usize) -> Option<Result<Arc<Posts>, CommError>> {
        let round = self.rounds.get_mut(&id)?;
        let outcome = round.outcome.clone()?;
        round.taken += 1;
        if round.taken == world_size {
            self.rounds.remove(&id);
        }
        Some(outcome)
    }
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
            let shards = posts.iter().flatten().flatten();
            vec![vec![Some(Payload::cat(shards.map(|shard| self.here(shard)).collect()))]]
        })?;
        Ok(self.here(full[0][0].as_ref().expect("made above")))
    }

    /// Returns at once.
    fn send(&self, payload: Payload, to: usize) -> Result<(), CommError> {
        let mut state = self.world.lock();
        self.check_failure(&mut state, Wait::Peer(to), Collective::Send(to))?;
        self.group(&mut state).mail.entry((self.rank, to)).or_default().push_back(payload);
        self.world.changed.notify_all();
        Ok(())
    }

    fn recv(&self, from: usize) -> Result<Payload, CommError> {
        let mailbox = (from, self.rank);
        let payload = self.wait(self.world.lock(), Wait::Peer(from), Collective::Recv(from), |group| {
            group.mail.get_mut(&mailbox).and_then(VecDeque::pop_front).map(Ok)
        })?;
        Ok(self.here(&payload))
    }

    fn split(&self, members: &[usize]) -> Result<Arc<dyn Engine>, CommError> {
        let rank = members.iter().position(|rank| *rank == self.rank).expect("this rank is a member");
        let split = (self.splits.fetch_add(1, Ordering::Relaxed), members[0]);
        let id = self.id.iter().copied().chain([split]).collect();
        let members = members.iter().map(|rank| self.members[*rank]).collect();
        Ok(Arc::new(Self::new(rank, self.device.clone(), id, members, self.world.clone())))
    }

    fn abort(&self, reason: &str) {
        self.fail(&mut self.world.lock(), self.world_rank(), format!("failed: {reason}"));
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        let group = self.group(&mut state);
        group.left += 1;
        if group.left == self.members.len() {
            state.groups.remove(&self.id);
        }
        let engines = state.engines.get_mut(&self.world_rank()).expect("this one was counted");
        *engines -= 1;
        if *engines == 0 {
            state.engines.remove(&self.world_rank());
            self.world.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_rounds_that_are_done_leave_nothing_behind() {
        let signature = Signature { collective: Collective::Barrier, len: None, dtype: None };
        let ranks = LocalEngine::world(vec![Device::flex(); 3], Duration::from_secs(60));
        std::thread::scope(|scope| {
            for rank in &ranks {
                let signature = &signature;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let pair = if rank.rank == 1 { vec![1] } else { vec![0, 2] };
                        let group = rank.split(&pair).unwrap();
                        let nested = group.split(&[group.rank()]).unwrap();
                        for engine in [rank, &*group, &*nested] as [&dyn Engine; 3] {
                            engine.exchange(signature, vec![None; engine.world_size()]).unwrap();
                        }
                    }
                });
            }
        });
        let state = ranks[0].world.lock();
        let world = &state.groups[&vec![]];
        assert_eq!((state.groups.len(), world.rounds.len(), world.waits.len()), (1, 0, 0));
        assert_eq!(state.engines, HashMap::from([(0, 1), (1, 1), (2, 1)]));
    }
}
