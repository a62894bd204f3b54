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
use crate::run::copies;
use crate::run::folder::RunFolder;
use crate::run::memory::held::{Answer, Part, Request, What, steps, whole};
use crate::run::memory::make;
use checkpoint::Folder;
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

/// What a recovery has found.
enum Found {
    /// The checkpoint of this step, which is on disk now.
    Step(u64),
    /// Only parts that cannot be used.
    Damaged(String),
    Nothing,
}

/// Why a checkpoint is not copied.
enum CopyError {
    /// The part of a machine is not what was written, or all of them together are not.
    Damaged { why: String, source: Option<(usize, Part)> },
    /// A machine does not answer, or the disk refuses a file: that may be over later.
    Refused(String),
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

    /// Copies the newest checkpoint of the last attempt to the run's folder, if it is newer than those there, and removes the
    /// attempt's from memory. Returns a line about it.
    ///
    /// # Errors
    /// If a newer one cannot be copied, or if a machine does not answer that may hold parts of it. They stay in memory.
    pub fn recover(&mut self) -> Result<Option<String>, String> {
        let Some(last) = self.attempt.clone() else { return Ok(None) };
        let (found, answered) = self.copy_newest(&last).inspect_err(|_| self.is_needed = true)?;
        (self.attempt, self.is_needed) = (None, false);
        self.ask(&answered, &last, &What::Remove);
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

    /// Returns what was found, and the machines that have answered.
    fn copy_newest(&self, memory: &Path) -> Result<(Found, Vec<usize>), String> {
        let disk = Folder::of_run(&self.run);
        disk.clean(&copies::are_same).map_err(|error| error.to_string())?;
        let on_disk = disk.list().map_err(|error| error.to_string())?.last().map(|(step, _)| *step);
        let all: Vec<usize> = (0..self.start.machines()).collect();
        let (mut held, mut answered, mut unanswered) = (vec![], vec![], None);
        for (machine, answer) in self.ask(&all, memory, &What::List).into_iter().enumerate() {
            held.push(match answer {
                Ok(Answer::Held(held)) => {
                    answered.push(machine);
                    held
                }
                Ok(Answer::Failed { why, .. }) | Err(why) => {
                    unanswered.get_or_insert(why);
                    vec![]
                }
                Ok(Answer::Done) => vec![],
            });
        }
        let (mut bad, mut failure, mut found) = (vec![], None, Found::Nothing);
        for step in steps(&held).into_iter().filter(|step| Some(*step) > on_disk) {
            // Where all have answered, what is missing has not been written.
            failure = failure.or(unanswered.take());
            while let Some(parts) = whole(&held, step, &bad) {
                match self.copy(memory, step, parts) {
                    Ok(()) => return Ok((Found::Step(step), answered)),
                    Err(CopyError::Refused(why)) => return Err(why),
                    Err(CopyError::Damaged { why, source }) => {
                        found = Found::Damaged(why);
                        match source {
                            Some(source) => bad.push(source),
                            None => break,
                        }
                    }
                }
            }
        }
        failure.map_or(Ok((found, answered)), Err)
    }

    /// Copies the chosen parts of each machine to the disk, and completes the checkpoint there.
    fn copy(&self, memory: &Path, step: u64, parts: Vec<Vec<Part>>) -> Result<(), CopyError> {
        let run = std::path::absolute(&self.run).unwrap_or_else(|_| self.run.clone());
        let needed = parts.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty());
        let requests: Vec<_> = needed
            .map(|(machine, parts)| {
                let what = What::Copy { step, parts, run: run.clone() };
                (machine, Request { memory: memory.into(), what })
            })
            .collect();
        let disk = Folder::of_run(&self.run);
        for ((machine, _), answer) in requests.iter().zip(self.start.ask(&requests, self.limit)) {
            let failure = match answer {
                Ok(Answer::Failed { why, part: Some(part) }) => {
                    CopyError::Damaged { why, source: Some((*machine, part)) }
                }
                Ok(Answer::Failed { why, part: None }) | Err(why) => CopyError::Refused(why),
                Ok(_) => continue,
            };
            let _ = disk.discard(step);
            return Err(failure);
        }
        disk.clean(&copies::are_same).map_err(|error| CopyError::Refused(error.to_string()))?;
        let why = || format!("the parts of step {step} do not fit together, or copies of parameters differ");
        disk.step(step).is_dir().then_some(()).ok_or_else(|| CopyError::Damaged { why: why(), source: None })
    }

    /// Asks machines the same.
    fn ask(&self, machines: &[usize], memory: &Path, what: &What) -> Vec<Result<Answer, String>> {
        let request = Request { memory: memory.into(), what: what.clone() };
        let of_each: Vec<_> = machines.iter().map(|machine| (*machine, request.clone())).collect();
        self.start.ask(&of_each, ANSWER)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if !self.is_needed {
            let all: Vec<usize> = (0..self.start.machines()).collect();
            self.ask(&all, &self.path, &What::Remove);
        }
    }
}
