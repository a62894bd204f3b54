//! A training run's state on disk, sharded over ranks: written completely or not at all, readable by any number of
//! ranks.
//!
//! ```text
//! checkpoints/
//!   step-200/                  a checkpoint
//!     index.json               step, parameters, digest of each file and of the index itself
//!     pieces.bin               position of each piece of each parameter, one section per parameter
//!     blocks.bin               digests of the files' blocks
//!     config.yaml ...          files added by the run
//!     rank-0.safetensors       rank 0's pieces: param.NAME, exp_avg.NAME, exp_avg_sq.NAME, each a flat list of f32
//!     rank-1.safetensors
//!   .step-300.partial/         a checkpoint being written
//!     head.json                the index so far
//!     rank-1.safetensors
//!     rank-1.blocks            digests of its blocks
//!     rank-1.json              its pieces; its presence means that this rank is done
//!   abandoned/                 checkpoints later than the one that the run was resumed from
//! ```
//!
//! One process calls [`Folder::begin`], and each rank calls [`write_rank`]. When no rank is [missing](Folder::missing),
//! one process calls [`Folder::complete`]: it syncs the files and then renames the folder, so a folder `step-N` is
//! complete whatever happens to the process or the machine. [`Folder::mend`] completes a checkpoint that lacks only
//! this last step. [`Checkpoint`] reads ranges of parameters, whichever ranks wrote them, and verifies the digest of
//! each block when the process first reads the block.
//!
//! This crate knows nothing of tensors, communicators or models.
//!
//! An example, `examples/reshard.rs`:
//!
//! ```
#![doc = include_str!("../examples/reshard.rs")]
//! ```

mod blocks;
mod commit;
mod error;
mod files;
mod find;
mod folder;
mod index;
mod parts;
mod read;
mod region;
#[cfg(test)]
mod scale;
mod table;
mod write;

pub use error::CheckpointError;
pub use find::Which;
#[doc(hidden)]
pub use find::{run_of_unknown, split_at};
pub use folder::Folder;
#[doc(hidden)]
pub use folder::MayBe;
pub use index::{Best, FileEntry, Index, LossScale, Lowest, Parameter};
pub use parts::Parts;
pub use read::{Checkpoint, Elements};
pub use region::Region;
pub use write::{Piece, Values, Written, write_rank};

use serde::{Deserialize, Serialize};

/// What a checkpoint stores for a parameter, under PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The parameter's values.
    Param,
    /// AdamW's running mean of the gradients.
    ExpAvg,
    /// AdamW's running mean of the squared gradients.
    ExpAvgSq,
}

impl Kind {
    /// All three kinds.
    pub const ALL: [Self; 3] = [Self::Param, Self::ExpAvg, Self::ExpAvgSq];

    /// The tensor's name in a file.
    pub fn tensor(self, parameter: &str) -> String {
        let prefix = match self {
            Self::Param => "param",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
        };
        format!("{prefix}.{parameter}")
    }
}
