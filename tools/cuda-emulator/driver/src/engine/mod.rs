//! Queues of work by stream, and what waits for what.
//!
//! Each piece of work knows, when it is queued, the places in other queues it comes after: those of the events it waits
//! for, and those that the legacy default stream adds. Order between two pieces that no such edge gives is free, and a
//! worker uses that freedom against the program.

mod batch;
pub mod nodes;
mod random;
mod run;
mod state;
pub mod work;
mod worker;

pub use batch::Batch;
pub use state::{Class, Engine, Point};

use crate::card::card_of;
use crate::contexts::Context;
use crate::errors::Answer;
use crate::settings::settings;
use random::Random;
use state::{Others, Queue, State, Waiter};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use work::Work;

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

impl Engine {
    /// Opens the queue of a stream.
    pub fn open(&self, stream: usize, context: Arc<Context>, class: Class) {
        self.lock().queues.insert(stream, Queue::new(context, class));
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

    /// Queues what `queue` submits, so that no other thread queues anything in between.
    pub fn batch<T>(&'static self, queue: impl FnOnce(&mut Batch) -> T) -> T {
        let mut batch = Batch::new(self);
        let result = queue(&mut batch);
        drop(batch);
        self.changed.notify_all();
        result
    }

    /// Queues work as [`Batch::submit`] does.
    ///
    /// # Errors
    /// An invalid handle if the stream is gone.
    pub fn submit(&'static self, stream: usize, after: &[Point], work: Work) -> Answer<Point> {
        self.batch(|batch| batch.submit(stream, after, work))
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

    /// The last queued free of memory of a card in a stream, or in each.
    pub fn frees(&self, card: usize, stream: Option<usize>) -> Vec<Point> {
        let of_card = |work: &Work| match work {
            Work::Free(address) => card_of(*address).is_some_and(|found| found.ordinal == card),
            _ => false,
        };
        let state = self.lock();
        let queues = state.queues.iter().filter(|(handle, _)| stream.is_none_or(|stream| stream == **handle));
        // What runs now is no longer queued, and may be a free.
        let running = |queue: &Queue| queue.running.then_some(queue.done + 1);
        let queued = |queue: &Queue| queue.ops.iter().rev().find(|op| of_card(&op.work)).map(|op| op.seq);
        let last = |queue: &Queue| queued(queue).or_else(|| running(queue));
        queues.filter_map(|(&stream, queue)| last(queue).map(|seq| Point { stream, seq })).collect()
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
