//! The queues of all streams, and who waits for what in them.

use super::random::Random;
use super::work::Work;
use crate::contexts::Context;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// A place in a queue: the work numbered `seq` of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Handle of the stream.
    pub stream: usize,
    /// Number of the work, from 1; 0 is before all work.
    pub seq: u64,
}

/// How a stream takes part in the legacy default stream's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The legacy default stream itself.
    Legacy,
    /// Waits for the legacy default stream's work, and holds it up.
    Blocking,
    /// Apart from the legacy default stream.
    NonBlocking,
}

pub(super) struct Op {
    pub(super) seq: u64,
    pub(super) after: Vec<Point>,
    pub(super) work: Work,
    pub(super) queued: Instant,
}

pub(super) struct Queue {
    pub(super) context: Arc<Context>,
    pub(super) class: Class,
    pub(super) ops: VecDeque<Op>,
    pub(super) issued: u64,
    pub(super) done: u64,
    pub(super) running: bool,
    pub(super) closed: bool,
}

impl Queue {
    /// A queue without work.
    pub(super) fn new(context: Arc<Context>, class: Class) -> Self {
        Self { context, class, ops: VecDeque::new(), issued: 0, done: 0, running: false, closed: false }
    }
}

/// A host thread that waits: how far each stream has to come, and what is to happen to work that it does not wait for.
pub(super) struct Waiter {
    pub(super) need: HashMap<usize, u64>,
    pub(super) others: Others,
}

/// When work that nobody waits for may run while somebody waits for other work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Others {
    /// Not before: what the host should have waited for is still missing.
    Never,
    /// Before: what should have waited for a stream is too early.
    First,
    /// In any order.
    Mixed,
}

pub(super) struct State {
    pub(super) queues: BTreeMap<usize, Queue>,
    pub(super) waiters: Vec<(u64, Waiter)>,
    pub(super) next_waiter: u64,
    /// Cards that have a worker.
    pub(super) workers: HashSet<usize>,
    pub(super) random: Random,
}

/// The queues of all cards.
pub struct Engine {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl State {
    pub(super) fn is_done(&self, point: Point) -> bool {
        self.queues.get(&point.stream).is_none_or(|queue| queue.done >= point.seq)
    }

    pub(super) fn tail(&self, stream: usize) -> Point {
        Point { stream, seq: self.queues.get(&stream).map_or(0, |queue| queue.issued) }
    }

    /// How far each stream has to come before `points` are done. Edges point to earlier work only, so what is queued
    /// later cannot change the answer.
    pub(super) fn need(&self, points: &[Point]) -> HashMap<usize, u64> {
        let mut need = HashMap::new();
        let mut open = points.to_vec();
        while let Some(point) = open.pop() {
            let before = need.get(&point.stream).copied().unwrap_or(0);
            let Some(queue) = self.queues.get(&point.stream).filter(|_| point.seq > before) else { continue };
            need.insert(point.stream, point.seq);
            let new = queue.ops.iter().filter(|op| op.seq > before && op.seq <= point.seq);
            open.extend(new.flat_map(|op| op.after.iter().copied()));
        }
        need
    }
}

impl Engine {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
