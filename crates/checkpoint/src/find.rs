//! Finds the requested checkpoint of a run: the newest, the best, or that of a step.

use crate::{CheckpointError, Folder, Index};
use std::path::{Path, PathBuf};

/// A checkpoint named by a suffix of its run's folder, as in `RUN@best`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The checkpoint with the lowest validation loss.
    Best,
    /// The checkpoint after this many steps.
    Step(u64),
}

/// Splits `RUN@best` or `RUN@12` into the run's folder and the checkpoint meant. None for any other path, and for an
/// existing path with exactly this name.
pub fn split_at(path: &Path) -> Option<(&Path, Which)> {
    let (run, which) = path.to_str().filter(|_| !path.exists())?.rsplit_once('@')?;
    let which = match which {
        "best" => Which::Best,
        step => Which::Step(step.parse().ok()?),
    };
    Some((Path::new(run), which))
}

/// The run's folder in `RUN@WHICH`, if the path does not exist and `WHICH` names no checkpoint.
pub fn run_of_unknown(path: &Path) -> Option<&Path> {
    let (run, _) = path.to_str().filter(|_| !path.exists() && split_at(path).is_none())?.rsplit_once('@')?;
    Some(Path::new(run)).filter(|run| run.is_dir())
}

impl Folder {
    /// The checkpoint at `path`: a checkpoint itself, `RUN@best`, `RUN@12`, or the newest one in a run's folder or in
    /// its `checkpoints/`.
    ///
    /// # Errors
    /// If there is no such checkpoint. The error lists the existing ones.
    pub fn find(path: &Path) -> Result<PathBuf, CheckpointError> {
        if let Some((run, which)) = split_at(path) {
            let folder = Self::of_run(run);
            return match which {
                Which::Best => folder.best(),
                Which::Step(step) => folder.expect_step(step),
            };
        }
        if path.join("index.json").is_file() {
            return Ok(path.into());
        }
        if let Some(run) = run_of_unknown(path) {
            let there = Self::of_run(run).list()?.into_iter().map(|(step, _)| step).collect();
            return Err(CheckpointError::NoWhich { path: path.into(), there });
        }
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("step-"));
        if let (false, Some(parent), Some(Ok(step))) = (path.exists(), path.parent(), name.map(str::parse)) {
            return Self::at(parent).expect_step(step);
        }
        let folders = [Self::of_run(path), Self::at(path)];
        let newest = folders.iter().find_map(|folder| folder.latest().transpose()).transpose()?;
        newest.ok_or(CheckpointError::None { path: path.into() })
    }

    /// The checkpoint with the lowest validation loss so far, according to the newest checkpoint that can be read.
    fn best(&self) -> Result<PathBuf, CheckpointError> {
        let indexes = self.list()?.into_iter().rev().map(|(_, path)| Index::read(&path.join("index.json")));
        let newest = indexes.reduce(|newest, older| newest.or(older)).transpose()?;
        let newest = newest.ok_or_else(|| CheckpointError::None { path: self.path().into() })?;
        match newest.best {
            Some(best) => self.expect_step(best.step),
            None => Err(CheckpointError::NoBest { path: self.path().into(), newest: newest.step }),
        }
    }

    /// The checkpoint after this many steps.
    fn expect_step(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        let path = self.step(step);
        if path.is_dir() {
            return Ok(path);
        }
        let there = self.list()?.into_iter().map(|(step, _)| step).collect();
        Err(CheckpointError::NoStep { path: self.path().into(), step, there })
    }
}
