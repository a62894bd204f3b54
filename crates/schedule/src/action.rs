//! What a stage of a pipeline does, one action at a time.

use std::fmt;

/// A micro-batch in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The chunk, counted through the model from 0.
    pub chunk: usize,
    /// The micro-batch, counted from 0.
    pub micro_batch: usize,
}

/// Which way something goes through the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Activations, from a chunk to the next.
    Forward,
    /// Their gradients, from a chunk to the one before.
    Backward,
}

/// One thing that a stage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Computes a chunk's output, and keeps what its backward needs.
    Forward(Cell),
    /// Computes the gradients of a chunk's input and of its weights.
    Backward(Cell),
    /// Computes the gradient of a chunk's input only, and keeps what that of its weights needs.
    BackwardInput(Cell),
    /// Computes the gradient of a chunk's weights, after its [`BackwardInput`](Self::BackwardInput).
    BackwardWeights(Cell),
    /// Gives what the cell has computed to the stage of the next chunk that way.
    Send(Direction, Cell),
    /// Takes what the cell needs from the stage of the chunk before it that way.
    Recv(Direction, Cell),
}

impl Direction {
    /// The chunk that a cell's output goes to; None at the model's end.
    pub fn next(self, chunk: usize, chunks: usize) -> Option<usize> {
        match self {
            Self::Forward => Some(chunk + 1).filter(|next| *next < chunks),
            Self::Backward => chunk.checked_sub(1),
        }
    }

    /// The chunk that a cell's input comes from; None at the model's other end.
    pub fn previous(self, chunk: usize, chunks: usize) -> Option<usize> {
        match self {
            Self::Forward => Self::Backward.next(chunk, chunks),
            Self::Backward => Self::Forward.next(chunk, chunks),
        }
    }
}

impl Action {
    /// The cell that it computes; None of what computes nothing.
    pub fn computes(self) -> Option<Cell> {
        match self {
            Self::Forward(cell) | Self::Backward(cell) | Self::BackwardInput(cell) | Self::BackwardWeights(cell) => {
                Some(cell)
            }
            Self::Send(..) | Self::Recv(..) => None,
        }
    }

    /// The direction and cell of what goes on to another chunk once it is done.
    pub fn gives(self) -> Option<(Direction, Cell)> {
        match self {
            Self::Forward(cell) => Some((Direction::Forward, cell)),
            Self::Backward(cell) | Self::BackwardInput(cell) => Some((Direction::Backward, cell)),
            _ => None,
        }
    }

    /// Whether nothing of its cell is kept any longer once it is done.
    pub fn frees(self) -> bool {
        matches!(self, Self::Backward(_) | Self::BackwardWeights(_))
    }
}

/// `F1.0`: the forward of chunk 1 and micro-batch 0; `B`, `I`, `W`: backward, of the input, of the weights; `>` and `<`
/// are sent (`s`) or received (`r`).
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
