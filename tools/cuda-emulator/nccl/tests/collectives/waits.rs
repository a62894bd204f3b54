//! When work runs, what waits without end, and how an abort ends it.

use crate::cards::{Card, alone, code, driver, ok, ranks, settle, unique_id};
use crate::{F32, RANKS};
use emulated_nccl::api::*;
use std::ffi::c_int;
use std::sync::Barrier;

#[test]
fn later_work_of_the_stream_sees_the_result_and_other_streams_do_not() {
    let _cards = alone();
    const ROUNDS: usize = 40;
    let early = ranks(2, 1, |rank, card, comm| {
        let (from, to) = (card.put_floats(&[1.0; 4]), card.put_floats(&[0.0; 4]));
        let (copy, other) = (card.put_floats(&[0.0; 4]), Card::of(rank));
        let mut early = 0;
        for _ in 0..ROUNDS {
            ok!(ncclAllReduce(from, to, 4, F32, 0, comm, card.stream));
            ok!((driver().cuMemcpyDtoDAsync_v2)(copy, to, 16, card.stream));
            card.finish();
            assert_eq!(card.floats(copy, 4), [2.0; 4]);
            // Without a wait: what was there before, or what the operation has spoilt.
            ok!((driver().cuMemcpyDtoDAsync_v2)(to, from, 16, card.stream));
            ok!(ncclAllReduce(from, to, 4, F32, 0, comm, card.stream));
            ok!((driver().cuMemcpyDtoDAsync_v2)(copy, to, 16, other.stream));
            other.finish();
            early += usize::from(card.floats(copy, 4) != [2.0; 4]);
            card.finish();
        }
        early
    });
    assert!(early.into_iter().sum::<usize>() > 0);
}

#[test]
fn calls_that_do_not_match_wait_until_every_rank_aborts() {
    let _cards = alone();
    let done = Barrier::new(RANKS);
    ranks(RANKS, 0, |rank, card, comm| {
        let from = card.put_floats(&[1.0; 4]);
        let count = if rank == 1 { 3 } else { 4 };
        code!(ncclAllReduce(from, from, count, F32, 0, comm, card.stream));
        assert_eq!(settle(comm), 0);
        assert!(!card.ends());
        done.wait();
        if rank == 0 {
            ok!(ncclCommAbort(comm));
            assert!(card.ends());
        }
        done.wait();
        let mut state = 0;
        if rank > 0 {
            // The neighbour learns of it, the other rank does not; both wait.
            ok!(ncclCommGetAsyncError(comm, &mut state));
            assert_eq!(state, if rank == 1 { 6 } else { 0 });
            assert!(!card.ends());
            ok!(ncclCommAbort(comm));
            assert!(card.ends());
        }
        assert_eq!(code!(ncclCommGetAsyncError(comm, &mut state)), 4);
    });
}

#[test]
fn a_send_waits_for_its_receive() {
    let _cards = alone();
    ranks(2, 1, |rank, card, comm| {
        let buffer = card.put_floats(&[rank as f32; 4]);
        if rank == 0 {
            ok!(ncclSend(buffer, 4, F32, 1, comm, card.stream));
            assert!(!card.ends());
            ok!(ncclAllReduce(buffer, buffer, 1, F32, 0, comm, card.stream));
        } else {
            std::thread::sleep(std::time::Duration::from_millis(500));
            ok!(ncclRecv(buffer, 4, F32, 0, comm, card.stream));
            ok!(ncclAllReduce(buffer, buffer, 1, F32, 0, comm, card.stream));
        }
        card.finish();
        assert_eq!(card.floats(buffer, 4), [0.0; 4]);
    });
}

#[test]
fn two_communicators_in_different_orders_wait_without_end() {
    let _cards = alone();
    for same in [true, false] {
        driver();
        let (second, met) = (unique_id(), Barrier::new(2));
        ranks(2, 1, |rank, card, first| {
            let (other, mut comm) = (Card::of(rank), 0);
            ok!(ncclCommInitRank(&mut comm, 2, second, rank as c_int));
            let buffers = [card.put_floats(&[1.0]), card.put_floats(&[1.0])];
            let mut calls = [(buffers[0], first, card.stream), (buffers[1], comm, other.stream)];
            if rank == 1 && !same {
                calls.reverse();
            }
            for (buffer, comm, stream) in calls {
                ok!(ncclAllReduce(buffer, buffer, 1, F32, 0, comm, stream));
            }
            assert_eq!((card.ends(), other.ends()), (same, same));
            met.wait();
            ok!(ncclCommAbort(first));
            ok!(ncclCommAbort(comm));
            assert!(card.ends() && other.ends());
        });
    }
}

#[test]
fn a_communicator_that_does_not_block_must_be_polled_before_its_next_use() {
    let _cards = alone();
    ranks(2, 0, |_, card, comm| {
        let buffer = card.put_floats(&[1.0]);
        let mut refused = 0;
        for _ in 0..20 {
            if code!(ncclAllReduce(buffer, buffer, 1, F32, 2, comm, card.stream)) == 7 {
                // Nothing is in the stream yet.
                assert!(card.ends());
                let next = code!(ncclAllReduce(buffer, buffer, 1, F32, 2, comm, card.stream));
                refused += usize::from(next == 4);
            }
            assert_eq!(settle(comm), 0);
        }
        assert!(refused > 0);
        card.finish();
    });
}
