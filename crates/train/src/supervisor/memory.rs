//! Checkpoints in this machine's memory, which outlive the process that writes them.
//!
//! ```text
//! attempt 1    step 100 ─ disk ─ step 110 ─ memory ─ step 120 ─ memory ─ step 127 ✗
//! supervisor                                                             copies step 120 to the disk
//! attempt 2                                                              step 121 ─ ...
//! ```

use crate::config::Config;
use crate::error::TrainError;
use crate::run::copies;
use checkpoint::{CheckpointError, Folder};
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file system in memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// The folder of the checkpoints in memory, removed when dropped.
pub(super) struct Memory(PathBuf);

impl Memory {
    /// Creates the folder, if the configuration asks for it. What a killed supervisor of the run has left is removed.
    pub fn new(config: &Config, run: &Path) -> Result<Option<Self>, TrainError> {
        // SAFETY: a system call without memory.
        let user = unsafe { libc::geteuid() };
        let mut name = DefaultHasher::new();
        run.canonicalize().unwrap_or_else(|_| run.into()).hash(&mut name);
        let path = Path::new(SHARED_MEMORY).join(format!("kiln-{user}-{:016x}", name.finish()));
        // Everybody may create folders there: this must be the user's own.
        let is_own = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == user);
        let removed = if is_own { fs::remove_dir_all(&path) } else { Ok(()) };
        if config.resilience.memory_every == 0 {
            return Ok(None);
        }
        removed.and_then(|()| DirBuilder::new().mode(0o700).create(&path)).map_err(|source| {
            TrainError::Memory(format!(
                "resilience.memory_every needs a folder in memory, and {} cannot be made: {source}: set it to 0",
                path.display()
            ))
        })?;
        Ok(Some(Self(path)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Copies the newest checkpoint to the run's folder, if it is newer than those there. Returns its step.
    pub fn recover(&self, run: &Path) -> Result<Option<u64>, CheckpointError> {
        let (memory, disk) = (Folder::of_run(&self.0), Folder::of_run(run));
        memory.clean(&copies::are_same)?;
        disk.clean(&copies::are_same)?;
        let newest = |folder: &Folder| Ok(folder.list()?.last().map(|(step, _)| *step));
        let Some(step) = newest(&memory)?.filter(|step| newest(&disk).is_ok_and(|on_disk| on_disk < Some(*step)))
        else {
            return Ok(None);
        };
        disk.copy(&memory.step(step))?;
        Ok(Some(step))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
