//! Checkpoints in memory: each rank's part in the memory of its machine, and a copy in that of the next machine.
//!
//! ```text
//!              machine 0        machine 1        machine 2
//! own parts    rank 0, rank 1   rank 2, rank 3   rank 4, rank 5
//! copies of    rank 4, rank 5   rank 0, rank 1   rank 2, rank 3
//! ```
//!
//! The supervisor collects the parts after a failure ([`recovery`]). If a machine is lost, the others hold all of them,
//! unless two neighbors are lost. While the next checkpoint is written, the one before stays. No part is completed in memory: that
//! is done when the parts are on disk. Copies of parameters are compared then, and on a single machine also before.

pub(crate) mod held;
mod neighbor;
pub(crate) mod recovery;

use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::run::copies;
use crate::run::saver::Saver;
use checkpoint::{CheckpointError, Folder, Index};
use comm::Communicator;
use fsdp::{FsdpError, State};
use held::Place;
use neighbor::Neighbor;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Writes a rank's parts.
pub(crate) struct MemorySaver {
    comm: Communicator,
    saver: Saver,
    own: Folder,
    copies: Folder,
    /// `None` if all ranks are on one machine.
    neighbor: Option<Neighbor>,
    /// Whether this rank removes what its machine no longer needs.
    cleans: bool,
    /// The step of the checkpoint being written.
    step: Option<u64>,
}

impl MemorySaver {
    /// Creates a saver in a folder in memory, which it makes on a machine that does not have it. What earlier attempts have
    /// left beside it is removed. `files` belong to every checkpoint.
    ///
    /// # Errors
    /// If the folder cannot be made, or is another user's.
    pub fn new(
        folder: &Path,
        comm: Communicator,
        config: CheckpointConfig,
        files: Vec<(String, Vec<u8>)>,
    ) -> io::Result<Self> {
        let (rank, machines) = (comm.rank(), neighbor::machines(&comm));
        let cleans = machines.iter().any(|ranks| ranks[0] == rank);
        make(folder.parent().unwrap_or(folder))?; // the run's, for all attempts
        make(folder)?;
        if cleans {
            remove_beside(folder);
        }
        let (own, copies) = (Place::Own.folder(folder), Place::Copies.folder(folder));
        let saver = Saver::new(own.clone(), rank, config, files).of_parts();
        let saver = Self { neighbor: Neighbor::of(rank, &machines), comm, saver, own, copies, cleans, step: None };
        // Of an attempt before, whose course has ended.
        saver.clean(|folder| folder.remove_parts(|_| true));
        Ok(saver)
    }

    /// Starts a checkpoint.
    ///
    /// # Panics
    /// If the one before is not [finished](Self::finish).
    pub fn start(&mut self, state: State, index: Index) {
        self.step = Some(index.step);
        self.saver.start(state, index);
    }

    /// Whether this rank's part is still being written.
    pub fn is_writing(&self) -> bool {
        self.saver.is_writing()
    }

    /// Waits until all ranks have written their parts of the checkpoint, exchanges copies with other machines, and removes
    /// the checkpoint before, or this one unless it `replaces` that. A collective: `sum` adds up the values of all ranks.
    /// Returns `None` if a rank has failed, after which there are no more checkpoints in memory, and the error of this
    /// rank, if it has one.
    ///
    /// # Errors
    /// If ranks cannot communicate, or if a parameter is not finite.
    pub fn finish(
        mut self,
        replaces: bool,
        sum: impl Fn(&[f64]) -> Result<Vec<f64>, FsdpError>,
    ) -> Result<(Option<Self>, Option<TrainError>), TrainError> {
        let Some(step) = self.step.take() else { return Ok((Some(self), None)) };
        if self.saver.finish(&sum, |_| {})?.has_failed {
            return Ok((None, self.saver.skip().and_then(|(_, error)| error)));
        }
        if self.neighbor.is_none() && self.comm.rank() == 0 {
            copies::compare(&self.own, step, self.comm.world_size())?;
        }
        let failure = self.copy(step)?.err();
        // The checkpoint before must stay until all ranks have all copies.
        let failures = sum(&[if failure.is_some() { 1.0 } else { 0.0 }])?[0];
        self.clean(|folder| match replaces && failures == 0.0 {
            true => folder.remove_parts(|other| other < step), // other ranks may have begun the next one
            false => folder.remove_parts(|other| other == step),
        });
        Ok((Some(self).filter(|_| failures == 0.0), failure.map(TrainError::from)))
    }

    /// Copies this rank's part to the next machine.
    fn copy(&self, step: u64) -> Result<Result<(), CheckpointError>, TrainError> {
        let Some(neighbor) = &self.neighbor else { return Ok(Ok(())) };
        let files = self.own.files_of_part(step, self.comm.rank());
        let (files, failure) = files.map_or_else(|error| (vec![], Err(error)), |files| (files, Ok(())));
        let exchanged = neighbor.exchange(&self.comm, &files, &self.copies.partial(step)).map_err(FsdpError::from)?;
        Ok(failure.and(exchanged.map_err(|(path, source)| CheckpointError::Write { path, source })))
    }

    /// Removes something from the folders of this machine. What cannot be removed takes room, and is removed with the
    /// folder.
    fn clean(&self, remove: impl Fn(&Folder) -> Result<(), CheckpointError>) {
        if self.cleans {
            [&self.own, &self.copies].into_iter().for_each(|folder| drop(remove(folder)));
        }
    }
}

/// Makes a folder in memory that only this user can open. Everybody may create folders there, so one that exists must be the
/// user's own.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    // SAFETY: a system call without memory.
    let user = unsafe { libc::geteuid() };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(folder)?;
            let is_own = found.is_dir() && found.uid() == user;
            is_own.then_some(()).ok_or_else(|| io::Error::new(error.kind(), "it exists, and is another user's"))
        }
        made => made,
    }
}

/// Removes the folders of other attempts of the run.
fn remove_beside(folder: &Path) {
    let others = folder.parent().and_then(|parent| fs::read_dir(parent).ok()).into_iter().flatten().flatten();
    others.map(|entry| entry.path()).filter(|path| path != folder).for_each(|path| drop(fs::remove_dir_all(path)));
}

#[cfg(test)]
mod tests;
