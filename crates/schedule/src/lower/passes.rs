//! Decisions about a list of operations, each a pass over it.

use crate::Op;
use std::collections::{HashMap, HashSet};

/// Adds up the gradients of a unit that is called more than once, and leaves the reduction with its last call. Unit 0
/// with calls 0 and 2:
///
/// ```text
/// before  B2.0 flatten0 reduce0  B1.0 flatten1 reduce1  B0.0 flatten0 reduce0
/// after   B2.0 flatten0 add0     B1.0 flatten1 reduce1  B0.0 flatten0 reduce0
/// ```
pub fn add_calls<'a>(ops: impl DoubleEndedIterator<Item = &'a mut Op>) {
    let mut seen = HashSet::new();
    for op in ops.rev() {
        match op {
            Op::Reduce { unit, micro_batch, .. } if !seen.insert((*unit, *micro_batch)) => {
                *op = Op::Add { unit: *unit, micro_batch: *micro_batch };
            }
            Op::Scatter { unit, micro_batch, last_call, .. } => *last_call = seen.insert((*unit, *micro_batch)),
            _ => {}
        }
    }
}

/// Marks each unit's last reduction, and sends gradients to their shards in every micro-batch, or `once`, with the
/// last:
///
/// ```text
/// each   B0.0 flatten0 reduce0   B0.1 flatten0 reduce0   B0.2 flatten0 reduce0 (last)
/// once   B0.0 flatten0 keep0     B0.1 flatten0 keep0     B0.2 flatten0 reduce0 (last)
/// ```
pub fn reduce<'a>(ops: impl DoubleEndedIterator<Item = &'a mut Op>, once: bool) {
    let mut seen = HashSet::new();
    for op in ops.rev() {
        if let Op::Reduce { unit, sends, last, .. } = op {
            *last = seen.insert(*unit);
            *sends = *last || !once;
        }
    }
}

/// Waits for each reduction before the next one starts, or at the end: it overlaps with the backward of the next call,
/// and finished gradients do not pile up behind a slow link. Reductions that are not `awaited` here are left alone.
///
/// ```text
/// before  B2.0 reduce2 B1.0 reduce1 B0.0 reduce0
/// after   B2.0 reduce2 B1.0 wait2 reduce1 B0.0 wait1 reduce0 wait0
/// ```
pub fn wait_late(ops: Vec<Op>, awaited: impl Fn(&Op) -> bool) -> Vec<Op> {
    let (mut out, mut in_flight) = (Vec::with_capacity(ops.len() + 1), None);
    for op in ops {
        if is_reduction(&op) {
            out.extend(in_flight.take());
        }
        if let Op::Reduce { unit, .. } | Op::Scatter { unit, .. } = op
            && awaited(&op)
        {
            in_flight = Some(Op::Wait { unit });
        }
        out.push(op);
    }
    out.extend(in_flight);
    out
}

/// Waits at the end for the reductions that nothing has waited for.
///
/// ```text
/// before  B2.3 reduce2 B1.3 reduce1 s<0.3
/// after   B2.3 reduce2 B1.3 reduce1 s<0.3 wait2 wait1
/// ```
pub fn wait_at_end(mut ops: Vec<Op>) -> Vec<Op> {
    let mut in_flight = vec![];
    for op in &ops {
        match op {
            Op::Reduce { unit, .. } | Op::Scatter { unit, .. } => in_flight.push(*unit),
            Op::Wait { unit } => in_flight.retain(|started| started != unit),
            _ => {}
        }
    }
    ops.extend(in_flight.into_iter().map(|unit| Op::Wait { unit }));
    ops
}

/// Sends a gradient to the stage before, which has nothing else to do, without waiting for the reduction in flight.
///
/// ```text
/// before  B1.0 flatten1 reduce1 wait1 s<0.0
/// after   B1.0 flatten1 reduce1 s<0.0 wait1
/// ```
pub fn send_before_waits(mut ops: Vec<Op>) -> Vec<Op> {
    for i in 1..ops.len() {
        if let [Op::Wait { .. }, Op::Send { .. }] = ops[i - 1..=i] {
            ops.swap(i - 1, i);
        }
    }
    ops
}

/// Starts each gather where the one `depth` gathers earlier was needed, so that it overlaps with the run of the call in
/// between. At most `depth` + 1 units are gathered at a time.
///
/// ```text
/// before   +0 F0.0 -0 +1 F1.0 -1 +2 F2.0 -2
/// depth 1  +0 +1 F0.0 -0 +2 F1.0 -1 F2.0 -2
/// depth 2  +0 +1 +2 F0.0 -0 F1.0 -1 F2.0 -2
/// ```
///
/// The list is that of one chunk: gathers do not move ahead of a message from another stage.
pub fn gather_ahead(ops: Vec<Op>, depth: usize) -> Vec<Op> {
    let gathers: Vec<Op> = ops.iter().copied().filter(is_gather).collect();
    let mut out: Vec<Op> = gathers.iter().copied().take(depth).collect();
    let mut next = gathers.into_iter().skip(depth);
    for op in ops {
        if is_gather(&op) {
            out.extend(next.next());
        } else {
            out.push(op);
        }
    }
    out
}

/// Starts each gather after the call before it has run and before its gradients are reduced, so that the gather
/// overlaps with the reduction and one unit is gathered at a time:
///
/// ```text
/// before  B2.0 -2 flatten2 reduce2 +1 B1.0 -1 flatten1 wait2 reduce1 +0 B0.0
/// after   B2.0 -2 flatten2 +1 reduce2 B1.0 -1 flatten1 +0 wait2 reduce1 B0.0
/// ```
pub fn gather_before_reductions(ops: Vec<Op>) -> Vec<Op> {
    let mut out: Vec<Op> = Vec::with_capacity(ops.len());
    for op in ops {
        let passed = out.iter().rev().take_while(|before| is_reduction(before) || matches!(before, Op::Wait { .. }));
        let at = if is_gather(&op) { out.len() - passed.count() } else { out.len() };
        out.insert(at, op);
    }
    out
}

/// Keeps the first gather of each unit until its last reduction, or until the end. In a pipeline some micro-batch needs
/// the parameters at most times.
///
/// ```text
/// before  +0 F0.0 +0 F0.1    B0.0 -0 flatten0 reduce0    B0.1 -0 flatten0    wait0 reduce0 wait0
/// after   +0 F0.0    F0.1    B0.0    flatten0 reduce0    B0.1    flatten0    wait0 -0 reduce0 wait0
/// ```
pub fn keep_gathered(ops: Vec<Op>) -> Vec<Op> {
    let mut slots = HashMap::new(); // by unit
    let mut first = HashMap::new(); // the slot that takes the place of each slot
    let mut out = Vec::with_capacity(ops.len());
    for op in ops {
        match op {
            Op::Gather { unit, slot, .. } => {
                let is_new = !slots.contains_key(&unit);
                first.insert(slot, *slots.entry(unit).or_insert(slot));
                out.extend(is_new.then_some(op));
            }
            Op::Free { .. } => {}
            Op::Run { kind, call, micro_batch, slot } => {
                out.push(Op::Run { kind, call, micro_batch, slot: slot.map(|slot| first[&slot]) });
            }
            Op::Reduce { unit, last: true, .. } => {
                out.extend(slots.remove(&unit).map(|slot| Op::Free { unit, slot }));
                out.push(op);
            }
            _ => out.push(op),
        }
    }
    let mut rest: Vec<_> = slots.into_iter().collect();
    rest.sort_unstable();
    out.extend(rest.into_iter().map(|(unit, slot)| Op::Free { unit, slot }));
    out
}

fn is_gather(op: &Op) -> bool {
    matches!(op, Op::Gather { .. })
}

fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::Add { .. } | Op::Reduce { .. } | Op::Scatter { .. })
}
