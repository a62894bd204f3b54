//! From what a stage computes to all that it does.

use crate::{Action, Pipeline};

/// The order with its messages, each as near to its computation as can be: what is needed is received just before, what others need is
/// sent at once. Chunks that follow each other on a stage hand over without.
///
/// Between two stages all that goes one way is sent and received in one order, which a mailbox of one place for each way is enough for.
pub(crate) fn with_messages(pipeline: &Pipeline, stage: usize, order: Vec<Action>) -> Vec<Action> {
    let chunks = pipeline.chunks();
    let is_elsewhere = |chunk: &usize| pipeline.stage_of(*chunk) != stage;
    let mut program = vec![];
    for action in order {
        let gives = action.gives();
        program.extend(gives.and_then(|(way, cell)| {
            way.previous(cell.chunk, chunks).filter(is_elsewhere).map(|_| Action::Recv(way, cell))
        }));
        program.push(action);
        program.extend(gives.and_then(|(way, cell)| {
            way.next(cell.chunk, chunks).filter(is_elsewhere).map(|_| Action::Send(way, cell))
        }));
    }
    program
}
