//! The ranks that compute a model together.

use comm::{FirstError, SequenceRanks};
use moe::ExpertParallel;

/// The ranks that compute a model's sequences together; by default only this one.
///
/// A module that holds a shard of its parameters computes with what it has: it infers the number of heads and columns
/// from their widths. A block takes and returns the rank's rows of each sequence. Tokens and targets cover whole
/// sequences, or the rank's part of their context.
#[derive(Clone, Default)]
pub struct Parallel {
    /// The ranks that share the experts.
    pub experts: Option<ExpertParallel>,
    /// The ranks that share the sequences' rows, and the heads, columns and the vocabulary.
    pub sequences: SequenceRanks,
    /// The first error in the collectives of any of them.
    pub first_error: FirstError,
}
