//! Lowers the program of a stage to the operations of a rank.
//!
//! ```text
//! Pipeline ─> [Recv, Forward(chunk), Send, ..] ─> each call of a chunk, one after another ─> passes ─> [Op]
//!  Outline ─────────────────────────────────────────────┘
//! ```
//!
//! The first form gathers a unit for every call, directly before it runs, and reduces each call's gradients at once.
//! The [`passes`] then decide what is summed, sent, awaited, gathered ahead and kept. A step of three calls on one
//! stage, gathered ahead in the forward and in the backward:
//!
//! ```
//! # use schedule::*;
//! # let call = |unit| CallOutline { unit, gathers: true, gathers_again: unit < 2, recomputes: false, owner: None };
//! # let outline = Outline {
//! #     calls: (0..3).map(call).collect(),
//! #     chunks: vec![0..3],
//! #     keeps_gathered: false,
//! #     reduces_once: false,
//! #     forward_prefetch: Prefetch::Pre,
//! #     backward_prefetch: Prefetch::Pre,
//! # };
//! # let pipeline = Pipeline::new(Schedule::OneFOneB, 1, 1, 1).unwrap();
//! # let ops = lower(&outline, &pipeline, Place { stage: 0, rank: 0 });
//! # assert_eq!(ops.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), "\
//! +0 +1 F0.0 -0 +2 F1.0 -1 F2.0 \
//! +1 B2.0 -2 flatten2 reduce2 \
//! +0 B1.0 -1 flatten1 wait2 reduce1 \
//! B0.0 -0 flatten0 wait1 reduce0 wait0 step0 step1 step2\
//! # ");
//! ```

mod by_rank;
mod by_stage;
pub mod passes;

use crate::{Action, Direction, Op, Outline, Peer, Pipeline, Place, Prefetch, Value};
use std::collections::{BTreeSet, HashMap};

/// Returns the operations of a rank in a step. Every rank makes the same outline and pipeline.
pub fn lower(outline: &Outline, pipeline: &Pipeline, place: Place) -> Vec<Op> {
    let mut actions = lowered(outline, pipeline, place, pipeline.program_of(place.stage), true);
    passes::add_calls(actions.iter_mut().flat_map(|(_, ops)| ops));
    passes::reduce(actions.iter_mut().flat_map(|(_, ops)| ops), outline.reduces_once);
    let add_up = outline.reduces_once && pipeline.micro_batches() > 1;
    let mut ops = scheduled(outline, actions, add_up);
    ops.extend(ties(outline, pipeline, place.stage));
    ops.extend(units_of(outline, pipeline, place.stage).into_iter().map(|unit| Op::Step { unit }));
    ops
}

/// Returns the operations of a rank in a forward of `micro_batches` micro-batches that no backward follows.
pub fn lower_forward(outline: &Outline, pipeline: &Pipeline, place: Place, micro_batches: usize) -> Vec<Op> {
    let program = pipeline.forward_of(place.stage, micro_batches);
    scheduled(outline, lowered(outline, pipeline, place, program, false), false)
}

/// A lowering in progress.
struct Lowering<'a> {
    outline: &'a Outline,
    place: Place,
    /// Whether a backward follows.
    trains: bool,
    /// Number of slots so far.
    slots: usize,
    /// The slots that stay after a forward, by call and micro-batch.
    kept: HashMap<(usize, usize), usize>,
}

/// Returns the operations of each action.
fn lowered(
    outline: &Outline,
    pipeline: &Pipeline,
    place: Place,
    program: Vec<Action>,
    trains: bool,
) -> Vec<(Action, Vec<Op>)> {
    let mut lowering = Lowering { outline, place, trains, slots: 0, kept: HashMap::new() };
    let (calls, chunks) = (&outline.chunks, outline.chunks.len());
    let has_owners = outline.calls.iter().any(|call| call.owner.is_some());
    let mut of_action = |action: Action| match action {
        Action::Forward(cell) => {
            let calls = calls[cell.chunk].clone();
            let of_call = if has_owners { by_rank::forward } else { by_stage::forward };
            calls.flat_map(|i| of_call(&mut lowering, i, cell.micro_batch)).collect()
        }
        Action::Backward(cell) => {
            let calls = calls[cell.chunk].clone().rev();
            let of_call = if has_owners { by_rank::backward } else { by_stage::backward };
            calls.flat_map(|i| of_call(&mut lowering, i, cell.micro_batch)).collect()
        }
        Action::BackwardInput(cell) => {
            let calls = calls[cell.chunk].clone().rev();
            calls.flat_map(|i| by_stage::input(&mut lowering, i, cell.micro_batch)).collect()
        }
        Action::BackwardWeights(cell) => {
            let calls = calls[cell.chunk].clone().rev();
            calls.flat_map(|i| by_stage::weights(&mut lowering, i, cell.micro_batch)).collect()
        }
        Action::Send(way, cell) => {
            let to = way.next(cell.chunk, chunks).expect("a program sends to a chunk that there is");
            let value = taken_by(outline, way, to, cell.micro_batch);
            vec![Op::Send { value, to: Peer::Stage(pipeline.stage_of(to)) }]
        }
        Action::Recv(way, cell) => {
            let from = way.previous(cell.chunk, chunks).expect("a program receives from a chunk that there is");
            let value = taken_by(outline, way, cell.chunk, cell.micro_batch);
            vec![Op::Recv { value, from: Peer::Stage(pipeline.stage_of(from)) }]
        }
    };
    program.into_iter().map(|action| (action, of_action(action))).collect()
}

/// Returns the value that a chunk takes.
fn taken_by(outline: &Outline, way: Direction, chunk: usize, micro_batch: usize) -> Value {
    let calls = &outline.chunks[chunk];
    let call = if way == Direction::Forward { calls.start } else { calls.end - 1 };
    Value { way, call, micro_batch }
}

/// Decides when gathers start and end, and when reductions end. If gradients `add_up` over micro-batches, a rank holds
/// the sums of all units already; then the last reductions may pile up, and none delays another stage.
fn scheduled(outline: &Outline, actions: Vec<(Action, Vec<Op>)>, add_up: bool) -> Vec<Op> {
    let awaited = |op: &Op| !(add_up && matches!(op, Op::Reduce { last: true, .. }));
    let of_action = |(action, ops)| {
        let is_forward = matches!(action, Action::Forward(_));
        let prefetch = if is_forward { outline.forward_prefetch } else { outline.backward_prefetch };
        let ops = passes::wait_late(ops, awaited);
        match prefetch {
            Prefetch::None => ops,
            Prefetch::Pre => passes::gather_ahead(ops, 1),
            Prefetch::Post => passes::gather_before_reductions(ops),
        }
    };
    let ops = passes::send_before_waits(actions.into_iter().flat_map(of_action).collect());
    let ops = passes::wait_at_end(ops);
    if outline.keeps_gathered { passes::keep_gathered(ops) } else { ops }
}

/// Returns the units that a stage holds, in order.
fn units_of(outline: &Outline, pipeline: &Pipeline, stage: usize) -> BTreeSet<usize> {
    let is_here = |(call, _): &(usize, _)| pipeline.stage_of(outline.chunk_of(*call)) == stage;
    outline.calls.iter().enumerate().filter(is_here).map(|(_, call)| call.unit).collect()
}

/// Returns a sum for each unit that this stage and others hold.
fn ties(outline: &Outline, pipeline: &Pipeline, stage: usize) -> Vec<Op> {
    let mut stages = vec![BTreeSet::new(); outline.units()];
    for (i, call) in outline.calls.iter().enumerate() {
        stages[call.unit].insert(pipeline.stage_of(outline.chunk_of(i)));
    }
    let tie = |(unit, of): (usize, BTreeSet<usize>)| {
        (of.len() > 1 && of.contains(&stage)).then_some(Op::Tie { unit, stages: of.len() })
    };
    stages.into_iter().enumerate().filter_map(tie).collect()
}

impl Lowering<'_> {
    /// Gathers call `i` into a new slot if its parameters do not rest here.
    fn gather(&mut self, i: usize) -> Option<(Op, usize)> {
        let call = &self.outline.calls[i];
        call.gathers.then(|| {
            self.slots += 1;
            (Op::Gather { unit: call.unit, slot: self.slots - 1, to: call.owner }, self.slots - 1)
        })
    }

    /// Frees the slot of call `i`, if it has one.
    fn free(&self, i: usize, slot: Option<usize>) -> Option<Op> {
        slot.map(|slot| Op::Free { unit: self.outline.calls[i].unit, slot })
    }

    /// Gathers call `i` for its backward, or returns the slot that has stayed.
    fn again(&mut self, i: usize, micro_batch: usize) -> (Option<Op>, Option<usize>) {
        match self.kept.remove(&(i, micro_batch)) {
            Some(slot) => (None, Some(slot)),
            None => self.gather(i).unzip(),
        }
    }
}
