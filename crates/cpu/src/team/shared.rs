//! The state that a leader and its helpers share, separate from how they wait: the current loop, who is inside it, and
//! who helps.
//!
//! ```text
//! leader   publish ─> work ───────────> withdraw the loop ─> wait until nobody is inside ─> the loop's memory is free
//! helper   enter (finds the loop, is inside) ─> work ─> is no longer inside
//! helper   leave_unless_new: leaves and is no longer counted, unless there is a loop that it has not seen
//! ```

use super::sync::{AtomicUsize, Mutex, MutexGuard, spin_loop, yield_now};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Polls of a leader that waits for helpers before it yields its core once.
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

    /// Takes tasks until none is left. Does not unwind.
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
            self.next.store(self.tasks, Ordering::Relaxed); // the others can stop
            lock(&self.panic).get_or_insert(panic);
        }
    }

    /// Returns the panic of a task, if one panicked.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panic.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leader's helpers.
pub(super) struct Crew {
    state: Mutex<State>,
    /// Number of loops so far; helpers watch it for a new one.
    loops: AtomicUsize,
    /// Number of helpers inside the current loop.
    inside: AtomicUsize,
}

struct State {
    /// The current loop, valid as long as it is stored here or a helper is inside.
    current: Option<*const Loop<'static>>,
    /// Number of helpers that wait, work, or were requested from the pool.
    helpers: usize,
}

// SAFETY: the pointer is to a `Loop`, which is `Sync`.
unsafe impl Send for State {}

impl State {
    /// Removes one helper; returns whether it was the last one.
    fn leave(&mut self) -> bool {
        self.helpers -= 1;
        self.helpers == 0
    }
}

/// The current loop, until it is dropped; after that no helper is inside.
pub(super) struct Published<'a> {
    crew: &'a Crew,
    /// Number of helpers to ask for.
    pub missing: usize,
    /// Whether there were no helpers before, and some are asked for.
    pub first: bool,
}

impl Crew {
    pub fn new() -> Self {
        let state = State { current: None, helpers: 0 };
        Self { state: Mutex::new(state), loops: AtomicUsize::new(0), inside: AtomicUsize::new(0) }
    }

    /// Opens a loop to this many helpers. Returns `None` if another loop is open.
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

    /// Helps with a new loop, if there is one.
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
        // SAFETY: the loop was published, and its publisher waits until nobody is inside.
        unsafe { &*current }.work();
        self.inside.fetch_sub(1, Ordering::Release);
        true
    }

    /// Removes one helper; returns whether it was the last one.
    pub fn leave(&self) -> bool {
        lock(&self.state).leave()
    }

    /// Removes one helper unless there is a loop that it has not seen, because the leader counts on it for that loop.
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

/// Locks, ignoring poison: no holder of these locks panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
