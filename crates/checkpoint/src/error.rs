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
