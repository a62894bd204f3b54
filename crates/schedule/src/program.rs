//! Adds messages to the computations of a stage.

use crate::{Action, Cell, Direction, Pipeline};

/// Adds the messages to an order of computations. A result that another stage needs is sent at once, and an input is
/// received just before its computation. If `early` is above 0, the input is received that many computations of the
/// same direction earlier. Consecutive chunks on one stage pass results on without a message.
///
/// Messages between two stages in one direction are sent and received in the same order, so a mailbox with one slot per
/// direction suffices.
pub(crate) fn with_messages(
    pipeline: &Pipeline,
    stage: usize,
    order: Vec<Action>,
    early: &dyn Fn(Direction, Cell) -> usize,
) -> Vec<Action> {
    let chunks = pipeline.chunks();
    let is_elsewhere = |chunk: &usize| pipeline.stage_of(*chunk) != stage;
    let mut received = vec![vec![]; order.len()];
    let mut turns = [vec![], vec![]];
    for (at, action) in order.iter().enumerate() {
        let Some((way, cell)) = action.gives() else { continue };
        let turns = &mut turns[way as usize];
        turns.push(at);
        if way.previous(cell.chunk, chunks).filter(is_elsewhere).is_some() {
            let before = turns[turns.len() - 1 - early(way, cell)];
            received[before].push(Action::Recv(way, cell));
        }
    }
    let mut program = vec![];
    for (action, received) in order.into_iter().zip(received) {
        program.extend(received);
        program.push(action);
        program.extend(action.gives().and_then(|(way, cell)| {
            way.next(cell.chunk, chunks).filter(is_elsewhere).map(|_| Action::Send(way, cell))
        }));
    }
    program
}
