//! The threads on which a rank communicates while it computes.

use crate::FsdpError;
use crate::groups::placement::Groups;
use comm::{CommError, panic_message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A rank's communication during its computation, with a separate queue for each kind: parameters, which the rank waits
/// for, do not queue behind gradients, which nothing waits for.
pub(crate) struct CommStreams {
    /// Parameters that are about to be used in computation.
    pub gather: CommThread,
    /// Gradients in flight to their shards, and everything else.
    pub reduce: CommThread,
}

impl CommStreams {
    /// Starts both threads, each with its own communicators. This is a collective. The ranks have compared the outline
    /// of their steps, which decides on all calls of these threads.
    pub fn start(groups: &Groups) -> Result<Self, CommError> {
        let start = |groups: Groups| {
            groups.expect_agreement();
            CommThread::start(groups)
        };
        Ok(Self { gather: start(groups.again()?), reduce: start(groups.again()?) })
    }
}

/// A thread on which a rank communicates, so that collectives run while the rank computes.
///
/// Jobs run one after another in the order of submission. Every rank submits the same collectives in the same order,
/// which is all that collectives require.
pub(crate) struct CommThread {
    rank: usize,
    jobs: Option<mpsc::Sender<Job>>,
    unfinished: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&Groups) + Send>;

/// A result that may not have arrived yet.
pub(crate) struct Pending<T>(Box<dyn FnOnce() -> Result<T, FsdpError>>);

impl CommThread {
    pub fn start(groups: Groups) -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (rank, unfinished) = (groups.world.rank(), Arc::new(AtomicUsize::new(0)));
        let thread = std::thread::spawn(move || {
            for job in queue {
                job(&groups);
            }
        });
        Self { rank, jobs: Some(jobs), unfinished, thread: Some(thread) }
    }

    /// Queues a job.
    pub fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Groups) -> Result<T, CommError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = mpsc::sync_channel(1);
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let (rank, unfinished) = (self.rank, self.unfinished.clone());
        let job: Job = Box::new(move |groups| {
            let result = catch_unwind(AssertUnwindSafe(|| job(groups))).unwrap_or_else(|panic| {
                let message = panic_message(&*panic);
                Err(CommError::Engine(format!("rank {rank} panicked while it communicated: {message}")))
            });
            // Before the result is sent, so that a rank with all results finds the thread idle.
            unfinished.fetch_sub(1, Ordering::Release);
            let _ = sender.send(result); // nothing waits for it if the rank has failed by now
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job); // if the thread has ended, waiting for the result reports it
        }
        Pending(Box::new(move || Ok(result.recv().map_err(|_| FsdpError::CommThread { rank })??)))
    }
}

impl<T: 'static> Pending<T> {
    /// Wraps an existing result.
    pub fn ready(value: T) -> Self {
        Self(Box::new(|| Ok(value)))
    }

    /// Combines several results.
    pub fn all(all: Vec<Self>) -> Pending<Vec<T>> {
        Pending(Box::new(|| all.into_iter().map(Self::wait).collect()))
    }

    /// Maps the result once it has arrived.
    pub fn then<U>(self, make: impl FnOnce(T) -> U + 'static) -> Pending<U> {
        Pending(Box::new(|| self.wait().map(make)))
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<T, FsdpError> {
        (self.0)()
    }
}

impl Drop for CommThread {
    /// Ends the thread. If a job is still running, the rank has failed, and the job waits for ranks that will learn of
    /// the failure only after this returns. The thread is then left to end on its own.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if self.unfinished.load(Ordering::Acquire) == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
