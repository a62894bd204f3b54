//! Ranks in several processes: a test starts this program again, once for each process, with itself as the only test.

use crate::cards::{alone, code, driver, ok, ranks_of, settle, unique_id};
use crate::{F32, RANKS, check_collectives, check_messages, check_split};
use emulated_nccl::abi::UniqueId;
use emulated_nccl::api::*;
use std::env;
use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The ranks of this process, separated by commas; without it, the process is the one that starts the others.
const MINE: &str = "KILN_TEST_NCCL_RANKS";
/// The identifiers that all processes have, as numbers.
const IDS: &str = "KILN_TEST_NCCL_IDS";
const LONGEST: Duration = Duration::from_secs(120);

/// The ranks of this process and its identifiers, if it is one of several.
fn mine() -> Option<(Vec<usize>, Vec<UniqueId>)> {
    let numbers = |name| Some(env::var(name).ok()?.split(',').map(|one| one.parse().unwrap()).collect::<Vec<usize>>());
    let bytes: Vec<u8> = numbers(IDS)?.into_iter().map(|byte| byte as u8).collect();
    Some((numbers(MINE)?, bytes.as_chunks().0.iter().map(|id| UniqueId(*id)).collect()))
}

fn start(test: &str, ranks: &[usize], ids: &[UniqueId]) -> Child {
    let list = |numbers: Vec<usize>| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let bytes = ids.iter().flat_map(|id| id.0).map(usize::from).collect();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("processes::{test}"), "--nocapture"]).stdout(Stdio::null());
    command.env(MINE, list(ranks.to_vec())).env(IDS, list(bytes)).spawn().unwrap()
}

/// Starts a process for each list of ranks, and returns how they have ended. Neither of them has made the identifiers.
fn processes(test: &str, ranks: &[&[usize]], ids: usize) -> Vec<ExitStatus> {
    let _cards = alone();
    driver();
    let ids: Vec<_> = (0..ids).map(|_| unique_id()).collect();
    let children: Vec<_> = ranks.iter().map(|ranks| start(test, ranks, &ids)).collect();
    children.into_iter().map(wait).collect()
}

fn wait(mut child: Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if start.elapsed() > LONGEST => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("a process has not ended after {LONGEST:?}");
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Polls a communicator until it has met an error.
fn error(comm: usize) -> c_int {
    let (start, mut state) = (Instant::now(), 0);
    while state == 0 && start.elapsed() < LONGEST {
        ok!(ncclCommGetAsyncError(comm, &mut state));
        thread::sleep(Duration::from_millis(1));
    }
    state
}

#[test]
fn collectives_messages_and_splits_of_several_processes() {
    let Some((mine, ids)) = mine() else {
        let ended = processes("collectives_messages_and_splits_of_several_processes", &[&[0], &[1, 3], &[2]], 5);
        assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
        return;
    };
    let of_three: Vec<_> = mine.iter().copied().filter(|rank| *rank < RANKS).collect();
    for blocking in [1, 0] {
        ranks_of(ids[blocking as usize], RANKS, &of_three, blocking, check_collectives);
        ranks_of(ids[2 + blocking as usize], 4, &mine, blocking, check_split);
    }
    ranks_of(ids[4], RANKS, &of_three, 0, check_messages);
}

#[test]
fn one_process_has_made_the_identifier_and_others_join_it() {
    let others = mine();
    let _cards = others.is_none().then(alone);
    driver();
    let id = others.as_ref().map_or_else(unique_id, |(_, ids)| ids[0]);
    let child = others.is_none().then(|| start("one_process_has_made_the_identifier_and_others_join_it", &[2], &[id]));
    let mine = others.map_or(vec![0, 1], |(mine, _)| mine);
    ranks_of(id, RANKS, &mine, 0, |rank, card, comm| {
        let (from, to) = (card.put_floats(&[rank as f32]), card.alloc(4 * RANKS));
        code!(ncclAllGather(from, to, 1, F32, comm, card.stream));
        assert_eq!(settle(comm), 0);
        card.finish();
        assert_eq!(card.floats(to, RANKS), [0.0, 1.0, 2.0]);
        if rank == 2 {
            ok!(ncclCommDestroy(comm));
        }
    });
    if let Some(child) = child {
        assert!(wait(child).success());
    }
}

#[test]
fn a_process_that_has_left_in_order_is_no_error_and_a_killed_one_is() {
    let Some((mine, ids)) = mine() else {
        let ended =
            processes("a_process_that_has_left_in_order_is_no_error_and_a_killed_one_is", &[&[0], &[1], &[2]], 2);
        assert_eq!(ended.iter().map(ExitStatusExt::signal).collect::<Vec<_>>(), [None, None, Some(libc::SIGKILL)]);
        assert!(ended[0].success() && ended[1].success(), "{ended:?}");
        return;
    };
    // The ranks of the second one end at different times.
    ranks_of(ids[0], RANKS, &mine, 1, |rank, card, first| {
        let second = ranks_of(ids[1], RANKS, &mine, 1, |_, _, comm| comm)[0];
        let from = card.put_floats(&[1.0; 4]);
        for comm in [first, second] {
            ok!(ncclAllReduce(from, from, 1, F32, 2, comm, card.stream));
        }
        card.finish();
        if rank == 2 {
            ok!(ncclCommDestroy(second));
            // SAFETY: it ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        // The end of the process may have been noticed before.
        let code = code!(ncclAllReduce(from, from, 4, F32, 0, first, card.stream));
        assert!(code == 0 || code == 6, "{code}");
        assert_eq!(error(first), 6);
        assert_eq!(card.ends(), code == 6);
        ok!(ncclCommAbort(first));
        assert!(card.ends());
        let mut state = 0;
        ok!(ncclCommGetAsyncError(second, &mut state));
        assert_eq!(state, 0);
        ok!(ncclCommDestroy(second));
    });
}

#[test]
fn a_call_that_another_process_does_not_make_is_waited_for_until_an_abort() {
    let Some((mine, ids)) = mine() else {
        let ended =
            processes("a_call_that_another_process_does_not_make_is_waited_for_until_an_abort", &[&[0], &[1]], 1);
        assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
        return;
    };
    ranks_of(ids[0], 2, &mine, 0, |rank, card, comm| {
        if rank == 0 {
            let from = card.put_floats(&[1.0; 4]);
            code!(ncclAllReduce(from, from, 4, F32, 0, comm, card.stream));
            assert_eq!(settle(comm), 0);
            assert!(!card.ends());
            ok!(ncclCommAbort(comm));
            assert!(card.ends());
        } else {
            assert_eq!(error(comm), 6);
            ok!(ncclCommAbort(comm));
        }
    });
}

#[test]
fn ranks_of_several_processes_on_one_card_are_refused_and_so_is_an_identifier_whose_process_has_ended() {
    let Some((mine, ids)) = mine() else {
        let test = "ranks_of_several_processes_on_one_card_are_refused_and_so_is_an_identifier_whose_process_has_ended";
        let ended = processes(test, &[&[0], &[1]], 1);
        assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
        return;
    };
    driver();
    crate::Card::of(0);
    assert_eq!(code!(ncclCommInitRank(&mut 0, 2, ids[0], mine[0] as c_int)), 5);
    let mut gone = ids[0];
    gone.0[0] ^= 1;
    assert_eq!(code!(ncclCommInitRank(&mut 0, 2, gone, mine[0] as c_int)), 6);
    assert_eq!(code!(ncclCommInitRank(&mut 0, 2, UniqueId([1; 128]), 0)), 4);
}
