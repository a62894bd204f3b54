//! A loom model of the thread team: a leader and its helpers in every interleaving with at most three preemptions. It
//! checks that only threads inside a loop use the loop's memory, that every task runs once, and that every helper that
//! a leader counts on arrives.
#![cfg(test)]

#[path = "../../src/team/shared.rs"]
mod shared;

mod sync {
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::AtomicUsize;
    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::yield_now;
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use shared::{Crew, Loop};
use std::panic::resume_unwind;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Cells that tasks write without a lock: two concurrent writes to one cell, or a read that comes too early, fail the
/// model.
struct Cells<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: loom checks exactly this.
unsafe impl<const N: usize> Sync for Cells<N> {}

impl<const N: usize> Cells<N> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    fn add(&self, i: usize) {
        // SAFETY: loom reports concurrent use.
        self.0[i].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn all(&self) -> [usize; N] {
        // SAFETY: as above.
        std::array::from_fn(|i| self.0[i].with(|cell| unsafe { *cell }))
    }
}

/// Runs a loop on the leader, as `for_each` does, but does not ask the pool for helpers: they are already running.
fn run<const N: usize>(crew: &Crew, helpers: usize) {
    let cells = Cells::<N>::new();
    let task = |i: usize| cells.add(i);
    let share = Loop::new(&task, N);
    let published = crew.publish(&share, helpers).expect("there is no other loop");
    share.work();
    drop(published);
    assert!(share.into_panic().is_none());
    assert_eq!(cells.all(), [1; N], "every task once, and all are done");
}

/// Starts a helper that looks for a loop `times` times.
fn help(crew: &Arc<Crew>, times: usize) -> thread::JoinHandle<()> {
    let crew = crew.clone();
    thread::spawn(move || {
        let mut seen = 0;
        for _ in 0..times {
            crew.enter(&mut seen);
            thread::yield_now();
        }
    })
}

#[test]
fn every_task_is_done_once_before_the_leader_goes_on() {
    explore(|| {
        let crew = Arc::new(Crew::new());
        let helpers = [help(&crew, 1), help(&crew, 1)];
        run::<3>(&crew, 2);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

#[test]
fn a_loop_after_a_loop_finds_the_same_helper() {
    explore(|| {
        let crew = Arc::new(Crew::new());
        let helper = help(&crew, 3);
        run::<2>(&crew, 1);
        run::<2>(&crew, 1);
        helper.join().unwrap();
    });
}

#[test]
fn a_loop_inside_of_a_loop_runs_on_its_thread_alone() {
    explore(|| {
        let crew = Arc::new(Crew::new());
        let helper = help(&crew, 1);
        let cells = Cells::<2>::new();
        let leader = thread::current().id();
        let task = |i: usize| {
            let inner = |_: usize| cells.add(i);
            let share = Loop::new(&inner, 2);
            // A helper publishes nothing.
            let alone = thread::current().id() != leader || crew.publish(&share, 1).is_none();
            assert!(alone, "the outer loop is there");
            share.work();
            assert!(share.into_panic().is_none());
        };
        let share = Loop::new(&task, 2);
        let published = crew.publish(&share, 1).expect("there is no other loop");
        share.work();
        drop(published);
        assert!(share.into_panic().is_none());
        assert_eq!(cells.all(), [2; 2]);
        helper.join().unwrap();
    });
}

#[test]
fn a_panic_of_a_task_reaches_the_leader_when_all_have_left() {
    explore(|| {
        let crew = Arc::new(Crew::new());
        let helper = help(&crew, 1);
        let cells = Cells::<2>::new();
        let task = |i: usize| {
            cells.add(i);
            if i == 0 {
                resume_unwind(Box::new("task")); // without a message
            }
        };
        let share = Loop::new(&task, 2);
        let published = crew.publish(&share, 1).expect("there is no other loop");
        share.work();
        drop(published);
        let panic = share.into_panic().expect("the task panicked");
        assert_eq!(panic.downcast_ref(), Some(&"task"));
        assert!(cells.all()[0] == 1);
        helper.join().unwrap();
    });
}

/// A helper returns to the pool while the leader publishes a loop. Either it stays for the loop, or it is no longer
/// counted and the leader asks for another one.
#[test]
fn a_leader_has_the_helpers_that_it_counts_on() {
    explore(|| {
        let crew = Arc::new(Crew::new());
        let tasks = |_: usize| ();
        let first = Loop::new(&tasks, 0);
        let published = crew.publish(&first, 1).expect("there is no other loop");
        assert!(published.missing == 1 && published.first, "the helper below");
        drop(published);
        let helper = {
            let crew = crew.clone();
            thread::spawn(move || {
                let mut seen = 0;
                loop {
                    if !crew.enter(&mut seen)
                        && let Some(last) = crew.leave_unless_new(seen)
                    {
                        assert!(last);
                        return seen;
                    }
                }
            })
        };
        let second = Loop::new(&tasks, 1);
        let published = crew.publish(&second, 1).expect("there is no other loop");
        let missing = published.missing;
        assert_eq!(published.first, missing == 1);
        second.work();
        drop(published);
        let seen = helper.join().unwrap();
        assert_eq!(missing, usize::from(seen < 2), "it stays for the loop, or another one is asked for");
        if missing == 1 {
            assert!(crew.leave(), "the other one is counted");
        }
    });
}
