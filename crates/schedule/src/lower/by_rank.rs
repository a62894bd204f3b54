//! The calls of a model that ranks divide among themselves: each call is computed by its owner, and all ranks keep
//! shards of all units.
//!
//! Every rank takes part in every gather and scatter, and only the owner runs the call. Activations move from owner to
//! owner. Two ranks and two calls, the first of which rank 0 owns:
//!
//! ```
//! # use schedule::*;
//! # let call = |i| CallOutline { unit: i, gathers: true, gathers_again: i < 1, recomputes: false, owner: Some(i) };
//! # let outline = Outline {
//! #     calls: (0..2).map(call).collect(),
//! #     chunks: vec![0..2],
//! #     keeps_gathered: false,
//! #     reduces_once: false,
//! #     forward_prefetch: Prefetch::None,
//! #     backward_prefetch: Prefetch::None,
//! # };
//! # let pipeline = Pipeline::new(Schedule::OneFOneB, 1, 1, 1).unwrap();
//! # let text = |rank| {
//! #     let ops = lower(&outline, &pipeline, Place { stage: 0, rank });
//! #     ops.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
//! # };
//! # assert_eq!(text(0), "\
//! +0 F0.0 -0 s>1.0 +1 -1 scatter1 +0 r<0.0 B0.0 -0 flatten0 wait1 scatter0 wait0 step0 step1\
//! # ");
//! # assert_eq!(text(1), "\
//! +0 -0 +1 r>1.0 F1.0 B1.0 -1 flatten1 s<0.0 scatter1 +0 -0 wait1 scatter0 wait0 step0 step1\
//! # ");
//! ```

use super::Lowering;
use crate::lower::by_stage;
use crate::{Direction, Op, Peer, Value};

/// Returns the operations of a call's forward.
pub fn forward(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    if !is_mine(lowering, call) {
        return bystander(lowering, call);
    }
    let mut ops = by_stage::forward(lowering, call, micro_batch);
    let value = |call| Value { way: Direction::Forward, call, micro_batch };
    if let Some(from) = call.checked_sub(1).and_then(|before| elsewhere(lowering, before)) {
        insert_before_runs(&mut ops, Op::Recv { value: value(call), from });
    }
    ops.extend(elsewhere(lowering, call + 1).map(|to| Op::Send { value: value(call + 1), to }));
    ops
}

/// Returns the operations of a call's backward.
pub fn backward(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    let outline = &lowering.outline.calls[call];
    let (unit, from) = (outline.unit, outline.owner.unwrap_or(lowering.place.rank));
    let scatter = Op::Scatter { unit, micro_batch, from, last_call: true };
    if !is_mine(lowering, call) {
        let mut ops = if outline.gathers_again { bystander(lowering, call) } else { vec![] };
        ops.push(scatter);
        return ops;
    }
    let mut ops = by_stage::backward(lowering, call, micro_batch);
    ops.pop(); // the reduction among ranks that have all computed the call
    let value = |call| Value { way: Direction::Backward, call, micro_batch };
    if let Some(from) = elsewhere(lowering, call + 1) {
        insert_before_runs(&mut ops, Op::Recv { value: value(call), from });
    }
    if let Some(before) = call.checked_sub(1) {
        ops.extend(elsewhere(lowering, before).map(|to| Op::Send { value: value(before), to }));
    }
    ops.push(scatter);
    ops
}

/// Contributes this rank's shard to a gather on another rank.
fn bystander(lowering: &mut Lowering, call: usize) -> Vec<Op> {
    let (gather, slot) = lowering.gather(call).unzip();
    gather.into_iter().chain(lowering.free(call, slot)).collect()
}

fn insert_before_runs(ops: &mut Vec<Op>, op: Op) {
    let at = ops.iter().position(|op| matches!(op, Op::Run { .. })).expect("the owner runs the call");
    ops.insert(at, op);
}

fn is_mine(lowering: &Lowering, call: usize) -> bool {
    elsewhere(lowering, call).is_none()
}

/// Returns the rank that computes a call, if there is such a call and it is another rank's.
fn elsewhere(lowering: &Lowering, call: usize) -> Option<Peer> {
    let owner = lowering.outline.calls.get(call)?.owner;
    owner.filter(|owner| *owner != lowering.place.rank).map(Peer::Rank)
}
