//! What a leader and its helpers share, apart from how they wait: the loop at hand, who is inside, who helps.
//!
//! ```text
//! leader   publish ─> work ─────────────> take the loop away ─> wait until nobody is inside ─> the loop's memory is free
//! helper   enter (finds the loop, is inside) ─> work ─> is not inside any more
//! helper   leave_unless_new: goes, and is counted out, unless there is a loop that it has not seen
//! ```

use super::sync::{AtomicUsize, Mutex, MutexGuard, spin_loop, yield_now};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Polls of a leader that waits for helpers between two times that it gives its core away.
const POLLS: usize = 1024;

/// One loop: threads take the next task until none is left.
pub(super) struct Loop<'a> {
    f: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<'a> Loop<'a> {
    pub fn new(f: &'a (dyn Fn(usize) + Sync), tasks: usize) -> Self {
        Self { f, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) }
    }

    /// Does not unwind.
    pub fn work(&self) {
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

    /// The panic of a task, if one panicked.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panic.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leader's helpers.
pub(super) struct Crew {
    state: Mutex<State>,
    /// The number of loops so far: helpers look here for a new one.
    loops: AtomicUsize,
    /// The helpers inside of the current loop.
    inside: AtomicUsize,
}

struct State {
    /// The current loop, valid as long as it stands here or a helper is inside.
    current: Option<*const Loop<'static>>,
    /// The helpers that wait or work, or that the pool was asked for.
    helpers: usize,
}

// SAFETY: the pointer is to a `Loop`, which is `Sync`.
unsafe impl Send for State {}

impl State {
    /// One helper less; whether it was the last one.
    fn leave(&mut self) -> bool {
        self.helpers -= 1;
        self.helpers == 0
    }
}

/// The current loop until it is dropped: then no helper is inside.
pub(super) struct Published<'a> {
    crew: &'a Crew,
    /// Helpers that are to be asked for.
    pub missing: usize,
    /// Whether there was none before.
    pub first: bool,
}

impl Crew {
    pub fn new() -> Self {
        let state = State { current: None, helpers: 0 };
        Self { state: Mutex::new(state), loops: AtomicUsize::new(0), inside: AtomicUsize::new(0) }
    }

    /// Lets helpers, of which there shall be this many, into a loop; unless there is one already.
    pub fn publish<'a>(&'a self, share: &'a Loop<'_>, helpers: usize) -> Option<Published<'a>> {
        let mut state = lock(&self.state);
        if state.current.is_some() {
            return None;
        }
        state.current = Some(std::ptr::from_ref(share).cast());
        self.loops.fetch_add(1, Ordering::Release);
        let missing = helpers.saturating_sub(state.helpers);
        let first = state.helpers == 0 && missing > 0;
        state.helpers += missing;
        Some(Published { crew: self, missing, first })
    }

    /// Helps with a loop that is new, if there is one.
    pub fn enter(&self, seen: &mut usize) -> bool {
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

    /// One helper less; whether it was the last one.
    pub fn leave(&self) -> bool {
        lock(&self.state).leave()
    }

    /// The same, but not if there is a loop that this helper has not seen: it was counted on for that.
    pub fn leave_unless_new(&self, seen: usize) -> Option<bool> {
        let mut state = lock(&self.state);
        (self.loops.load(Ordering::Relaxed) == seen).then(|| state.leave())
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        lock(&self.crew.state).current = None;
        let mut polls = 0;
        while self.crew.inside.load(Ordering::Acquire) > 0 {
            polls += 1;
            if polls % POLLS == 0 {
                yield_now();
            }
            spin_loop();
        }
    }
}

/// Nothing that holds one of these locks panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
