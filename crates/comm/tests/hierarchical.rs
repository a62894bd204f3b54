//! Ranks that span machines: results, the order of sums, traffic by level, groups, and calls that do not match.

mod common;

use burn::tensor::{DType, Float, Int, Tensor, TensorData};
use comm::{Axis, Collective, CommError, Communicator, Kind, Mesh, MeshShape, Reduce, Traffic};
use common::*;
use proptest::prelude::*;

/// Generates the machine of each rank: H machines of g ranks, numbered machine by machine or in turn.
fn machines() -> impl Strategy<Value = Vec<usize>> {
    let sizes = prop::sample::select(vec![(2, 2), (3, 2), (2, 3), (4, 2)]);
    (sizes, any::<bool>()).prop_map(|((count, each), in_turn)| {
        (0..count * each).map(|rank| if in_turn { rank % count } else { rank / each }).collect()
    })
}

/// The ranks of each machine, in the order of the machines' lowest ranks.
fn ranks_by_machine(machines: &[usize]) -> Vec<Vec<usize>> {
    let mut numbers: Vec<usize> = vec![];
    for machine in machines {
        if !numbers.contains(machine) {
            numbers.push(*machine);
        }
    }
    let of = |number: &usize| (0..machines.len()).filter(|rank| machines[*rank] == *number).collect();
    numbers.iter().map(of).collect()
}

/// Adds first the ranks of each machine, then the machines.
fn sum_in_order<T: Copy>(values: &[T], machines: &[usize], add: impl Fn(T, T) -> T + Copy) -> T {
    let of_machine = |ranks: Vec<usize>| ranks.into_iter().map(|rank| values[rank]).reduce(add).unwrap();
    ranks_by_machine(machines).into_iter().map(of_machine).reduce(add).unwrap()
}

fn floats(seed: u64, rank: usize, len: usize) -> Vec<f64> {
    (0..len).map(|i| noise(seed ^ ((rank * 100_000 + i) as u64), 2_000_001) as f64 / 1e3 - 1e3).collect()
}

fn float_tensor(seed: u64, rank: usize, len: usize, dtype: DType) -> Tensor<1> {
    let data = TensorData::new(floats(seed, rank, len), [len]);
    Tensor::<1>::from_data(data, (&burn::tensor::Device::flex(), DType::F64)).cast(dtype)
}

/// Returns integers that use all bits of the dtype.
fn int_tensor(seed: u64, rank: usize, len: usize, dtype: DType) -> Tensor<1, Int> {
    let bits = 8 * dtype.size() as u32 - 4; // a sum of eight fits
    let int = |i: usize| (noise(seed ^ ((rank * 100_000 + i) as u64), 1 << bits)) as i64;
    let data = TensorData::new((0..len).map(int).collect::<Vec<_>>(), [len]);
    Tensor::<1, Int>::from_data(data, (&burn::tensor::Device::flex(), DType::I64)).cast(dtype)
}

/// Rounds as arithmetic in `dtype` does.
fn round(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => value,
        DType::F32 => f64::from(value as f32),
        DType::BF16 => half::bf16::from_f32(value as f32).to_f64(),
        _ => half::f16::from_f32(value as f32).to_f64(),
    }
}

fn numbers<K: Kind>(tensor: Tensor<1, K>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Lengths of shards: none, small, and so long that an `all_reduce` of all shards takes two rounds.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0..40usize, 2_040..2_060usize, 4_090..4_100usize]
}

/// Calls that move data without changing it, against the ranks' tensors. `tensor` makes the tensor of a rank.
fn moves<K: Kind>(
    comm: &Communicator,
    len: usize,
    counts: &[Vec<usize>],
    tensor: impl Fn(usize, usize) -> Tensor<1, K>,
) {
    let (me, n) = (comm.rank(), comm.world_size());
    let dtype = tensor(0, 0).dtype();
    let same = |found: Tensor<1, K>, expected: Tensor<1, K>, what: &str| {
        assert_eq!(found.dtype(), dtype, "{what}");
        assert_eq!(found.into_data(), expected.into_data(), "{what} of {dtype:?} on rank {me}");
    };
    let all = || Tensor::cat((0..n).map(|rank| tensor(rank, len)).collect(), 0);
    same(comm.all_gather(tensor(me, len)).unwrap(), all(), "all_gather");
    for root in 0..n {
        same(comm.broadcast(tensor(me, len), root).unwrap(), tensor(root, len), "broadcast");
        let gathered = comm.gather(tensor(me, len + me), root).unwrap();
        assert_eq!(gathered.len(), if me == root { n } else { 0 });
        for (from, found) in gathered.into_iter().enumerate() {
            same(found, tensor(from, len + from), "gather");
        }
        let parts = (me == root).then(|| (0..n).map(|to| tensor(to, len + to)).collect());
        same(comm.scatter(parts, root).unwrap(), tensor(me, len + me), "scatter");
    }
    let part = |from: usize, to: usize| tensor(from * n + to, counts[from][to]);
    let sent = Tensor::cat((0..n).map(|to| part(me, to)).collect(), 0);
    let (rows, came) = comm.all_to_all(sent, &counts[me]).unwrap();
    assert_eq!(came, (0..n).map(|from| counts[from][me]).collect::<Vec<_>>());
    same(rows, Tensor::cat((0..n).map(|from| part(from, me)).collect(), 0), "all_to_all");
    comm.send(tensor(me, len), (me + 1) % n).unwrap();
    same(comm.recv((me + n - 1) % n).unwrap(), tensor((me + n - 1) % n, len), "recv");
    comm.barrier().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn calls_that_move_tensors_of_any_dtype_are_those_on_one_machine(
        machines in machines(), len in lengths(), seed in any::<u64>(),
    ) {
        let n = machines.len();
        let count = move |from: usize, to: usize| noise(seed ^ (from * 31 + to) as u64, 7) as usize;
        let counts: Vec<Vec<usize>> = (0..n).map(|from| (0..n).map(|to| count(from, to)).collect()).collect();
        on_machines(&machines, move |comm| {
            for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
                moves::<Float>(comm, len, &counts, |rank, len| float_tensor(seed, rank, len, dtype));
            }
            for dtype in [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8] {
                moves::<Int>(comm, len, &counts, |rank, len| int_tensor(seed, rank, len, dtype));
            }
        });
    }

    #[test]
    fn floats_are_added_inside_machines_in_rank_order_and_then_across_and_rounded_once(
        machines in machines(), len in lengths(), seed in any::<u64>(),
        dtype in prop::sample::select(vec![DType::F64, DType::F32, DType::BF16, DType::F16]),
    ) {
        let (n, full) = (machines.len(), machines.len() * len);
        let added_in = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let inputs: Vec<_> = (0..n).map(|rank| numbers(float_tensor(seed, rank, full, dtype))).collect();
        let onto: Vec<f64> = numbers(float_tensor(!seed, 0, len, added_in));
        let column = |i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<_>>();
        let add = |a, b| round(a + b, added_in);
        let wide: Vec<f64> = (0..full).map(|i| sum_in_order(&column(i), &machines, add)).collect();
        let rounded = |values: Vec<f64>| values.into_iter().map(|value| round(value, dtype)).collect::<Vec<_>>();
        let sums = rounded(wide.clone());
        let means = rounded(wide.iter().map(|sum| round(sum / n as f64, added_in)).collect());
        let greatest: Vec<f64> = (0..full).map(|i| column(i).into_iter().fold(f64::MIN, f64::max)).collect();
        let machine_sums = |i: usize| ranks_by_machine(&machines).into_iter().map(move |ranks| {
            ranks.into_iter().map(|rank| column(i)[rank]).reduce(add).unwrap()
        }).collect::<Vec<_>>();
        let found = on_machines(&machines, move |comm| {
            let mine = || float_tensor(seed, comm.rank(), full, dtype);
            let reduced = [Reduce::Sum, Reduce::Mean, Reduce::Max].map(|how| comm.all_reduce(mine(), how).unwrap());
            let chunk = comm.reduce_scatter(mine()).unwrap();
            assert!(reduced.iter().chain([&chunk]).all(|found| found.dtype() == dtype));
            let onto = float_tensor(!seed, 0, len, added_in);
            let continued = comm.reduce_scatter_onto(mine(), Some(onto)).unwrap();
            assert_eq!(continued.dtype(), added_in);
            (reduced.map(numbers), numbers(chunk), numbers(continued))
        });
        for (rank, ([sum, mean, max], chunk, continued)) in found.into_iter().enumerate() {
            prop_assert!(sum == sums && mean == means && max == greatest);
            prop_assert_eq!(&chunk[..], &sums[rank * len..(rank + 1) * len]);
            let expected: Vec<f64> = (0..len)
                .map(|i| machine_sums(rank * len + i).into_iter().fold(onto[i], add))
                .collect();
            prop_assert_eq!(continued, expected);
        }
    }

    #[test]
    fn integers_are_added_exactly(
        machines in machines(), len in lengths(), seed in any::<u64>(),
        dtype in prop::sample::select(vec![DType::I64, DType::I32, DType::I16, DType::U32, DType::U8]),
    ) {
        let n = machines.len();
        let inputs: Vec<Vec<i64>> = (0..n).map(|rank| int_values(int_tensor(seed, rank, n * len, dtype))).collect();
        let column = |i: usize| inputs.iter().map(move |input| input[i]);
        let sums: Vec<i64> = (0..n * len).map(|i| column(i).sum()).collect();
        let means: Vec<i64> = sums.iter().map(|sum| sum / n as i64).collect();
        let greatest: Vec<i64> = (0..n * len).map(|i| column(i).max().unwrap()).collect();
        let found = on_machines(&machines, move |comm| {
            let mine = || int_tensor(seed, comm.rank(), n * len, dtype);
            let reduced = [Reduce::Sum, Reduce::Mean, Reduce::Max].map(|how| comm.all_reduce(mine(), how).unwrap());
            (reduced.map(int_values), int_values(comm.reduce_scatter(mine()).unwrap()))
        });
        for (rank, (reduced, chunk)) in found.into_iter().enumerate() {
            prop_assert_eq!(&reduced, &[sums.clone(), means.clone(), greatest.clone()]);
            prop_assert_eq!(&chunk[..], &sums[rank * len..(rank + 1) * len]);
        }
    }
}

#[test]
fn a_group_on_one_machine_or_with_one_rank_per_machine_adds_in_rank_order() {
    let values = [1e8f32, 1.0, -1e8, 1.0];
    for (machines, expected) in [([0; 4], 1.0), ([0, 1, 2, 3], 1.0), ([0, 0, 0, 1], 1.0), ([0, 0, 1, 1], 0.0)] {
        let found = on_machines(&machines, move |comm| {
            bits(comm.all_reduce(tensor(comm, &[values[comm.rank()]]), Reduce::Sum))
        });
        assert!(found.iter().all(|found| *found == bits_of(&[expected])), "{machines:?}: {found:?}");
    }
}

/// Checks the bytes that come to each rank inside its machine and across, against the closed forms.
#[test]
fn a_rank_receives_the_bytes_of_the_closed_forms_on_each_level() {
    for (count, each) in [(2, 2), (3, 2), (2, 3)] {
        let (h, g) = (count as u64, each as u64);
        let n = count * each;
        for (dtype, wider) in [(DType::F32, 1), (DType::F64, 1), (DType::BF16, 2)] {
            let len = 6_000; // 36 KB or more for all ranks: above what is all-reduced in one round
            let shard = (len * dtype.size()) as u64;
            let whole = n as u64 * shard;
            let small = (12 * dtype.size()) as u64; // n elements at least
            let part = 24 * dtype.size() as u64;
            let root = 1;
            for in_turn in [false, true] {
                let machines: Vec<usize> =
                    (0..n).map(|rank| if in_turn { rank % count } else { rank / each }).collect();
                let place = |rank: usize| if in_turn { rank / count } else { rank % each };
                let found = on_machines(&machines, move |comm| {
                    let ones = |len| Tensor::<1>::ones([len], comm.device()).cast(dtype);
                    comm.all_gather(ones(len)).unwrap();
                    comm.reduce_scatter(ones(n * len)).unwrap();
                    comm.broadcast(ones(n * len), root).unwrap();
                    comm.all_to_all(ones(n * 24), &vec![24; n]).unwrap();
                    comm.gather(ones(len), root).unwrap();
                    comm.send(ones(len), (comm.rank() + 1) % n).unwrap();
                    comm.recv::<Float>((comm.rank() + n - 1) % n).unwrap();
                    comm.barrier().unwrap();
                    let large = comm.split(0).unwrap(); // the splits are metered as calls of all_gather
                    large.all_reduce(ones(n * len), Reduce::Sum).unwrap();
                    let large = traffic(comm, "all_reduce");
                    comm.all_reduce(ones(12), Reduce::Sum).unwrap();
                    (comm.traffic().0, large)
                });
                for (rank, (table, large)) in found.into_iter().enumerate() {
                    let levels = |name| {
                        let Traffic { bytes, across, .. } = table[name];
                        (bytes - across, across)
                    };
                    let color = 8;
                    let expected = ((g - 1) * h * (shard + color), (h - 1) * (shard + color));
                    assert_eq!(levels("all_gather"), expected, "{count} x {each} {dtype:?}");
                    // (1 - 1/g) F inside; across, the (1 - 1/H) F of a machine are divided over its g ranks.
                    assert_eq!(((g - 1) * h * shard, (h - 1) * shard), ((whole - whole / g), (whole - whole / h) / g));
                    let scattered = (whole - whole / g, wider * (whole - whole / h) / g);
                    assert_eq!(levels("reduce_scatter"), scattered);
                    let gathered = (whole - whole / g, (whole - whole / h) / g);
                    assert_eq!(large, (scattered.0 + gathered.0, scattered.1 + gathered.1));
                    let all_reduce = levels("all_reduce");
                    let at_once = (wider * (g - 1) * small, wider * (h - 1) * small);
                    assert_eq!((all_reduce.0 - large.0, all_reduce.1 - large.1), at_once);
                    let broadcast = match (rank == root, place(rank) == place(root)) {
                        (true, _) => (0, 0),
                        (false, true) => (0, whole),
                        (false, false) => (whole, 0),
                    };
                    assert_eq!(levels("broadcast"), broadcast);
                    assert_eq!(levels("all_to_all"), ((g - 1) * part, (n as u64 - g) * part));
                    let gather = if rank == root { ((g - 1) * shard, (n as u64 - g) * shard) } else { (0, 0) };
                    assert_eq!(levels("gather"), gather);
                    let from_here = machines[(rank + n - 1) % n] == machines[rank];
                    assert_eq!(levels("recv"), if from_here { (shard, 0) } else { (0, shard) });
                }
            }
        }
    }
}

/// Returns the bytes of a call inside a machine and across.
fn traffic(comm: &Communicator, name: &str) -> (u64, u64) {
    let Traffic { bytes, across, .. } = comm.traffic().0[name];
    (bytes - across, across)
}

#[test]
fn groups_of_a_mesh_have_two_levels_where_they_span_machines_evenly() {
    // Machines of four ranks: tp and dp_shard x tp.. are inside, dp_replicate spans machines with one rank each.
    let shape = MeshShape::new(&[(Axis::DpReplicate, 2), (Axis::DpShard, 2), (Axis::Tp, 2)]);
    on_machines(&[0, 0, 0, 0, 1, 1, 1, 1], move |comm| {
        let mesh = Mesh::new(comm.clone(), shape).unwrap();
        let before = |comm: &Communicator| traffic(comm, "all_gather");
        for (axes, inside, across) in [
            (&[Axis::Tp][..], 1, 0),
            (&[Axis::DpShard, Axis::Tp], 3, 0),
            (&[Axis::DpReplicate], 0, 1),
            (&[Axis::DpReplicate, Axis::Tp], 2, 1),
            (&[Axis::DpReplicate, Axis::DpShard, Axis::Tp], 6, 1),
        ] {
            let group = mesh.over(axes).unwrap();
            let start = before(comm);
            let shards = group.all_gather(ints(comm, &[comm.rank() as i64])).unwrap();
            let members: Vec<_> = shape.group(comm.rank(), axes).into_iter().map(|rank| rank as i64).collect();
            assert_eq!(int_values(shards), members);
            let end = before(comm);
            assert_eq!((end.0 - start.0, end.1 - start.1), (8 * inside, 8 * across), "{axes:?}");
        }
    });
}

#[test]
fn calls_that_do_not_match_are_an_error_on_every_rank_and_the_ranks_stay_in_step() {
    type Call = fn(&Communicator) -> Result<(), CommError>;
    let table: [(Call, &str, Call, &str); 5] = [
        (
            |c| call(c, Collective::AllGather, 2),
            "all_gather of [2] F32",
            |c| call(c, Collective::AllGather, 3),
            "all_gather of [3] F32",
        ),
        (
            |c| call(c, Collective::AllReduce(Reduce::Sum), 4),
            "all_reduce of [4] F32",
            |c| call(c, Collective::AllReduce(Reduce::Max), 4),
            "all_reduce (max) of [4] F32",
        ),
        (|c| call(c, Collective::ReduceScatter, 4), "reduce_scatter of [4] F32", |c| c.barrier(), "barrier"),
        (
            |c| call(c, Collective::Broadcast(0), 1),
            "broadcast from rank 0 of [1] F32",
            |c| call(c, Collective::Broadcast(2), 1),
            "broadcast from rank 2 of [1] F32",
        ),
        (
            |c| call(c, Collective::AllToAll, 4),
            "all_to_all of F32",
            |c| c.all_to_all(ints(c, &[1; 4]), &[1; 4]).map(drop),
            "all_to_all of I64",
        ),
    ];
    for (most, first, odd, other) in table {
        for other_rank in [1, 3] {
            let expected = CommError::Mismatch { first: first.into(), other_rank, other: other.into() };
            let found = on_machines(&[0, 0, 1, 1], move |comm| {
                let found = if comm.rank() == other_rank { odd(comm) } else { most(comm) };
                comm.barrier().unwrap();
                call(comm, Collective::ReduceScatter, 8).unwrap();
                found
            });
            assert!(found.iter().all(|found| *found == Err(expected.clone())), "{found:?}");
        }
    }
}
