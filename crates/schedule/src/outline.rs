//! The outline of a step: its calls and how their parameters are kept, without tensors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// When the gather of the next block's parameters starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// When the next block needs them, so the gather is not hidden behind computation.
    None,
    /// Before the current block computes, which hides the communication; two blocks are gathered at a time.
    #[default]
    Pre,
    /// After the current block has computed, before its gradients are reduced; one block is gathered at a time.
    Post,
}

/// The outline of a step, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outline {
    /// The calls in the order of the forward.
    pub calls: Vec<CallOutline>,
    /// The calls of each chunk of the pipeline.
    pub chunks: Vec<Range<usize>>,
    /// Whether gathered parameters stay until the last micro-batch's backward.
    pub keeps_gathered: bool,
    /// Whether gradients are sent to their shards only with the step's last micro-batch.
    pub reduces_once: bool,
    /// When the forward gathers.
    pub forward_prefetch: Prefetch,
    /// When the backward gathers.
    pub backward_prefetch: Prefetch,
}

/// A call of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallOutline {
    /// The unit.
    pub unit: usize,
    /// Whether the unit's parameters must be gathered. Otherwise they rest on every rank that computes the call.
    pub gathers: bool,
    /// Whether gathered parameters are freed after the forward, and gathered again for the backward.
    pub gathers_again: bool,
    /// Whether the backward runs the forward again.
    pub recomputes: bool,
    /// The one rank that computes the call, or `None` if every rank of the stage does, each for its own micro-batches.
    pub owner: Option<usize>,
}

/// A rank's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stage of the pipeline.
    pub stage: usize,
    /// The rank, counted over all stages.
    pub rank: usize,
}

impl Outline {
    /// Returns the number of units.
    pub fn units(&self) -> usize {
        self.calls.iter().map(|call| call.unit + 1).max().unwrap_or(0)
    }

    /// Returns the chunk of a call.
    pub(crate) fn chunk_of(&self, call: usize) -> usize {
        self.chunks.iter().position(|calls| calls.contains(&call)).expect("every call is in a chunk")
    }
}
