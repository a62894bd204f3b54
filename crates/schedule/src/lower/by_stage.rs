//! The calls of a chunk on a rank that computes all of them, for its own micro-batches.
//!
//! ```text
//! forward    +2 F2.0 -2                       -2: if it is gathered again
//! backward   +2 B2.0 -2 flatten2 reduce2      +2: if it is gathered again; R2.0 before B2.0: if it is recomputed
//! two parts  I2.0  ..  W2.0 -2 flatten2 reduce2
//! ```

use super::Lowering;
use crate::{CallOutline, Keeps, Kind, Op};

/// Returns the operations of a call's forward.
pub fn forward(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    let CallOutline { recomputes, gathers_again, .. } = lowering.outline.calls[call];
    let (gather, slot) = lowering.gather(call).unzip();
    let frees = gathers_again || !lowering.trains;
    let keeps = match (lowering.trains, recomputes) {
        (false, _) => Keeps::Nothing,
        (true, true) => Keeps::Input,
        (true, false) if gathers_again && slot.is_some() => Keeps::HollowGraph,
        (true, false) => Keeps::Graph,
    };
    let run = Op::Run { kind: Kind::Forward(keeps), call, micro_batch, slot };
    if let Some(slot) = slot.filter(|_| !frees) {
        lowering.kept.insert((call, micro_batch), slot);
    }
    let free = lowering.free(call, slot.filter(|_| frees));
    gather.into_iter().chain([run]).chain(free).collect()
}

/// Returns the operations of a call's backward.
pub fn backward(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    let (gather, slot) = lowering.again(call, micro_batch);
    let run = |kind| Op::Run { kind, call, micro_batch, slot };
    let recompute = lowering.outline.calls[call].recomputes.then(|| run(Kind::Recompute));
    let free = lowering.free(call, slot);
    let runs = gather.into_iter().chain(recompute).chain([run(Kind::Backward)]);
    runs.chain(free).chain(reduce(lowering, call, micro_batch)).collect()
}

/// Returns the operations of a call's input gradient.
pub fn input(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    let (gather, slot) = lowering.again(call, micro_batch);
    lowering.kept.extend(slot.map(|slot| ((call, micro_batch), slot)));
    let run = |kind| Op::Run { kind, call, micro_batch, slot };
    let recompute = lowering.outline.calls[call].recomputes.then(|| run(Kind::Recompute));
    gather.into_iter().chain(recompute).chain([run(Kind::Input)]).collect()
}

/// Returns the operations of a call's weight gradient.
pub fn weights(lowering: &mut Lowering, call: usize, micro_batch: usize) -> Vec<Op> {
    let slot = lowering.kept.remove(&(call, micro_batch));
    let run = Op::Run { kind: Kind::Weights, call, micro_batch, slot };
    let free = lowering.free(call, slot);
    std::iter::once(run).chain(free).chain(reduce(lowering, call, micro_batch)).collect()
}

fn reduce(lowering: &Lowering, call: usize, micro_batch: usize) -> [Op; 2] {
    let unit = lowering.outline.calls[call].unit;
    [Op::Flatten { unit }, Op::Reduce { unit, micro_batch, sends: true, last: false }]
}
