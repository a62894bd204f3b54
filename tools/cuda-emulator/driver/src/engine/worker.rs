//! The thread of a card that runs queued work, late and in an order that a seed chooses.
//!
//! Work starts when somebody waits for it or when it has lain for `KILN_EMULATED_LATE`. Among the heads of all queues
//! that are ready, the choice is the seed's. While a host thread waits, work that it does not wait for is, by the seed
//! too, left undone, or done first, or mixed in: each shows another kind of missing wait.

use super::run::Outcome;
use super::state::{Engine, Op, Others, Point, State};
use crate::contexts::Context;
use crate::errors::Code;
use crate::say::say;
use crate::settings::settings;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Starts the worker of a card.
pub fn start(engine: &'static Engine, card: usize) {
    let run = move || {
        loop {
            let (stream, context, op) = next(engine, card);
            run(engine, stream, &context, op);
        }
    };
    let thread = std::thread::Builder::new().name(format!("card {card}"));
    thread.spawn(run).expect("the system must give a thread for each card");
}

/// Waits for work that may start.
fn next(engine: &Engine, card: usize) -> (usize, Arc<Context>, Op) {
    let mut state = engine.lock();
    loop {
        let now = Instant::now();
        forget(&mut state);
        if let Some(stream) = choose(&mut state, card, now) {
            let queue = state.queues.get_mut(&stream).expect("the choice is among the queues");
            queue.running = true;
            let op = queue.ops.pop_front().expect("the choice has work");
            return (stream, queue.context.clone(), op);
        }
        let pause = pause(&state, card, now);
        state = match pause {
            None => engine.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
            Some(time) => engine.changed.wait_timeout(state, time).unwrap_or_else(|poisoned| poisoned.into_inner()).0,
        };
    }
}

/// Drops the wishes of those who only asked, once they are met.
fn forget(state: &mut State) {
    let mut waiters = std::mem::take(&mut state.waiters);
    waiters.retain(|(id, waiter)| {
        let open = |(&stream, &seq): (&usize, &u64)| !state.is_done(Point { stream, seq });
        *id != 0 || waiter.need.iter().any(open)
    });
    state.waiters = waiters;
}

/// Streams of the card whose next work may start, with its number and whether it has lain long enough.
fn ready(state: &State, card: usize, now: Instant) -> Vec<(usize, u64, bool)> {
    let own = state.queues.iter().filter(|(_, queue)| queue.context.card == card && !queue.running);
    own.filter_map(|(&stream, queue)| {
        let op = queue.ops.front()?;
        let free = op.after.iter().all(|&point| state.is_done(point))
            && (queue.context.check().is_err() || op.work.is_ready());
        free.then(|| (stream, op.seq, now.duration_since(op.queued) >= settings().late))
    })
    .collect()
}

fn choose(state: &mut State, card: usize, now: Instant) -> Option<usize> {
    let ready = ready(state, card, now);
    let waits = |&(stream, seq, _): &(usize, u64, bool)| {
        state.waiters.iter().any(|(_, waiter)| waiter.need.get(&stream).is_some_and(|&need| need >= seq))
    };
    let (needed, others): (Vec<_>, Vec<_>) = ready.iter().partition(|row| waits(row));
    // Who waits longest decides about the rest.
    let order = state.waiters.iter().find(|(id, _)| *id != 0).map(|(_, waiter)| waiter.others);
    let from: Vec<_> = match order {
        Some(Others::First) if !others.is_empty() => others,
        Some(Others::Mixed) => ready,
        Some(_) if !needed.is_empty() => needed,
        // Nothing of this card is waited for, or a waiter's work is not ready: age decides.
        _ => {
            let due = others.iter().any(|row| row.2);
            needed.into_iter().chain(others.into_iter().filter(|_| due)).collect()
        }
    };
    if from.is_empty() {
        return None;
    }
    Some(from[state.random.below(from.len())].0)
}

/// How long to sleep if nothing happens: until the next work has lain long enough, or a value in memory may have
/// changed.
fn pause(state: &State, card: usize, now: Instant) -> Option<Duration> {
    let own = state.queues.values().filter(|queue| queue.context.card == card && !queue.running);
    own.filter_map(|queue| Some((queue, queue.ops.front()?)))
        .filter_map(|(queue, op)| match queue.context.check().is_err() || op.work.is_ready() {
            false => Some(Duration::from_micros(200)),
            true if op.after.iter().all(|&point| state.is_done(point)) => {
                Some((op.queued + settings().late).saturating_duration_since(now).max(Duration::from_micros(50)))
            }
            // An edge to other work: its end is announced.
            true => None,
        })
        .min()
}

/// Does work so that a panic ends its context and not the card's thread, for which hosts would wait without end.
fn guarded(work: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        say("queued work: the emulator itself failed, see the panic above");
        Outcome::Failed(Code::UNKNOWN)
    })
}

fn run(engine: &'static Engine, stream: usize, context: &Arc<Context>, op: Op) {
    let Op { seq, work, .. } = op;
    // After a fault nothing of the context runs any more.
    if context.check().is_ok() {
        let outcome = guarded(|| work.run(context));
        // Before the end is announced: what the work holds may be unloaded then.
        drop(work);
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(code) => context.fail(code),
            Outcome::OnHost(call) => {
                // The function may wait for other host threads, so it must not hold up the card.
                std::thread::spawn(move || {
                    call();
                    finish(engine, stream, seq);
                });
                return;
            }
        }
    }
    finish(engine, stream, seq);
}

fn finish(engine: &Engine, stream: usize, seq: u64) {
    let mut state = engine.lock();
    if let Some(queue) = state.queues.get_mut(&stream) {
        queue.running = false;
        queue.done = seq;
        if queue.closed && queue.ops.is_empty() {
            state.queues.remove(&stream);
        }
    }
    drop(state);
    engine.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_queued_work_is_a_fault_of_its_context() {
        assert!(matches!(guarded(|| panic!("on purpose")), Outcome::Failed(Code::UNKNOWN)));
        assert!(matches!(guarded(|| Outcome::Done), Outcome::Done));
    }
}
