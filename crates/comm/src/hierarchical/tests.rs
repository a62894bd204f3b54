//! An `all_to_all` in two steps on groups for which it does not pay.

use super::*;
use crate::{Communicator, LocalEngine};
use all_to_all::SMALL_PART;
use burn::tensor::{DType, Int, Tensor, TensorData};
use proptest::prelude::*;
use std::thread;
use std::time::Duration;

/// Returns the results of `work` on ranks on these machines.
fn on_machines<T: Send>(machines: &[usize], work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let devices = vec![Device::flex(); machines.len()];
    let engines = LocalEngine::on_machines(devices, machines.to_vec(), Duration::from_secs(60));
    thread::scope(|scope| {
        let start = |engine| {
            let comm = Communicator::new(HierarchicalEngine::saving(Arc::new(engine), 0));
            let work = &work;
            scope.spawn(move || work(&comm))
        };
        let threads: Vec<_> = engines.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the bytes inside a machine and across.
fn levels(comm: &Communicator) -> (usize, usize) {
    let traffic = comm.traffic().0["all_to_all"];
    ((traffic.bytes - traffic.across) as usize, traffic.across as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_of_any_sizes_arrive_whole_and_in_order(
        (count, each, in_turn) in prop_oneof![Just((2, 2, false)), Just((3, 2, true)), Just((2, 3, false)), Just((2, 3, true))],
        sizes in prop::collection::vec(0..5usize, 36),
        large in prop::option::of(0..36usize),
        narrow in any::<bool>(),
    ) {
        let (n, dtype) = (count * each, if narrow { DType::I16 } else { DType::I64 });
        let machines: Vec<usize> = (0..n).map(|rank| if in_turn { rank % count } else { rank / each }).collect();
        // One part may be too large for two steps.
        let size = |from: usize, to: usize| match from * n + to {
            part if Some(part) == large => SMALL_PART,
            part => sizes[part],
        };
        let part = |from: usize, to: usize| (0..size(from, to)).map(move |i| (from * 1000 + to * 100 + i % 100) as i64);
        let found = on_machines(&machines, |comm| {
            let me = comm.rank();
            let rows: Vec<i64> = (0..n).flat_map(|to| part(me, to)).collect();
            let counts: Vec<usize> = (0..n).map(|to| size(me, to)).collect();
            let data = TensorData::new(rows.clone(), [rows.len()]);
            let tensor = Tensor::<1, Int>::from_data(data, (comm.device(), DType::I64)).cast(dtype);
            let (came, counts) = comm.all_to_all(tensor, &counts).unwrap();
            assert_eq!(came.dtype(), dtype);
            (came.into_data().iter::<i64>().collect::<Vec<_>>(), counts)
        });
        for (me, found) in found.into_iter().enumerate() {
            let rows = (0..n).flat_map(|from| part(from, me)).collect();
            prop_assert_eq!(found, (rows, (0..n).map(|from| size(from, me)).collect()));
        }
    }
}

#[test]
fn small_parts_arrive_in_the_bytes_of_the_closed_forms_and_large_ones_go_straight() {
    for (h, g) in [(2, 2), (3, 2), (2, 3)] {
        let n = h * g;
        let machines: Vec<usize> = (0..n).map(|rank| rank / g).collect();
        on_machines(&machines, |comm| {
            let exchange = |len| {
                let rows = Tensor::<1>::ones([n * len], comm.device());
                comm.all_to_all(rows, &vec![len; n]).map(drop).unwrap();
            };
            // Eight bytes for each size that travels first.
            let sizes = [8 * (g - 1) * (h + 1), 8 * (h - 1) * (g + 1)];
            exchange(SMALL_PART / 4);
            let small = levels(comm);
            let all = n * SMALL_PART;
            assert_eq!(small, (all - all / g + sizes[0], (n - g) * SMALL_PART + sizes[1]));
            exchange(SMALL_PART / 4 + 1);
            let (inside, across) = levels(comm);
            let large = SMALL_PART + 4;
            assert_eq!(inside - small.0, (g - 1) * large + sizes[0]);
            assert_eq!(across - small.1, (n - g) * large + sizes[1]);
        });
    }
}

#[test]
fn groups_of_five_machines_with_nine_ranks_take_two_steps_and_smaller_ones_do_not() {
    for (h, g, steps) in [(5, 9, 2), (5, 8, 1)] {
        let machines: Vec<usize> = (0..h * g).map(|rank| rank / g).collect();
        let engines = LocalEngine::on_machines(vec![Device::flex(); h * g], machines, Duration::from_secs(60));
        let across: Vec<u64> = thread::scope(|scope| {
            let start = |engine| {
                let comm = Communicator::new(HierarchicalEngine::over(Arc::new(engine)));
                scope.spawn(move || {
                    comm.all_to_all(Tensor::<1>::ones([h * g], comm.device()), &vec![1; h * g]).unwrap();
                    comm.traffic().0["all_to_all"].across
                })
            };
            let threads: Vec<_> = engines.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sizes = if steps == 2 { 8 * (h - 1) * (g + 1) } else { 0 };
        assert!(across.iter().all(|bytes| *bytes as usize == 4 * (h - 1) * g + sizes), "{h} x {g}: {across:?}");
    }
}
