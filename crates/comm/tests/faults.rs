//! Behavior when ranks fail, leave, are late, disagree or pass invalid arguments.

mod common;

use burn::tensor::{DType, Float, Int, Tensor};
use comm::{
    Collective, CommError, Communicator, RankFailure, Reduce, TIMEOUT, Timeouts, run_ranks, run_ranks_on_machines,
};
use common::*;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq)]
enum End {
    Error,
    Panic,
    Leave,
    Sleep,
}

/// Four ranks on one machine, or two machines, numbered machine by machine or in turn.
const MACHINES: [[usize; 4]; 3] = [[0; 4], [0, 0, 1, 1], [0, 1, 0, 1]];

/// Ends one of four ranks before each collective. The others must learn its number at once.
fn the_others_learn_of(end: End, timeout: Duration) {
    let cases = MACHINES.into_iter().flat_map(|machines| COLLECTIVES.map(|collective| (machines, collective)));
    for (i, (machines, collective)) in cases.enumerate() {
        let (guilty, start) = (i % 4, Instant::now());
        let (ready, all_seen) = (Barrier::new(4), Arc::new(Mutex::new(vec![])));
        let seen = all_seen.clone();
        let result = run_ranks_on_machines(ranks(4), machines.to_vec(), timeout, move |comm| {
            ready.wait();
            call(&comm, collective, 8).unwrap();
            ready.wait(); // on several machines, a rank may be done while others are still in the call
            if comm.rank() == guilty {
                match end {
                    End::Error => return Err(io::Error::other("disk full")),
                    End::Panic => panic!("out of paper"),
                    End::Leave => return Ok(()),
                    End::Sleep => {
                        while seen.lock().unwrap().len() < 3 && start.elapsed() < HANG {
                            thread::sleep(Duration::from_millis(5));
                        }
                    }
                }
            }
            let error = call(&comm, collective, 8).unwrap_err();
            seen.lock().unwrap().push((comm.rank(), error.clone()));
            let again = call(&comm, Collective::Barrier, 1).unwrap_err();
            assert!(matches!(again, CommError::RankFailed { failed, .. } if failed == guilty), "{again}");
            Err(io::Error::other(error))
        });
        assert!(start.elapsed() < HANG, "waited {:?}", start.elapsed());

        let reason = match end {
            End::Error => "failed: disk full".into(),
            End::Panic => "failed: panicked: out of paper".into(),
            End::Leave => "left before the call was complete".into(),
            End::Sleep => format!("kept {collective} waiting for {timeout:?}"),
        };
        let seen = std::mem::take(&mut *all_seen.lock().unwrap());
        assert_eq!(seen.len(), if end == End::Sleep { 4 } else { 3 });
        for (rank, error) in seen {
            let named = CommError::RankFailed { rank, collective, failed: guilty, reason: reason.clone() };
            let waited = CommError::Timeout { rank, collective, missing: vec![guilty], timeout };
            assert!(error == named || (end == End::Sleep && error == waited), "{error}");
        }

        let failure = result.unwrap_err();
        let expected = match (end, &failure) {
            (End::Error, _) => format!("rank {guilty}: disk full"),
            (End::Panic, _) => format!("rank {guilty} panicked: out of paper"),
            (End::Leave, RankFailure::Failed { rank, .. }) => {
                format!("rank {rank}: {collective} on rank {rank}: rank {guilty} left before the call was complete")
            }
            (End::Sleep, RankFailure::Failed { rank, .. }) => {
                format!("rank {rank}: {collective} on rank {rank}: no sign of rank {guilty} within {timeout:?}")
            }
            (_, _) => "a failure of another kind".into(),
        };
        assert_eq!(failure.to_string(), expected);
        on_ranks(4, |comm| call(comm, collective, 8).unwrap());
    }
}

#[test]
fn a_rank_that_returns_an_error_is_named_to_the_others() {
    the_others_learn_of(End::Error, HANG);
}

#[test]
fn a_rank_that_panics_is_named_to_the_others() {
    the_others_learn_of(End::Panic, HANG);
}

#[test]
fn a_rank_that_leaves_early_is_named_to_the_others() {
    the_others_learn_of(End::Leave, HANG);
}

#[test]
fn a_rank_that_sleeps_past_the_timeout_is_named_to_the_others() {
    patiently(|timeout| the_others_learn_of(End::Sleep, timeout));
}

#[test]
fn a_rank_that_is_stuck_outside_of_a_call_is_left_behind_and_named() {
    let timeout = Duration::from_millis(200);
    let (release, stuck) = mpsc::channel::<()>();
    let stuck = Mutex::new(stuck);
    let (sender, caller) = mpsc::channel();
    thread::spawn(move || {
        let result = run_ranks(ranks(4), timeout, move |comm| match comm.rank() {
            1 => Err(io::Error::other("disk full")),
            // Like a write to a disk that does not respond: it does not return, whatever the others do.
            2 => stuck.lock().unwrap().recv().map_err(io::Error::other),
            _ => comm.barrier().map_err(io::Error::other),
        });
        let _ = sender.send(result.unwrap_err().to_string());
    });
    let failure = caller.recv_timeout(HANG).expect("run_ranks waits for ever for rank 2");
    assert_eq!(failure, "rank 1: disk full; rank 2 did not return within 5.2s");
    release.send(()).unwrap();
}

/// A state that is dropped only after all others have been told; `in_time` records that they were.
struct SlowToDrop {
    told: Arc<Mutex<Vec<(usize, CommError)>>>,
    in_time: Arc<AtomicBool>,
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        let start = Instant::now();
        let told = || self.told.lock().unwrap().len() == 3;
        while !told() && start.elapsed() < HANG {
            thread::sleep(Duration::from_millis(1));
        }
        self.in_time.store(told(), Ordering::Relaxed);
    }
}

#[test]
fn a_failure_is_told_before_the_rank_drops_what_it_holds() {
    for panics in [false, true] {
        let (all_told, in_time) = (Arc::new(Mutex::new(vec![])), Arc::new(AtomicBool::new(false)));
        let (told, told_in_time) = (all_told.clone(), in_time.clone());
        let result = run_ranks(ranks(4), HANG, move |comm| {
            if comm.rank() == 2 {
                let _state = SlowToDrop { told: told.clone(), in_time: told_in_time.clone() };
                return comm.abort_on_failure(|| match panics {
                    true => panic!("out of paper"),
                    false => Err(io::Error::other("disk full")),
                });
            }
            let error = comm.barrier().unwrap_err();
            told.lock().unwrap().push((comm.rank(), error));
            Ok(())
        });
        assert!(in_time.load(Ordering::Relaxed), "the others waited for the state to be dropped");
        let (reason, failure) = match panics {
            true => ("failed: panicked: out of paper", "rank 2 panicked: out of paper"),
            false => ("failed: disk full", "rank 2: disk full"),
        };
        assert_eq!(result.unwrap_err().to_string(), failure);
        for (rank, error) in std::mem::take(&mut *all_told.lock().unwrap()) {
            let (collective, reason) = (Collective::Barrier, reason.to_string());
            assert_eq!(error, CommError::RankFailed { rank, collective, failed: 2, reason });
        }
    }
}

#[test]
fn ranks_have_a_longer_time_until_all_have_met_once() {
    patiently(ranks_may_be_late_once);
}

fn ranks_may_be_late_once(call: Duration) {
    let (late, timeouts) = (4 * call, Timeouts { init: HANG, call });
    let failure = run_ranks(ranks(3), timeouts, move |comm| {
        for _ in 0..2 {
            if comm.rank() == 1 {
                thread::sleep(late);
            }
            comm.barrier()?;
        }
        Ok::<_, CommError>(())
    });
    let failure = failure.unwrap_err().to_string();
    assert!(failure.ends_with(&format!(": no sign of rank 1 within {call:?}")), "{failure}");

    let mail = run_ranks(ranks(2), timeouts, move |comm| {
        if comm.rank() == 0 {
            return comm.recv::<Float>(1).map(drop);
        }
        thread::sleep(late);
        comm.send(tensor(&comm, &[1.0]), 0)
    });
    mail.unwrap();
}

#[test]
fn a_rank_may_leave_once_it_has_the_last_result() {
    for seed in 0..200 {
        on_machines(&MACHINES[seed as usize % MACHINES.len()], move |comm| {
            nap(seed * 4 + comm.rank() as u64, 50);
            call(comm, COLLECTIVES[seed as usize % COLLECTIVES.len()], 8).unwrap();
        });
    }
}

#[test]
fn a_collective_that_is_aborted_under_way_succeeds_on_all_ranks_or_on_none() {
    for seed in 0..100 {
        let rounds = on_ranks(3, |comm| {
            thread::scope(|scope| {
                if comm.rank() == 0 {
                    scope.spawn(|| {
                        nap(seed, 3000);
                        comm.abort("interrupted");
                    });
                }
                (0..).take_while(|_| call(comm, Collective::AllGather, 1 << 15).is_ok()).count()
            })
        });
        assert!(rounds.iter().all(|done| *done == rounds[0]), "rounds done: {rounds:?}");
    }
}

#[test]
fn a_rank_that_comes_at_the_very_timeout_is_in_time_for_all_ranks_or_for_none() {
    let timeout = Duration::from_millis(2);
    for seed in 0..100 {
        let done = run_ranks(ranks(3), timeout, move |comm| {
            if comm.rank() == 1 {
                thread::sleep(timeout - Duration::from_micros(400));
                nap(seed, 600);
            }
            Ok::<_, CommError>(call(&comm, Collective::AllReduce(Reduce::Sum), 1 << 12).is_ok())
        });
        let done = done.unwrap();
        assert!(done.iter().all(|in_time| *in_time == done[0]), "in time: {done:?}");
    }
}

fn half(comm: &Communicator, len: usize) -> Tensor<1> {
    Tensor::<1>::ones([len], comm.device()).cast(DType::BF16)
}

#[test]
fn calls_that_do_not_match_are_an_error_on_every_rank_that_names_both() {
    type Call = fn(&Communicator) -> Result<(), CommError>;
    let table: [(Call, &str, Call, &str); 10] = [
        (
            |c| call(c, Collective::AllGather, 2),
            "all_gather of [2] F32",
            |c| call(c, Collective::AllGather, 3),
            "all_gather of [3] F32",
        ),
        (
            |c| c.all_reduce(Tensor::<1>::ones([6], c.device()), Reduce::Sum).map(drop),
            "all_reduce of [6] F32",
            |c| c.all_reduce(Tensor::<1>::ones([6], c.device()).cast(DType::F64), Reduce::Sum).map(drop),
            "all_reduce of [6] F64",
        ),
        (
            |c| call(c, Collective::AllReduce(Reduce::Sum), 4),
            "all_reduce of [4] F32",
            |c| call(c, Collective::AllReduce(Reduce::Max), 4),
            "all_reduce (max) of [4] F32",
        ),
        (|c| call(c, Collective::ReduceScatter, 3), "reduce_scatter of [3] F32", |c| c.barrier(), "barrier"),
        (
            |c| call(c, Collective::Broadcast(0), 1),
            "broadcast from rank 0 of [1] F32",
            |c| call(c, Collective::Broadcast(2), 1),
            "broadcast from rank 2 of [1] F32",
        ),
        (
            |c| c.gather(half(c, 2), 0).map(drop),
            "gather to rank 0 of BF16",
            |c| c.gather(ints(c, &[1]), 0).map(drop),
            "gather to rank 0 of I64",
        ),
        (|c| call(c, Collective::Gather(1), 1), "gather to rank 1 of F32", |c| c.barrier(), "barrier"),
        (
            |c| call(c, Collective::Scatter(0), 1),
            "scatter from rank 0",
            |c| call(c, Collective::Scatter(c.rank()), 1),
            "scatter from rank OTHER",
        ),
        (
            |c| call(c, Collective::AllToAll, 3),
            "all_to_all of F32",
            |c| c.all_to_all(half(c, 2), &[0, 1, 1]).map(drop),
            "all_to_all of BF16",
        ),
        (
            |c| call(c, Collective::Broadcast(1), 3),
            "broadcast from rank 1 of [3] F32",
            |c| c.broadcast(ints(c, &[1; 4]), 1).map(drop),
            "broadcast from rank 1 of [4] I64",
        ),
    ];
    for (most, first, odd, other) in table {
        for other_rank in [1, 2] {
            let other = other.replace("OTHER", &other_rank.to_string());
            let expected = CommError::Mismatch { first: first.into(), other_rank, other };
            let found = on_ranks(3, |comm| {
                let found = if comm.rank() == other_rank { odd(comm) } else { most(comm) };
                comm.barrier().unwrap(); // the ranks are still in step
                found
            });
            assert!(found.iter().all(|found| *found == Err(expected.clone())), "{found:?}");
        }
    }
}

/// Checks that `work` is refused as a bad argument on rank 1 of three ranks, and that the others, in a barrier, are
/// told the reason.
fn is_refused(
    collective: Collective,
    reason: &str,
    work: impl Fn(&Communicator) -> Result<(), CommError> + Send + Sync + 'static,
) {
    let expected = CommError::BadArgument { rank: 1, collective, reason: reason.into() };
    let found = on_ranks(3, |comm| if comm.rank() == 1 { work(comm) } else { comm.barrier() });
    for (rank, found) in found.into_iter().enumerate() {
        let (collective, reason) = (Collective::Barrier, format!("failed: {expected}"));
        let told = CommError::RankFailed { rank, collective, failed: 1, reason };
        assert_eq!(found, Err(if rank == 1 { expected.clone() } else { told }));
    }
    let result = run_ranks(ranks(3), TIMEOUT, move |comm| if comm.rank() == 1 { work(&comm) } else { comm.barrier() });
    assert_eq!(result.unwrap_err().to_string(), format!("rank 1: {expected}"));
}

#[test]
fn what_cannot_be_split_and_ranks_that_do_not_exist_are_bad_arguments() {
    let cannot = "5 elements cannot be split over 3 ranks";
    for _ in 0..50 {
        is_refused(Collective::ReduceScatter, cannot, |comm| call(comm, Collective::ReduceScatter, 5));
    }
    let to_and_from: [fn(usize) -> Collective; 5] =
        [Collective::Broadcast, Collective::Gather, Collective::Scatter, Collective::Send, Collective::Recv];
    for collective in to_and_from.map(|new| new(3)) {
        is_refused(collective, "there are only 3 ranks", move |comm| call(comm, collective, 2));
    }
    let sum = "chunks of [2] F32 cannot be added to a sum of [1] F32";
    is_refused(Collective::ReduceScatter, sum, |comm| {
        comm.reduce_scatter_onto(tensor(comm, &[1.0; 6]), Some(tensor(comm, &[0.0]))).map(drop)
    });
    is_refused(Collective::AllToAll, "2 counts for 3 ranks", |comm| {
        comm.all_to_all(tensor(comm, &[1.0; 6]), &[3, 3]).map(drop)
    });
    is_refused(Collective::AllToAll, "the counts add up to 5 of 6 elements", |comm| {
        comm.all_to_all(tensor(comm, &[1.0; 6]), &[3, 0, 2]).map(drop)
    });
}

#[test]
fn parts_that_are_missing_too_many_or_of_another_kind_are_bad_arguments() {
    let parts = |comm: &Communicator, n: usize| Some(vec![tensor(comm, &[1.0]); n]);
    let (mine, another) = (Collective::Scatter(1), Collective::Scatter(0));
    is_refused(mine, "2 parts for 3 ranks", move |comm| comm.scatter(parts(comm, 2), 1).map(drop));
    is_refused(mine, "the root gives no parts", |comm| comm.scatter::<Float>(None, 1).map(drop));
    is_refused(another, "only the root gives parts", move |comm| comm.scatter(parts(comm, 3), 0).map(drop));
    is_refused(Collective::Recv(1), "rank 1 sent [1] F32, another kind", |comm| {
        comm.send(tensor(comm, &[1.0]), 1).unwrap();
        comm.recv::<Int>(1).map(drop)
    });

    let found = on_ranks(2, |comm| match comm.rank() {
        0 => comm.scatter(Some(vec![tensor(comm, &[1.0]); 2]), 0).map(drop),
        _ => comm.scatter::<Int>(None, 0).map(drop),
    });
    let reason = "the root's part is of another kind than was asked for".into();
    assert_eq!(found, [Ok(()), Err(CommError::BadArgument { rank: 1, collective: another, reason })]);
}

#[test]
fn tensors_that_are_tracked_by_autodiff_are_bad_arguments() {
    let reason = "the tensor is tracked by autodiff: give its `inner()`";
    let tracked = |comm: &Communicator| Tensor::<1>::ones([6], comm.device()).autodiff().require_grad();
    for collective in COLLECTIVES.into_iter().filter(|it| *it != Collective::Barrier).chain([Collective::Send(0)]) {
        is_refused(collective, reason, move |comm| call_with(comm, collective, tracked(comm)));
        // Also refused on a single rank, where it would do no harm, so that what works on one rank works on many.
        let alone = match collective {
            Collective::Broadcast(_) => Collective::Broadcast(0),
            Collective::Gather(_) => Collective::Gather(0),
            Collective::Scatter(_) => Collective::Scatter(0),
            other => other,
        };
        let found = on_ranks(1, |comm| call_with(comm, alone, tracked(comm)));
        let refused = CommError::BadArgument { rank: 0, collective: alone, reason: reason.into() };
        assert_eq!(found, [Err(refused)]);
    }
}
