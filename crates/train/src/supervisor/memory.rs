//! Checkpoints in memory, for restarts that lose few steps.
//!
//! ```text
//! attempt 1   step 100 ─ disk ─ step 110 ─ memory ─ step 120 ─ memory ─ step 127 ✗
//! supervisor                                                             copies step 120 to the disk
//! attempt 2                                                              step 121 ─ ...
//! ```
//!
//! Each attempt has a folder of its own, of the same name on every machine: what a machine holds that was cut off from the
//! others, and comes back later, belongs to a course of the run that has ended.

use super::Start;
use crate::config::Config;
use crate::error::TrainError;
use crate::host::attempt;
use crate::run::copies;
use crate::run::folder::RunFolder;
use crate::run::memory::held::{Answer, Chosen, Request, What, whole};
use crate::run::memory::make;
use checkpoint::Folder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file system in memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// How long a machine may take to say what it holds, or to remove it.
const ANSWER: Duration = Duration::from_secs(20);

/// The run's folder in memory on each machine, which has one for each attempt.
pub(super) struct Memory<'a> {
    path: PathBuf,
    run: PathBuf,
    start: &'a dyn Start,
    /// How long the copies to the disk may take.
    limit: Duration,
    /// That of the present attempt.
    attempt: Option<PathBuf>,
    /// Whether it stays, because a checkpoint in it could not be copied.
    keeps: bool,
}

impl<'a> Memory<'a> {
    /// Of a run, if its configuration asks for it.
    ///
    /// # Errors
    /// If this machine can have no such folder.
    pub fn new(config: &Config, run: &Path, start: &'a dyn Start) -> Result<Option<Self>, TrainError> {
        if config.resilience.memory_every == 0 {
            return Ok(None);
        }
        // SAFETY: a system call without memory.
        let (user, mut name) = (unsafe { libc::geteuid() }, DefaultHasher::new());
        run.canonicalize().unwrap_or_else(|_| run.into()).hash(&mut name);
        let path = Path::new(SHARED_MEMORY).join(format!("kiln-{user}-{:016x}", name.finish()));
        make(&path).map_err(|source| TrainError::InMemory { path: path.clone(), source })?;
        let (run, limit) = (run.into(), Duration::from_secs(config.checkpoint.timeout));
        Ok(Some(Self { path, run, start, limit, attempt: None, keeps: false }))
    }

    /// Returns the folder of a new attempt.
    pub fn begin(&mut self, number: usize) -> Result<PathBuf, TrainError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = self.path.join(format!("{:x}-{number}", now.as_nanos()));
        let noted = attempt::note_memory(&RunFolder::at(&self.run).supervisor(), &path);
        noted.map_err(|source| TrainError::RunFolder { path: self.run.clone(), source })?;
        self.attempt = Some(path.clone());
        Ok(path)
    }

    /// Copies the newest checkpoint of the last attempt to the run's folder, if it is newer than those there. Returns a line
    /// about it.
    ///
    /// # Errors
    /// If there is one that cannot be copied, or if a machine does not say what it holds and no other one has all parts.
    pub fn recover(&mut self) -> Result<Option<String>, String> {
        let last = self.attempt.clone().or_else(|| attempt::last_memory(&RunFolder::at(&self.run).supervisor()));
        let Some(last) = last.filter(|path| path.starts_with(&self.path)) else { return Ok(None) };
        let step = self.copy_newest(&last).inspect_err(|_| self.keeps = true)?;
        Ok(step.map(|step| format!("recovered the checkpoint of step {step} from memory")))
    }

    /// Removes what the last attempt has left.
    pub fn remove(&mut self) {
        self.keeps = false;
        self.attempt.take().iter().for_each(|last| drop(self.ask(last, What::Remove, ANSWER)));
    }

    fn copy_newest(&self, memory: &Path) -> Result<Option<u64>, String> {
        let disk = Folder::of_run(&self.run);
        disk.clean(&copies::are_same).map_err(|error| error.to_string())?;
        let on_disk = disk.list().map_err(|error| error.to_string())?.last().map(|(step, _)| *step);
        let (mut held, mut failure) = (vec![], None);
        for answer in self.ask(memory, What::List, ANSWER) {
            held.push(match answer {
                Ok(Answer::Held(held)) => held,
                Ok(Answer::Done) => vec![],
                Ok(Answer::Failed(why)) | Err(why) => {
                    failure.get_or_insert(why);
                    vec![]
                }
            });
        }
        for (step, parts) in whole(&held).into_iter().filter(|(step, _)| Some(*step) > on_disk) {
            match self.copy(memory, step, parts) {
                Ok(()) => return Ok(Some(step)),
                Err(why) => drop(failure.get_or_insert(why)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Copies the chosen parts of each machine to the disk, and completes the checkpoint there.
    fn copy(&self, memory: &Path, step: u64, parts: Vec<Chosen>) -> Result<(), String> {
        let run = std::path::absolute(&self.run).unwrap_or_else(|_| self.run.clone());
        let needed = parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty());
        let requests = needed.map(|(machine, parts)| {
            (machine, Request { memory: memory.into(), what: What::Copy { step, parts, run: run.clone() } })
        });
        let answers = self.start.ask(&requests.collect::<Vec<_>>(), self.limit);
        let disk = Folder::of_run(&self.run);
        let failure = answers.into_iter().find_map(|answer| match answer {
            Ok(Answer::Failed(why)) | Err(why) => Some(why),
            Ok(_) => None,
        });
        if let Some(why) = failure {
            let _ = disk.discard(step);
            return Err(why);
        }
        disk.clean(&copies::are_same).map_err(|error| error.to_string())?;
        let differ = || format!("the parts of step {step} do not fit together, or copies of parameters differ");
        disk.step(step).is_dir().then_some(()).ok_or_else(differ)
    }

    /// Asks all machines the same.
    fn ask(&self, memory: &Path, what: What, limit: Duration) -> Vec<Result<Answer, String>> {
        let request = Request { memory: memory.into(), what };
        let of_each: Vec<_> = (0..self.start.machines()).map(|machine| (machine, request.clone())).collect();
        self.start.ask(&of_each, limit)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if !self.keeps {
            self.ask(&self.path, What::Remove, ANSWER);
        }
    }
}
