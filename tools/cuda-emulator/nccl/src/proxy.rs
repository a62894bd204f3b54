//! The thread that moves bytes: it looks for operations that all their ranks have come to.

use crate::abi::Code;
use crate::arithmetic;
use crate::cuda::{Address, Card};
use crate::launches::{Kind, Op, Progress};
use crate::state::{Comm, State, changed, lock};
use std::collections::BTreeMap;
use std::ffi::c_int;

/// Starts it.
pub fn start() {
    let thread = std::thread::Builder::new().name("NCCL proxy".into());
    thread.spawn(run).expect("the system must give a thread");
}

/// An operation that starts: its rank's number, its card, the operation, and its place among the card's first launch.
#[derive(Clone)]
struct Part {
    rank: usize,
    card: Card,
    op: Op,
    place: usize,
}

fn run() {
    let mut state = lock();
    loop {
        let fresh = starting(&mut state);
        if !fresh.is_empty() {
            drop(state);
            let results: Vec<_> = fresh.iter().map(|(comm, card, range)| (*comm, spoil(*card, *range))).collect();
            state = lock();
            results.into_iter().for_each(|(comm, result)| note(&mut state, comm, result));
            continue;
        }
        let Some(parts) = matching(&state) else {
            state = state.wait();
            continue;
        };
        progress(&mut state, &parts, Progress::Running);
        drop(state);
        let result = perform(&parts);
        state = lock();
        progress(&mut state, &parts, Progress::Done);
        for part in &parts {
            note(&mut state, part.op.comm, result);
            if let Some(member) = state.members.get_mut(&part.op.comm) {
                member.open -= 1;
            }
        }
        state.retire();
    }
}

fn note(state: &mut State, comm: Comm, result: Result<(), Code>) {
    if let (Err(code), Some(member)) = (result, state.members.get_mut(&comm)) {
        member.error.get_or_insert(code);
    }
    changed();
}

/// Starts launches whose turn has come, and returns what they will write: ranges of addresses.
fn starting(state: &mut State) -> Vec<(Comm, Card, (Address, usize))> {
    let State { members, cards, .. } = state;
    let mut found = vec![];
    for launch in cards.values_mut().filter_map(|queue| queue.front_mut()) {
        if launch.started || !launch.has_arrived() {
            continue;
        }
        launch.started = true;
        for op in &launch.ops {
            let Some(member) = members.get(&op.comm) else { continue };
            let (read, written) = op.bytes(member.size, member.rank);
            // What it reads itself stays.
            let (start, end) = (op.to, op.to + written as u64);
            let (first, last) = (op.from.clamp(start, end), (op.from + read as u64).clamp(start, end));
            for (from, to) in [(start, first), (last.max(first), end)] {
                if to > from {
                    found.push((op.comm, member.card, (from, (to - from) as usize)));
                }
            }
        }
    }
    found
}

fn spoil(card: Card, (start, len): (Address, usize)) -> Result<(), Code> {
    card.fill(start, len)?;
    card.finish()
}

fn progress(state: &mut State, parts: &[Part], progress: Progress) {
    for Part { card, place, .. } in parts {
        if let Some(launch) = state.cards.get_mut(&card.ordinal).and_then(|queue| queue.front_mut()) {
            launch.ops[*place].progress = progress;
        }
    }
}

/// Operations of started launches that may run now, by communicator.
fn running(state: &State) -> BTreeMap<u64, Vec<Part>> {
    let mut found = BTreeMap::<u64, Vec<Part>>::new();
    for launch in state.cards.values().filter_map(|queue| queue.front()).filter(|launch| launch.started) {
        for (place, op) in launch.ops.iter().enumerate().filter(|(_, op)| op.progress == Progress::Waiting) {
            let Some(member) = state.members.get(&op.comm) else { continue };
            let parts = found.entry(member.world).or_default();
            // Of each rank: its first collective, and the first message to and from each other rank.
            let same = |part: &Part| {
                let both = !part.op.kind.is_between_two() && !op.kind.is_between_two();
                part.op.comm == op.comm && (both || part.op.kind == op.kind)
            };
            if !parts.iter().any(same) {
                parts.push(Part { rank: member.rank, card: member.card, op: op.clone(), place });
            }
        }
    }
    found
}

/// The parts of an operation that all its ranks have come to with the same arguments, in rank order; of a message, the
/// send and its receive.
fn matching(state: &State) -> Option<Vec<Part>> {
    for parts in running(state).into_values() {
        let size = state.members.get(&parts[0].op.comm)?.size;
        let mut collective: Vec<_> = parts.iter().filter(|part| !part.op.kind.is_between_two()).cloned().collect();
        collective.sort_by_key(|part| part.rank);
        let terms = |part: &Part| (part.op.kind, part.op.dtype, part.op.count);
        if collective.len() == size && collective.iter().all(|part| terms(part) == terms(&collective[0])) {
            return Some(collective);
        }
        for send in &parts {
            let Kind::Send(to) = send.op.kind else { continue };
            let bytes = |part: &Part| part.op.count * part.op.dtype.size();
            let fits =
                |part: &&Part| part.rank == to && part.op.kind == Kind::Recv(send.rank) && bytes(part) == bytes(send);
            if let Some(recv) = parts.iter().find(fits) {
                return Some(vec![send.clone(), recv.clone()]);
            }
        }
    }
    None
}

/// Moves the bytes of an operation.
fn perform(parts: &[Part]) -> Result<(), Code> {
    let op = &parts[0].op;
    let bytes = op.count * op.dtype.size();
    let copies: Vec<(&Part, Address, &Part, Address)> = match op.kind {
        Kind::AllGather => {
            let to = |part: &Part, from: &Part| part.op.to + (from.rank * bytes) as u64;
            parts
                .iter()
                .flat_map(|part| parts.iter().map(move |from| (part, to(part, from), from, from.op.from)))
                .collect()
        }
        Kind::Broadcast(root) => {
            parts.iter().map(|part| (part, part.op.to, &parts[root], parts[root].op.from)).collect()
        }
        Kind::Send(_) | Kind::Recv(_) => vec![(&parts[1], parts[1].op.to, &parts[0], parts[0].op.from)],
        Kind::AllReduce(how) | Kind::ReduceScatter(how) | Kind::Reduce(how, _) => return sums(parts, how),
    };
    for (part, to, of, from) in copies {
        if bytes > 0 && to != from {
            part.card.copy(to, of.card, from, bytes)?;
        }
    }
    // Cards by their ordinal: a rank of a message to itself is there twice.
    let cards: BTreeMap<c_int, Card> = parts.iter().map(|part| (part.card.ordinal, part.card)).collect();
    cards.into_values().try_for_each(Card::finish)
}

/// Combines the ranks' bytes, and writes what each rank gets.
fn sums(parts: &[Part], how: crate::abi::Reduction) -> Result<(), Code> {
    let (op, n) = (&parts[0].op, parts.len());
    let (read, _) = op.bytes(n, 0);
    let all = parts.iter().map(|part| part.card.read(part.op.from, read)).collect::<Result<Vec<_>, _>>()?;
    let len = read / op.dtype.size();
    // The chunk of an element ends its way around the ring at the rank of its number.
    let first = |i: usize| match op.kind {
        Kind::Reduce(_, root) => root + 1,
        _ => i * n / len + 1,
    };
    let total = arithmetic::reduce(op.dtype, how, &all, first).ok_or(Code::INVALID_ARGUMENT)?;
    for part in parts {
        let range = match op.kind {
            Kind::ReduceScatter(_) => part.rank * read / n..(part.rank + 1) * read / n,
            Kind::Reduce(_, root) if part.rank != root => 0..0,
            _ => 0..read,
        };
        if !range.is_empty() {
            part.card.write(part.op.to, &total[range])?;
        }
    }
    Ok(())
}
