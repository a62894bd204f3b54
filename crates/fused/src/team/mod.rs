//! Loops over all threads of a pool, without waking a thread for each loop.
//!
//! A training step is some hundred short loops, and a thread of rayon's that finds nothing to do for some microseconds
//! sleeps: to wake it takes longer than many a loop. So the thread that runs the loops, the leader, asks the pool for
//! helpers once, and each of them waits for the next loop for up to [`PATIENCE`] before it goes back to the pool.
//! Meanwhile it also does what else is to do in the pool.
//!
//! ```text
//! leader   | loop 1 |  graph, shapes  | loop 2 |   nothing for longer   | loop 3, asks again
//! helper   | loop 1 | waits, par_iter | loop 2 | waits | back to the pool
//! ```
//!
//! Waiting takes a core from others, so helpers wait only while there is a core for each leader that has helpers and for
//! each of these.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a helper waits for the next loop: longer than what lies between two operations, shorter than one notices.
const PATIENCE: Duration = Duration::from_micros(100);

/// Polls between two looks at the clock and at what else wants the core.
const POLLS: usize = 16;

/// Helpers, and leaders that have any.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static CORES: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

thread_local! {
    /// Of this thread as a leader.
    static TEAM: Arc<Team> = Team::new();
    /// Whether this thread is a helper.
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with each of `0..tasks`, in any order, on all threads of the current pool; inside of another such loop, or of
/// what a helper does meanwhile, on this thread alone.
///
/// # Panics
/// If `f` does, with its panic, after all threads have left `f`.
pub(crate) fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    let helpers = rayon::current_num_threads().min(tasks).saturating_sub(1);
    if helpers == 0 || HELPS.get() {
        return (0..tasks).for_each(f);
    }
    let share = Loop { f: &f, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
    TEAM.with(|team| match team.publish(&share, helpers) {
        Some(published) => {
            share.work();
            drop(published);
        }
        None => share.work(),
    });
    if let Some(panic) = share.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// One loop: threads take the next task until none is left.
struct Loop<'a> {
    f: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Loop<'_> {
    /// Does not unwind.
    fn work(&self) {
        let all = AssertUnwindSafe(|| {
            loop {
                match self.next.fetch_add(1, Ordering::Relaxed) {
                    task if task < self.tasks => (self.f)(task),
                    _ => return,
                }
            }
        });
        if let Err(panic) = catch_unwind(all) {
            self.next.store(self.tasks, Ordering::Relaxed); // the others need not go on
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

/// What a leader and its helpers share.
struct Team {
    leader: ThreadId,
    state: Mutex<State>,
    /// The number of loops so far: helpers look here for a new one.
    loops: AtomicUsize,
    /// The helpers inside of the current loop.
    inside: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// The current loop, valid as long as it stands here or a helper is inside.
    current: Option<*const Loop<'static>>,
    /// The helpers that wait or work, or that the pool was asked for.
    helpers: usize,
}

// SAFETY: the pointer is to a `Loop`, which is `Sync`.
unsafe impl Send for State {}

impl State {
    /// One helper less.
    fn leave(&mut self) {
        self.helpers -= 1;
        THREADS.fetch_sub(1 + usize::from(self.helpers == 0), Ordering::Relaxed);
    }
}

/// The current loop until it is dropped: then no helper is inside.
struct Published<'a>(&'a Team);

impl Team {
    /// Of this thread.
    fn new() -> Arc<Self> {
        let leader = thread::current().id();
        Arc::new(Self { leader, state: Mutex::default(), loops: AtomicUsize::new(0), inside: AtomicUsize::new(0) })
    }

    /// Lets helpers, of which there shall be this many, into a loop; unless there is one already.
    fn publish<'a>(self: &'a Arc<Self>, share: &'a Loop<'_>, helpers: usize) -> Option<Published<'a>> {
        let mut state = lock(&self.state);
        if state.current.is_some() {
            return None;
        }
        state.current = Some(std::ptr::from_ref(share).cast());
        let published = Published(self);
        self.loops.fetch_add(1, Ordering::Release);
        let missing = helpers.saturating_sub(state.helpers);
        let leaders = usize::from(state.helpers == 0 && missing > 0);
        THREADS.fetch_add(missing + leaders, Ordering::Relaxed);
        state.helpers += missing;
        drop(state);
        for _ in 0..missing {
            let team = self.clone();
            rayon::spawn(move || team.help());
        }
        Some(published)
    }

    /// What a helper does: the leader's loops, and the pool's jobs between them.
    fn help(&self) {
        // Whoever takes this job while waiting for something else would wait for the wrong thing.
        if thread::current().id() != self.leader && !HELPS.replace(true) {
            let mut seen = 0;
            while self.wait(&mut seen) {}
            HELPS.set(false);
        } else {
            lock(&self.state).leave();
        }
    }

    /// Waits for a loop and helps; `false` if there was none for long, and then one helper less is counted.
    fn wait(&self, seen: &mut usize) -> bool {
        let mut since = Instant::now();
        loop {
            for _ in 0..POLLS {
                if self.enter(seen) {
                    return true;
                }
                if rayon::yield_now() == Some(rayon::Yield::Executed) {
                    since = Instant::now();
                }
                std::hint::spin_loop();
            }
            if THREADS.load(Ordering::Relaxed) > *CORES || since.elapsed() > PATIENCE {
                let mut state = lock(&self.state);
                // A loop that was published meanwhile counts on this helper.
                if self.loops.load(Ordering::Relaxed) == *seen {
                    state.leave();
                    return false;
                }
            }
            thread::yield_now();
        }
    }

    /// Helps with a loop that is new, if there is one.
    fn enter(&self, seen: &mut usize) -> bool {
        let loops = self.loops.load(Ordering::Acquire);
        if loops == *seen {
            return false;
        }
        *seen = loops;
        let state = lock(&self.state);
        let Some(current) = state.current else { return false };
        self.inside.fetch_add(1, Ordering::Relaxed);
        drop(state);
        // SAFETY: it was published, and whoever published it waits until nobody is inside.
        unsafe { &*current }.work();
        self.inside.fetch_sub(1, Ordering::Release);
        true
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).current = None;
        let mut polls = 0;
        while self.0.inside.load(Ordering::Acquire) > 0 {
            polls += 1;
            if polls % (64 * POLLS) == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Nothing that holds one of these locks panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
