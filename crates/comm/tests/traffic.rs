//! The metered traffic of each rank against the closed forms in the crate's documentation.

mod common;

use burn::tensor::{DType, Float, Tensor};
use comm::{Axis, Communicator, Mesh, MeshShape, Reduce, Traffic, TrafficTable};
use common::*;
use proptest::prelude::*;

/// Returns the calls and bytes of all metered collectives.
fn metered(comm: &Communicator) -> Vec<(&'static str, u64, u64)> {
    let count = |(name, Traffic { calls, bytes, .. }): (_, Traffic)| (name, calls, bytes);
    comm.traffic().0.into_iter().map(count).collect()
}

/// Returns the control messages of all metered collectives.
fn control(comm: &Communicator) -> Vec<(&'static str, u64)> {
    comm.traffic().0.into_iter().map(|(name, traffic)| (name, traffic.control)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_rank_receives_the_bytes_of_the_closed_forms(
        n in 2..=5usize, len in 0..9000usize, calls in 1..3usize, root in 0..2usize, dtype in prop_oneof![
            Just(DType::F32), Just(DType::F64), Just(DType::BF16),
        ],
    ) {
        // `full` is the length of a whole tensor, `len` that of a shard.
        let full = n * len;
        let bytes = |elements: usize| (elements * dtype.size()) as u64;
        let count = |from: usize, to: usize| len * (from + 2 * to) / 16;
        let found = on_ranks(n, |comm| {
            let me = comm.rank();
            let ones = |len| Tensor::<1>::ones([len], comm.device()).cast(dtype);
            let counts: Vec<_> = (0..n).map(|to| count(me, to)).collect();
            for _ in 0..calls {
                comm.all_gather(ones(len)).unwrap();
                comm.reduce_scatter(ones(full)).unwrap();
                comm.all_reduce(ones(full), Reduce::Sum).unwrap();
                comm.broadcast(ones(full), root).unwrap();
                comm.gather(ones(len), root).unwrap();
                comm.scatter((me == root).then(|| vec![ones(len); n]), root).unwrap();
                comm.all_to_all(ones(counts.iter().sum()), &counts).unwrap();
                comm.send(ones(len), (me + 1) % n).unwrap();
                comm.send(ones(1), me).unwrap();
                comm.recv::<Float>((me + n - 1) % n).unwrap();
                comm.recv::<Float>(me).unwrap();
                comm.barrier().unwrap();
            }
            (metered(comm), control(comm))
        });
        let others = (n - 1) as u64;
        let (shard, whole) = (bytes(len), bytes(full));
        for (rank, (found, control)) in found.into_iter().enumerate() {
            let (on_root, elsewhere) = if rank == root { (1, 0) } else { (0, 1) };
            let came = (0..n).filter(|from| *from != rank).map(|from| bytes(count(from, rank))).sum();
            let all_reduce = if whole <= 32 * 1024 { others * whole } else { 2 * others * whole / n as u64 };
            let expected = [
                ("all_gather", 1, others * shard),
                ("all_reduce", 1, all_reduce),
                ("all_to_all", 1, came),
                ("barrier", 1, 0),
                ("broadcast", 1, elsewhere * whole),
                ("gather", 1, on_root * others * shard),
                ("recv", 2, shard),
                ("reduce_scatter", 1, others * whole / n as u64),
                ("scatter", 1, elsewhere * shard),
                ("send", 2, 0),
            ];
            let expected = expected.map(|(name, each, bytes)| (name, each * calls as u64, bytes * calls as u64));
            prop_assert_eq!(found, expected);
            // One post per round, for any number of ranks; point-to-point messages need none.
            let rounds = |name| match name {
                "send" | "recv" => 0,
                "all_reduce" if whole > 32 * 1024 => 2,
                _ => 1,
            };
            prop_assert_eq!(control, expected.map(|(name, ..)| (name, rounds(name) * calls as u64)));
        }
    }
}

#[test]
fn a_large_all_reduce_that_does_not_divide_pads_to_the_next_multiple() {
    let found = on_ranks(3, |comm| {
        comm.all_reduce(Tensor::<1>::ones([10_000], comm.device()), Reduce::Max).unwrap();
        metered(comm)
    });
    assert!(found.iter().all(|found| *found == [("all_reduce", 1, 4 * 4 * 3334)]), "{found:?}");
}

#[test]
fn groups_and_clones_meter_together_and_a_rank_alone_meters_nothing() {
    let found = on_ranks(4, |comm| {
        let (pair, alone) = (comm.split(comm.rank() / 2).unwrap(), comm.split(comm.rank()).unwrap());
        comm.clone().barrier().unwrap();
        for group in [&pair, &alone] {
            group.all_reduce(tensor(comm, &[1.0; 5]), Reduce::Sum).unwrap();
        }
        assert_eq!(pair.traffic(), alone.traffic());
        metered(comm)
    });
    // Both splits gather the colors of the other three ranks, 8 bytes each.
    let expected = [("all_gather", 2, 2 * 3 * 8), ("all_reduce", 1, 20), ("barrier", 1, 0)];
    assert!(found.iter().all(|found| *found == expected), "{found:?}");
}

#[test]
fn groups_of_a_mesh_are_metered_by_its_axes() {
    let shape = MeshShape::new(&[(Axis::DpShard, 2), (Axis::Tp, 2)]);
    let found = on_ranks(4, |comm| {
        let mesh = Mesh::new(comm.clone(), shape).unwrap();
        let [all, tp, alone] =
            [&[Axis::Tp, Axis::Cp, Axis::DpShard][..], &[Axis::Tp], &[Axis::Pp]].map(|axes| mesh.over(axes).unwrap());
        all.all_reduce(tensor(comm, &[1.0; 5]), Reduce::Sum).unwrap();
        tp.split(0).unwrap().all_gather(tensor(comm, &[1.0; 3])).unwrap();
        alone.all_gather(tensor(comm, &[1.0; 3])).unwrap();
        let of = |(axes, table): (String, TrafficTable)| (axes, table.0.values().map(|traffic| traffic.bytes).sum());
        comm.traffic_by_axes().into_iter().map(of).collect::<Vec<(String, u64)>>()
    });
    // The split of the pair gathers the other rank's color (8 bytes), and then its three numbers arrive (12 bytes).
    let expected = [("dp_shard x tp".into(), 60), ("tp".into(), 8 + 12), ("world".into(), 3 * 3 * 8)];
    assert!(found.iter().all(|found| *found == expected), "{found:?}");
}
