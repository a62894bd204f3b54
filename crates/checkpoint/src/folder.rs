//! The folder of a run's checkpoints.

use crate::CheckpointError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A run's folder `checkpoints/`.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

/// Decides whether the files that this number of ranks wrote to a folder may form a checkpoint.
pub type MayBe<'a> = dyn Fn(&Path, usize) -> Result<bool, CheckpointError> + 'a;

impl Folder {
    /// The folder of a run. It need not exist yet.
    pub fn of_run(run: &Path) -> Self {
        Self(run.join("checkpoints"))
    }

    /// A folder of checkpoints of any name.
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.into())
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Step and folder of each checkpoint, oldest first. A run without the folder has none.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let mut found = self.entries("step-", "")?;
        found.sort();
        Ok(found)
    }

    /// The newest checkpoint.
    ///
    /// # Errors
    /// See [`list`](Self::list).
    pub fn latest(&self) -> Result<Option<PathBuf>, CheckpointError> {
        Ok(self.list()?.pop().map(|(_, path)| path))
    }

    /// The folder of a step's checkpoint.
    pub fn step(&self, step: u64) -> PathBuf {
        self.0.join(format!("step-{step}"))
    }

    /// The folder in which a step's checkpoint is written.
    pub fn partial(&self, step: u64) -> PathBuf {
        self.0.join(format!(".step-{step}.partial"))
    }

    /// Whether [`mend`](Self::mend) would find anything to do.
    pub fn needs_mending(&self) -> Result<bool, CheckpointError> {
        let replaced = self.entries(".step-", ".replaced")?.into_iter().any(|(step, _)| !self.step(step).exists());
        let partial = self.entries(".step-", ".partial")?;
        let complete = partial.into_iter().map(|(step, _)| self.ranks_of_complete(step));
        Ok(replaced || complete.collect::<Result<Vec<_>, _>>()?.into_iter().any(|ranks| ranks.is_some()))
    }

    /// Finishes what a killed process left one step short of complete: a checkpoint that all ranks have written, and
    /// one that was being replaced. Returns the newly completed checkpoints. The run must not be training at the same
    /// time. `may_be` is asked before a checkpoint that all ranks have written is completed.
    ///
    /// # Errors
    /// If a file cannot be read or written. Nothing is lost in that case.
    pub fn mend(&self, may_be: &MayBe<'_>) -> Result<Vec<PathBuf>, CheckpointError> {
        self.expect_own()?;
        for (step, replaced) in self.entries(".step-", ".replaced")? {
            if !self.step(step).exists() {
                rename(&replaced, &self.step(step))?;
                sync_folder(&self.0)?;
            }
        }
        let mut adopted = vec![];
        for (step, _) in self.entries(".step-", ".partial")? {
            let Some(ranks) = self.ranks_of_complete(step)? else { continue };
            if !may_be(&self.partial(step), ranks)? {
                continue;
            }
            match self.complete(step) {
                // It only seemed complete.
                Err(CheckpointError::Broken { .. } | CheckpointError::OtherFormat { .. }) => {}
                other => adopted.push(other?),
            }
        }
        Ok(adopted)
    }

    /// [`mend`](Self::mend)s, and removes what a killed process left half-written or half-removed.
    ///
    /// # Errors
    /// If a file cannot be read, written or removed.
    pub fn clean(&self, may_be: &MayBe<'_>) -> Result<Vec<PathBuf>, CheckpointError> {
        let adopted = self.mend(may_be)?;
        let mut removed = false;
        for suffix in [".partial", ".removed", ".replaced"] {
            for (_, path) in self.entries(".step-", suffix)? {
                fs::remove_dir_all(&path).map_err(CheckpointError::write(&path))?;
                removed = true;
            }
        }
        if removed {
            sync_folder(&self.0)?;
        }
        Ok(adopted)
    }

    /// Moves the checkpoints after `step` into the folder `abandoned/`, where they no longer count, and returns their
    /// new paths. A run that resumes from an older checkpoint must not mistake them for its own.
    pub fn set_aside(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        self.expect_own()?;
        let abandoned = self.0.join("abandoned");
        let mut moved = vec![];
        for (of, path) in self.list()?.into_iter().filter(|(of, _)| *of > step) {
            expect_no_link(&abandoned)?;
            let target = abandoned.join(format!("step-{of}"));
            if target.exists() {
                fs::remove_dir_all(&target).map_err(CheckpointError::write(&target))?;
            }
            fs::create_dir_all(&abandoned).map_err(CheckpointError::write(&abandoned))?;
            rename(&path, &target)?;
            moved.push(target);
        }
        if !moved.is_empty() {
            // The target is synced first, so no checkpoint is lost in between.
            sync_folder(&abandoned)?;
            sync_folder(&self.0)?;
        }
        Ok(moved)
    }

    /// Gives the complete checkpoint in `partial` its name. An older one of the same step, written at the end of a
    /// shorter run, stays until the new one is in place.
    pub(crate) fn replace(&self, partial: &Path, whole: &Path, step: u64) -> Result<(), CheckpointError> {
        sync_folder(partial)?;
        let replaced = self.0.join(format!(".step-{step}.replaced"));
        let again = whole.exists();
        if again {
            rename(whole, &replaced)?;
        }
        rename(partial, whole)?;
        sync_folder(&self.0)?;
        if again {
            fs::remove_dir_all(&replaced).map_err(CheckpointError::write(&replaced))?;
        }
        Ok(())
    }

    /// Syncs the parent folder.
    pub(crate) fn sync_parent(&self) -> Result<(), CheckpointError> {
        match self.0.parent() {
            Some(parent) if parent == Path::new("") => sync_folder(Path::new(".")),
            Some(parent) => sync_folder(parent),
            None => Ok(()),
        }
    }

    /// An error if the folder is a link: removing files in it would remove them elsewhere.
    pub(crate) fn expect_own(&self) -> Result<(), CheckpointError> {
        expect_no_link(&self.0)
    }

    /// Removes all checkpoints except the newest `keep`, those at multiples of `every` steps (0: none), those of the
    /// steps in `also`, and that of step 0, because no training can recreate the model that a run began with.
    pub fn prune(&self, keep: usize, every: u64, also: &[u64]) -> Result<(), CheckpointError> {
        self.expect_own()?;
        let all = self.list()?;
        let older = all[..all.len().saturating_sub(keep)].iter().map(|(step, _)| *step);
        let stays = |step: &u64| *step == 0 || every > 0 && step.is_multiple_of(every) || also.contains(step);
        older.filter(|step| !stays(step)).try_for_each(|step| self.remove(step))
    }

    /// Removes an unfinished checkpoint. It is renamed first, so no later process mistakes a part of it for a complete
    /// checkpoint.
    ///
    /// # Errors
    /// If it cannot be renamed or removed.
    pub fn discard(&self, step: u64) -> Result<(), CheckpointError> {
        let removed = self.0.join(format!(".step-{step}.removed"));
        rename(&self.partial(step), &removed)?;
        fs::remove_dir_all(&removed).map_err(CheckpointError::write(&removed))
    }

    /// Removes a checkpoint. It is renamed first, so its name never refers to an incomplete checkpoint.
    fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        let removed = self.0.join(format!(".step-{step}.removed"));
        rename(&self.step(step), &removed)?;
        sync_folder(&self.0)?;
        fs::remove_dir_all(&removed).map_err(CheckpointError::write(&removed))
    }

    /// Folders named PREFIX N SUFFIX, each with its N.
    pub(crate) fn entries(&self, prefix: &str, suffix: &str) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(CheckpointError::read(&self.0))?,
        };
        let step = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
            number.parse().ok().filter(|step: &u64| step.to_string() == number) // not 007 nor +7
        };
        Ok(entries.flatten().filter_map(|entry| Some((step(&entry.path())?, entry.path()))).collect())
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(CheckpointError::write(from))
}

fn expect_no_link(path: &Path) -> Result<(), CheckpointError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(CheckpointError::Linked { path: path.into() }),
        _ => Ok(()),
    }
}

/// Waits until the names in a folder are on disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(CheckpointError::write(path))
}
