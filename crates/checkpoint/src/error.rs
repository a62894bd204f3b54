//! Errors of writing and reading checkpoints.

use crate::{Checkpoint, FileEntry, Folder};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be written or read. Each message names the file, and the parameter if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder cannot be written, for example because the disk is full.
    #[error("cannot write {}: {source}; older checkpoints are unchanged: make room, or write to another folder", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}{}", path.display(), without(path, source))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not what was written: it was cut off, edited, or replaced.
    #[error("{}: {reason}: the checkpoint cannot be trusted; {}", path.display(), instead(path))]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A parameter is not finite: the model has diverged.
    #[error("{}: parameter {parameter} is not finite (it has the value {value}); {}", path.display(), instead(path))]
    NotFinite {
        /// The checkpoint, or the folder in which it is written.
        path: PathBuf,
        /// The parameter's name.
        parameter: String,
        /// One of its non-finite values.
        value: f32,
    },
    /// The checkpoint was written in another format.
    #[error(
        "{}: has format {format}, and this program reads {}: use the version of Kiln that wrote it",
        path.display(), crate::Index::FORMAT
    )]
    OtherFormat {
        /// The index.
        path: PathBuf,
        /// The version of its format.
        format: u32,
    },
    /// A folder of a run is a symbolic link.
    #[error(
        "{}: is a symbolic link, and Kiln writes and removes files in it: put a folder in its place (a link to the whole run is fine)",
        path.display()
    )]
    Linked {
        /// The link.
        path: PathBuf,
    },
    /// The checkpoint belongs to another model.
    #[error("{}: {reason}: this checkpoint belongs to a different model", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A folder contains no checkpoint.
    #[error("{}: there is no checkpoint: {}", path.display(), runs_in(path))]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// There is no checkpoint of a step.
    #[error("{}: there is no checkpoint of step {step}: {}", path.display(), steps(there))]
    NoStep {
        /// The folder of checkpoints.
        path: PathBuf,
        /// The step.
        step: u64,
        /// The steps that have one, the oldest first.
        there: Vec<u64>,
    },
    /// The text after the `@` that follows a run names no checkpoint.
    #[error("{}: after the @, give `best` or a step: {}", path.display(), steps(there))]
    NoWhich {
        /// The path as given.
        path: PathBuf,
        /// The steps that have a checkpoint, the oldest first.
        there: Vec<u64>,
    },
    /// No checkpoint is known to be the best.
    #[error(
        "{}: the checkpoint of step {newest} knows no best validation: leave @best out for the newest, or \
         name a step, as in RUN@{newest}", path.display()
    )]
    NoBest {
        /// The folder of checkpoints.
        path: PathBuf,
        /// The newest checkpoint's step.
        newest: u64,
    },
}

/// The available steps, in words.
fn steps(there: &[u64]) -> String {
    let (last, before) = match there {
        [] => return "there is none at all".into(),
        [one] => return format!("there is that of step {one} (RUN@{one})"),
        [before @ .., last] => (last, before),
    };
    let before: Vec<String> = before.iter().map(u64::to_string).collect();
    format!("there are those of steps {} and {last} (RUN@{last})", before.join(", "))
}

/// Names the checkpoint of the run to use instead of the one that `path` is or is in: the previous one that seems
/// whole, or else the newest.
fn instead(path: &Path) -> String {
    let step = |folder: &Path| folder.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let found = path.ancestors().find_map(|folder| {
        let run = folder.parent().filter(|parent| parent.ends_with("checkpoints"))?.parent()?;
        Some((step(folder)?, run))
    });
    let Some((damaged, run)) = found else { return "take an older one".into() };
    let there = Folder::of_run(run).list().unwrap_or_default();
    let others: Vec<(u64, PathBuf)> = there.into_iter().filter(|(step, _)| *step != damaged).collect();
    let whole = others.iter().filter(|(_, path)| has_its_files(path)).map(|(step, _)| *step);
    let whole: Vec<u64> = whole.collect();
    let run = if run == Path::new("") { Path::new(".") } else { run }.display();
    match (whole.iter().rfind(|step| **step < damaged), whole.last()) {
        (Some(older), _) => format!("take the one before ({run}@{older})"),
        (None, Some(newest)) => format!("take another one ({run}@{newest})"),
        (None, None) if others.is_empty() => {
            "the run has no other checkpoint: train it from the start, in another folder".into()
        }
        (None, None) => {
            "the run's other checkpoints are damaged too: train it from the start, in another folder".into()
        }
    }
}

/// Whether the files of a checkpoint are there, as long as they were written. To compare their digests may take minutes.
fn has_its_files(path: &Path) -> bool {
    Checkpoint::open(path).is_ok_and(|checkpoint| {
        let index = checkpoint.index();
        let has = |file: &FileEntry| fs::metadata(path.join(&file.name)).is_ok_and(|found| found.len() == file.bytes);
        index.files.iter().all(has) && has(&index.table)
    })
}

/// Says what to do about a file that a checkpoint lacks.
fn without(path: &Path, error: &io::Error) -> String {
    let of_checkpoint = path.parent().is_some_and(|folder| folder.ancestors().any(|one| one.ends_with("checkpoints")));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    match path.parent().filter(|_| is_missing) {
        Some(_) if of_checkpoint => format!("; {}", instead(path)),
        Some(folder) if path.ends_with("index.json") => match Folder::of_run(folder).latest() {
            Ok(Some(newest)) => format!("; this is the folder of a run: give {}", newest.display()),
            _ => format!("; {}", runs_in(folder)),
        },
        _ => String::new(),
    }
}

/// Says what to give instead of a folder without checkpoints: one of the runs in it, if there are any.
fn runs_in(folder: &Path) -> String {
    const NAMED: usize = 8;
    let folders = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> =
        folders.filter(|run| Folder::of_run(run).latest().is_ok_and(|newest| newest.is_some())).collect();
    runs.sort();
    let more = runs.len().saturating_sub(NAMED);
    let names: Vec<String> = runs.iter().take(NAMED).map(|run| run.display().to_string()).collect();
    match names[..] {
        [] => "give a run's folder with checkpoints/step-N in it, or a folder step-N".into(),
        _ if more > 0 => format!("name one of the runs in it: {} and {more} more", names.join(", ")),
        _ => format!("name one of the runs in it: {}", names.join(", ")),
    }
}

impl CheckpointError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Read { path, source }
    }

    /// What is wrong, without what to do about it.
    pub fn problem(&self) -> String {
        match self {
            Self::Read { path, source } => format!("cannot read {}: {source}", path.display()),
            Self::Broken { path, reason } => format!("{}: {reason}", path.display()),
            other => other.to_string(),
        }
    }

    /// An error unless all values of a parameter are finite.
    pub fn expect_finite(values: &[f32], path: &Path, parameter: &str) -> Result<(), Self> {
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(Self::NotFinite { path: path.into(), parameter: parameter.into(), value: *value }),
            None => Ok(()),
        }
    }

    pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Self {
        Self::Broken { path: path.into(), reason: reason.into() }
    }
}
