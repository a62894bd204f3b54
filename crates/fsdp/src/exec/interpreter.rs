//! The interpreter of a stage's program: it runs chunks and moves activations and their gradients between stages.
//!
//! ```text
//! schedule::Pipeline ─> [Recv, Forward, Send, ..] ─> interpreter ─> chunk.rs: the calls of a chunk, one micro-batch
//! ```

use crate::FsdpError;
use crate::api::activations::Tensors;
use crate::api::call::Output;
use crate::api::units::ShapeOf;
use crate::exec::chunk::{DeferredWeights, Losses, Micro, Runner, Saved};
use crate::exec::point_to_point;
use comm::Communicator;
use schedule::{Action, Cell, Direction, Pipeline};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The communicators between stages, one per direction: messages in one direction are ordered, but the two directions
/// have no common order.
pub(crate) struct PointToPoint {
    forward: Communicator,
    backward: Communicator,
}

impl PointToPoint {
    /// Creates the communicators between stages. This is a collective.
    pub fn new(stages: &Communicator) -> Result<Self, FsdpError> {
        Ok(Self { forward: stages.split(0)?, backward: stages.split(0)? })
    }

    fn of(&self, way: Direction) -> &Communicator {
        match way {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        }
    }
}

pub(crate) struct Interpreter<'a, B> {
    pub runner: Runner<'a, B>,
    pub point_to_point: &'a PointToPoint,
    pub pipeline: Pipeline,
    /// Returns the number of sequences in a batch's activations, and their length, if the model defines it.
    pub shape: Option<&'a ShapeOf<B>>,
}

/// The time that a step's forwards and backwards took on a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageTimes {
    /// Time spent computing and waiting for other ranks of the stage.
    pub computing: Duration,
    /// Time spent waiting for another stage and, at the end, for all ranks: the rank's part of the pipeline's bubble,
    /// and messages.
    pub waiting: Duration,
}

/// The available inputs of cells: for each cell, the activation or the gradient from which it continues.
type Inputs = HashMap<(Direction, Cell), Tensors>;

impl<B> Interpreter<'_, B> {
    /// Runs a step's micro-batches forward and backward, and adds the gradients of their losses times `scales` to the
    /// units' gradients. Returns the losses of each micro-batch that this rank has computed, and the times.
    pub fn train(&mut self, micro_batches: &[B], scales: &[f64]) -> Result<(Vec<Losses>, StageTimes), FsdpError> {
        let (started, mut waiting) = (Instant::now(), Duration::ZERO);
        let mut losses = vec![Losses::default(); micro_batches.len()];
        let (mut inputs, mut saved) = (Inputs::new(), HashMap::<Cell, Vec<Saved>>::new());
        let mut deferred = HashMap::<Cell, Vec<DeferredWeights>>::new();
        let micro = |cell: Cell| {
            let number = cell.micro_batch;
            Micro { batch: &micro_batches[number], number, scale: scales[number] }
        };
        for action in self.pipeline.program_of(self.runner.stages.stage) {
            match action {
                Action::Forward(cell) => {
                    let (calls, batch) = (self.runner.stages.calls(cell.chunk), &micro_batches[cell.micro_batch]);
                    let x = inputs.remove(&(Direction::Forward, cell));
                    let (kept, y) = self.runner.forward(calls, x, batch, &mut losses[cell.micro_batch])?;
                    saved.insert(cell, kept);
                    self.hand_on(&mut inputs, Direction::Forward, cell, y);
                }
                Action::Backward(cell) | Action::BackwardInput(cell) => {
                    let (calls, micro) = (self.runner.stages.calls(cell.chunk), micro(cell));
                    let cotangent = inputs.remove(&(Direction::Backward, cell));
                    let kept = saved.remove(&cell).expect("a program runs forward before it runs backward");
                    let cotangent = match action {
                        Action::BackwardInput(_) => {
                            let (rest, cotangent) = self.runner.backward_of_inputs(calls, kept, cotangent, &micro)?;
                            deferred.insert(cell, rest);
                            cotangent
                        }
                        _ => self.runner.backward(calls, kept, cotangent, &micro)?,
                    };
                    self.hand_on(&mut inputs, Direction::Backward, cell, cotangent);
                }
                Action::BackwardWeights(cell) => {
                    let rest =
                        deferred.remove(&cell).expect("a program has the gradient of an input before its weights'");
                    self.runner.backward_of_weights(rest, &micro(cell))?;
                }
                Action::Send(way, cell) => self.send(&mut inputs, way, cell)?,
                Action::Recv(way, cell) => {
                    let before = Instant::now();
                    self.recv(&mut inputs, way, cell, micro_batches)?;
                    waiting += before.elapsed();
                }
            }
        }
        Ok((losses, StageTimes { computing: started.elapsed() - waiting, waiting }))
    }

    /// Runs batches forward and passes the output of each call of this rank to `look`; returns the losses of each
    /// batch.
    pub fn evaluate(&mut self, batches: &[B], look: &mut dyn FnMut(usize, &Output)) -> Result<Vec<Losses>, FsdpError> {
        let (mut losses, mut inputs) = (vec![Losses::default(); batches.len()], Inputs::new());
        for action in self.pipeline.forward_of(self.runner.stages.stage, batches.len()) {
            match action {
                Action::Send(way, cell) => self.send(&mut inputs, way, cell)?,
                Action::Recv(way, cell) => self.recv(&mut inputs, way, cell, batches)?,
                action => {
                    let cell = action.computes().expect("what is no message computes");
                    let x = inputs.remove(&(Direction::Forward, cell));
                    let calls = self.runner.stages.calls(cell.chunk);
                    let (batch, losses) = (&batches[cell.micro_batch], &mut losses[cell.micro_batch]);
                    let y = self.runner.evaluate(calls, x, batch, losses, look)?;
                    self.hand_on(&mut inputs, Direction::Forward, cell, y);
                }
            }
        }
        Ok(losses)
    }

    /// Passes a cell's result to the next cell in that direction.
    fn hand_on(&self, inputs: &mut Inputs, way: Direction, cell: Cell, x: Option<Tensors>) {
        if let (Some(x), Some(next)) = (x, self.next(way, cell)) {
            inputs.insert((way, next), x);
        }
    }

    fn send(&self, inputs: &mut Inputs, way: Direction, cell: Cell) -> Result<(), FsdpError> {
        let next = self.next(way, cell).expect("a program sends to a chunk that there is");
        let x = inputs.remove(&(way, next)).expect("a program sends what was computed");
        Ok(point_to_point::send(self.point_to_point.of(way), &x, self.pipeline.stage_of(next.chunk))?)
    }

    fn recv(&self, inputs: &mut Inputs, way: Direction, cell: Cell, batches: &[B]) -> Result<(), FsdpError> {
        let from =
            way.previous(cell.chunk, self.pipeline.chunks()).expect("a program receives from a chunk that there is");
        let stage = self.pipeline.stage_of(from);
        let calls = self.runner.stages.calls(cell.chunk);
        let dimensions = match way {
            Direction::Forward => self.runner.calls[calls.start].takes(),
            Direction::Backward => self.runner.calls[calls.end - 1].returns(),
        };
        let x = point_to_point::recv(self.point_to_point.of(way), stage, dimensions)?;
        let found = x.dims();
        let expected = self.shape.map(|shape| shape(&batches[cell.micro_batch]));
        if let Some((expected, found)) = expected.zip(found.first_chunk().copied()).filter(|(a, b)| a != b) {
            let (ranks, plan) = (self.runner.world.world_size() / self.pipeline.stages(), self.runner.plan);
            let from = stage * ranks + plan.rank % ranks;
            let error = FsdpError::Shape { rank: plan.rank, from, found, expected };
            // Other messages of the same send can no longer be used.
            self.runner.world.abort(&error.to_string());
            return Err(error);
        }
        inputs.insert((way, cell), x);
        Ok(())
    }

    fn next(&self, way: Direction, cell: Cell) -> Option<Cell> {
        way.next(cell.chunk, self.pipeline.chunks()).map(|chunk| Cell { chunk, ..cell })
    }
}
