use comm::{FirstError, SequenceRanks};
use moe::ExpertParallel;

/// The ranks that compute a model's sequences together; by default none but this one.
///
/// A module whose parameters are a rank's part of them computes with what it has: how many heads and columns those are
/// it sees by their widths. A block takes and returns the rank's rows of each sequence; tokens and targets are those of
/// whole sequences, or of the rank's part of their context.
#[derive(Clone, Default)]
pub struct Parallel {
    /// Those that have the experts together.
    pub experts: Option<ExpertParallel>,
    /// Those that have the sequences' rows, and heads, columns and the vocabulary together.
    pub sequences: SequenceRanks,
    /// What has failed in the collectives of all.
    pub first_error: FirstError,
}
