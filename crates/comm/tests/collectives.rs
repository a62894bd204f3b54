//! Results of the collectives on ranks that are threads.

mod common;

use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::Reduce;
use common::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Generates one tensor per rank, of a length that is a multiple of the number of ranks.
fn inputs() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1..=5usize, 1..40usize)
        .prop_flat_map(|(n, len)| prop::collection::vec(prop::collection::vec(-1e3f32..1e3, n * len), n))
}

/// Generates lengths to reduce: small ones, and those around 4096 and 8192 elements, where elements of 8 and 4 bytes
/// start to take two rounds.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0..40usize, 4090..4103usize, 8186..8199usize]
}

fn floats_of(seed: u64, rank: usize, len: usize) -> Vec<f64> {
    let float = |i| noise(seed ^ ((rank * 100_000 + i) as u64), 2_000_001) as f64 / 1e3 - 1e3;
    (0..len).map(|i| f64::from(float(i) as f32)).collect()
}

/// Generates integers up to +-2^`width`.
fn ints_of(seed: u64, rank: usize, len: usize, width: u32) -> Vec<i64> {
    let int = |i| noise(seed ^ ((rank * 100_000 + i) as u64), 2 << width) as i64 - (1 << width);
    (0..len).map(int).collect()
}

/// Iterates over the ranks' values of each element.
fn columns<T: Copy>(inputs: &[Vec<T>]) -> impl Iterator<Item = Vec<T>> {
    (0..inputs[0].len()).map(|i| inputs.iter().map(|input| input[i]).collect())
}

fn to_bits(tensor: Tensor<1>) -> Vec<u64> {
    tensor.into_data().iter::<f64>().map(f64::to_bits).collect()
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
            nap(seed * 8 + comm.rank() as u64, 200); // ranks arrive in a different order each time
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

    #[test]
    fn all_reduce_of_floats_adds_in_rank_order(
        n in 1..=5usize, len in lengths(), wide in any::<bool>(), seed in any::<u64>(),
    ) {
        let inputs: Vec<_> = (0..n).map(|rank| floats_of(seed, rank, len)).collect();
        let dtype = if wide { DType::F64 } else { DType::F32 };
        let round = |value: f64| if wide { value } else { f64::from(value as f32) };
        let sums: Vec<_> = columns(&inputs).map(|c| c.into_iter().reduce(|a, b| round(a + b)).unwrap()).collect();
        let means = sums.iter().map(|sum| round(sum / n as f64)).collect();
        let greatest = columns(&inputs).map(|c| c.into_iter().fold(f64::MIN, f64::max)).collect();
        let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let expected = [sums, means, greatest].map(bits);
        for found in on_ranks(n, |comm| [Reduce::Sum, Reduce::Mean, Reduce::Max].map(|how| {
            let data = TensorData::from(inputs[comm.rank()].as_slice());
            let mine = Tensor::<1>::from_data(data, (comm.device(), DType::F64)).cast(dtype);
            to_bits(comm.all_reduce(mine, how).unwrap())
        })) {
            prop_assert!(found == expected);
        }
    }

    #[test]
    fn all_reduce_of_integers_is_exact(
        n in 1..=5usize, len in lengths(), wide in any::<bool>(), seed in any::<u64>(),
    ) {
        let (dtype, width) = if wide { (DType::I64, 60) } else { (DType::I32, 28) };
        let inputs: Vec<_> = (0..n).map(|rank| ints_of(seed, rank, len, width)).collect();
        let sums: Vec<i64> = columns(&inputs).map(|c| c.iter().sum()).collect();
        let means = sums.iter().map(|sum| sum / n as i64).collect();
        let greatest = columns(&inputs).map(|c| *c.iter().max().unwrap()).collect();
        let expected = [sums, means, greatest];
        for found in on_ranks(n, |comm| [Reduce::Sum, Reduce::Mean, Reduce::Max].map(|how| {
            let result = comm.all_reduce(ints(comm, &inputs[comm.rank()]).cast(dtype), how).unwrap();
            assert_eq!(result.dtype(), dtype);
            int_values(result)
        })) {
            prop_assert!(found == expected);
        }
    }

    #[test]
    fn gather_brings_the_parts_to_the_root_and_scatter_brings_them_back(
        lens in prop::collection::vec(0..20usize, 1..=5), seed in any::<u64>(),
    ) {
        let n = lens.len();
        let inputs: Vec<_> = lens.iter().enumerate().map(|(rank, len)| ints_of(seed, rank, *len, 62)).collect();
        for root in 0..n {
            let found = on_ranks(n, |comm| {
                let parts = comm.gather(ints(comm, &inputs[comm.rank()]), root).unwrap();
                let gathered: Vec<_> = parts.iter().map(|part| int_values(part.clone())).collect();
                let back = comm.scatter((comm.rank() == root).then_some(parts), root).unwrap();
                (gathered, int_values(back))
            });
            for (rank, (gathered, back)) in found.into_iter().enumerate() {
                let expected: &[_] = if rank == root { &inputs } else { &[] };
                prop_assert_eq!(&gathered, expected);
                prop_assert_eq!(&back, &inputs[rank]);
            }
        }
    }

    #[test]
    fn all_to_all_transposes_the_parts_and_twice_is_nothing(
        counts in (1..=5usize).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(0..6usize, n), n)),
    ) {
        let n = counts.len();
        // Every element encodes its sender, its receiver and its index.
        let part = |from: usize, to: usize| (0..counts[from][to]).map(move |i| (from * 100 + to * 10 + i) as i64);
        let rows = |rank| (0..n).flat_map(|to| part(rank, to)).collect::<Vec<_>>();
        let found = on_ranks(n, |comm| {
            let (came, came_counts) = comm.all_to_all(ints(comm, &rows(comm.rank())), &counts[comm.rank()]).unwrap();
            let (back, back_counts) = comm.all_to_all(came.clone(), &came_counts).unwrap();
            [(int_values(came), came_counts), (int_values(back), back_counts)]
        });
        for (rank, [came, back]) in found.into_iter().enumerate() {
            let column = (0..n).map(|from| counts[from][rank]).collect();
            prop_assert_eq!(came, ((0..n).flat_map(|from| part(from, rank)).collect(), column));
            prop_assert_eq!(back, (rows(rank), counts[rank].clone()));
        }
    }

    #[test]
    fn recv_gets_what_each_rank_sent_in_its_order(n in 1..=4usize, seed in any::<u64>()) {
        const LETTERS: usize = 12;
        // Every rank sends to every rank, including itself, and receives in its own order.
        on_ranks(n, |comm| {
            let (me, mut read) = (comm.rank(), vec![0; n]);
            for letter in 0..LETTERS {
                for to in 0..n {
                    comm.send(ints(comm, &vec![(me * LETTERS + letter) as i64; letter]), to).unwrap();
                }
                nap(seed ^ (me * LETTERS + letter) as u64, 50);
            }
            for turn in 0..(n * LETTERS) as u64 {
                let first = noise(seed ^ (turn * 8 + me as u64), n as u64) as usize;
                let from = (first..first + n).map(|from| from % n).find(|from| read[*from] < LETTERS).unwrap();
                let expected = vec![(from * LETTERS + read[from]) as i64; read[from]];
                assert_eq!(int_values(comm.recv(from).unwrap()), expected);
                read[from] += 1;
            }
        });
    }
}

#[test]
fn what_goes_round_a_ring_comes_back() {
    let n = 5;
    on_ranks(n, |comm| {
        let (next, previous) = ((comm.rank() + 1) % n, (comm.rank() + n - 1) % n);
        let mut passing = tensor(comm, &[comm.rank() as f32, -0.0]);
        for step in 1..=n {
            comm.send(passing, next).unwrap();
            passing = comm.recv(previous).unwrap();
            let origin = ((comm.rank() + n - step) % n) as f32;
            assert_eq!(bits(Ok(passing.clone())), bits_of(&[origin, -0.0]));
        }
    });
}

#[test]
fn nothing_can_be_communicated_too() {
    on_ranks(3, |comm| {
        let nothing = || Tensor::<1, Int>::empty([0], comm.device());
        let parts = (comm.rank() == 1).then(|| vec![nothing(); 3]);
        let (rows, counts) = comm.all_to_all(nothing(), &[0; 3]).unwrap();
        assert_eq!(counts, [0; 3]);
        comm.send(nothing(), (comm.rank() + 1) % 3).unwrap();
        for found in [
            rows,
            comm.all_gather(nothing()).unwrap(),
            comm.reduce_scatter(nothing()).unwrap(),
            comm.all_reduce(nothing(), Reduce::Mean).unwrap(),
            comm.broadcast(nothing(), 1).unwrap(),
            comm.scatter(parts, 1).unwrap(),
            comm.recv((comm.rank() + 2) % 3).unwrap(),
        ] {
            assert_eq!(found.dims(), [0]);
        }
    });
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

/// In bf16, 256 + 1 is 256, and the largest fp16 value is 65504.
#[test]
fn sums_of_16_bits_are_added_in_32_and_rounded_once() {
    let n = 16;
    let values = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().collect::<Vec<f64>>();
    // Short and long tensors: one round, and two rounds with chunks.
    for (len, dtype, term) in [(n, DType::BF16, 257.0), (1 << 15, DType::BF16, 0.001), (n, DType::F16, 0.3)] {
        for found in on_ranks(n, |comm| {
            let mine = || Tensor::<1>::full([len], term, comm.device()).cast(dtype);
            let found = [
                comm.all_reduce(mine(), Reduce::Sum).unwrap(),
                comm.reduce_scatter(mine()).unwrap(),
                comm.all_reduce(mine(), Reduce::Mean).unwrap(),
            ];
            assert!(found.iter().all(|sum| sum.dtype() == dtype));
            (values(mine())[0], found.map(values))
        }) {
            let (term, [sum, chunk, mean]) = found;
            // A sum of sixteen equal terms is exact.
            assert!(sum.iter().chain(&chunk).all(|sum| *sum == 16.0 * term), "{dtype:?}: {} and {}", sum[0], chunk[0]);
            assert!(mean.iter().all(|mean| *mean == term), "{dtype:?}: {}", mean[0]);
        }
    }
}

#[test]
fn sums_of_fp16_that_go_on_are_f32_and_have_its_range() {
    let n = 16;
    on_ranks(n, |comm| {
        let mine = || Tensor::<1>::full([n], 60_000.0, comm.device()).cast(DType::F16);
        let sum = comm.reduce_scatter_onto(mine(), None).unwrap();
        let sum = comm.reduce_scatter_onto(mine(), Some(sum)).unwrap();
        assert_eq!(sum.dtype(), DType::F32);
        assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [2.0 * 16.0 * 60_000.0]);
        let mean = comm.all_reduce(mine(), Reduce::Mean).unwrap().into_data();
        assert!(mean.iter::<f32>().all(|mean| mean == 60_000.0));
    });
}

#[test]
fn hundreds_of_rounds_stay_in_step_whoever_is_late() {
    let n = 4;
    on_ranks(n, |comm| {
        for round in 0..400u64 {
            let rank = comm.rank();
            if noise(round * 64 + rank as u64, 4) == 0 {
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
