//! NCCL's functions on emulated cards: results against sums in f64, and what a program may not rely on.

mod cards;
mod processes;
mod waits;

use cards::{Card, alone, code, config, driver, ok, ranks, settle, unique_id};
use emulated_nccl::api::*;
use half::{bf16, f16};
use std::ffi::{CStr, c_int};
use std::sync::Barrier;

const RANKS: usize = 3;
const COUNT: usize = 7;

/// Numbers of the element types, and of f32.
const DTYPES: [c_int; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
const F32: c_int = 7;

fn size(dtype: c_int) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2][dtype as usize]
}

/// Small whole numbers, whose sums and products every type has exactly.
fn number(rank: usize, i: usize) -> f64 {
    (1 + (rank + 2 * i) % 3) as f64
}

fn encode(dtype: c_int, value: f64) -> Vec<u8> {
    match dtype {
        0 => (value as i8).to_ne_bytes().to_vec(),
        1 => (value as u8).to_ne_bytes().to_vec(),
        2 => (value as i32).to_ne_bytes().to_vec(),
        3 => (value as u32).to_ne_bytes().to_vec(),
        4 => (value as i64).to_ne_bytes().to_vec(),
        5 => (value as u64).to_ne_bytes().to_vec(),
        6 => f16::from_f64(value).to_ne_bytes().to_vec(),
        7 => (value as f32).to_ne_bytes().to_vec(),
        8 => value.to_ne_bytes().to_vec(),
        _ => bf16::from_f64(value).to_ne_bytes().to_vec(),
    }
}

fn encoded(dtype: c_int, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values.into_iter().flat_map(|value| encode(dtype, value)).collect()
}

fn combine(how: c_int, values: impl Iterator<Item = f64>) -> f64 {
    let combine = [|a, b| a + b, |a: f64, b| a * b, f64::max, f64::min][how as usize];
    values.reduce(combine).expect("there are ranks")
}

/// Compares every collective of every type with plain sums, on one rank, and ends the communicator.
fn check_collectives(rank: usize, card: Card, comm: usize) {
    for (dtype, how) in DTYPES.into_iter().flat_map(|dtype| (0..4).map(move |how| (dtype, how))) {
        let (len, many) = (COUNT * size(dtype), RANKS * COUNT);
        let wait = |code: c_int| {
            assert!(code == 0 || code == 7, "{code}");
            assert_eq!(settle(comm), 0);
            card.finish();
        };
        let mine = |count: usize| encoded(dtype, (0..count).map(|i| number(rank, i)));
        let total = |i: usize| combine(how, (0..RANKS).map(|rank| number(rank, i)));
        let (from, to) = (card.put(&mine(many)), card.alloc(RANKS * len));

        wait(code!(ncclAllReduce(from, to, many, dtype, how, comm, card.stream)));
        assert_eq!(card.get(to, RANKS * len), encoded(dtype, (0..many).map(total)), "{dtype}, {how}");
        let chunk = rank * COUNT..(rank + 1) * COUNT;
        wait(code!(ncclReduceScatter(from, to, COUNT, dtype, how, comm, card.stream)));
        assert_eq!(card.get(to, len), encoded(dtype, chunk.map(total)));
        wait(code!(ncclReduce(from, to, COUNT, dtype, how, 1, comm, card.stream)));
        if rank == 1 {
            assert_eq!(card.get(to, len), encoded(dtype, (0..COUNT).map(total)));
        }
        wait(code!(ncclAllGather(from, to, COUNT, dtype, comm, card.stream)));
        let all = (0..RANKS).flat_map(|rank| (0..COUNT).map(move |i| number(rank, i)));
        assert_eq!(card.get(to, RANKS * len), encoded(dtype, all));
        wait(code!(ncclBroadcast(from, to, COUNT, dtype, 2, comm, card.stream)));
        assert_eq!(card.get(to, len), encoded(dtype, (0..COUNT).map(|i| number(2, i))));
        // In place.
        let chunk = from + (rank * len) as u64;
        wait(code!(ncclReduceScatter(from, chunk, COUNT, dtype, how, comm, card.stream)));
        wait(code!(ncclAllGather(chunk, from, COUNT, dtype, comm, card.stream)));
        assert_eq!(card.get(from, RANKS * len), encoded(dtype, (0..many).map(total)));
        wait(code!(ncclAllReduce(from, from, COUNT, dtype, 2, comm, card.stream)));
        assert_eq!(card.get(from, len), encoded(dtype, (0..COUNT).map(total)));
    }
    ok!(ncclCommFinalize(comm));
    assert_eq!(settle(comm), 0);
    ok!(ncclCommDestroy(comm));
}

#[test]
fn every_collective_of_every_type_gives_what_plain_sums_give() {
    let _cards = alone();
    for blocking in [1, 0] {
        ranks(RANKS, blocking, check_collectives);
    }
}

#[test]
fn sums_have_the_order_of_a_ring_and_not_that_of_the_ranks() {
    let _cards = alone();
    let values = [1e8, 1.0, -1e8];
    let sums = ranks(RANKS, 1, |rank, card, comm| {
        let (from, to) = (card.put_floats(&[values[rank]; RANKS]), card.alloc(4 * RANKS));
        ok!(ncclAllReduce(from, to, RANKS, F32, 0, comm, card.stream));
        card.finish();
        card.floats(to, RANKS)
    });
    let ring = |first: usize| (0..RANKS).map(|step| values[(first + step) % RANKS]).reduce(|a, b| a + b).unwrap();
    assert_eq!(sums, [[ring(1), ring(2), ring(0)]; RANKS]);
    assert_ne!(ring(0), ring(2));
}

/// Sends another length to each rank, in one group.
fn check_messages(rank: usize, card: Card, comm: usize) {
    let count = |from: usize, to: usize| (from + 2 * to) % 4 * 5;
    let sent = |from: usize, to: usize| vec![(10 * from + to) as f32; count(from, to)];
    let outgoing: Vec<_> = (0..RANKS).map(|to| card.put_floats(&sent(rank, to))).collect();
    let incoming: Vec<_> = (0..RANKS).map(|from| card.alloc(4 * count(from, rank))).collect();
    ok!(ncclGroupStart());
    for peer in 0..RANKS {
        ok!(ncclSend(outgoing[peer], count(rank, peer), F32, peer as c_int, comm, card.stream));
        ok!(ncclRecv(incoming[peer], count(peer, rank), F32, peer as c_int, comm, card.stream));
    }
    code!(ncclGroupEnd());
    assert_eq!(settle(comm), 0);
    card.finish();
    for (peer, found) in incoming.into_iter().enumerate() {
        assert_eq!(card.floats(found, count(peer, rank)), sent(peer, rank));
    }
}

#[test]
fn a_group_of_messages_sends_other_lengths_to_each_rank() {
    let _cards = alone();
    ranks(RANKS, 0, check_messages);
}

#[test]
fn one_thread_runs_several_cards_in_groups() {
    let _cards = alone();
    driver();
    let (id, mut comms) = (unique_id(), [0; RANKS]);
    ok!(ncclGroupStart());
    let cards: Vec<_> = (0..RANKS)
        .map(|rank| {
            let card = Card::of(rank);
            ok!(ncclCommInitRank(&mut comms[rank], RANKS as c_int, id, rank as c_int));
            card
        })
        .collect();
    ok!(ncclGroupEnd());
    let buffer_of = |(rank, card): (usize, &Card)| {
        Card::of(rank);
        card.put_floats(&[rank as f32; 2])
    };
    let buffers: Vec<_> = cards.iter().enumerate().map(buffer_of).collect();
    ok!(ncclGroupStart());
    for ((card, comm), buffer) in cards.iter().zip(comms).zip(&buffers) {
        ok!(ncclAllReduce(*buffer, *buffer, 2, F32, 0, comm, card.stream));
    }
    ok!(ncclGroupEnd());
    for (rank, ((card, comm), buffer)) in cards.iter().zip(comms).zip(buffers).enumerate() {
        Card::of(rank);
        card.finish();
        assert_eq!(card.floats(buffer, 2), [3.0; 2]);
        let (mut size, mut number, mut device) = (0, 0, 0);
        ok!(ncclCommCount(comm, &mut size));
        ok!(ncclCommUserRank(comm, &mut number));
        ok!(ncclCommCuDevice(comm, &mut device));
        assert_eq!((size, number, device), (RANKS as c_int, rank as c_int, rank as c_int));
    }
}

/// Splits four ranks and gathers on the new communicator.
fn check_split(rank: usize, card: Card, comm: usize) {
    // Ranks 0, 1 and 3 in reverse order; rank 2 in none.
    let (color, mut child) = (if rank == 2 { -1 } else { 5 }, 77);
    let code = code!(ncclCommSplit(comm, color, -(rank as c_int), &mut child, std::ptr::null()));
    assert!(code == 0 || code == 7, "{code}");
    assert_eq!(settle(comm), 0);
    if rank == 2 {
        assert_eq!(child, 0);
        return;
    }
    assert_eq!(settle(child), 0);
    let (from, to) = (card.put_floats(&[rank as f32]), card.alloc(4 * RANKS));
    code!(ncclAllGather(from, to, 1, F32, child, card.stream));
    assert_eq!(settle(child), 0);
    card.finish();
    assert_eq!(card.floats(to, RANKS), [3.0, 1.0, 0.0]);
}

#[test]
fn a_split_has_ranks_by_key_and_may_leave_some_out() {
    let _cards = alone();
    for blocking in [1, 0] {
        ranks(4, blocking, check_split);
    }
}

#[test]
fn wrong_arguments_are_refused_and_harm_nothing() {
    let _cards = alone();
    let met = Barrier::new(2);
    ranks(2, 1, |rank, card, comm| {
        let (here, n) = (card.put_floats(&[1.0; 4]), 2);
        let _other = Card::of(1 - rank);
        let there = card.put_floats(&[1.0; 4]);
        Card::of(rank);
        met.wait(); // the other rank's card waits for this rank from here on
        let reduce = |from, dtype, how| code!(ncclAllReduce(from, here, n, dtype, how, comm, card.stream));
        assert_eq!(
            [reduce(there, F32, 0), reduce(here + 2, F32, 0), reduce(here, 12, 0), reduce(here, F32, 9)],
            [4; 4]
        );
        assert_eq!(code!(ncclBroadcast(here, here, n, F32, 2, comm, card.stream)), 4);
        assert_eq!(code!(ncclSend(here, n, F32, -1, comm, card.stream)), 4);
        assert_eq!(code!(ncclAllReduce(here, here, n, F32, 0, comm + 1, card.stream)), 4);
        assert_eq!(code!(ncclGroupEnd()), 5);
        let (mut other, mut unset) = (0, config(0));
        unset[0].magic = 0;
        assert_eq!(code!(ncclCommInitRankConfig(&mut other, 2, unique_id(), 0, unset.as_ptr())), 4);
        assert_eq!(code!(ncclCommInitRank(&mut other, 2, unique_id(), 2)), 4);
        // SAFETY: the texts end in zero and live on.
        let (text, last) = unsafe { (CStr::from_ptr(ncclGetErrorString(4)), CStr::from_ptr(ncclGetLastError(comm))) };
        assert_eq!((text, last), (c"invalid argument", c"there is no rank 2 among 2 ranks"));
        let mut version = 0;
        ok!(ncclGetVersion(&mut version));
        assert_eq!(version / 10_000, 2);
        ok!(ncclAllReduce(here, here, n, F32, 0, comm, card.stream));
        card.finish();
        assert_eq!(card.floats(here, 2), [2.0; 2]);
    });
}

#[test]
fn two_ranks_on_one_card_are_refused() {
    let _cards = alone();
    driver();
    let id = unique_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                Card::of(0);
                assert_eq!(code!(ncclCommInitRank(&mut 0, 2, id, rank)), 5);
            });
        }
    });
}
