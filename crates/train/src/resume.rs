//! Going on from a checkpoint, whichever ranks and strategy it was written by.

use crate::config::Config;
use crate::progress::Progress;
use crate::run_folder::{CONFIG, RunFolder};
use crate::trainer::{Place, TrainError};
use crate::units::{Batch, parameters};
use checkpoint::{Checkpoint, CheckpointError, Folder, Index, Kind};
use data::{OpenOptions, Prepared, TokenizerSpec};
use fsdp::{Fsdp, PartValues, WantedPart};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The word for the newest checkpoint of the newest run.
pub(crate) const LATEST: &str = "latest";

/// What a run goes on from. Each rank opens the checkpoint for as long as it reads: files that stay mapped would keep their place on the
/// disk when it is removed.
#[derive(Debug)]
pub(crate) struct Resume {
    /// The checkpoint's folder.
    pub path: PathBuf,
    pub index: Index,
    /// Whether the run goes on in the folder that it has.
    pub in_place: bool,
    /// The tokenizer's files as they are, if the checkpoint's is kept.
    pub tokenizer: Option<Vec<(String, Vec<u8>)>>,
}

impl Resume {
    /// From a checkpoint of the configured model.
    pub fn new(checkpoint: &Checkpoint, place: &Place, config: &Config) -> Result<Self, TrainError> {
        checkpoint.expect(&parameters(config))?;
        let (path, index) = (checkpoint.path().to_path_buf(), checkpoint.index().clone());
        let (step, steps) = (index.step, config.train.steps);
        if step > steps as u64 {
            return Err(TrainError::Finished { path, step, steps });
        }
        let keeps_tokenizer = !place.new_tokenizer && tokenizer_names(checkpoint).next().is_some();
        let tokenizer = keeps_tokenizer.then(|| tokenizer_files(checkpoint)).transpose()?;
        Ok(Self { path, index, in_place: place.same_run().is_some(), tokenizer })
    }

    /// Steps made before.
    pub fn step(&self) -> usize {
        self.index.step as usize
    }

    /// Checks and reads this rank's share; returns when all ranks have theirs. A collective.
    pub fn load(&self, fsdp: &mut Fsdp<Batch>, rank: usize, world_size: usize) -> Result<(), TrainError> {
        let checkpoint = Checkpoint::open(&self.path)?;
        checkpoint.verify(rank, world_size)?;
        let (optimizer_steps, loss_scale) = (self.index.optimizer_steps, &self.index.loss_scale);
        let progress =
            fsdp::Progress { optimizer_steps, loss_scale: loss_scale.factor, good_steps: loss_scale.good_steps };
        let mut values = |wanted: &WantedPart| read(&checkpoint, wanted).map_err(|error| error.to_string());
        fsdp.load_state(progress, &mut values)?;
        fsdp.all_reduce(&[0.0])?;
        Ok(())
    }

    /// Takes away what the run wrote after this checkpoint, in whose folder it goes on; its later checkpoints are set aside.
    pub fn take_over(&self, folder: &RunFolder, config: &Config, progress: &Progress) -> Result<(), TrainError> {
        folder.go_on_after(self.step(), config)?;
        for path in Folder::of_run(folder.path()).set_aside(self.index.step)? {
            progress.say(&format!("a checkpoint of later steps is now {}", path.display()));
        }
        Ok(())
    }
}

/// Names of the files that belong to the tokenizer.
fn tokenizer_names(checkpoint: &Checkpoint) -> impl Iterator<Item = &String> {
    checkpoint.index().extra().iter().map(|file| &file.name).filter(|name| name.as_str() != CONFIG)
}

/// Whether a checkpoint has a tokenizer that can be opened; one of a run on tokens alone has none, and some of other programs cannot be.
pub(crate) fn has_tokenizer(checkpoint: &Checkpoint) -> bool {
    let has = |file: &str| tokenizer_names(checkpoint).any(|name| name == file);
    has("tokenizer.json") || (has("vocab.json") && has("merges.txt"))
}

/// Opens data for the model of a checkpoint: with its tokenizer, where it has one.
///
/// # Errors
/// If it has none, and a text would be taken for bytes, which its tokens may not be.
pub(crate) fn open_data(
    checkpoint: &Checkpoint,
    source: &str,
    mut options: OpenOptions,
) -> Result<Prepared, TrainError> {
    let has_tokenizer = has_tokenizer(checkpoint);
    if has_tokenizer {
        options.tokenizer = Some(TokenizerSpec::Path(checkpoint.path().into()));
    }
    let prepared = data::open(source, &options)?;
    let bytes = prepared.meta.as_ref().is_some_and(|meta| meta.tokenizer == TokenizerSpec::Byte.to_string());
    match bytes && !has_tokenizer {
        true => Err(TrainError::NoTokenizer { path: checkpoint.path().into() }),
        false => Ok(prepared),
    }
}

/// Names and bytes of the tokenizer's files.
pub(crate) fn tokenizer_files(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>, CheckpointError> {
    let read = |name: &String| {
        let path = checkpoint.path().join(name);
        fs::read(&path).map(|bytes| (name.clone(), bytes)).map_err(|source| CheckpointError::Read { path, source })
    };
    tokenizer_names(checkpoint).map(read).collect()
}

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

/// The values that a rank asks for.
fn read(checkpoint: &Checkpoint, wanted: &WantedPart) -> Result<PartValues, CheckpointError> {
    let kind = |kind| checkpoint.read(&wanted.name, kind, wanted.range.clone());
    let moments = if checkpoint.index().kinds().contains(&Kind::ExpAvg) {
        Some([kind(Kind::ExpAvg)?, kind(Kind::ExpAvgSq)?])
    } else {
        None
    };
    Ok(PartValues { param: kind(Kind::Param)?, moments })
}
