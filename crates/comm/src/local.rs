//! The engine whose ranks are threads of one process.
//!
//! Each collective is one *round* of a meeting: every rank posts its tensor, the last one to arrive combines them, all
//! leave with the result. A rank cannot start round `i + 1` before round `i` is complete, so at most two rounds are alive.
//!
//! ```text
//! rank 0  post ......................... wait | take
//! rank 1      post ..................... wait | take
//! rank 2          post, combine, publish      | take
//! ```

use crate::{Collective, CommError, Communicator};
use burn::tensor::{Device, Tensor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A rank of the engine whose ranks are threads of one process; made by [`LocalCommunicator::group`].
///
/// Dropping it tells the others that the rank has left: a collective that still needs it fails at once, instead of at
/// the timeout.
pub struct LocalCommunicator {
    rank: usize,
    device: Device,
    round: AtomicU64,
    meeting: Arc<Meeting>,
}

struct Meeting {
    world_size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    rounds: HashMap<u64, Round>,
    /// Ranks whose communicator was dropped.
    left: Vec<usize>,
    failure: Option<Failure>,
}

/// The first failure: it ends the group.
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
    posts: Vec<Option<(Collective, Tensor<1>)>>,
    /// The rank that came last, and combines the posts.
    combiner: Option<usize>,
    outcome: Option<Result<Arc<Vec<Tensor<1>>>, CommError>>,
    taken: usize,
}

type Combine = fn(Vec<Tensor<1>>, Collective) -> Vec<Tensor<1>>;

impl LocalCommunicator {
    /// One communicator per device, in rank order; a rank waits at most `timeout` for the others.
    pub fn group(devices: Vec<Device>, timeout: Duration) -> Vec<Self> {
        let meeting =
            Arc::new(Meeting { world_size: devices.len(), timeout, state: Mutex::default(), changed: Condvar::new() });
        let rank = |(rank, device)| Self { rank, device, round: AtomicU64::new(0), meeting: meeting.clone() };
        devices.into_iter().enumerate().map(rank).collect()
    }

    /// Meets the other ranks: posts `tensor`, and returns what the last rank made of all posts with `combine`.
    fn meet(
        &self,
        collective: Collective,
        tensor: Tensor<1>,
        combine: Combine,
    ) -> Result<Arc<Vec<Tensor<1>>>, CommError> {
        let id = self.round.fetch_add(1, Ordering::Relaxed);
        let (n, timeout) = (self.meeting.world_size, self.meeting.timeout);
        let mut state = self.meeting.lock();
        self.check_failure(&mut state, id, collective)?;
        let new = || Round { posts: vec![None; n], combiner: None, outcome: None, taken: 0 };
        let round = state.rounds.entry(id).or_insert_with(new);
        round.posts[self.rank] = Some((collective, tensor));

        if round.posts.iter().all(Option::is_some) {
            let posts: Vec<_> = round.posts.iter_mut().map(|post| post.take().expect("all are there")).collect();
            round.combiner = Some(self.rank);
            drop(state);
            let outcome =
                agree(&posts).map(|()| Arc::new(combine(posts.into_iter().map(|post| post.1).collect(), collective)));
            state = self.meeting.lock();
            // If the group failed meanwhile, the round is gone and fails for all: never for some.
            if let Some(round) = state.rounds.get_mut(&id) {
                round.outcome = Some(outcome);
            }
            self.meeting.changed.notify_all();
        }

        let start = Instant::now();
        loop {
            if let Some(outcome) = take(&mut state, id, n) {
                return outcome;
            }
            self.check_failure(&mut state, id, collective)?;
            let patience = timeout.saturating_sub(start.elapsed());
            if patience.is_zero() {
                let missing = self.missing(&state, id);
                self.fail(&mut state, missing[0], format!("did not enter {collective} within {timeout:?}"));
                return Err(CommError::Timeout { rank: self.rank, collective, missing, timeout });
            }
            state = self
                .meeting
                .changed
                .wait_timeout(state, patience)
                .map_or_else(|poisoned| poisoned.into_inner().0, |woken| woken.0);
        }
    }

    /// An error if the group has failed, or if a rank that this round still needs has left.
    fn check_failure(&self, state: &mut State, id: u64, collective: Collective) -> Result<(), CommError> {
        if let Some(gone) = self.missing(state, id).into_iter().find(|rank| state.left.contains(rank)) {
            self.fail(state, gone, "left before the call was complete".into());
        }
        match state.failure.clone() {
            Some(Failure { failed, reason, .. }) => {
                Err(CommError::RankFailed { rank: self.rank, collective, failed, reason })
            }
            None => Ok(()),
        }
    }

    /// Ends the group, unless it has ended: rounds that are not complete never will be, complete ones can still be taken.
    fn fail(&self, state: &mut State, failed: usize, reason: String) {
        state.failure.get_or_insert(Failure { reporter: self.rank, failed, reason });
        state.rounds.retain(|_, round| round.outcome.is_some());
        self.meeting.changed.notify_all();
    }

    /// Whether the group has ended and this rank was the first to notice.
    pub(crate) fn failed_first(&self) -> bool {
        self.meeting.lock().failure.as_ref().is_some_and(|failure| failure.reporter == self.rank)
    }

    /// The other ranks that round `id` still waits for.
    fn missing(&self, state: &State, id: u64) -> Vec<usize> {
        let others = (0..self.meeting.world_size).filter(|rank| *rank != self.rank);
        match state.rounds.get(&id) {
            Some(Round { combiner: Some(combiner), .. }) => others.filter(|rank| rank == combiner).collect(),
            Some(round) => others.filter(|rank| round.posts[*rank].is_none()).collect(),
            None => others.collect(),
        }
    }

    fn mine(&self, results: Arc<Vec<Tensor<1>>>) -> Tensor<1> {
        results[0].clone().to_device(&self.device)
    }

    fn bad_argument(&self, collective: Collective, reason: String) -> CommError {
        let error = CommError::BadArgument { rank: self.rank, collective, reason };
        self.abort(&error.to_string());
        error
    }
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of round `id`, if there is one; the last rank to take it removes the round.
fn take(state: &mut State, id: u64, world_size: usize) -> Option<Result<Arc<Vec<Tensor<1>>>, CommError>> {
    let round = state.rounds.get_mut(&id)?;
    let outcome = round.outcome.clone()?;
    round.taken += 1;
    if round.taken == world_size {
        state.rounds.remove(&id);
    }
    Some(outcome)
}

/// An error unless all ranks post the same collective with the same shape and dtype.
fn agree(posts: &[(Collective, Tensor<1>)]) -> Result<(), CommError> {
    let describe = |(collective, tensor): &(Collective, Tensor<1>)| match collective {
        Collective::Barrier => collective.to_string(),
        _ => format!("{collective} of {:?} {:?}", tensor.dims(), tensor.dtype()),
    };
    let first = describe(&posts[0]);
    match posts.iter().map(describe).enumerate().find(|(_, other)| *other != first) {
        Some((other_rank, other)) => Err(CommError::Mismatch { first, other_rank, other }),
        None => Ok(()),
    }
}

fn sum(tensors: impl IntoIterator<Item = Tensor<1>>) -> Tensor<1> {
    tensors.into_iter().reduce(|sum, tensor| sum + tensor).expect("a group has ranks")
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.meeting.world_size
    }

    fn device(&self) -> &Device {
        &self.device
    }

    /// Ranks that share a device share the gathered buffer: it is made once.
    fn all_gather(&self, shard: Tensor<1>) -> Result<Tensor<1>, CommError> {
        if self.world_size() == 1 {
            return Ok(shard);
        }
        let combine: Combine = |shards, _| {
            let device = shards[0].device();
            vec![Tensor::cat(shards.into_iter().map(|shard| shard.to_device(&device)).collect(), 0)]
        };
        self.meet(Collective::AllGather, shard, combine).map(|full| self.mine(full))
    }

    fn reduce_scatter_onto(&self, full: Tensor<1>, onto: Option<Tensor<1>>) -> Result<Tensor<1>, CommError> {
        let (n, len) = (self.world_size(), full.dims()[0]);
        if len % n != 0 {
            let reason = format!("{len} elements cannot be split over {n} ranks");
            return Err(self.bad_argument(Collective::ReduceScatter, reason));
        }
        let all = self.meet(Collective::ReduceScatter, full, |tensors, _| tensors)?;
        let chunk = self.rank * len / n..(self.rank + 1) * len / n;
        let chunks = all.iter().map(|full| full.clone().slice(chunk.clone()).to_device(&self.device));
        Ok(sum(onto.into_iter().chain(chunks)))
    }

    fn all_reduce(&self, tensor: Tensor<1>) -> Result<Tensor<1>, CommError> {
        let combine: Combine = |tensors, _| {
            let device = tensors[0].device();
            vec![sum(tensors.into_iter().map(|tensor| tensor.to_device(&device)))]
        };
        self.meet(Collective::AllReduce, tensor, combine).map(|sum| self.mine(sum))
    }

    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> Result<Tensor<1>, CommError> {
        let (collective, n) = (Collective::Broadcast(root), self.world_size());
        if root >= n {
            return Err(self.bad_argument(collective, format!("there are only {n} ranks")));
        }
        let combine: Combine = |mut tensors, collective| match collective {
            Collective::Broadcast(root) => vec![tensors.swap_remove(root)],
            _ => tensors,
        };
        self.meet(collective, tensor, combine).map(|root| self.mine(root))
    }

    fn barrier(&self) -> Result<(), CommError> {
        self.meet(Collective::Barrier, Tensor::zeros([1], &self.device), |_, _| vec![]).map(|_| ())
    }

    fn abort(&self, reason: &str) {
        self.fail(&mut self.meeting.lock(), self.rank, format!("failed: {reason}"));
    }
}

impl Drop for LocalCommunicator {
    fn drop(&mut self) {
        self.meeting.lock().left.push(self.rank);
        self.meeting.changed.notify_all();
    }
}
