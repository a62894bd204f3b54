//! What can be wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be written or read; each message names the file, and the parameter where there is one.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file or folder that cannot be written: the disk is full, say.
    #[error("cannot write {}: {source}; older checkpoints are as they were: make room, or give the run another folder with --out", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is not what was written: cut off, edited, or of something else.
    #[error("{}: {reason}: the checkpoint cannot be trusted; take an older one (step-N beside it)", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The checkpoint was written in another format.
    #[error(
        "{}: has format {format}, and this program reads {}: use the version of Kiln that wrote it, or with that version \
         `train export --out DIR` and with this one `train import --hf DIR`, which takes the weights but not AdamW's moments",
        path.display(), crate::Index::FORMAT
    )]
    OtherFormat {
        /// The index.
        path: PathBuf,
        /// The version of its format.
        format: u32,
    },
    /// A folder of a run that is a link to elsewhere.
    #[error(
        "{}: is a symbolic link, and Kiln writes and removes files in it: put a folder in its place (a link to the whole run is fine)",
        path.display()
    )]
    Linked {
        /// The link.
        path: PathBuf,
    },
    /// The checkpoint is of another model.
    #[error("{}: {reason}: this is a checkpoint of another model", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// There is no checkpoint in a folder.
    #[error("{}: there is no checkpoint: give a run's folder with checkpoints/step-N in it, or a folder step-N", path.display())]
    None {
        /// The folder.
        path: PathBuf,
    },
}

impl CheckpointError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Self {
        Self::Broken { path: path.into(), reason: reason.into() }
    }
}
