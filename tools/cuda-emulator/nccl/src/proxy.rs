//! The thread that moves bytes: it looks for operations that all their ranks have come to.

use crate::abi::{Code, Reduction};
use crate::arithmetic;
use crate::cuda::{Address, Card};
use crate::launches::{Kind, Op, Progress};
use crate::state::{Comm, State, changed, lock};
use crate::worlds::{Part, Source};
use std::collections::BTreeMap;
use std::ffi::c_int;

/// Starts it.
pub fn start() {
    let thread = std::thread::Builder::new().name("NCCL proxy".into());
    thread.spawn(run).expect("the system must give a thread");
}

fn run() {
    let mut state = lock();
    loop {
        let starts = starting(&mut state);
        if !starts.is_empty() {
            drop(state);
            let prepared: Vec<_> = starts.into_iter().map(|start| (start.prepare(), start)).collect();
            state = lock();
            for (bytes, Start { op, .. }) in prepared {
                state.progress(op.comm, op.number, Progress::Offered);
                match bytes {
                    Ok(bytes) => state.offer(op.comm, op.terms(), op.from, bytes),
                    Err(code) => note(&mut state, op.comm, code),
                }
            }
            changed();
            continue;
        }
        let Some(parts) = state.matching() else {
            state = state.wait();
            continue;
        };
        let targets = targets(&mut state, &parts);
        drop(state);
        let result = perform(&parts, &targets);
        state = lock();
        for Target { op, .. } in targets {
            state.progress(op.comm, op.number, Progress::Done);
            if let Err(code) = result {
                note(&mut state, op.comm, code);
            }
            if let Some(member) = state.members.get_mut(&op.comm) {
                member.open -= 1;
            }
        }
        state.retire();
    }
}

fn note(state: &mut State, comm: Comm, code: Code) {
    if let Some(member) = state.members.get_mut(&comm) {
        member.error.get_or_insert(code);
    }
    changed();
}

/// An operation whose turn has come on its card.
struct Start {
    card: Card,
    op: Op,
    /// Bytes that it reads and writes.
    bytes: (usize, usize),
    /// Whether a rank of another process takes part.
    is_shared: bool,
}

impl Start {
    /// Overwrites what the operation will write, and returns what it reads for other processes.
    fn prepare(&self) -> Result<Vec<u8>, Code> {
        let Self { card, ref op, bytes: (read, written), .. } = *self;
        // What it reads itself stays.
        let (start, end) = (op.to, op.to + written as u64);
        let (first, last) = (op.from.clamp(start, end), (op.from + read as u64).clamp(start, end));
        for (from, to) in [(start, first), (last.max(first), end)] {
            if to > from {
                card.fill(from, (to - from) as usize)?;
            }
        }
        card.finish()?;
        if self.is_shared && read > 0 { card.read(op.from, read) } else { Ok(vec![]) }
    }
}

/// Starts launches whose turn has come.
fn starting(state: &mut State) -> Vec<Start> {
    let mut found = vec![];
    let State { own, members, worlds, cards, .. } = state;
    for launch in cards.values_mut().filter_map(|queue| queue.front_mut()) {
        if launch.started || !launch.has_arrived() {
            continue;
        }
        launch.started = true;
        for op in launch.ops.iter_mut().filter(|op| op.progress == Progress::Waiting) {
            let Some(member) = members.get(&op.comm) else { continue };
            op.progress = Progress::Starting;
            let seats = member.world.and_then(|world| worlds.get(&world)).map_or(&[][..], |ranks| &ranks.seats[..]);
            let is_shared = seats.iter().any(|seat| seat.process != *own);
            found.push(Start {
                card: member.card,
                op: op.clone(),
                bytes: op.bytes(member.size, member.rank),
                is_shared,
            });
        }
    }
    found
}

/// A rank of this process that takes part in an operation.
struct Target {
    rank: usize,
    card: Card,
    op: Op,
}

/// Notes that operations run, and returns those of this process.
fn targets(state: &mut State, parts: &[Part]) -> Vec<Target> {
    let mut found = vec![];
    let State { members, cards, .. } = state;
    for part in parts {
        let number = part.offer.terms.number;
        let mut ops = cards.values_mut().flatten().flat_map(|launch| &mut launch.ops);
        if let Some(op) = ops.find(|op| Some(op.comm) == part.comm && op.number == number)
            && let Some(member) = members.get(&op.comm)
        {
            op.progress = Progress::Running;
            found.push(Target { rank: part.rank, card: member.card, op: op.clone() });
        }
    }
    found
}

/// Moves the bytes of an operation to the ranks of this process.
fn perform(parts: &[Part], targets: &[Target]) -> Result<(), Code> {
    let terms = parts[0].offer.terms;
    let bytes = terms.count * terms.dtype.size();
    match terms.kind {
        Kind::AllReduce(how) | Kind::ReduceScatter(how) | Kind::Reduce(how, _) => return sums(parts, targets, how),
        _ if bytes == 0 => return Ok(()),
        _ => {}
    }
    for target in targets {
        match target.op.kind {
            Kind::AllGather => {
                for part in parts {
                    move_bytes(&part.offer.source, target, (part.rank * bytes) as u64, bytes)?;
                }
            }
            Kind::Broadcast(root) => move_bytes(&parts[root].offer.source, target, 0, bytes)?,
            // The send comes first.
            Kind::Recv(_) => move_bytes(&parts[0].offer.source, target, 0, bytes)?,
            _ => {}
        }
    }
    // Cards by their ordinal: a rank of a message to itself is there twice.
    let cards: BTreeMap<c_int, Card> = targets.iter().map(|target| (target.card.ordinal, target.card)).collect();
    cards.into_values().try_for_each(Card::finish)
}

fn move_bytes(source: &Source, target: &Target, at: Address, len: usize) -> Result<(), Code> {
    let to = target.op.to + at;
    match source {
        Source::Card(card, from) if *from != to => target.card.copy(to, *card, *from, len),
        Source::Card(..) => Ok(()),
        Source::Bytes(bytes) if bytes.len() == len => target.card.write(to, bytes),
        Source::Bytes(_) => Err(Code::INTERNAL_ERROR),
    }
}

/// Combines the ranks' bytes, and writes what the ranks of this process get.
fn sums(parts: &[Part], targets: &[Target], how: Reduction) -> Result<(), Code> {
    let (n, Some(Target { op, .. })) = (parts.len(), targets.first()) else { return Ok(()) };
    let (read, _) = op.bytes(n, 0);
    let range = |target: &Target| match op.kind {
        Kind::ReduceScatter(_) => target.rank * read / n..(target.rank + 1) * read / n,
        Kind::Reduce(_, root) if target.rank != root => 0..0,
        _ => 0..read,
    };
    if targets.iter().all(|target| range(target).is_empty()) {
        return Ok(());
    }
    let bytes = |part: &Part| match &part.offer.source {
        Source::Card(card, from) => card.read(*from, read),
        Source::Bytes(bytes) if bytes.len() == read => Ok(bytes.to_vec()),
        Source::Bytes(_) => Err(Code::INTERNAL_ERROR),
    };
    let all = parts.iter().map(bytes).collect::<Result<Vec<_>, _>>()?;
    let len = read / op.dtype.size();
    // The chunk of an element ends its way around the ring at the rank of its number.
    let first = |i: usize| match op.kind {
        Kind::Reduce(_, root) => root + 1,
        _ => i * n / len + 1,
    };
    let total = arithmetic::reduce(op.dtype, how, &all, first).ok_or(Code::INVALID_ARGUMENT)?;
    for target in targets.iter().filter(|target| !range(target).is_empty()) {
        target.card.write(target.op.to, &total[range(target)])?;
    }
    Ok(())
}
