//! A thousand worlds in which a rank fails. Alone in its program, because it counts the threads of the process.

mod common;

use comm::{Collective, CommError, Communicator, RankFailure, run_ranks};
use common::*;
use std::io;
use std::ops::ControlFlow;
use std::panic;
use std::sync::{Barrier, Mutex};
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

/// What happens in one world.
#[derive(Debug)]
struct Case {
    end: End,
    guilty: usize,
    /// Call in which the guilty rank is missed. None: each rank sends to the next one of its group, and receives.
    collective: Option<Collective>,
    /// Colors of the groups in which the call is made; in the world, if there are none.
    colors: Option<[usize; N]>,
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
            seed,
        }
    }

    fn timeout(&self) -> Duration {
        if self.end == End::Sleep { Duration::from_millis(20) } else { HANG }
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

    /// What the guilty rank does; breaks with its result, or goes on when the others have seen it asleep.
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

    /// Runs it; false if the machine held up an innocent rank as well, so that nobody can say who was late.
    fn run(&self) -> bool {
        let (ready, seen, started) = (Barrier::new(N), Mutex::new(vec![]), Instant::now());
        let result = run_ranks(ranks(N), self.timeout(), |comm| {
            let me = comm.rank();
            let group = self.colors.map_or_else(|| Ok(comm.clone()), |colors| comm.split(colors[me]));
            let group = group.map_err(io::Error::other);
            ready.wait();
            let group = group?;
            let start = Instant::now();
            if self.guilty == me {
                nap(self.seed, 300);
                if let ControlFlow::Break(result) = self.end(|| seen.lock().unwrap().len() == N - 1) {
                    return result;
                }
                return self.call(&group).and_then(|()| comm.barrier()).map_err(io::Error::other);
            }
            nap(self.seed + me as u64, 300);
            let entered = start.elapsed();
            // A group without the guilty rank may succeed; it is missed at the latest by all.
            let error = self.call(&group).and_then(|()| comm.barrier()).expect_err("a rank is missing");
            seen.lock().unwrap().push((me, entered, error.clone()));
            Err(io::Error::other(error))
        });
        let seen = seen.into_inner().unwrap();
        if self.end == End::Sleep
            && (seen.len() < N - 1 || seen.iter().any(|(_, entered, _)| *entered > self.timeout() / 2))
        {
            return false;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "waited {:?}", started.elapsed());
        assert_eq!(seen.len(), N - 1);
        for (me, _, error) in seen {
            let (reporter, named) = match &error {
                CommError::RankFailed { rank, failed, .. } => (*rank, vec![*failed]),
                CommError::Timeout { rank, missing, .. } => (*rank, missing.clone()),
                _ => panic!("{error}"),
            };
            assert_eq!((reporter, named), (me, vec![self.guilty]), "{error}");
        }
        let rank = match (self.end, result.expect_err("a rank has failed")) {
            (End::Error, RankFailure::Failed { rank, source }) if source.to_string() == "disk full" => rank,
            (End::Panic, RankFailure::Panicked { rank, message }) if message == "out of paper" => rank,
            // Those who are left report who is missing.
            (End::Leave | End::Sleep, RankFailure::Failed { rank, .. }) if rank != self.guilty => self.guilty,
            (_, failure) => panic!("{failure}"),
        };
        assert_eq!(rank, self.guilty);
        true
    }
}

/// Threads of this process, where the system tells.
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
    let (mut counted, mut void) = (0, 0);
    for seed in 0.. {
        let case = Case::new(seed);
        let done = panic::catch_unwind(panic::AssertUnwindSafe(|| case.run()));
        if done.unwrap_or_else(|_| panic!("{case:?}")) {
            counted += 1
        } else {
            void += 1
        }
        on_ranks(N, |comm| case.call(comm).unwrap());
        assert!(void <= 200, "the machine is too busy to say who is late");
        if counted == 1000 {
            break;
        }
    }
    println!("{void} cases in which the machine was late");
    // The system takes a moment to forget a thread that has been joined.
    for _ in 0..1000 {
        if threads() <= before {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?} threads before, {:?} now", before, threads());
}
