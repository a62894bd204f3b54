//! Errors of pipelines and of their simulation.

use crate::{Action, Cell, Schedule};

/// Why a combination is not a valid pipeline, or why the programs of its stages do not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum ScheduleError {
    #[error("a pipeline of {stages} stages and {micro_batches} micro-batches: give at least one of each")]
    Nothing { stages: usize, micro_batches: usize },

    #[error("{} has one chunk per stage, not {virtual_stages}: take interleaved_1f1b for more", .schedule.name())]
    OneChunk { schedule: Schedule, virtual_stages: usize },

    #[error("zb_v has two chunks per stage, not {virtual_stages}")]
    TwoChunks { virtual_stages: usize },

    #[error("interleaved_1f1b has at least two chunks per stage, not {virtual_stages}: 1f1b has one")]
    FewChunks { virtual_stages: usize },

    #[error("deadlock: {}", .0.iter().map(|(stage, action)| format!("stage {stage} waits at {action}")).collect::<Vec<_>>().join(", "))]
    Deadlock(Vec<(usize, Action)>),

    #[error("stage {stage} receives {wanted} and gets {found}")]
    OtherMessage { stage: usize, wanted: Action, found: Cell },

    #[error("stage {stage} reaches {action} before its inputs are available, or twice")]
    Early { stage: usize, action: Action },
}
