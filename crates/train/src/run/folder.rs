//! The folder of a run.

use crate::atomic_write::{open_own, read_regular, write_whole};
use crate::config::{Config, Source};
use crate::error::TrainError;
use crate::run::copies;
use burn::tensor::{DType, Int, Tensor, TensorData};
use checkpoint::{CheckpointError, Folder};
use comm::Communicator;
use fsdp::FsdpError;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The resolved configuration, in a run's folder and in each of its checkpoints.
pub(crate) const CONFIG: &str = "config.yaml";

/// The parent folder of runs without a given folder.
pub(crate) const RUNS: &str = "runs";

/// Files between a supervisor and its attempts.
const SUPERVISOR: &str = ".supervisor";
/// Locked by the supervisor of the run.
const SUPERVISOR_LOCK: &str = ".supervisor.lock";

/// Locked by the process that trains in the folder; the contents do not matter.
const LOCK: &str = ".lock";

/// The folder of a run, with the names of the trainer's files. The crate `checkpoint` knows those of checkpoints.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    lock: Lock,
}

/// Keeps other processes from a folder.
#[derive(Debug)]
pub(crate) enum Lock {
    /// Held while this process trains there.
    Held { _file: File },
    /// The file system does not support it.
    Refused { why: io::Error },
    /// Not needed.
    None,
}

impl RunFolder {
    /// Creates the folder and writes the resolved configuration into it. Without `out`, uses the first free
    /// `runs/NAME-NNN`. A run that failed before its first step is replaced.
    ///
    /// # Errors
    /// If the folder cannot be written, already holds a run, or another process trains there.
    pub fn create(out: Option<&Path>, name: &str, config: &Config) -> Result<Self, TrainError> {
        let path = match out {
            Some(path) => path.to_path_buf(),
            None => free_folder(Path::new(RUNS), name)?,
        };
        let unwritable = |source| TrainError::RunFolder { path: path.clone(), source };
        if out.is_some() {
            Self::expect_new(&path)?;
        }
        fs::create_dir_all(&path).map_err(unwritable)?;
        let folder = Self { lock: lock(&path)?, ..Self::at(&path) };
        // Whoever creates this file owns the folder, even if several runs start at the same time and cannot lock it.
        match File::create_new(folder.metrics()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match folder.has_begun()? {
                true => return Err(Self::exists(&path)?),
                false => File::create(folder.metrics()).map_err(unwritable)?,
            },
            file => file.map_err(unwritable)?,
        };
        write_whole(&path.join(CONFIG), |file| fs::write(file, config.to_yaml())).map_err(unwritable)?;
        Ok(folder)
    }

    /// Rejects a folder that already holds a run, or anything else.
    pub fn expect_new(path: &Path) -> Result<(), TrainError> {
        let folder = Self::at(path);
        match folder.metrics().exists() {
            true if folder.has_begun()? => Err(Self::exists(path)?),
            true => Ok(()),
            false if path.exists() && !is_reserved(path) => Err(TrainError::FolderInUse { path: path.into() }),
            false => Ok(()),
        }
    }

    /// Whether a step has been made here, or a checkpoint written: what a new run must not overwrite.
    fn has_begun(&self) -> Result<bool, TrainError> {
        let has_metrics = match read_regular(&self.metrics()) {
            Ok(lines) => !lines.is_empty(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        Ok(has_metrics || Folder::of_run(&self.path).latest()?.is_some())
    }

    /// The error for a folder that already holds a run.
    fn exists(path: &Path) -> Result<TrainError, TrainError> {
        if path.join(LOCK).exists() {
            lock(path)?; // another process may train there
        }
        let has_checkpoint = Folder::of_run(path).latest()?.is_some();
        Ok(TrainError::RunExists { path: path.into(), has_checkpoint })
    }

    /// Opens the folder of a run to resume.
    ///
    /// # Errors
    /// If the folder cannot be written, another process trains there, or a folder in it is a symbolic link.
    pub fn reopen(path: &Path) -> Result<Self, TrainError> {
        let folder = Self { lock: lock(path)?, ..Self::at(path) };
        let own = [folder.path.join("checkpoints"), folder.logs(), folder.tokenizer(), folder.tensorboard()];
        let is_link = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        match own.into_iter().find(is_link) {
            Some(path) => Err(CheckpointError::Linked { path }.into()),
            None => Ok(folder),
        }
    }

    /// Keeps other supervisors from the folder until the lock is dropped, where the file system supports locks.
    pub fn lock_supervisor(&self) -> Result<Lock, TrainError> {
        lock_with(&self.path, SUPERVISOR_LOCK, File::try_lock)
    }

    /// Removes the file of [`lock_supervisor`](Self::lock_supervisor), by who holds the lock.
    pub fn remove_supervisor_lock(&self) {
        let _ = fs::remove_file(self.path.join(SUPERVISOR_LOCK));
    }

    /// A warning if the folder could not be locked.
    pub fn warning(&self) -> Option<String> {
        let Lock::Refused { why } = &self.lock else { return None };
        Some(format!(
            "{} could not be locked ({why}): nothing keeps another process from training there at the same time, which would spoil the run",
            self.path.display()
        ))
    }

    /// Prepares the folder for resuming after `step` steps: removes the metrics of later steps, and a partial line.
    pub fn go_on_after(&self, step: usize, config: &Config) -> Result<(), TrainError> {
        let unwritable = |source| TrainError::RunFolder { path: self.path.clone(), source };
        let bytes = match read_regular(&self.metrics()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            bytes => bytes.map_err(unwritable)?,
        };
        let text = String::from_utf8_lossy(&bytes); // the last line may end within a character
        let is_before = |line: &&str| {
            let line = serde_json::from_str::<serde_json::Value>(line).ok();
            line.is_some_and(|line| line["step"].as_u64().is_none_or(|of| of <= step as u64))
        };
        let kept: String = text.lines().filter(is_before).flat_map(|line| [line, "\n"]).collect();
        write_whole(&self.metrics(), |file| fs::write(file, &kept)).map_err(unwritable)?;
        write_whole(&self.path.join(CONFIG), |file| fs::write(file, config.to_yaml())).map_err(unwritable)
    }

    /// Rejects a restart of a run that keeps no checkpoints and has made all its steps.
    pub fn expect_unfinished(&self, steps: usize) -> Result<(), TrainError> {
        if config_in(&self.path).is_ok_and(|config| config.checkpoint.keep > 0) {
            return Ok(()); // it ended before its last line was written
        }
        match self.last_step() {
            step if step >= steps as u64 => Err(TrainError::Finished { path: self.path.clone(), step }),
            _ => Ok(()),
        }
    }

    /// The last step in the metrics, which may have been skipped; 0 before the first.
    pub fn last_step(&self) -> u64 {
        let text = read_regular(&self.metrics()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text); // the last line may end within a character
        let step = |line: &str| {
            let line = serde_json::from_str::<serde_json::Value>(line).ok()?;
            line.get("loss").and(line["step"].as_u64()) // the loss is null if it was not finite
        };
        text.lines().rev().find_map(step).unwrap_or(0)
    }

    /// Completes or removes what an ended process has left half-written or half-removed of its checkpoints. Returns the
    /// completed ones, each with a line for the user; what cannot be completed or removed is left to the next start.
    pub fn clean_checkpoints(&self) -> Vec<(PathBuf, String)> {
        let completed = Folder::of_run(&self.path).clean(&copies::are_same).unwrap_or_default();
        let with_line = |path: PathBuf| {
            let line = format!("saved {}, which all ranks had written", path.display());
            (path, line)
        };
        completed.into_iter().map(with_line).collect()
    }

    /// A handle to a folder without opening it; see [`create`](Self::create) and [`reopen`](Self::reopen).
    pub fn at(path: &Path) -> Self {
        Self { path: path.into(), lock: Lock::None }
    }

    /// Broadcasts the folder of rank 0's process to all ranks. A collective.
    ///
    /// # Errors
    /// If this rank's machine does not have it.
    pub fn of_rank_0(mine: Option<&Self>, comm: &Communicator) -> Result<Self, TrainError> {
        let broadcast = |values: Vec<i32>| -> Result<Vec<i32>, FsdpError> {
            let values = TensorData::new(values.clone(), [values.len()]);
            let tensor = Tensor::<1, Int>::from_data(values, (comm.device(), DType::I32));
            Ok(comm.broadcast(tensor, 0)?.into_data().iter::<i32>().collect())
        };
        let bytes = mine.map_or(&[][..], |folder| folder.path.as_os_str().as_encoded_bytes());
        let len = broadcast(vec![bytes.len() as i32])?[0] as usize;
        let mine = if comm.rank() == 0 { bytes.iter().map(|byte| i32::from(*byte)).collect() } else { vec![0; len] };
        let bytes: Vec<u8> = broadcast(mine)?.into_iter().map(|byte| byte as u8).collect();
        let path = PathBuf::from(String::from_utf8_lossy(&bytes).into_owned());
        if path.join(LOCK).is_file() { Ok(Self::at(&path)) } else { Err(TrainError::NotShared { path }) }
    }

    /// Creates the folder of a run that is about to be started, which [`create`](Self::create) then accepts. Without `out`,
    /// uses the first free `runs/NAME-NNN`.
    pub fn reserve(out: Option<&Path>, name: &str) -> Result<PathBuf, TrainError> {
        match out {
            None => free_folder(Path::new(RUNS), name),
            Some(path) => {
                Self::expect_new(path)?;
                fs::create_dir_all(path).map_err(|source| TrainError::RunFolder { path: path.into(), source })?;
                Ok(path.into())
            }
        }
    }

    /// Writes the tokenizer's files, given as names and contents.
    pub fn write_tokenizer(&self, files: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
        let folder = self.tokenizer();
        let write = || -> io::Result<()> {
            fs::create_dir_all(&folder)?;
            files.iter().try_for_each(|(name, bytes)| write_whole(&folder.join(name), |file| fs::write(file, bytes)))
        };
        write().map_err(|source| TrainError::RunFolder { path: folder.clone(), source })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder opened by [`create`](Self::create) or [`reopen`](Self::reopen) still exists. It contains the
    /// lock file, which a new folder of the same name would not.
    pub fn is_there(&self) -> bool {
        self.path.join(LOCK).exists()
    }

    /// `.supervisor/`: files between a supervisor and its attempts, while they run.
    pub fn supervisor(&self) -> PathBuf {
        self.path.join(SUPERVISOR)
    }

    /// `metrics.jsonl`: one JSON object per line.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// `tb/`: TensorBoard events.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tb")
    }

    /// `tokenizer/`: the tokenizer's files, if there is one.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join("tokenizer")
    }

    /// `logs/flight/`: the ranks' last calls at failures, a folder for each start of the run.
    pub fn all_flights(&self) -> PathBuf {
        self.logs().join("flight")
    }

    /// `logs/flight/attempt-A-after-step-N/`: those of an attempt that resumed after `done` steps.
    pub fn flights(&self, attempt: usize, done: usize) -> PathBuf {
        self.all_flights().join(format!("attempt-{attempt}-after-step-{done}"))
    }

    /// `logs/`: one log per rank.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }
}

/// Locks the folder against training by other processes.
fn lock(folder: &Path) -> Result<Lock, TrainError> {
    lock_with(folder, LOCK, File::try_lock)
}

fn lock_with(
    folder: &Path,
    name: &str,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<Lock, TrainError> {
    let path = folder.join(name);
    let file = open_own(&path, OpenOptions::new().create(true).write(true).truncate(false));
    let file = file.map_err(|source| TrainError::RunFolder { path, source })?;
    match try_lock(&file) {
        Ok(()) => Ok(Lock::Held { _file: file }),
        Err(TryLockError::WouldBlock) => Err(TrainError::RunInUse { path: folder.into() }),
        Err(TryLockError::Error(why)) => Ok(Lock::Refused { why }),
    }
}

/// The configuration in a run's folder or in a checkpoint.
pub(crate) fn config_in(folder: &Path) -> Result<Config, TrainError> {
    let path = folder.join(CONFIG);
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        let error = io::Error::other("it is no regular file; remove it");
        return Err(TrainError::ConfigFile { file: path, role: String::new(), error });
    }
    Config::load(Source::File(&path), &[])
}

/// Whether a path is an empty folder.
pub(crate) fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether a path is a folder that holds nothing of a run yet.
fn is_reserved(folder: &Path) -> bool {
    let is_supervisor =
        |entry: fs::DirEntry| [SUPERVISOR, SUPERVISOR_LOCK].iter().any(|name| entry.file_name() == *name);
    fs::read_dir(folder).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_supervisor)))
}

/// Whether a folder holds nothing but what an interrupted download of a checkpoint has left.
pub(crate) fn is_left_by_download(run: &Path) -> bool {
    let is_of_download = |entry: fs::DirEntry| {
        [SUPERVISOR, SUPERVISOR_LOCK, LOCK, "checkpoints"].iter().any(|name| entry.file_name() == *name)
    };
    let has_only_these =
        || fs::read_dir(run).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_of_download)));
    Folder::of_run(run).latest().is_ok_and(|newest| newest.is_none()) && has_only_these()
}

/// Creates the first unused `NAME-NNN` in `runs`.
fn free_folder(runs: &Path, name: &str) -> Result<PathBuf, TrainError> {
    let unwritable = |path: &Path, source| TrainError::RunFolder { path: path.into(), source };
    fs::create_dir_all(runs).map_err(|source| unwritable(runs, source))?;
    let mut folders = (1..).map(|number| runs.join(format!("{name}-{number:03}")));
    let made = folders.find_map(|path| match fs::create_dir(&path) {
        Ok(()) => Some(Ok(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
        Err(source) => Some(Err(unwritable(&path, source))),
    });
    made.expect("numbers do not run out")
}

/// The run that `RUN/checkpoints/step-N` or `RUN/checkpoints` belongs to.
pub(crate) fn run_of(checkpoint: &Path) -> Option<&Path> {
    let run = checkpoint.ancestors().take(2).find(|folder| folder.ends_with("checkpoints"))?.parent()?;
    Some(if run == Path::new("") { Path::new(".") } else { run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_not_begun_is_replaced_once_its_process_has_ended() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let create = || RunFolder::create(Some(&path), "", &Config::default());
        let first = create().unwrap();
        assert!(matches!(create(), Err(TrainError::RunInUse { .. })));
        drop(first);
        let second = create().unwrap();
        fs::write(second.metrics(), "{\"step\": 1}\n").unwrap();
        drop(second);
        assert!(matches!(create(), Err(TrainError::RunExists { has_checkpoint: false, .. })));
    }

    #[test]
    fn a_folder_that_cannot_be_locked_is_used_with_a_warning_and_one_that_is_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let refused =
            lock_with(folder.path(), LOCK, |_| Err(TryLockError::Error(io::Error::other("No locks available"))));
        let warning = RunFolder { lock: refused.unwrap(), ..RunFolder::at(folder.path()) }.warning().unwrap();
        assert!(
            warning.contains("could not be locked (No locks available): nothing keeps another process"),
            "{warning}"
        );
        let held = RunFolder::reopen(folder.path()).unwrap();
        assert!(held.warning().is_none());
        assert!(matches!(RunFolder::reopen(folder.path()), Err(TrainError::RunInUse { .. })));
    }
}
