//! A group of ranks: the rounds of its calls, and the messages between its members. Ranks have their group numbers.

use super::parcel::Parcel;
use super::world::{Failure, GroupId};
use crate::{CommError, Signature};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub struct Group {
    pub id: GroupId,
    /// The members' world numbers, in ascending order.
    pub members: Vec<usize>,
    state: Mutex<GroupState>,
    /// Wakes the ranks that wait for a round: it is complete, a rank has left, or the world has failed. Ranks that wait
    /// for a message are woken by its mailbox.
    pub met: Condvar,
}

#[derive(Default)]
pub struct GroupState {
    pub rounds: HashMap<u64, Round>,
    /// Messages sent and not yet received, by sender and receiver.
    mail: HashMap<(usize, usize), Mailbox>,
    /// Ranks that are in a call, and what each of them waits for.
    pub waits: HashMap<usize, Wait>,
    /// Ranks that have left the world.
    pub left: Vec<usize>,
    pub failure: Option<Arc<Failure>>,
    /// Engines that are not yet created or not yet dropped.
    engines: usize,
    /// Number of times that a waiting rank was woken.
    pub wakes: u64,
}

#[derive(Default)]
struct Mailbox {
    letters: VecDeque<Parcel>,
    arrived: Arc<Condvar>,
}

/// One call of all ranks.
pub struct Round {
    posts: Vec<Option<(Signature, Post)>>,
    /// Number of ranks that have posted.
    arrived: usize,
    /// The rank that arrived last and combines the posts.
    combiner: Option<usize>,
    pub outcome: Option<Result<Outcome, CommError>>,
    taken: usize,
}

/// The tensors that a rank gives to the others.
pub type Post = Vec<Option<Parcel>>;

/// The result of a round, the same for all ranks; its type depends on the call.
pub type Outcome = Arc<dyn Any + Send + Sync>;

/// What a rank waits for.
#[derive(Clone, Copy)]
pub enum Wait {
    Round(u64),
    /// A message from this rank, or its receipt of one.
    Peer(usize),
}

impl Group {
    /// Creates a group in a world that may have failed or lost ranks.
    pub fn new(id: GroupId, members: Vec<usize>, left: &[usize], failure: Option<Arc<Failure>>) -> Self {
        let left = left.iter().filter_map(|rank| members.binary_search(rank).ok()).collect();
        let state = GroupState { left, failure, engines: members.len(), ..GroupState::default() };
        Self { id, members, state: Mutex::new(state), met: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a rank has left the world; it need not be a member of this group.
    pub fn loses(&self, world_rank: usize) {
        let Ok(rank) = self.members.binary_search(&world_rank) else { return };
        let mut state = self.lock();
        state.left.push(rank);
        self.wake_all(&state);
    }

    /// Records that the world has failed: incomplete rounds will never complete.
    pub fn fail(&self, state: &mut GroupState, failure: &Arc<Failure>) {
        state.failure = Some(failure.clone());
        state.rounds.retain(|_, round| round.outcome.is_some());
        self.wake_all(state);
    }

    fn wake_all(&self, state: &GroupState) {
        self.met.notify_all();
        state.mail.values().for_each(|mailbox| mailbox.arrived.notify_all());
    }
}

impl GroupState {
    /// Records that one of the engines was dropped and returns how many remain.
    pub fn one_less(&mut self) -> usize {
        self.engines -= 1;
        self.engines
    }

    /// Posts in a round of `n` ranks. The last rank to arrive gets all ranks' signatures and posts.
    pub fn post(
        &mut self,
        id: u64,
        n: usize,
        rank: usize,
        mine: (Signature, Post),
    ) -> Option<(Vec<Signature>, Vec<Post>)> {
        let new =
            || Round { posts: (0..n).map(|_| None).collect(), arrived: 0, combiner: None, outcome: None, taken: 0 };
        let round = self.rounds.entry(id).or_insert_with(new);
        round.posts[rank] = Some(mine);
        round.arrived += 1;
        (round.arrived == n).then(|| {
            round.combiner = Some(rank);
            std::mem::take(&mut round.posts).into_iter().map(|post| post.expect("all are there")).unzip()
        })
    }

    /// Returns the outcome of a round if there is one; the last rank to take it removes the round.
    pub fn take(&mut self, id: u64, n: usize) -> Option<Result<Outcome, CommError>> {
        let round = self.rounds.get_mut(&id)?;
        let outcome = round.outcome.clone()?;
        round.taken += 1;
        if round.taken == n {
            self.rounds.remove(&id);
        }
        Some(outcome)
    }

    /// Puts a parcel into a mailbox and wakes the rank that waits for it.
    pub fn send(&mut self, from: usize, to: usize, parcel: Parcel) {
        let mailbox = self.mail.entry((from, to)).or_default();
        mailbox.letters.push_back(parcel);
        mailbox.arrived.notify_one();
    }

    pub fn receive(&mut self, from: usize, to: usize) -> Option<Parcel> {
        self.mail.get_mut(&(from, to))?.letters.pop_front()
    }

    pub fn has_mail(&self, from: usize, to: usize) -> bool {
        self.mail.get(&(from, to)).is_some_and(|mailbox| !mailbox.letters.is_empty())
    }

    /// Returns the condition that wakes a rank waiting for a message between these two ranks.
    pub fn arrival(&mut self, from: usize, to: usize) -> Arc<Condvar> {
        self.mail.entry((from, to)).or_default().arrived.clone()
    }

    /// Returns the ranks that this one waits for, after it has posted or while it waits for a message.
    pub fn missing(&self, rank: usize, what: Wait) -> Vec<usize> {
        let id = match what {
            Wait::Peer(peer) => return vec![peer],
            Wait::Round(id) => id,
        };
        match self.rounds.get(&id) {
            Some(Round { combiner: Some(combiner), .. }) => [*combiner].into_iter().filter(|it| *it != rank).collect(),
            Some(round) => (0..round.posts.len()).filter(|i| round.posts[*i].is_none()).collect(),
            None => vec![],
        }
    }

    /// Returns a rank that this one waits for and that has left.
    pub fn lost(&self, rank: usize, what: Wait) -> Option<usize> {
        if self.left.is_empty() {
            return None;
        }
        self.missing(rank, what).into_iter().find(|missing| self.left.contains(missing))
    }
}
