//! Ranks as threads of this process, and the failure that came first.

use crate::error::panic_message;
use crate::{Communicator, HierarchicalEngine, LocalEngine, Timeouts, rank_list};
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time a rank needs to finish after it learns that another one failed.
const GRACE: Duration = Duration::from_secs(5);

/// The failure that ended a group of ranks: the first one, not its consequences on the others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankFailure<E: Error + 'static> {
    /// A rank returned an error.
    #[error("rank {rank}: {source}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Its error.
        source: E,
    },
    /// A rank panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// The panic's message.
        message: String,
    },
    /// A rank failed, and others are stuck outside any call, for example in a write to a dead disk.
    #[error("{failure}; {} did not return within {waited:?}", rank_list(stuck))]
    Stuck {
        /// The first failure.
        failure: Box<Self>,
        /// The ranks that have not returned.
        stuck: Vec<usize>,
        /// How long Kiln waited for them after that failure.
        waited: Duration,
    },
}

/// Runs `work` on one thread per device and returns the results in rank order.
///
/// # Errors
/// If a rank returns an error or panics, the others are notified ([`Communicator::abort`]), all threads are joined, and
/// the first failure is returned. The others are notified after `work` has dropped its state; if that takes long, wrap
/// the fallible part of `work` in [`Communicator::abort_on_failure`]. A thread that has not returned after the timeout
/// of a call plus five seconds is left behind ([`RankFailure::Stuck`]), because nothing can end it from outside: it
/// keeps its resources until it returns or the process ends.
pub fn run_ranks<T, E, F>(
    devices: Vec<Device>,
    timeouts: impl Into<Timeouts>,
    work: F,
) -> Result<Vec<T>, RankFailure<E>>
where
    T: Send + 'static,
    E: Error + Send + 'static,
    F: Fn(Communicator) -> Result<T, E> + Send + Sync + 'static,
{
    let machines = vec![0; devices.len()];
    run_ranks_on_machines(devices, machines, timeouts, work)
}

/// Does the same as [`run_ranks`], as if each rank were on the machine with the given number.
pub fn run_ranks_on_machines<T, E, F>(
    devices: Vec<Device>,
    machines: Vec<usize>,
    timeouts: impl Into<Timeouts>,
    work: F,
) -> Result<Vec<T>, RankFailure<E>>
where
    T: Send + 'static,
    E: Error + Send + 'static,
    F: Fn(Communicator) -> Result<T, E> + Send + Sync + 'static,
{
    let (timeouts, work) = (timeouts.into(), Arc::new(work));
    let (back, returned) = mpsc::channel();
    let start = |engine: LocalEngine| {
        let (work, engine) = (work.clone(), Arc::new(engine));
        let comm = Communicator::new(HierarchicalEngine::over(engine.clone()));
        let (rank, end) = (comm.rank(), End { rank: comm.rank(), back: back.clone() });
        let thread = thread::spawn(move || {
            let _end = end;
            run_rank(comm, &*work).map_err(|failure| (engine.failed_first(), failure))
        });
        (rank, thread)
    };
    let mut threads: BTreeMap<usize, JoinHandle<_>> =
        LocalEngine::on_machines(devices, machines, timeouts).into_iter().map(start).collect();

    let (mut results, mut failure, mut failed_at) = (BTreeMap::new(), None, None::<Instant>);
    let waited = timeouts.call.saturating_add(GRACE);
    while !threads.is_empty() {
        let rank = match failed_at {
            None => returned.recv().ok(),
            Some(at) => returned.recv_timeout(waited.saturating_sub(at.elapsed())).ok(),
        };
        let Some((rank, thread)) = rank.and_then(|rank| threads.remove_entry(&rank)) else { break };
        match thread.join().unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(result) => drop(results.insert(rank, result)),
            Err((first, other)) => {
                failed_at.get_or_insert_with(Instant::now);
                if first || failure.is_none() {
                    failure = Some(other);
                }
            }
        }
    }
    let stuck: Vec<usize> = threads.into_keys().collect();
    match failure {
        None => Ok(results.into_values().collect()),
        Some(failure) if stuck.is_empty() => Err(failure),
        Some(failure) => Err(RankFailure::Stuck { failure: Box::new(failure), stuck, waited }),
    }
}

/// Reports that a rank's thread has ended, however it ended.
struct End {
    rank: usize,
    back: mpsc::Sender<usize>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.back.send(self.rank); // nobody waits for a rank that was left behind
    }
}

/// Runs one rank's `work` and notifies the other ranks if it fails.
pub(crate) fn run_rank<T, E: Error + 'static>(
    comm: Communicator,
    work: impl FnOnce(Communicator) -> Result<T, E>,
) -> Result<T, RankFailure<E>> {
    let rank = comm.rank();
    match catch_unwind(AssertUnwindSafe(|| comm.abort_on_failure(|| work(comm.clone())))) {
        Ok(result) => result.map_err(|source| RankFailure::Failed { rank, source }),
        Err(panic) => Err(RankFailure::Panicked { rank, message: panic_message(&*panic) }),
    }
}
