//! Ranks that are threads: what their collectives return, and what happens when one of them fails.

use burn::tensor::{DType, Device, Float, Tensor};
use comm::{Collective, CommError, Communicator, RankFailure, Reduce, TIMEOUT, run_ranks};
use proptest::prelude::*;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const COLLECTIVES: [Collective; 8] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::Broadcast(1),
    Collective::Gather(1),
    Collective::Scatter(1),
    Collective::AllToAll,
    Collective::Barrier,
];

/// Long enough that a test that waits for it is told from one that does not.
const HANG: Duration = Duration::from_secs(60);

fn ranks(n: usize) -> Vec<Device> {
    vec![Device::flex(); n]
}

/// The results of `work` on `n` ranks, which may be errors of collectives: these do not end the group.
fn on_ranks<T: Send>(n: usize, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    run_ranks(ranks(n), HANG, |comm| Ok::<_, CommError>(work(&comm))).unwrap()
}

fn tensor(comm: &Communicator, values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, comm.device())
}

/// Bits, so that equal means equal.
fn bits(tensor: Result<Tensor<1>, CommError>) -> Vec<u32> {
    tensor.unwrap().into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn call(comm: &Communicator, collective: Collective, len: usize) -> Result<(), CommError> {
    let ones = Tensor::<1>::ones([len], comm.device());
    match collective {
        Collective::AllGather => comm.all_gather(ones).map(drop),
        Collective::ReduceScatter => comm.reduce_scatter(ones).map(drop),
        Collective::AllReduce => comm.all_reduce(ones, Reduce::Sum).map(drop),
        Collective::Broadcast(root) => comm.broadcast(ones, root).map(drop),
        Collective::Gather(root) => comm.gather(ones, root).map(drop),
        Collective::Scatter(root) => {
            let parts = (comm.rank() == root).then(|| vec![ones; comm.world_size()]);
            comm.scatter(parts, root).map(drop)
        }
        Collective::AllToAll => {
            let counts = vec![len / comm.world_size(); comm.world_size()];
            comm.all_to_all(ones, &counts).map(drop)
        }
        Collective::Send(to) => comm.send(ones, to),
        Collective::Recv(from) => comm.recv::<Float>(from).map(drop),
        Collective::Barrier => comm.barrier(),
    }
}

/// Below `limit` and different for every `seed` (SplitMix64).
fn scatter(seed: u64, limit: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % limit
}

fn nap(seed: u64, limit: u64) {
    thread::sleep(Duration::from_micros(scatter(seed, limit)));
}

/// One tensor per rank, of a length that divides by the number of ranks.
fn inputs() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1..=5usize, 1..40usize)
        .prop_flat_map(|(n, len)| prop::collection::vec(prop::collection::vec(-1e3f32..1e3, n * len), n))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_gather_joins_the_inputs_in_rank_order(inputs in inputs()) {
        let joined = bits_of(&inputs.concat());
        for full in on_ranks(inputs.len(), |comm| bits(comm.all_gather(tensor(comm, &inputs[comm.rank()])))) {
            prop_assert_eq!(&full, &joined);
            for (own, input) in full.chunks(inputs[0].len()).zip(&inputs) {
                prop_assert_eq!(own, bits_of(input));
            }
        }
    }

    #[test]
    fn reduce_scatter_is_a_slice_of_all_reduce_and_the_same_every_time(inputs in inputs()) {
        let (n, len) = (inputs.len(), inputs[0].len());
        let run = |seed: u64| on_ranks(n, |comm| {
            nap(seed * 8 + comm.rank() as u64, 200); // ranks arrive in another order each time
            let input = tensor(comm, &inputs[comm.rank()]);
            (bits(comm.reduce_scatter(input.clone())), bits(comm.all_reduce(input, Reduce::Sum)))
        });
        let first = run(0);
        for (rank, (chunk, sum)) in first.iter().enumerate() {
            prop_assert_eq!(&chunk[..], &sum[rank * len / n..(rank + 1) * len / n]);
            prop_assert_eq!(sum, &first[0].1);
        }
        for (i, sum) in first[0].1.iter().enumerate() {
            let exact: f64 = inputs.iter().map(|input| f64::from(input[i])).sum();
            let size: f64 = inputs.iter().map(|input| f64::from(input[i].abs())).sum();
            let error = (f64::from(f32::from_bits(*sum)) - exact).abs();
            prop_assert!(error <= n as f64 * f64::from(f32::EPSILON) * size, "element {} is off by {}", i, error);
        }
        prop_assert!((1..4).all(|seed| run(seed) == first));
    }

    #[test]
    fn broadcast_gives_the_roots_tensor_to_all(inputs in inputs()) {
        for (root, expected) in inputs.iter().enumerate() {
            let found = on_ranks(inputs.len(), |comm| bits(comm.broadcast(tensor(comm, &inputs[comm.rank()]), root)));
            prop_assert!(found.iter().all(|found| *found == bits_of(expected)));
        }
    }

    #[test]
    fn no_rank_passes_a_barrier_before_all_have_reached_it(n in 1..=5usize, seed in any::<u64>()) {
        let reached = AtomicUsize::new(0);
        on_ranks(n, |comm| for round in 1..=8 {
            nap(seed ^ (round * 8 + comm.rank()) as u64, 100);
            reached.fetch_add(1, Ordering::SeqCst);
            comm.barrier().unwrap();
            let count = reached.load(Ordering::SeqCst);
            assert!(count >= round * n, "{count} of {} before barrier {round}", round * n);
        });
    }
}

#[test]
fn results_keep_the_dtype() {
    for dtype in [DType::F64, DType::BF16] {
        for [gathered, sum] in on_ranks(3, |comm| {
            let input = tensor(comm, &[comm.rank() as f32]).cast(dtype);
            [comm.all_gather(input.clone()).unwrap(), comm.all_reduce(input, Reduce::Sum).unwrap()]
        }) {
            assert_eq!([gathered.dtype(), sum.dtype()], [dtype; 2]);
            assert_eq!(gathered.cast(DType::F32).into_data().try_to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0]);
            assert_eq!(sum.cast(DType::F32).into_data().try_to_vec::<f32>().unwrap(), [3.0]);
        }
    }
}

#[test]
fn hundreds_of_rounds_stay_in_step_whoever_is_late() {
    let n = 4;
    on_ranks(n, |comm| {
        for round in 0..400u64 {
            let rank = comm.rank();
            if scatter(round * 64 + rank as u64, 4) == 0 {
                nap(round * 128 + rank as u64, 300);
            }
            let root = round as usize % n;
            let mine = tensor(comm, &[rank as f32, round as f32, 0.0, 1.0]);
            let (found, expected) = match round % 5 {
                0 => (comm.all_reduce(mine, Reduce::Sum), vec![6.0, 4.0 * round as f32, 0.0, 4.0]),
                1 => (comm.reduce_scatter(mine), vec![[6.0, 4.0 * round as f32, 0.0, 4.0][rank]]),
                2 => (comm.broadcast(mine, root), vec![root as f32, round as f32, 0.0, 1.0]),
                3 => (comm.all_gather(mine), (0..n).flat_map(|rank| [rank as f32, round as f32, 0.0, 1.0]).collect()),
                _ => (comm.barrier().map(|()| mine), vec![rank as f32, round as f32, 0.0, 1.0]),
            };
            assert_eq!(bits(found), bits_of(&expected), "round {round} on rank {rank}");
        }
    });
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Error,
    Panic,
    Leave,
    Sleep,
}

/// On four ranks, one comes to its end before each collective. The others must learn of it at once, and by name.
fn the_others_learn_of(end: End) {
    for (i, collective) in COLLECTIVES.into_iter().enumerate() {
        let (guilty, start) = (i % 4, Instant::now());
        let timeout = if end == End::Sleep { Duration::from_millis(300) } else { HANG };
        let (ready, seen) = (Barrier::new(4), Mutex::new(vec![]));
        let result = run_ranks(ranks(4), timeout, |comm| {
            ready.wait();
            call(&comm, collective, 8).unwrap();
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
        assert!(start.elapsed() < Duration::from_secs(10), "waited {:?}", start.elapsed());

        let reason = match end {
            End::Error => "failed: disk full".into(),
            End::Panic => "failed: panicked: out of paper".into(),
            End::Leave => "left before the call was complete".into(),
            End::Sleep => format!("kept {collective} waiting for 300ms"),
        };
        let seen = seen.into_inner().unwrap();
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
                format!("rank {rank}: {collective} on rank {rank}: no sign of rank(s) [{guilty}] within 300ms")
            }
            (_, RankFailure::Panicked { .. }) => "no panic".into(),
        };
        assert_eq!(failure.to_string(), expected);
        on_ranks(4, |comm| call(comm, collective, 8).unwrap());
    }
}

#[test]
fn a_rank_that_returns_an_error_is_named_to_the_others() {
    the_others_learn_of(End::Error);
}

#[test]
fn a_rank_that_panics_is_named_to_the_others() {
    the_others_learn_of(End::Panic);
}

#[test]
fn a_rank_that_leaves_early_is_named_to_the_others() {
    the_others_learn_of(End::Leave);
}

#[test]
fn a_rank_that_sleeps_past_the_timeout_is_named_to_the_others() {
    the_others_learn_of(End::Sleep);
}

#[test]
fn a_rank_may_leave_once_it_has_the_last_result() {
    for seed in 0..200 {
        on_ranks(4, |comm| {
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
        let done = run_ranks(ranks(3), timeout, |comm| {
            if comm.rank() == 1 {
                thread::sleep(timeout - Duration::from_micros(400));
                nap(seed, 600);
            }
            Ok::<_, CommError>(call(&comm, Collective::AllReduce, 1 << 12).is_ok())
        });
        let done = done.unwrap();
        assert!(done.iter().all(|in_time| *in_time == done[0]), "in time: {done:?}");
    }
}

#[test]
fn calls_that_do_not_match_are_an_error_on_every_rank_that_names_both() {
    type Call = fn(&Communicator) -> Result<(), CommError>;
    let table: [(Call, &str, Call, &str); 4] = [
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
        (|c| call(c, Collective::ReduceScatter, 3), "reduce_scatter of [3] F32", |c| c.barrier(), "barrier"),
        (
            |c| call(c, Collective::Broadcast(0), 1),
            "broadcast from rank 0 of [1] F32",
            |c| call(c, Collective::Broadcast(2), 1),
            "broadcast from rank 2 of [1] F32",
        ),
    ];
    for (most, first, odd, other) in table {
        for other_rank in [1, 2] {
            let expected = CommError::Mismatch { first: first.into(), other_rank, other: other.into() };
            let found = on_ranks(3, |comm| if comm.rank() == other_rank { odd(comm) } else { most(comm) });
            assert!(found.iter().all(|found| *found == Err(expected.clone())), "{found:?}");
        }
    }
}

#[test]
fn what_cannot_be_split_and_roots_that_do_not_exist_are_bad_arguments() {
    let table = [
        (Collective::ReduceScatter, 5, "5 elements cannot be split over 3 ranks"),
        (Collective::Broadcast(3), 2, "there are only 3 ranks"),
    ];
    for (collective, len, reason) in table {
        let error = |rank| CommError::BadArgument { rank, collective, reason: reason.into() };
        let found = on_ranks(3, |comm| call(comm, collective, len));
        assert_eq!(found, (0..3).map(|rank| Err(error(rank))).collect::<Vec<_>>());

        for _ in 0..100 {
            let result = run_ranks(ranks(3), TIMEOUT, |comm| {
                if comm.rank() == 1 { call(&comm, collective, len) } else { comm.barrier() }
            });
            assert_eq!(result.unwrap_err().to_string(), format!("rank 1: {}", error(1)));
        }
    }
}
