//! A thousand worlds in which a rank fails. The test has its own binary because it counts the process's threads.

mod common;

use comm::{Collective, CommError, Communicator, RankFailure, run_ranks_on_machines};
use common::*;
use std::io;
use std::ops::ControlFlow;
use std::panic;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const N: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Error,
    Panic,
    Leave,
    Sleep,
}

/// The events in one world.
#[derive(Debug, Clone)]
struct Case {
    end: End,
    guilty: usize,
    /// The call in which the guilty rank is missing. `None`: each rank sends to the next rank of its group and
    /// receives.
    collective: Option<Collective>,
    /// The colors of the groups that make the call; without colors the world makes it.
    colors: Option<[usize; N]>,
    /// The machine of each rank.
    machines: [usize; N],
    seed: u64,
}

impl Case {
    fn new(seed: u64) -> Self {
        let draw = |what: u64, limit: u64| noise(seed * 16 + what, limit) as usize;
        Self {
            end: [End::Error, End::Panic, End::Leave, End::Sleep][draw(0, 4)],
            guilty: draw(1, N as u64),
            collective: COLLECTIVES.get(draw(2, 9)).copied(),
            colors: (draw(3, 2) == 0).then(|| [4, 5, 6, 7].map(|rank| draw(rank, 3))),
            machines: [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]][draw(8, 3)],
            seed,
        }
    }

    fn call(&self, group: &Communicator) -> Result<(), CommError> {
        let (rank, n) = (group.rank(), group.world_size());
        match self.collective {
            Some(Collective::Broadcast(root)) => call(group, Collective::Broadcast(root % n), 12),
            Some(Collective::Gather(root)) => call(group, Collective::Gather(root % n), 12),
            Some(Collective::Scatter(root)) => call(group, Collective::Scatter(root % n), 12),
            Some(collective) => call(group, collective, 12),
            None => {
                call(group, Collective::Send((rank + 1) % n), 12)?;
                call(group, Collective::Recv((rank + n - 1) % n), 12)
            }
        }
    }

    /// Ends the guilty rank. Breaks with its result, or continues after the others have seen it asleep.
    fn end(&self, others_saw: impl Fn() -> bool) -> ControlFlow<io::Result<()>> {
        match self.end {
            End::Error => ControlFlow::Break(Err(io::Error::other("disk full"))),
            End::Panic => panic!("out of paper"),
            End::Leave => ControlFlow::Break(Ok(())),
            End::Sleep => {
                let start = Instant::now();
                while !others_saw() && start.elapsed() < HANG {
                    thread::sleep(Duration::from_millis(1));
                }
                ControlFlow::Continue(())
            }
        }
    }

    fn run(&self) {
        let run = |timeout| {
            if let Err(wrong) = self.try_run(timeout) {
                panic!("{self:?}: {wrong}");
            }
        };
        match self.end {
            End::Sleep => patiently(run),
            _ => run(HANG),
        }
    }

    /// Checks that every other rank and the caller were told who is guilty; the error says what they were told instead.
    fn try_run(&self, timeout: Duration) -> Result<(), String> {
        let (ready, all_seen) = (Barrier::new(N), Arc::new(Mutex::new(vec![])));
        let (case, seen) = (self.clone(), all_seen.clone());
        let result = run_ranks_on_machines(ranks(N), self.machines.to_vec(), timeout, move |comm| {
            let me = comm.rank();
            let group = case.colors.map_or_else(|| Ok(comm.clone()), |colors| comm.split(colors[me]));
            let group = group.map_err(io::Error::other);
            ready.wait();
            let group = group?;
            if case.guilty == me {
                nap(case.seed, 300);
                if let ControlFlow::Break(result) = case.end(|| seen.lock().unwrap().len() == N - 1) {
                    return result;
                }
                return case.call(&group).and_then(|()| comm.barrier()).map_err(io::Error::other);
            }
            nap(case.seed + me as u64, 300);
            // A group without the guilty rank may succeed; the barrier of all ranks misses it at the latest.
            let error = case.call(&group).and_then(|()| comm.barrier()).expect_err("a rank is missing");
            seen.lock().unwrap().push((me, error.clone()));
            Err(io::Error::other(error))
        });
        let seen = std::mem::take(&mut *all_seen.lock().unwrap());
        if seen.len() != N - 1 {
            return Err(format!("{} ranks were told, not {}", seen.len(), N - 1));
        }
        for (me, error) in seen {
            let told = match &error {
                CommError::RankFailed { rank, failed, .. } => (*rank, vec![*failed]),
                CommError::Timeout { rank, missing, .. } => (*rank, missing.clone()),
                _ => return Err(error.to_string()),
            };
            if told != (me, vec![self.guilty]) {
                return Err(format!("rank {me} was told: {error}"));
            }
        }
        match (self.end, result.expect_err("a rank has failed")) {
            (End::Error, RankFailure::Failed { rank, source })
                if rank == self.guilty && source.to_string() == "disk full" =>
            {
                Ok(())
            }
            (End::Panic, RankFailure::Panicked { rank, message })
                if rank == self.guilty && message == "out of paper" =>
            {
                Ok(())
            }
            // The remaining ranks report the missing one.
            (End::Leave | End::Sleep, RankFailure::Failed { rank, .. }) if rank != self.guilty => Ok(()),
            (_, failure) => Err(format!("the caller was told: {failure}")),
        }
    }
}

/// Returns the number of threads of this process, if the system provides it.
fn threads() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

#[test]
fn whoever_fails_in_whichever_call_is_named_to_all_and_nothing_is_left_behind() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some("out of paper") {
            report(info);
        }
    }));
    Case::new(0).run();
    let before = threads();
    for seed in 0..1000 {
        let case = Case::new(seed);
        case.run();
        let machines = case.machines;
        on_machines(&machines, move |comm| case.call(comm).unwrap());
    }
    // The system takes a moment to forget a joined thread.
    for _ in 0..1000 {
        if threads() <= before {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?} threads before, {:?} now", before, threads());
}
