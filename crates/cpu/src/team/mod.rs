//! Loops over all threads of a pool, without waking a thread for each loop.
//!
//! A training step consists of several hundred short loops. A rayon thread that finds no work for a few microseconds
//! sleeps, and waking it takes longer than many of these loops. So the thread that runs the loops, the leader, asks the
//! pool for helpers once. Each helper waits up to 100 us for the next loop before it returns to the pool.
//! Meanwhile it also runs other jobs of the pool.
//!
//! ```text
//! leader   | loop 1 |  graph, shapes  | loop 2 |   nothing for longer   | loop 3, asks again
//! helper   | loop 1 | waits, par_iter | loop 2 | waits | back to the pool
//! ```
//!
//! Waiting takes a core from others, so helpers wait only while there is a core for each helper and for each leader
//! that has helpers.
//!
//! Threads share the state in `shared`; `loom/` runs it in every interleaving.

mod shared;

/// The primitives that [`shared`] uses; the model in `loom/` substitutes loom's.
mod sync {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::AtomicUsize;
    pub use std::sync::{Mutex, MutexGuard};
    pub use std::thread::yield_now;
}

use shared::{Crew, Loop};
use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a helper waits for the next loop: longer than the time between two operations, too short to be noticed.
const PATIENCE: Duration = Duration::from_micros(100);

/// Polls between two checks of the clock and of other demand for the core.
const POLLS: usize = 16;

/// Number of helpers, plus leaders that have any.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static CORES: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

thread_local! {
    /// The team that this thread leads.
    static TEAM: Arc<Team> = Team::new();
    /// Whether this thread is a helper.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with each of `0..tasks`, in any order, on all threads of the current pool. A loop inside another loop, or
/// inside a job that a helper runs in the meantime, runs on its own thread only.
///
/// # Panics
/// If `f` panics, with its panic, after all threads have left `f`.
pub fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    run(tasks, &f);
}

/// [`for_each`] without type parameters: it is compiled once, and not for each loop.
fn run(tasks: usize, f: &(dyn Fn(usize) + Sync)) {
    let helpers = rayon::current_num_threads().min(tasks).saturating_sub(1);
    if helpers == 0 || HELPS.get() {
        return (0..tasks).for_each(f);
    }
    let share = Loop::new(f, tasks);
    TEAM.with(|team| match team.crew.publish(&share, helpers) {
        Some(published) => {
            team.ask_for(published.missing, published.first);
            share.work();
            drop(published);
        }
        None => share.work(),
    });
    if let Some(panic) = share.into_panic() {
        resume_unwind(panic);
    }
}

/// A leader and its helpers.
struct Team {
    leader: ThreadId,
    crew: Crew,
}

impl Team {
    /// Makes the team of this thread.
    fn new() -> Arc<Self> {
        Arc::new(Self { leader: thread::current().id(), crew: Crew::new() })
    }

    /// Asks the pool for `missing` helpers; `first` if this leader had none.
    fn ask_for(self: &Arc<Self>, missing: usize, first: bool) {
        THREADS.fetch_add(missing + usize::from(first), Ordering::Relaxed);
        for _ in 0..missing {
            let team = self.clone();
            rayon::spawn(move || team.help());
        }
    }

    /// Runs a helper: the leader's loops, and jobs of the pool between them.
    fn help(&self) {
        // A thread that picks up this job while it waits for something else would then wait for the wrong thing.
        let last = if thread::current().id() != self.leader && !HELPS.replace(true) {
            let mut seen = 0;
            let last = loop {
                if let Some(last) = self.wait(&mut seen) {
                    break last;
                }
            };
            HELPS.set(false);
            last
        } else {
            self.crew.leave()
        };
        THREADS.fetch_sub(1 + usize::from(last), Ordering::Relaxed);
    }

    /// Waits for a loop and helps with it. If none came for too long, this helper has left; returns whether it was the
    /// last one.
    fn wait(&self, seen: &mut usize) -> Option<bool> {
        let mut since = Instant::now();
        loop {
            for _ in 0..POLLS {
                if self.crew.enter(seen) {
                    return None;
                }
                if rayon::yield_now() == Some(rayon::Yield::Executed) {
                    since = Instant::now();
                }
                std::hint::spin_loop();
            }
            if (THREADS.load(Ordering::Relaxed) > *CORES || since.elapsed() > PATIENCE)
                && let Some(last) = self.crew.leave_unless_new(*seen)
            {
                return Some(last);
            }
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn every_task_is_done_once_also_inside_of_a_loop_and_by_several_leaders() {
        let leaders: Vec<_> = (1..4).map(|threads| thread::spawn(move || pool(threads).install(count))).collect();
        leaders.into_iter().for_each(|leader| leader.join().unwrap());
        rayon::scope(|scope| (0..4).for_each(|_| scope.spawn(|_| count())));
    }

    fn count() {
        for round in 0..200 {
            let counts: Vec<_> = (0..round % 17).map(|_| AtomicUsize::new(0)).collect();
            for_each(counts.len(), |i| {
                for_each(3, |_| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 3));
            if round % 50 == 0 {
                thread::sleep(3 * PATIENCE); // the helpers leave
            }
        }
    }

    #[test]
    fn a_panic_of_a_task_is_that_of_the_loop() {
        pool(3).install(|| {
            for task in 0..20 {
                let panic = catch_unwind(|| for_each(20, |i| assert_ne!(i, task, "task")));
                assert!(panic.unwrap_err().downcast_ref::<String>().is_some_and(|text| text.contains("task")));
            }
            for_each(20, |_| ());
        });
    }
}
