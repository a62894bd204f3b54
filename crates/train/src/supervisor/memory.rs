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
use crate::run::folder::RunFolder;
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
    /// Creates the folder, if the configuration asks for it. What a killed supervisor of the run has left is recovered
    /// first if the run exists (`in_place`), and removed. Returns a line about it too.
    pub fn new(config: &Config, run: &Path, in_place: bool) -> Result<(Option<Self>, Option<String>), TrainError> {
        // SAFETY: a system call without memory.
        let user = unsafe { libc::geteuid() };
        let mut name = DefaultHasher::new();
        run.canonicalize().unwrap_or_else(|_| run.into()).hash(&mut name);
        let path = Path::new(SHARED_MEMORY).join(format!("kiln-{user}-{:016x}", name.finish()));
        // Everybody may create folders there: this must be the user's own.
        let is_own = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == user);
        let left = is_own.then(|| Self(path.clone()));
        let recovered =
            left.as_ref().filter(|left| in_place && left.is_newer_than(run)).and_then(|left| left.recover(run));
        drop(left);
        if config.resilience.memory_every == 0 {
            return Ok((None, recovered));
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(|source| {
            TrainError::Memory(format!(
                "resilience.memory_every needs a folder in memory, and {} cannot be made: {source}: set it to 0",
                path.display()
            ))
        })?;
        Ok((Some(Self(path)), recovered))
    }

    /// Whether the folder was used after the run's folder was created: it is not that of an earlier run of this name.
    fn is_newer_than(&self, run: &Path) -> bool {
        let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        let created = RunFolder::at(run).created();
        created.is_some_and(|created| changed(&self.0.join("checkpoints")) > Some(created))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Copies the newest whole checkpoint to the run's folder, if it is newer than those there, and removes all from memory.
    /// Returns a line about it.
    pub fn recover(&self, run: &Path) -> Option<String> {
        let found = self.copy_newest(run);
        let _ = fs::remove_dir_all(self.0.join("checkpoints"));
        match found {
            Ok(None) => None,
            Ok(Some(step)) => Some(format!("recovered the checkpoint of step {step} from memory")),
            Err(error) => Some(format!("warning: no checkpoint is recovered from memory: {error}")),
        }
    }

    fn copy_newest(&self, run: &Path) -> Result<Option<u64>, CheckpointError> {
        let (memory, disk) = (Folder::of_run(&self.0), Folder::of_run(run));
        memory.clean(&copies::are_same)?;
        disk.clean(&copies::are_same)?;
        let on_disk = disk.list()?.last().map(|(step, _)| *step);
        let newer = memory.list()?.into_iter().rev().filter(|(step, _)| Some(*step) > on_disk);
        let mut failure = None;
        for (step, path) in newer {
            match disk.copy(&path) {
                Ok(_) => return Ok(Some(step)),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
