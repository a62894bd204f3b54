//! Keeps a rank's recent calls in memory.

use super::record::{Aborted, Call, CallFailure, FlightRecord, Place};
use crate::{Collective, CommError, Signature};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of ended calls that a recorder keeps.
pub const CAPACITY: usize = 256;

/// Records the calls of one rank in a world and in all groups that are split off from it.
///
/// It costs some 0.1 microseconds per call. Another thread may read it while the rank is stuck in a call
/// ([`Communicator::flight`](crate::Communicator::flight)).
#[derive(Debug)]
pub struct FlightRecorder {
    rank: usize,
    world_size: usize,
    /// A moment by both clocks: times are measured by the first, which never steps back.
    created: (Instant, f64),
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    entries: u64,
    /// The calls that are running: one per thread.
    open: Vec<Entry>,
    ended: VecDeque<Entry>,
    last_event: Instant,
    /// The last heartbeat beside them.
    last_heartbeat: Instant,
    /// Time that the rank's own thread has spent in calls.
    in_calls: Duration,
    place: Option<NotedPlace>,
    aborted: Option<(Instant, String)>,
    /// The rank's own thread: the one that noted a place or made the first call.
    own_thread: Option<ThreadId>,
}

type NotedPlace = (u64, &'static str);

#[derive(Debug, Clone)]
struct Entry {
    id: u64,
    group: Arc<GroupCalls>,
    axes: Arc<str>,
    seq: u64,
    signature: Signature,
    thread: ThreadId,
    place: Option<NotedPlace>,
    entered: Instant,
    left: Option<Instant>,
    outcome: Option<Result<u64, Box<CommError>>>,
}

/// A group as the recorder knows it. Clones of a communicator share it, so that its calls are numbered once.
#[derive(Debug)]
pub(crate) struct GroupCalls {
    /// The world numbers of the group's ranks.
    ranks: Box<[usize]>,
    splits: Box<[u64]>,
    /// Numbers of the next calls.
    next: AtomicU64,
    next_sends: Box<[AtomicU64]>,
    next_recvs: Box<[AtomicU64]>,
    next_split: AtomicU64,
}

/// A call that is running.
#[must_use]
pub(crate) struct Entered {
    id: u64,
    pub at: Instant,
}

impl GroupCalls {
    pub fn of_world(world_size: usize) -> Arc<Self> {
        Self::new((0..world_size).collect(), [].into())
    }

    /// Returns one of the groups into which all ranks of this one split.
    pub fn split(&self, members: &[usize]) -> Arc<Self> {
        let split = self.next_split.fetch_add(1, Ordering::Relaxed);
        let ranks = members.iter().map(|rank| self.ranks[*rank]).collect();
        Self::new(ranks, self.splits.iter().copied().chain([split]).collect())
    }

    fn new(ranks: Box<[usize]>, splits: Box<[u64]>) -> Arc<Self> {
        let zeros = || ranks.iter().map(|_| AtomicU64::new(0)).collect();
        let (next_sends, next_recvs) = (zeros(), zeros());
        Arc::new(Self { ranks, splits, next: 0.into(), next_sends, next_recvs, next_split: 0.into() })
    }

    /// Returns the number of a call that is about to be made.
    fn number(&self, collective: Collective) -> u64 {
        let next = match collective {
            Collective::Send(to) => &self.next_sends[to],
            Collective::Recv(from) => &self.next_recvs[from],
            _ => &self.next,
        };
        next.fetch_add(1, Ordering::Relaxed)
    }
}

impl FlightRecorder {
    pub(crate) fn new(rank: usize, world_size: usize) -> Arc<Self> {
        let now = Instant::now();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let state = State {
            entries: 0,
            open: Vec::new(),
            // At once, so that a run's memory does not grow by it; a single rank makes no calls.
            ended: VecDeque::with_capacity(if world_size > 1 { CAPACITY } else { 0 }),
            last_event: now,
            last_heartbeat: now,
            in_calls: Duration::ZERO,
            place: None,
            aborted: None,
            own_thread: None,
        };
        Arc::new(Self { rank, world_size, created: (now, since_epoch), state: Mutex::new(state) })
    }

    /// Returns what the rank has done recently.
    pub fn record(&self) -> FlightRecord {
        let (now, state) = (Instant::now(), self.lock());
        let mut entries: Vec<Entry> = state.ended.iter().chain(&state.open).cloned().collect();
        let (place, aborted, own_thread) = (state.place, state.aborted.clone(), state.own_thread);
        let last_event = state.last_event;
        let last_sign = last_event.max(state.last_heartbeat);
        drop(state); // the rank need not wait for the rest
        entries.sort_unstable_by_key(|entry| entry.id);
        FlightRecord {
            rank: self.rank,
            world_size: self.world_size,
            written: self.seconds(now),
            since_last_event: now.saturating_duration_since(last_event).as_secs_f64(),
            silence: now.saturating_duration_since(last_sign).as_secs_f64(),
            place: place.map(Place::from),
            aborted: aborted.map(|(at, reason)| Aborted { at: self.seconds(at), reason }),
            calls: entries.into_iter().map(|entry| self.call(entry, own_thread)).collect(),
        }
    }

    pub(crate) fn enter(&self, group: &Arc<GroupCalls>, axes: &Arc<str>, signature: Signature) -> Entered {
        let thread = thread::current().id();
        let mut state = self.lock();
        let (id, at) = (state.entries, Instant::now());
        let (seq, place) = (group.number(signature.collective), state.place);
        let (group, axes) = (group.clone(), axes.clone());
        let entry = Entry { id, group, axes, seq, signature, thread, place, entered: at, left: None, outcome: None };
        state.open.push(entry);
        state.entries += 1;
        state.last_event = at;
        state.own_thread.get_or_insert(thread);
        Entered { id, at }
    }

    /// Records the end of a call, with the bytes that it received, and returns when that was.
    pub(crate) fn leave(&self, call: &Entered, outcome: Result<usize, &CommError>) -> Instant {
        let outcome = outcome.map(|bytes| bytes as u64).map_err(|error| Box::new(error.clone()));
        let mut state = self.lock();
        let at = Instant::now();
        state.last_event = at;
        if let Some(place) = state.open.iter().position(|entry| entry.id == call.id) {
            let entry = Entry { left: Some(at), outcome: Some(outcome), ..state.open.swap_remove(place) };
            if state.own_thread == Some(entry.thread) {
                state.in_calls += at - entry.entered;
            }
            if state.ended.len() == CAPACITY {
                state.ended.pop_front();
            }
            state.ended.push_back(entry);
        }
        at
    }

    /// Notes that the rank makes progress outside of any call.
    pub fn heartbeat(&self) {
        self.lock().last_heartbeat = Instant::now();
    }

    /// Returns how long ago the rank last entered or left a call, noted a place, or gave a
    /// [heartbeat](Self::heartbeat).
    pub fn silence(&self) -> Duration {
        let state = self.lock();
        state.last_event.max(state.last_heartbeat).elapsed()
    }

    /// Returns the time that the rank's own thread has spent in calls so far: mostly waiting for others.
    pub fn time_in_calls(&self) -> Duration {
        self.lock().in_calls
    }

    pub(crate) fn note_place(&self, step: u64, what: &'static str) {
        let mut state = self.lock();
        state.last_heartbeat = Instant::now();
        state.place = Some((step, what));
        state.own_thread = Some(thread::current().id());
    }

    /// Records that the rank tells the others of its failure; only the first counts.
    pub(crate) fn abort(&self, reason: &str) {
        self.lock().aborted.get_or_insert_with(|| (Instant::now(), reason.into()));
    }

    fn call(&self, entry: Entry, own_thread: Option<ThreadId>) -> Call {
        let Signature { collective, len, dtype } = entry.signature;
        let ranks = &entry.group.ranks;
        let (collective, pair) = match collective {
            Collective::Broadcast(root) => (Collective::Broadcast(ranks[root]), None),
            Collective::Gather(root) => (Collective::Gather(ranks[root]), None),
            Collective::Scatter(root) => (Collective::Scatter(ranks[root]), None),
            Collective::Send(to) => (Collective::Send(ranks[to]), Some((self.rank, ranks[to]))),
            Collective::Recv(from) => (Collective::Recv(ranks[from]), Some((ranks[from], self.rank))),
            other => (other, None),
        };
        let (bytes, failed) = match entry.outcome {
            None => (None, None),
            Some(Ok(bytes)) => (Some(bytes), None),
            Some(Err(error)) => (None, Some(CallFailure::from(&*error))),
        };
        Call {
            group: ranks.to_vec(),
            splits: entry.group.splits.to_vec(),
            axes: entry.axes.to_string(),
            seq: entry.seq,
            collective: collective.to_string(),
            pair,
            len,
            dtype: dtype.map(|dtype| format!("{dtype:?}")),
            bytes,
            entered: self.seconds(entry.entered),
            left: entry.left.map(|left| self.seconds(left)),
            failed,
            background: own_thread != Some(entry.thread),
            place: entry.place.map(Place::from),
        }
    }

    /// Returns a time in seconds since the Unix epoch.
    fn seconds(&self, at: Instant) -> f64 {
        let (instant, since_epoch) = self.created;
        since_epoch + at.saturating_duration_since(instant).as_secs_f64()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<NotedPlace> for Place {
    fn from((step, what): NotedPlace) -> Self {
        Self { step, what: what.into() }
    }
}

impl From<&CommError> for CallFailure {
    fn from(error: &CommError) -> Self {
        let (blames, own) = match error {
            CommError::RankFailed { failed, .. } => (vec![*failed], false),
            CommError::Timeout { missing, .. } => (missing.clone(), false),
            CommError::Mismatch { .. } => (vec![], false),
            CommError::BadArgument { .. } | CommError::Engine(_) => (vec![], true),
        };
        Self { error: error.to_string(), blames, own }
    }
}
