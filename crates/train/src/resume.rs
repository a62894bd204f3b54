//! Going on from a checkpoint, whichever ranks and strategy it was written by.

use crate::trainer::TrainError;
use checkpoint::{Checkpoint, CheckpointError, Folder, Kind};
use fsdp::{PartValues, Progress, WantedPart};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The word for the newest checkpoint of the newest run.
const LATEST: &str = "latest";

/// The checkpoint that `--resume WHICH` means: a folder `step-N`, the newest one of a run's folder, or with `latest` that of `out`, or
/// else of the run in `runs/` that was last trained (of those named `NAME-NNN` if a name is given).
pub(crate) fn find(which: &Path, out: Option<&Path>, name: Option<&str>) -> Result<PathBuf, TrainError> {
    if which != Path::new(LATEST) || which.exists() {
        return Ok(Folder::find(which)?);
    }
    if let Some(out) = out {
        return Ok(Folder::find(out)?);
    }
    let runs = Path::new("runs");
    let belongs = |run: &Path| {
        let of_run = run.file_name().and_then(|run| run.to_str()?.rsplit_once('-')).map(|(of_run, _)| of_run);
        name.is_none_or(|name| of_run == Some(name))
    };
    let newest = |run: PathBuf| -> Option<(SystemTime, PathBuf)> {
        let checkpoint = Folder::of_run(&run).latest().ok()??;
        Some((fs::metadata(checkpoint.join("index.json")).ok()?.modified().ok()?, checkpoint))
    };
    let folders = fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = folders.filter(|run| belongs(run)).filter_map(newest).max();
    found.map(|(_, path)| path).ok_or(TrainError::Checkpoint(CheckpointError::None { path: runs.into() }))
}

/// The run that a checkpoint `RUN/checkpoints/step-N` belongs to.
pub(crate) fn run_of(checkpoint: &Path) -> Option<&Path> {
    let folder = checkpoint.parent()?;
    (folder.file_name()? == "checkpoints").then(|| folder.parent().filter(|run| *run != Path::new("")))?
}

/// How far the optimizer was.
pub(crate) fn progress(checkpoint: &Checkpoint) -> Progress {
    let index = checkpoint.index();
    Progress {
        optimizer_steps: index.optimizer_steps,
        loss_scale: index.loss_scale.factor,
        good_steps: index.loss_scale.good_steps,
    }
}

/// The values that a rank asks for.
pub(crate) fn read(checkpoint: &Checkpoint, wanted: &WantedPart) -> Result<PartValues, CheckpointError> {
    let kind = |kind| checkpoint.read(&wanted.name, kind, wanted.range.clone());
    let with_moments = checkpoint.index().optimizer_steps > 0;
    let moments = if with_moments { Some([kind(Kind::ExpAvg)?, kind(Kind::ExpAvgSq)?]) } else { None };
    Ok(PartValues { param: kind(Kind::Param)?, moments })
}
