//! Checkpoints in memory, for restarts that lose few steps.
//!
//! ```text
//! attempt 1   step 100 ─ disk ─ step 110 ─ memory ─ step 120 ─ memory ─ step 127 ✗
//! supervisor                                                             copies step 120 to the disk
//! attempt 2                                                              step 121 ─ ...
//! ```
//!
//! Each attempt has a folder of its own, of the same name on every machine: what a machine holds that was cut off from the
//! others, and comes back later, belongs to a course of the run that has ended. A folder that could not be recovered is used
//! again.

use super::Start;
use crate::config::Config;
use crate::error::TrainError;
use crate::host::attempt;
use crate::run::folder::RunFolder;
use crate::run::memory::held::{Answer, Request, What};
use crate::run::memory::make;
use crate::run::memory::recovery::{Found, copy_newest};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where the folders of all runs are: in a file system in memory.
const OF_RUNS: &str = "/dev/shm/kiln-";
/// How long a machine may take to say what it holds, or to remove it.
const ANSWER: Duration = Duration::from_secs(20);

/// The run's folder in memory on each machine, which has one for each attempt.
pub(super) struct Memory<'a> {
    path: PathBuf,
    run: PathBuf,
    start: &'a dyn Start,
    /// Whether the run saves to memory.
    saves: bool,
    /// How long the copies to the disk may take.
    limit: Duration,
    /// That of the last attempt, until it is recovered.
    attempt: Option<PathBuf>,
    /// Whether a checkpoint in it could not be copied.
    is_needed: bool,
}

impl<'a> Memory<'a> {
    /// Of a run, if its configuration asks for it or if a killed supervisor has left one.
    ///
    /// # Errors
    /// If this machine can have no such folder.
    pub fn new(config: &Config, run: &Path, start: &'a dyn Start) -> Result<Option<Self>, TrainError> {
        let left = attempt::last_memory(&RunFolder::at(run).supervisor());
        let attempt = left.filter(|path| path.to_string_lossy().starts_with(OF_RUNS));
        let saves = config.resilience.memory_every > 0;
        if !saves && attempt.is_none() {
            return Ok(None);
        }
        // SAFETY: a system call without memory.
        let (user, mut name) = (unsafe { libc::geteuid() }, DefaultHasher::new());
        run.canonicalize().unwrap_or_else(|_| run.into()).hash(&mut name);
        let path = PathBuf::from(format!("{OF_RUNS}{user}-{:016x}", name.finish()));
        if start.is_on_this_machine() && saves {
            make(&path).map_err(|source| TrainError::InMemory { path: path.clone(), source })?;
        }
        let (run, limit) = (run.into(), Duration::from_secs(config.checkpoint.timeout));
        Ok(Some(Self { path, run, start, saves, limit, attempt, is_needed: false }))
    }

    /// Returns the folder of a new attempt, if it saves to memory.
    pub fn begin(&mut self, number: usize) -> Option<PathBuf> {
        if !self.saves {
            return None;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let new = || self.path.join(format!("{:x}-{number}", now.as_nanos()));
        let path = self.attempt.clone().unwrap_or_else(new);
        // For the next supervisor, if this one is killed; a full disk may not take it.
        let _ = attempt::note_memory(&RunFolder::at(&self.run).supervisor(), &path);
        self.attempt = Some(path.clone());
        Some(path)
    }

    /// Whether there is an attempt of which nothing has been recovered.
    pub fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Copies the newest checkpoint of the last attempt to the run's folder, if it is newer than those there, and removes
    /// the attempt's from memory. Returns a line about it.
    ///
    /// # Errors
    /// If a newer one cannot be copied, or if a machine does not answer that may hold parts of it. They stay in memory.
    pub fn recover(&mut self) -> Result<Option<String>, String> {
        let Some(last) = self.attempt.clone() else { return Ok(None) };
        let ask = |of_each| self.ask(&last, of_each);
        let recovered = copy_newest(self.start.machines(), &self.run, &ask);
        let (found, answered) = recovered.inspect_err(|_| self.is_needed = true)?;
        (self.attempt, self.is_needed) = (None, false);
        self.ask(&last, answered.into_iter().map(|machine| (machine, What::Remove)).collect());
        Ok(match found {
            Found::Step(step) => Some(format!("recovered the checkpoint of step {step} from memory")),
            Found::Damaged(why) => Some(format!("warning: no checkpoint is recovered from memory: {why}")),
            Found::Nothing => None,
        })
    }

    /// Notes that the run has ended well.
    pub fn forget(&mut self) {
        self.is_needed = false;
    }

    /// Asks machines, given by number, about an attempt's folder.
    fn ask(&self, memory: &Path, of_each: Vec<(usize, What)>) -> Vec<Result<Answer, String>> {
        let copies = of_each.iter().any(|(_, what)| matches!(what, What::Copy { .. }));
        let request = |(machine, what)| (machine, Request { memory: memory.into(), what });
        let requests: Vec<_> = of_each.into_iter().map(request).collect();
        self.start.ask(&requests, if copies { self.limit } else { ANSWER })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if !self.is_needed {
            self.ask(&self.path, (0..self.start.machines()).map(|machine| (machine, What::Remove)).collect());
        }
    }
}
