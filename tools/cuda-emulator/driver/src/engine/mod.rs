//! Queues of work by stream, and what waits for what.
//!
//! Each piece of work knows, when it is queued, the places in other queues it comes after: those of the events it waits
//! for, and those that the legacy default stream adds. Order between two pieces that no such edge gives is free, and a
//! worker uses that freedom against the program.

pub mod work;
mod worker;

use crate::context::Context;
use crate::errors::{Answer, Code};
use crate::settings::settings;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Instant;
use work::Work;

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

struct Op {
    seq: u64,
    after: Vec<Point>,
    work: Work,
    queued: Instant,
}

struct Queue {
    context: Arc<Context>,
    class: Class,
    ops: VecDeque<Op>,
    issued: u64,
    done: u64,
    running: bool,
    closed: bool,
}

/// A host thread that waits: how far each stream has to come, and what is to happen to work that it does not wait for.
struct Waiter {
    need: HashMap<usize, u64>,
    others: Others,
}

/// When work that nobody waits for may run while somebody waits for other work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// Not before: what the host should have waited for is still missing.
    Never,
    /// Before: what should have waited for a stream is too early.
    First,
    /// In any order.
    Mixed,
}

struct State {
    queues: BTreeMap<usize, Queue>,
    waiters: Vec<(u64, Waiter)>,
    next_waiter: u64,
    /// Cards that have a worker.
    workers: HashSet<usize>,
    random: Random,
}

/// The queues of all cards.
pub struct Engine {
    state: Mutex<State>,
    changed: Condvar,
}

/// The engine of this process.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine {
        state: Mutex::new(State {
            queues: BTreeMap::new(),
            waiters: Vec::new(),
            next_waiter: 0,
            workers: HashSet::new(),
            random: Random(settings().seed),
        }),
        changed: Condvar::new(),
    })
}

impl State {
    fn is_done(&self, point: Point) -> bool {
        self.queues.get(&point.stream).is_none_or(|queue| queue.done >= point.seq)
    }

    fn tail(&self, stream: usize) -> Point {
        Point { stream, seq: self.queues.get(&stream).map_or(0, |queue| queue.issued) }
    }

    /// How far each stream has to come before `points` are done. Edges point to earlier work only, so what is queued
    /// later cannot change the answer.
    fn need(&self, points: &[Point]) -> HashMap<usize, u64> {
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens the queue of a stream.
    pub fn open(&self, stream: usize, context: Arc<Context>, class: Class) {
        let queue = Queue { context, class, ops: VecDeque::new(), issued: 0, done: 0, running: false, closed: false };
        self.lock().queues.insert(stream, queue);
    }

    /// Ends a stream: its queue goes when its work is done.
    pub fn close(&self, stream: usize) {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(&stream) else { return };
        queue.closed = true;
        if queue.done == queue.issued {
            state.queues.remove(&stream);
        }
    }

    /// Queues work, after what is in the stream, after the points `after`, and after what the legacy default stream's
    /// order asks for.
    ///
    /// # Errors
    /// An invalid handle if the stream is gone.
    pub fn submit(&'static self, stream: usize, after: &[Point], work: Work) -> Answer<Point> {
        let mut state = self.lock();
        let queue = state.queues.get(&stream).filter(|queue| !queue.closed).ok_or(Code::INVALID_HANDLE)?;
        let (context, class) = (queue.context.handle, queue.class);
        let other = match class {
            Class::Legacy => Some(Class::Blocking),
            Class::Blocking => Some(Class::Legacy),
            Class::NonBlocking => None,
        };
        let implicit = state.queues.iter().filter(|(_, q)| Some(q.class) == other && q.context.handle == context);
        let mut edges: Vec<_> = implicit.map(|(&stream, queue)| Point { stream, seq: queue.issued }).collect();
        edges.extend_from_slice(after);
        edges.retain(|&point| point.stream != stream && !state.is_done(point));
        let queue = state.queues.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        queue.issued += 1;
        let (seq, card) = (queue.issued, queue.context.card);
        queue.ops.push_back(Op { seq, after: edges, work, queued: Instant::now() });
        if state.workers.insert(card) {
            worker::start(self, card);
        }
        drop(state);
        self.changed.notify_all();
        Ok(Point { stream, seq })
    }

    /// The last work of a stream.
    pub fn tail(&self, stream: usize) -> Point {
        self.lock().tail(stream)
    }

    /// The last work of all streams of a context.
    pub fn tails(&self, context: usize) -> Vec<Point> {
        let state = self.lock();
        let own = state.queues.iter().filter(|(_, queue)| queue.context.handle == context);
        own.map(|(&stream, queue)| Point { stream, seq: queue.issued }).collect()
    }

    /// The last work of the streams of a context that the legacy default stream is in order with, and of itself.
    pub fn blocking_tails(&self, context: usize) -> Vec<Point> {
        let state = self.lock();
        let own = state.queues.iter().filter(|(_, q)| q.context.handle == context && q.class != Class::NonBlocking);
        own.map(|(&stream, queue)| Point { stream, seq: queue.issued }).collect()
    }

    /// Whether work is done.
    pub fn is_done(&self, point: Point) -> bool {
        self.lock().is_done(point)
    }

    /// Asks without waiting. A program that asks again and again is taken to wait, so that it gets on.
    pub fn poll(&self, points: &[Point]) -> bool {
        let mut state = self.lock();
        if points.iter().all(|&point| state.is_done(point)) {
            return true;
        }
        if state.random.below(4) == 0 {
            let need = state.need(points);
            // Stands until the need is met; see `Worker::forget`.
            state.waiters.push((0, Waiter { need, others: Others::Mixed }));
            drop(state);
            self.changed.notify_all();
        }
        false
    }

    /// Waits on the host until `points` are done.
    pub fn wait(&self, points: &[Point]) {
        let mut state = self.lock();
        if points.iter().all(|&point| state.is_done(point)) {
            return;
        }
        let need = state.need(points);
        let others = [Others::Never, Others::First, Others::Mixed][state.random.below(3)];
        state.next_waiter += 1;
        let id = state.next_waiter;
        state.waiters.push((id, Waiter { need, others }));
        self.changed.notify_all();
        while !points.iter().all(|&point| state.is_done(point)) {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.waiters.retain(|waiter| waiter.0 != id);
    }

    /// Number of pieces of work that have not run.
    pub fn pending(&self) -> usize {
        self.lock().queues.values().map(|queue| queue.ops.len()).sum()
    }
}

/// A small generator (splitmix64), so that a seed gives the same choices everywhere.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
