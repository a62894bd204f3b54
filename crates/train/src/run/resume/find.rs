//! Finds the checkpoint to resume from.

use crate::config::{self, Config, Source};
use crate::error::TrainError;
use crate::run::copies;
use crate::run::folder::{RUNS, RunFolder, config_in, run_of};
use checkpoint::{Checkpoint, CheckpointError, Folder, split_at};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The word for the newest checkpoint of the newest run.
pub(crate) const LATEST: &str = "latest";
/// The word for the same, or a new run if there is none; for scripts that restart a run repeatedly.
pub(crate) const AUTO: &str = "auto";

/// Where a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// At its first step, in the folder of a run without checkpoints if there is one.
    Anew { again_in: Option<PathBuf> },
    /// At a checkpoint, a folder `step-N`. There is a line about each newer one that is damaged and passed over.
    From { checkpoint: PathBuf, passed_over: Vec<String> },
}

/// Resolves `--resume WHICH`: a folder `step-N`, or the newest checkpoint of a run's folder.
///
/// The words [`LATEST`] and [`AUTO`] mean the newest checkpoint of `out`, or else of the most recently trained run in
/// `runs/` (of the preset, if one is given). `auto` skips checkpoints that fail this `verification`, and starts from the
/// beginning if there is none.
pub(crate) fn find(
    which: &Path,
    out: Option<&Path>,
    preset: Option<&str>,
    verification: Verification,
) -> Result<Start, TrainError> {
    if !is_word(which) {
        mend(split_at(which).map(|(run, _)| run).or(run_of(which)).unwrap_or(which));
        return match is_run(which) && Folder::of_run(which).latest()?.is_none() {
            true => Err(TrainError::NoCheckpointYet { path: which.into() }),
            false => Ok(Start::From { checkpoint: Folder::find(which)?, passed_over: vec![] }),
        };
    }
    let auto = which == Path::new(AUTO);
    preset.map(config::preset).transpose()?;
    let run = match out {
        Some(out) => Some(out.to_path_buf()).filter(|out| !auto || is_run(out)),
        None if auto && preset.is_none() => return Err(TrainError::WhichRun),
        None => newest_run(preset, auto),
    };
    let Some(run) = run else {
        return match auto {
            true => Ok(Start::Anew { again_in: None }),
            false => Err(TrainError::NoRun { of: preset.map_or(String::new(), |preset| format!(" of {preset}")) }),
        };
    };
    if let (Some(preset), Ok(config)) = (preset, config_in(&run))
        && !is_of(&config, preset, auto)
    {
        return Err(TrainError::OtherModel { path: run, preset: preset.into() });
    }
    mend(&run);
    let newest = match auto {
        true => newest_whole(&run, verification)?,
        false => Folder::of_run(&run).latest()?.map(|newest| (newest, vec![])),
    };
    match newest {
        Some((checkpoint, passed_over)) => Ok(Start::From { checkpoint, passed_over }),
        None if auto => Ok(Start::Anew { again_in: Some(run) }),
        None => Err(TrainError::NoCheckpointYet { path: run }),
    }
}

/// How much of a checkpoint is verified before it counts as intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verification {
    /// All of it.
    EveryByte,
    /// Only the index, because each of many processes would read everything. What is read later is verified then.
    Index,
}

/// The newest intact checkpoint, and a line about each newer one, which is damaged.
///
/// # Errors
/// If there are checkpoints but none is intact.
fn newest_whole(run: &Path, verification: Verification) -> Result<Option<(PathBuf, Vec<String>)>, TrainError> {
    let mut damaged = vec![];
    for (_, path) in Folder::of_run(run).list()?.into_iter().rev() {
        let opened = Checkpoint::open(&path).and_then(|checkpoint| match verification {
            Verification::EveryByte => checkpoint.verify_all(),
            Verification::Index => Ok(()),
        });
        match opened {
            Ok(()) => {
                let line = |(path, problem): &(PathBuf, String)| {
                    format!("warning: {} is damaged and is skipped: {problem}", path.display())
                };
                return Ok(Some((path, damaged.iter().map(line).collect())));
            }
            Err(error @ CheckpointError::OtherFormat { .. }) => return Err(error.into()),
            Err(error) => damaged.push((path, error.problem())),
        }
    }
    if damaged.is_empty() {
        return Ok(None);
    }
    let upload = config_in(run).ok().and_then(|config| config.checkpoint.upload);
    let problems = damaged.into_iter().map(|(_, problem)| problem).collect();
    Err(TrainError::AllDamaged { path: run.into(), problems, upload })
}

/// Repairs what a killed process has left of a run's checkpoints, before the newest is looked up.
///
/// If another process has locked the run, it either does the same or trains there, which is reported later. If locks
/// are unavailable, another process might train unnoticed, so nothing is touched until the run continues in place.
fn mend(run: &Path) {
    let folder = Folder::of_run(run);
    for _ in 0..MENDING_LOOKS {
        if !folder.needs_mending().is_ok_and(|needs| needs) {
            return;
        }
        match RunFolder::reopen(run) {
            Err(TrainError::RunInUse { .. }) => thread::sleep(MENDING_LOOK),
            Ok(folder) if folder.warning().is_some() => return,
            Ok(_locked) => return drop(folder.mend(&copies::are_same)), // problems are reported where it is needed
            Err(_) => return,
        }
    }
}

/// How often to check whether another process has repaired a run, and the interval.
const MENDING_LOOKS: usize = 300;
const MENDING_LOOK: Duration = Duration::from_millis(100);

/// Whether `--resume WHICH` is a word rather than a path.
pub(crate) fn is_word(which: &Path) -> bool {
    [AUTO, LATEST].iter().any(|word| which == Path::new(word))
}

/// Whether a run has begun in a folder.
fn is_run(folder: &Path) -> bool {
    RunFolder::at(folder).metrics().exists() || Folder::of_run(folder).latest().is_ok_and(|newest| newest.is_some())
}

/// The folder of a run that is named as in `--resume`: itself, one of its checkpoints, `RUN@12`, or `latest`.
pub(crate) fn run_named(which: &Path) -> Result<PathBuf, TrainError> {
    if which == Path::new(LATEST) && !which.exists() {
        return newest_run(None, false).ok_or(TrainError::NoRun { of: String::new() });
    }
    Ok(split_at(which).map(|(run, _)| run).or(run_of(which)).unwrap_or(which).into())
}

/// The most recently trained run, of this preset if one is given.
fn newest_run(preset: Option<&str>, surely: bool) -> Option<PathBuf> {
    let of_preset = |run: &PathBuf| {
        let config = || config_in(run).ok();
        preset.is_none_or(|preset| config().is_some_and(|config| is_of(&config, preset, surely)))
    };
    let trained = |run: PathBuf| Some((fs::metadata(RunFolder::at(&run).metrics()).ok()?.modified().ok()?, run));
    let runs = fs::read_dir(RUNS).into_iter().flatten().flatten().map(|entry| entry.path());
    runs.filter(of_preset).filter_map(trained).max().map(|(_, run)| run)
}

/// Whether a run was made from this preset. Unless `surely`, a run that names no preset counts if its model family
/// matches.
fn is_of(config: &Config, preset: &str, surely: bool) -> bool {
    let family =
        || Config::load(Source::Preset(preset), &[]).is_ok_and(|of| of.model.type_name() == config.model.type_name());
    config.preset.as_deref().map_or_else(|| !surely && family(), |of| of == preset)
}
