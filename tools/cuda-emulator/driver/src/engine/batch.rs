//! Work that is queued together.

use super::state::{Class, Engine, Op, Point, Queue, State};
use super::work::Work;
use super::worker;
use crate::contexts::Context;
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

/// Work that is queued together: no other thread queues anything in between.
pub struct Batch {
    engine: &'static Engine,
    state: MutexGuard<'static, State>,
}

impl Batch {
    pub(super) fn new(engine: &'static Engine) -> Self {
        Self { engine, state: engine.lock() }
    }

    /// Queues work, after what is in the stream, after the points `after`, and after what the legacy default stream's
    /// order asks for.
    ///
    /// # Errors
    /// An invalid handle if the stream is gone.
    pub fn submit(&mut self, stream: usize, after: &[Point], work: Work) -> Answer<Point> {
        let queues = &self.state.queues;
        let queue = queues.get(&stream).filter(|queue| !queue.closed).ok_or(Code::INVALID_HANDLE)?;
        let context = queue.context.handle;
        let other = match queue.class {
            Class::Legacy => Some(Class::Blocking),
            Class::Blocking => Some(Class::Legacy),
            Class::NonBlocking => None,
        };
        let implicit = queues.iter().filter(|(_, q)| Some(q.class) == other && q.context.handle == context);
        let implicit = implicit.map(|(&stream, queue)| Point { stream, seq: queue.issued });
        let after = implicit.chain(after.iter().copied()).collect();
        Ok(self.push(stream, after, work))
    }

    /// Queues work after the points `after` alone, in a queue of its own.
    pub fn submit_alone(&mut self, context: &Arc<Context>, after: &[Point], work: Work) -> Point {
        let stream = fresh();
        // Closed, so that the queue goes when its only work is done.
        let queue = Queue { closed: true, ..Queue::new(context.clone(), Class::NonBlocking) };
        self.state.queues.insert(stream, queue);
        self.push(stream, after.to_vec(), work)
    }

    /// Queues work in a stream that has a queue.
    fn push(&mut self, stream: usize, mut after: Vec<Point>, work: Work) -> Point {
        after.retain(|&point| point.stream != stream && !self.state.is_done(point));
        let queue = self.state.queues.get_mut(&stream).expect("the caller has found the queue or made it");
        queue.issued += 1;
        let (seq, card) = (queue.issued, queue.context.card);
        queue.ops.push_back(Op { seq, after, work, queued: Instant::now() });
        if self.state.workers.insert(card) {
            worker::start(self.engine, card);
        }
        Point { stream, seq }
    }
}
