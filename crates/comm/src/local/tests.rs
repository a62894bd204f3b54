use super::*;
use burn::tensor::TensorData;
use std::collections::HashMap;

const BARRIER: Signature = Signature { collective: Collective::Barrier, len: None, dtype: None };

#[test]
fn groups_and_rounds_that_are_done_leave_nothing_behind() {
    let ranks = LocalEngine::world(vec![Device::flex(); 3], Duration::from_secs(60));
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(move || {
                for _ in 0..20 {
                    let pair = if rank.rank == 1 { vec![1] } else { vec![0, 2] };
                    let group = rank.split(&pair).unwrap();
                    let nested = group.split(&[group.rank()]).unwrap();
                    for engine in [rank, &*group, &*nested] as [&dyn Engine; 3] {
                        engine.exchange(&BARRIER, vec![None; engine.world_size()]).unwrap();
                    }
                }
            });
        }
    });
    let (groups, engines) = ranks[0].world.inventory();
    assert_eq!(engines, HashMap::from([(0, 1), (1, 1), (2, 1)]));
    assert_eq!(groups.len(), 1);
    let world = groups[0].lock();
    assert_eq!((world.rounds.len(), world.waits.len()), (0, 0));
}

#[test]
fn who_looks_for_a_message_waits_for_nobody() {
    let [first, second] = LocalEngine::world(vec![Device::flex(); 2], Duration::from_secs(60)).try_into().ok().unwrap();
    assert!(second.try_recv(0).unwrap().is_none());
    first.send(Payload::from_data(TensorData::from([1.0, 2.0]), &Device::flex()), 1).unwrap();
    assert_eq!(second.try_recv(0).unwrap().map(|found| found.len()), Some(2));
    assert!(second.try_recv(0).unwrap().is_none());
    drop(first);
    let lost = second.try_recv(0).unwrap_err().to_string();
    assert!(lost.contains("left before the call was complete"), "{lost}");
}

/// Ranks meet in the world and in pairs, at different paces.
#[test]
fn a_rank_is_woken_by_its_own_calls_only() {
    const N: usize = 8;
    const ROUNDS: u64 = 200;
    let ranks = LocalEngine::world(vec![Device::flex(); N], Duration::from_secs(60));
    let pairs: Vec<_> =
        ranks.iter().map(|rank| rank.split(&[rank.rank / 2 * 2, rank.rank / 2 * 2 + 1]).unwrap()).collect();
    std::thread::scope(|scope| {
        for (rank, pair) in ranks.iter().zip(&pairs) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    rank.agree(&BARRIER).unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..10 * ROUNDS {
                    pair.agree(&BARRIER).unwrap();
                }
            });
        }
    });
    let (groups, _) = ranks[0].world.inventory();
    for group in groups {
        let n = group.members.len() as u64;
        let rounds = if n == N as u64 { ROUNDS } else { 10 * ROUNDS };
        // All but the last rank to arrive are woken once. The system may cause a few spurious wakes.
        let (wakes, most) = (group.lock().wakes, rounds * (n - 1));
        assert!(wakes <= most + most / 100, "{wakes} wakes in {rounds} rounds of {n} ranks");
    }
}
