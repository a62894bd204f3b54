//! The actions of a pipeline stage.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A micro-batch in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The chunk, counted through the model from 0.
    pub chunk: usize,
    /// The micro-batch, counted from 0.
    pub micro_batch: usize,
}

/// The direction in which data moves through the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// Activations move from a chunk to the next one.
    Forward,
    /// Gradients of activations move from a chunk to the previous one.
    Backward,
}

/// One action of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Computes a chunk's output and keeps what its backward needs.
    Forward(Cell),
    /// Computes the gradients of a chunk's input and of its weights.
    Backward(Cell),
    /// Computes the gradient of a chunk's input only and keeps what the weight gradient needs.
    BackwardInput(Cell),
    /// Computes the gradient of a chunk's weights, after its [`BackwardInput`](Self::BackwardInput).
    BackwardWeights(Cell),
    /// Sends the cell's result to the stage that holds the next chunk in this direction.
    Send(Direction, Cell),
    /// Receives the cell's input from the stage that holds the previous chunk in this direction.
    Recv(Direction, Cell),
}

impl Direction {
    /// Returns the chunk that receives a cell's output, or `None` at the end of the model.
    pub fn next(self, chunk: usize, chunks: usize) -> Option<usize> {
        match self {
            Self::Forward => Some(chunk + 1).filter(|next| *next < chunks),
            Self::Backward => chunk.checked_sub(1),
        }
    }

    /// Returns the chunk that produces a cell's input, or `None` at the other end of the model.
    pub fn previous(self, chunk: usize, chunks: usize) -> Option<usize> {
        match self {
            Self::Forward => Self::Backward.next(chunk, chunks),
            Self::Backward => Self::Forward.next(chunk, chunks),
        }
    }
}

impl Action {
    /// Returns the cell that this action computes, or `None` for a message.
    pub fn computes(self) -> Option<Cell> {
        match self {
            Self::Forward(cell) | Self::Backward(cell) | Self::BackwardInput(cell) | Self::BackwardWeights(cell) => {
                Some(cell)
            }
            Self::Send(..) | Self::Recv(..) => None,
        }
    }

    /// Returns the direction and the cell of the result that another chunk needs once this action is done.
    pub fn gives(self) -> Option<(Direction, Cell)> {
        match self {
            Self::Forward(cell) => Some((Direction::Forward, cell)),
            Self::Backward(cell) | Self::BackwardInput(cell) => Some((Direction::Backward, cell)),
            _ => None,
        }
    }

    /// Returns whether the stage keeps nothing of the cell after this action.
    pub fn frees(self) -> bool {
        matches!(self, Self::Backward(_) | Self::BackwardWeights(_))
    }
}

/// Writes `F1.0` for the forward of chunk 1 and micro-batch 0. `B`, `I` and `W` are the full backward, the input
/// gradient and the weight gradient; `s>`, `s<`, `r>` and `r<` are messages sent and received.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let arrow = |direction: &Direction| if *direction == Direction::Forward { '>' } else { '<' };
        match self {
            Self::Forward(cell) => write!(f, "F{cell}"),
            Self::Backward(cell) => write!(f, "B{cell}"),
            Self::BackwardInput(cell) => write!(f, "I{cell}"),
            Self::BackwardWeights(cell) => write!(f, "W{cell}"),
            Self::Send(direction, cell) => write!(f, "s{}{cell}", arrow(direction)),
            Self::Recv(direction, cell) => write!(f, "r{}{cell}", arrow(direction)),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.chunk, self.micro_batch)
    }
}
