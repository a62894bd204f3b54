use crate::write::{digest, entry_file, write_synced};
use crate::{CheckpointError, FileEntry, Index};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The folder `checkpoints/` of a run.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// Of a run; it need not be there yet.
    pub fn of_run(run: &Path) -> Self {
        Self(run.join("checkpoints"))
    }

    /// The newest checkpoint at `path`, which is a checkpoint itself, a run's folder or its `checkpoints/`.
    pub fn find(path: &Path) -> Result<PathBuf, CheckpointError> {
        if path.join("index.json").is_file() {
            return Ok(path.into());
        }
        let folders = [Self::of_run(path), Self(path.into())];
        let newest = folders.iter().find_map(|folder| folder.latest().transpose()).transpose()?;
        newest.ok_or(CheckpointError::None { path: path.into() })
    }

    /// Step and folder of each checkpoint, the oldest first.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let mut found = self.entries("step-", "")?;
        found.sort();
        Ok(found)
    }

    /// The newest checkpoint.
    pub fn latest(&self) -> Result<Option<PathBuf>, CheckpointError> {
        Ok(self.list()?.pop().map(|(_, path)| path))
    }

    /// A checkpoint's folder.
    pub fn step(&self, step: u64) -> PathBuf {
        self.0.join(format!("step-{step}"))
    }

    /// The folder in which a checkpoint is written.
    pub fn partial(&self, step: u64) -> PathBuf {
        self.0.join(format!(".step-{step}.partial"))
    }

    /// Removes what a process that was killed has left half-written or half-removed.
    pub fn clean(&self) -> Result<(), CheckpointError> {
        for (step, replaced) in self.entries(".step-", ".replaced")? {
            if !self.step(step).exists() {
                rename(&replaced, &self.step(step))?;
            }
        }
        for suffix in [".partial", ".removed", ".replaced"] {
            for (_, path) in self.entries(".step-", suffix)? {
                fs::remove_dir_all(&path).map_err(CheckpointError::write(&path))?;
            }
        }
        Ok(())
    }

    /// Moves the checkpoints after `step` into the folder `abandoned/`, where they no longer count, and returns where they are: a run that
    /// goes on from an older checkpoint is not to take them for its own.
    pub fn set_aside(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let abandoned = self.0.join("abandoned");
        let mut moved = vec![];
        for (of, path) in self.list()?.into_iter().filter(|(of, _)| *of > step) {
            let target = abandoned.join(format!("step-{of}"));
            if target.exists() {
                fs::remove_dir_all(&target).map_err(CheckpointError::write(&target))?;
            }
            fs::create_dir_all(&abandoned).map_err(CheckpointError::write(&abandoned))?;
            rename(&path, &target)?;
            moved.push(target);
        }
        Ok(moved)
    }

    /// Completes the checkpoint of `index.step`, whose ranks' files are all written, and returns its folder. `extra` files (name and
    /// bytes) belong to it too. Of `index`, parameters, files and digest are filled in here.
    pub fn commit(&self, index: Index, extra: &[(String, Vec<u8>)]) -> Result<PathBuf, CheckpointError> {
        let (partial, whole) = (self.partial(index.step), self.step(index.step));
        let mut files = vec![];
        let mut sidecars = vec![];
        for rank in 0..index.world_size {
            let path = partial.join(entry_file(rank));
            let text = fs::read(&path).map_err(CheckpointError::read(&path))?;
            let entry: FileEntry = serde_json::from_slice(&text)
                .map_err(|error| CheckpointError::broken(&path, format!("not an entry: {error}")))?;
            files.push(entry);
            sidecars.push(path);
        }
        let parameters = Index::parameters_of(&files);
        for (name, bytes) in extra {
            assert!(files.iter().all(|file| file.name != *name), "{name} is there already");
            let path = partial.join(name);
            write_synced(&path, bytes)?;
            let (bytes, sha256) = File::open(&path).and_then(digest).map_err(CheckpointError::read(&path))?;
            files.push(FileEntry { name: name.clone(), bytes, sha256, pieces: vec![] });
        }
        let index = Index { format: Index::FORMAT, parameters, files, ..index };
        index.check(&partial)?;
        write_synced(&partial.join("index.json"), index.to_json().as_bytes())?;
        sidecars.iter().try_for_each(|path| fs::remove_file(path).map_err(CheckpointError::write(path)))?;
        sync_folder(&partial)?;
        // One of the same step, written at the end of a shorter run, is there until the new one is.
        let replaced = self.0.join(format!(".step-{}.replaced", index.step));
        let again = whole.exists();
        if again {
            rename(&whole, &replaced)?;
        }
        rename(&partial, &whole)?;
        sync_folder(&self.0)?;
        if again {
            fs::remove_dir_all(&replaced).map_err(CheckpointError::write(&replaced))?;
        }
        Ok(whole)
    }

    /// Removes all checkpoints but the newest `keep`, and those of the steps `also`.
    pub fn prune(&self, keep: usize, also: &[u64]) -> Result<(), CheckpointError> {
        let all = self.list()?;
        let older = all[..all.len().saturating_sub(keep)].iter().map(|(step, _)| *step);
        older.filter(|step| !also.contains(step)).try_for_each(|step| self.remove(step))
    }

    /// Removes a checkpoint; it is renamed first, so that there is never a part of one under its name.
    fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        let removed = self.0.join(format!(".step-{step}.removed"));
        rename(&self.step(step), &removed)?;
        fs::remove_dir_all(&removed).map_err(CheckpointError::write(&removed))
    }

    /// Folders named PREFIX N SUFFIX, with their N.
    fn entries(&self, prefix: &str, suffix: &str) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(CheckpointError::read(&self.0))?,
        };
        let step = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()
        };
        Ok(entries.flatten().filter_map(|entry| Some((step(&entry.path())?, entry.path()))).collect())
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fs::rename(from, to).map_err(CheckpointError::write(from))
}

/// Waits until a folder's names are on the disk.
fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(CheckpointError::write(path))
}
