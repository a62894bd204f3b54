//! The operations of a rank in a step.

use crate::Direction;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One operation of a rank. Units, calls, micro-batches, stages and ranks are numbers, counted from 0.
///
/// Gathers and reductions are started by one operation and awaited by a later one, so that they overlap with what runs
/// in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// Starts to gather a unit's parameters into a slot, on every rank of the stage or on rank `to` only.
    Gather {
        /// The unit.
        unit: usize,
        /// The slot.
        slot: usize,
        /// The rank that gets the parameters, unless all do.
        to: Option<usize>,
    },
    /// Runs a call with the parameters in `slot`, for which it waits, or with parameters that rest on the rank.
    Run {
        /// What is computed.
        kind: Kind,
        /// The call.
        call: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The slot with the parameters; `None` if they are never gathered.
        slot: Option<usize>,
    },
    /// Frees a slot. A graph that was kept as [`Keeps::HollowGraph`] stays and gets other memory with its backward.
    Free {
        /// The unit.
        unit: usize,
        /// The slot.
        slot: usize,
    },
    /// Joins the gradients of the call that has just run backward to one buffer, for one of the next three operations.
    Flatten {
        /// The unit of the call.
        unit: usize,
    },
    /// Adds these gradients to those of the unit's other calls for the same micro-batch; more follow.
    Add {
        /// The unit.
        unit: usize,
        /// The micro-batch.
        micro_batch: usize,
    },
    /// Starts to reduce the sum of these gradients and of what was [added](Self::Add) before.
    Reduce {
        /// The unit.
        unit: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// Whether the ranks that keep the unit's shards get their parts now. Otherwise this rank keeps the sum.
        sends: bool,
        /// Whether this is the step's last reduction of the unit: the copies of shards are then summed.
        last: bool,
    },
    /// Starts to send the gradients of a call from the one rank that computed it to the ranks with the unit's shards.
    Scatter {
        /// The unit.
        unit: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// The rank that has computed the call.
        from: usize,
        /// Whether this is the unit's last call in the micro-batch.
        last_call: bool,
    },
    /// Waits for the unit's reduction in flight and stores its result.
    Wait {
        /// The unit.
        unit: usize,
    },
    /// Sends a value that this rank has computed.
    Send {
        /// The value.
        value: Value,
        /// Who gets it.
        to: Peer,
    },
    /// Receives a value that a call of this rank needs.
    Recv {
        /// The value.
        value: Value,
        /// Who sends it.
        from: Peer,
    },
    /// Sums a unit's gradients over the stages that hold it.
    Tie {
        /// The unit.
        unit: usize,
        /// Number of these stages.
        stages: usize,
    },
    /// Makes the optimizer's step on this rank's part of a unit, and renews the copies of its parameters.
    Step {
        /// The unit.
        unit: usize,
    },
}

/// What a run of a call computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Its output.
    Forward(Keeps),
    /// Its output again, from the kept input; the graph is kept for the backward, which follows.
    Recompute,
    /// The gradients of its input and of its weights.
    Backward,
    /// The gradient of its input only; what the gradients of its weights need is kept.
    Input,
    /// The gradients of its weights, after its [`Input`](Self::Input).
    Weights,
}

/// What a forward keeps for the backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Keeps {
    /// Nothing: no backward follows.
    Nothing,
    /// The call's input, for a [`Recompute`](Kind::Recompute).
    Input,
    /// The call's graph.
    Graph,
    /// The call's graph, but not the memory of the parameters: it is freed, and gathered again for the backward.
    HollowGraph,
}

/// An activation, or its gradient, named after the call that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Value {
    /// [`Direction::Forward`]: the call's input. [`Direction::Backward`]: the gradient of its output.
    pub way: Direction,
    /// The call.
    pub call: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

/// The other end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Peer {
    /// The rank of another stage with this rank's place there.
    Stage(usize),
    /// A rank, counted over all.
    Rank(usize),
}

/// Writes `+2` for a gather of unit 2 and `-2` for its end, `F3.1` for the forward of call 3 and micro-batch 1. `R`,
/// `B`, `I` and `W` are the recomputation, the backward, the input gradient and the weight gradient; `s>`, `s<`, `r>`
/// and `r<` are messages sent and received.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Gather { unit, .. } => write!(f, "+{unit}"),
            Self::Free { unit, .. } => write!(f, "-{unit}"),
            Self::Run { kind, call, micro_batch, .. } => write!(f, "{kind}{call}.{micro_batch}"),
            Self::Flatten { unit } => write!(f, "flatten{unit}"),
            Self::Add { unit, .. } => write!(f, "add{unit}"),
            Self::Reduce { unit, sends: false, .. } => write!(f, "keep{unit}"),
            Self::Reduce { unit, .. } => write!(f, "reduce{unit}"),
            Self::Scatter { unit, .. } => write!(f, "scatter{unit}"),
            Self::Wait { unit } => write!(f, "wait{unit}"),
            Self::Send { value, .. } => write!(f, "s{value}"),
            Self::Recv { value, .. } => write!(f, "r{value}"),
            Self::Tie { unit, .. } => write!(f, "tie{unit}"),
            Self::Step { unit } => write!(f, "step{unit}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Forward(_) => "F",
            Self::Recompute => "R",
            Self::Backward => "B",
            Self::Input => "I",
            Self::Weights => "W",
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let arrow = if self.way == Direction::Forward { '>' } else { '<' };
        write!(f, "{arrow}{}.{}", self.call, self.micro_batch)
    }
}
