//! The order in which a rank's threads queue calls of several groups on its GPU: the same on all ranks.
//!
//! If two ranks queued the calls of two communicators in different orders, each GPU could wait for the other. The ranks
//! of a call therefore agree on a number for it. Each proposes one greater than all that it has seen, and the greatest
//! counts. A rank queues a call when no other call can still get a smaller number: those that wait for their number get
//! at least what this rank has proposed. A call enters once all its ranks are in it, so nobody waits long for a number.
//!
//! ```text
//!           thread 1       thread 2
//! rank 0    a proposes 1   b proposes 2    a gets max(1, 2) = 2, b gets max(2, 1) = 2
//! rank 1    a proposes 2   b proposes 1    equal numbers: by group, so both queue a, then b
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The calls of a rank, over all its groups, that are not queued yet.
#[derive(Default)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The greatest number seen.
    clock: i64,
    entered: u64,
    /// By order of entering.
    calls: BTreeMap<u64, Number>,
}

/// A call's number: at first the rank's proposal. Groups differ where numbers are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    value: i64,
    group: u64,
}

/// A call, which is queued or given up when this is dropped.
pub struct Turn {
    turns: Arc<Turns>,
    place: u64,
    /// What this rank proposes.
    pub proposal: i64,
}

/// How often a thread that waits for its turn makes its check.
const NAP: Duration = Duration::from_millis(1);

impl Turns {
    /// Enters a call of a group.
    pub fn enter(self: &Arc<Self>, group: u64) -> Turn {
        let mut state = self.lock();
        state.clock += 1;
        state.entered += 1;
        let (place, proposal) = (state.entered, state.clock);
        state.calls.insert(place, Number { value: proposal, group });
        Turn { turns: self.clone(), place, proposal }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Notes the number on which the call's ranks have agreed. Other calls may have waited for it.
    pub fn agree(&self, value: i64) {
        let mut state = self.turns.lock();
        state.clock = state.clock.max(value);
        if let Some(number) = state.calls.get_mut(&self.place) {
            number.value = value;
        }
        drop(state);
        self.turns.changed.notify_all();
    }

    /// Waits for the turn of this call, on whose number its ranks [have agreed](Self::agree).
    ///
    /// # Errors
    /// `check` fails, which is called meanwhile.
    pub fn wait<E>(&self, mut check: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.turns.lock();
        let mine = state.calls.get(&self.place).copied();
        while state.calls.iter().any(|(place, other)| *place != self.place && Some(*other) < mine) {
            state = self.turns.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
            check()?;
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().calls.remove(&self.place);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::{Barrier, mpsc};
    use std::thread;

    const GROUPS: u64 = 3;
    const CALLS: usize = 200;

    /// Runs one thread for each group on each of two ranks, and returns the order in which each rank has queued.
    fn orders() -> [Vec<(u64, usize)>; 2] {
        let ranks = [0, 1].map(|_| Arc::new(Turns::default()));
        let (mut logs, mut threads) = (vec![], vec![]);
        let agreements: Vec<_> =
            (0..GROUPS).map(|_| Arc::new((Barrier::new(2), [AtomicI64::new(0), AtomicI64::new(0)]))).collect();
        for (rank, turns) in ranks.iter().enumerate() {
            let (log, queued) = mpsc::channel();
            for group in 0..GROUPS {
                let (turns, log, agreement) = (turns.clone(), log.clone(), agreements[group as usize].clone());
                threads.push(thread::spawn(move || {
                    for call in 0..CALLS {
                        let turn = turns.enter(group);
                        agreement.1[rank].store(turn.proposal, Ordering::SeqCst);
                        agreement.0.wait();
                        let number = agreement.1.iter().map(|one| one.load(Ordering::SeqCst)).max().unwrap();
                        agreement.0.wait();
                        turn.agree(number);
                        turn.wait(|| Ok::<(), ()>(())).unwrap();
                        log.send((group, call)).unwrap();
                    }
                }));
            }
            logs.push(queued);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        logs.into_iter().map(|log| log.try_iter().collect()).collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn both_ranks_queue_the_calls_of_all_groups_in_one_order() {
        let [first, second] = orders();
        assert_eq!(first.len(), GROUPS as usize * CALLS);
        assert_eq!(first, second);
    }

    #[test]
    fn a_call_that_is_given_up_holds_up_no_other() {
        let turns = Arc::new(Turns::default());
        let (first, second) = (turns.enter(0), turns.enter(1));
        assert_eq!((first.proposal, second.proposal), (1, 2));
        second.agree(5);
        assert_eq!(second.wait(|| Err("first")), Err("first"));
        drop(first);
        assert_eq!(second.wait(|| Err("first")), Ok(()));
        assert_eq!(turns.enter(0).proposal, 6);
    }
}
