use crate::{Communicator, LocalEngine};
use burn::tensor::Device;
use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// How long a rank waits for the others by default. Ranks that share a CPU can be a whole step apart.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The failure that ended a group of ranks: the first one, not what it led to on the others.
#[derive(Debug, thiserror::Error)]
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
}

/// Runs `work` on one thread per device and returns the results in rank order.
///
/// # Errors
/// When a rank returns an error or panics, the others are told ([`Communicator::abort`]), all threads are joined, and the
/// failure that came first is returned.
pub fn run_ranks<T, E, F>(devices: Vec<Device>, timeout: Duration, work: F) -> Result<Vec<T>, RankFailure<E>>
where
    T: Send,
    E: Error + Send + 'static,
    F: Fn(Communicator) -> Result<T, E> + Sync,
{
    std::thread::scope(|scope| {
        let threads: Vec<_> = LocalEngine::world(devices, timeout)
            .into_iter()
            .map(|engine| {
                let (work, engine) = (&work, Arc::new(engine));
                scope.spawn(move || {
                    run_rank(Communicator::new(engine.clone()), work)
                        .map_err(|failure| (engine.failed_first(), failure))
                })
            })
            .collect();

        let (mut results, mut first_failure) = (Vec::with_capacity(threads.len()), None);
        for thread in threads {
            match thread.join().unwrap_or_else(|panic| resume_unwind(panic)) {
                Ok(result) => results.push(result),
                Err((first, failure)) if first || first_failure.is_none() => first_failure = Some(failure),
                Err(_) => (),
            }
        }
        first_failure.map_or(Ok(results), Err)
    })
}

/// Runs one rank's `work`; where it fails, the others are told.
pub(crate) fn run_rank<T, E: Error + 'static>(
    comm: Communicator,
    work: impl FnOnce(Communicator) -> Result<T, E>,
) -> Result<T, RankFailure<E>> {
    let rank = comm.rank();
    let failure = match catch_unwind(AssertUnwindSafe(|| work(comm.clone()))) {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(source)) => RankFailure::Failed { rank, source },
        Err(panic) => RankFailure::Panicked { rank, message: panic_message(&*panic) },
    };
    comm.abort(&match &failure {
        RankFailure::Failed { source, .. } => source.to_string(),
        RankFailure::Panicked { message, .. } => format!("panicked: {message}"),
    });
    Err(failure)
}

/// What a panic that was caught says.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
