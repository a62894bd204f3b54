//! From what a stage computes to all that it does.

use crate::{Action, Cell, Direction, Pipeline};

/// The order with its messages: what others need is sent at once, and what is needed is received just before it is.
/// With `early` above 0 it is received before what the stage computes that many turns earlier in the same direction.
/// Chunks that follow each other on a stage hand over without a message.
///
/// Between two stages all that goes one way is sent and received in one order, which a mailbox of one place for each
/// way is enough for.
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
