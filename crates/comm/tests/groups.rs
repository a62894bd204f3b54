//! Groups that are split off, and groups of meshes.

mod common;

use burn::tensor::Float;
use comm::{Axis, CommError, Communicator, Mesh, MeshShape, Reduce, run_ranks};
use common::*;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the world ranks of a group in its order; `me` is this rank's world number.
fn members(group: &Communicator, me: usize) -> Vec<usize> {
    let all = group.all_gather(ints(group, &[me as i64])).unwrap();
    int_values(all).into_iter().map(|rank| rank as usize).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_group_has_the_ranks_of_one_color_in_their_order(
        colors in prop::collection::vec((0..3usize, 0..2usize), 1..=6),
    ) {
        let (n, outer, inner) = (colors.len(), |rank: usize| colors[rank].0, |rank: usize| colors[rank]);
        on_ranks(n, |comm| {
            let me = comm.rank();
            let group = comm.split(outer(me)).unwrap();
            let expected: Vec<_> = (0..n).filter(|rank| outer(*rank) == outer(me)).collect();
            assert_eq!(members(&group, me), expected);
            assert_eq!((expected[group.rank()], group.world_size()), (me, expected.len()));

            // Nested groups make calls of their own; then the groups above them continue undisturbed.
            let nested = group.split(inner(me).1).unwrap();
            let expected_nested: Vec<_> = (0..n).filter(|rank| inner(*rank) == inner(me)).collect();
            for _ in 0..=inner(me).0 + inner(me).1 {
                assert_eq!(members(&nested, me), expected_nested);
            }
            assert_eq!(members(&group, me), expected);
            assert_eq!(members(comm, me), (0..n).collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_group_may_be_dropped_while_others_go_on(seed in any::<u64>()) {
        on_ranks(4, |comm| for round in 0..20 {
            let color = noise(seed ^ round, 2) as usize * comm.rank() % 2;
            let group = comm.split(color).unwrap();
            nap(seed ^ (round * 4 + comm.rank() as u64), 50);
            let sum = group.all_reduce(ints(comm, &[1]), Reduce::Sum).unwrap();
            assert_eq!(int_values(sum), [group.world_size() as i64]);
        });
    }

    #[test]
    fn an_axis_of_a_mesh_is_its_group_of_ranks(sizes in prop::collection::vec(1..4usize, 5)) {
        let mut sizes = sizes;
        while sizes.iter().product::<usize>() > 8 {
            *sizes.iter_mut().max().unwrap() -= 1;
        }
        let ep = sizes[2];
        let axes: Vec<_> = Axis::DENSE.into_iter().zip(sizes).chain([(Axis::Ep, ep)]).collect();
        let shape = MeshShape::new(&axes);
        on_ranks(shape.world_size(), |comm| {
            let (me, mesh) = (comm.rank(), Mesh::new(comm.clone(), shape).unwrap());
            for axis in Axis::DENSE.into_iter().chain(Axis::SPARSE) {
                let group = mesh.over(&[axis]).unwrap();
                assert_eq!(members(&group, me), shape.group(me, &[axis]), "{} of {shape}", axis.name());
                assert_eq!(group.rank(), shape.coordinate(me, axis));
            }
            let both = [Axis::DpReplicate, Axis::DpShard];
            assert_eq!(members(&mesh.over(&both).unwrap(), me), shape.group(me, &both), "{shape}");
            assert_eq!(members(&mesh.over(&[]).unwrap(), me), [me]);
            assert_eq!(members(mesh.world(), me), (0..shape.world_size()).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_world_and_its_groups_can_be_used_from_different_threads_at_once() {
    on_ranks(4, |comm| {
        let me = comm.rank();
        let pair = comm.split(me / 2).unwrap();
        let (across, other) = (comm.split(me % 2).unwrap(), 1 - pair.rank());
        let spin = |group: &Communicator, rounds: u64, expected: &[usize]| {
            for round in 0..rounds {
                nap(round * 4 + me as u64, 100);
                assert_eq!(members(group, me), expected);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| spin(comm, 60, &[0, 1, 2, 3]));
            scope.spawn(|| spin(&across, 90, &[me % 2, me % 2 + 2]));
            scope.spawn(|| {
                for round in 0..120 {
                    pair.send(ints(comm, &[me as i64 + 10 * round]), other).unwrap();
                    let expected = (me ^ 1) as i64 + 10 * round;
                    assert_eq!(int_values(pair.recv(other).unwrap()), [expected]);
                }
            });
        });
    });
}

#[test]
fn mail_stays_in_its_group() {
    on_ranks(2, |comm| {
        let (group, other) = (comm.split(7).unwrap(), 1 - comm.rank());
        comm.send(ints(comm, &[1]), other).unwrap();
        group.send(ints(comm, &[2]), other).unwrap();
        assert_eq!(int_values(group.recv(other).unwrap()), [2]);
        assert_eq!(int_values(comm.recv(other).unwrap()), [1]);
    });
}

#[test]
fn errors_of_groups_name_ranks_of_the_world() {
    let found = on_ranks(4, |comm| {
        let odd = comm.split(comm.rank() % 2).unwrap();
        if comm.rank() == 3 { odd.recv::<Float>(2).map(drop) } else { odd.barrier().and_then(|()| comm.barrier()) }
    });
    let reason = "recv from rank 2 on rank 3: there are only 2 ranks";
    for (rank, found) in found.into_iter().enumerate() {
        match found.unwrap_err() {
            CommError::BadArgument { rank: 3, .. } => assert_eq!(rank, 3),
            CommError::RankFailed { rank: reporter, failed: 3, reason: told, .. } => {
                assert_eq!((reporter, told), (rank, format!("failed: {reason}")));
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn who_is_late_is_named_also_to_those_that_wait_for_somebody_who_waits() {
    patiently(who_is_late_is_named);
}

fn who_is_late_is_named(timeout: Duration) {
    let start = Instant::now();
    // The first rank to time out must not blame rank 1 or 2, because they wait for rank 3 in other groups.
    for first in [[0, 1], [1, 2]] {
        let all_seen = Arc::new(Mutex::new(vec![]));
        let seen = all_seen.clone();
        let failure = run_ranks(ranks(4), timeout, move |comm| {
            let me = comm.rank();
            let pair = comm.split(if first.contains(&me) { 0 } else { 1 + me }).unwrap();
            if me == 3 {
                while seen.lock().unwrap().len() < 3 && start.elapsed() < HANG {
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(());
            }
            if me != first[0] {
                thread::sleep(timeout / 2);
            }
            let error = if me == first[0] { pair.barrier() } else { comm.barrier() }.unwrap_err();
            seen.lock().unwrap().push(error.clone());
            Err(error)
        });
        for error in std::mem::take(&mut *all_seen.lock().unwrap()) {
            match &error {
                CommError::Timeout { rank, missing, .. } => assert_eq!((*rank, &missing[..]), (first[0], &[3][..])),
                CommError::RankFailed { failed, .. } => assert_eq!(*failed, 3, "{error}"),
                _ => panic!("{error}"),
            }
        }
        assert!(failure.unwrap_err().to_string().ends_with(&format!("no sign of rank 3 within {timeout:?}")));
    }
}

#[test]
fn a_mesh_of_another_size_than_the_world_is_refused() {
    let shape = MeshShape::new(&[(Axis::DpShard, 2), (Axis::Tp, 2)]);
    for found in on_ranks(3, |comm| Mesh::new(comm.clone(), shape).map(drop)) {
        let error = found.unwrap_err().to_string();
        assert_eq!(error, "a mesh of dp_shard 2 x tp 2 has 4 ranks, but there are 3");
    }
}
