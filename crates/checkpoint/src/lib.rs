//! A training run's state on disk, sharded over ranks: written completely or not at all, readable by any number of
//! ranks.
//!
//! ```text
//! checkpoints/
//!   step-200/                  a checkpoint
//!     index.json               step, parameters, digest of each file and of the index itself
//!     pieces.bin               where each piece of each parameter lies, one section per parameter
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
//! one process calls [`Folder::complete`]: the files are synced and then the folder is renamed, so a folder `step-N` is
//! complete whatever happens to the process or the machine. [`Folder::mend`] completes a checkpoint that lacks only
//! this last step. [`Checkpoint`] reads ranges of parameters, whichever ranks wrote them, and compares the digest of
//! every block when the process first reads it.
//!
//! This crate knows no tensors, no communicators and no models.
//!
//! ```
//! use checkpoint::{Checkpoint, Folder, Index, Kind, Piece, Written, write_rank};
//!
//! let run = tempfile::tempdir()?;
//! let folder = Folder::of_run(run.path());
//! // Each of two ranks holds half of a matrix.
//! for rank in 0..2 {
//!     let values = move |_: Kind| vec![rank as f32; 3];
//!     let piece = Piece { name: "w".into(), shape: vec![2, 3], region: None, offset: 3 * rank, len: 3, has_moments: false };
//!     write_rank(&folder.partial(200), rank, vec![(piece, Box::new(values))], &Written::default())?;
//! }
//! folder.commit(Index { step: 200, world_size: 2, ..Index::default() }, &[("config.yaml".into(), b"model: ...".to_vec())])?;
//!
//! let checkpoint = Checkpoint::open(&folder.latest()?.unwrap())?;
//! assert_eq!(checkpoint.read("w", Kind::Param, 2..4)?, [0.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod commit;
mod error;
mod files;
mod find;
mod folder;
mod index;
mod read;
mod region;
#[cfg(test)]
mod scale;
mod table;
mod write;

pub use error::CheckpointError;
pub use find::{Which, run_of_unknown, split_at};
pub use folder::{Folder, MayBe};
pub use index::{Best, FileEntry, Index, LossScale, Lowest, Parameter};
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
