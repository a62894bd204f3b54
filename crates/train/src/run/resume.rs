//! Resuming from a checkpoint, regardless of the ranks and strategy that wrote it.

mod partial;

use crate::config::{self, Config, DataConfig, Source};
use crate::error::TrainError;
use crate::hints;
use crate::reporting::progress::Progress;
use crate::run::copies;
use crate::run::data_mark;
use crate::run::folder::{CONFIG, RUNS, RunFolder, config_in, run_of};
use crate::run::options::RunOptions;
use crate::run::trained;
use crate::terminal::shown;
use checkpoint::{Best, Checkpoint, CheckpointError, Folder, Index, Lowest, split_at};
use data::{OpenOptions, Prepared, Tokenizer, TokenizerSpec, Trained};
use fsdp::{Fsdp, Part, Unloaded};
use model::{Batch, Initial};
use partial::{Partial, initial_values};
use std::cmp::Ordering;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The word for the newest checkpoint of the newest run.
pub(crate) const LATEST: &str = "latest";
/// The word for the same, or a new run if there is none; for scripts that restart a run repeatedly.
pub(crate) const AUTO: &str = "auto";

/// What a run resumes from.
pub(crate) struct Resume {
    /// The checkpoint's folder.
    pub path: PathBuf,
    pub index: Index,
    /// All ranks of this process read it and then close it, because open files would keep their disk space after a
    /// removal.
    checkpoint: Checkpoint,
    /// Whether all ranks belong to this process.
    ranks_are_here: bool,
    /// The parameters that are taken; `None` takes all, because they match the model's.
    pub partial: Option<Partial>,
    /// Whether the run continues in its own folder.
    pub in_place: bool,
    /// The tokenizer's files, unchanged, if the checkpoint's tokenizer is kept.
    pub tokenizer: Option<Vec<(String, Vec<u8>)>>,
    /// Whether a different tokenizer replaces the checkpoint's.
    pub new_tokenizer: bool,
    /// The best validation so far, if the run still keeps its checkpoint and validates on the same data.
    pub best: Option<Best>,
    /// The lowest validation loss so far on the same data, and how many validations ago it was.
    pub lowest: Option<Lowest>,
    /// Steps of best validations on other data, whose checkpoints the run keeps.
    pub kept: Vec<u64>,
    /// What the run has trained on, part by part.
    pub trained: Vec<Trained>,
}

impl Resume {
    /// Resumes from a checkpoint of the configured model or, if requested, of one that shares some of its parameters.
    pub fn new(
        checkpoint: Checkpoint,
        options: &RunOptions,
        config: &Config,
        ranks_are_here: bool,
    ) -> Result<Self, TrainError> {
        let model = config.parameters();
        let partial = match checkpoint.expect(&model) {
            Err(CheckpointError::OtherModel { .. }) if options.partial => Some(Partial::new(&checkpoint, &model)?),
            other => {
                other.map_err(TrainError::OtherParameters)?;
                None
            }
        };
        let (path, index) = (checkpoint.path().to_path_buf(), checkpoint.index().clone());
        let has_tokenizer = tokenizer_names(&checkpoint).next().is_some();
        let (keeps_tokenizer, new_tokenizer) =
            (has_tokenizer && !options.new_tokenizer, has_tokenizer && options.new_tokenizer);
        let tokenizer = keeps_tokenizer.then(|| tokenizer_files(&checkpoint)).transpose()?;
        checkpoint.read_file(CONFIG)?; // verifies that it is unchanged
        let in_place = options.same_run().is_some();
        let keeps = |step: &u64| {
            let kept = || run_of(&path).is_some_and(|run| Folder::of_run(run).step(*step).exists());
            in_place && config.checkpoint.keep_best && kept()
        };
        let mut kept: Vec<u64> = index.kept.iter().copied().filter(keeps).collect();
        let mut best = index.best.filter(|best| keeps(&best.step));
        // If the checkpoint has no count of validations, counting starts here.
        let mut lowest = index.lowest.or(index.best.map(|Best { step, val_loss }| Lowest { step, val_loss, since: 0 }));
        if partial.is_some() || !validates_on_the_same(&path, config) {
            kept.extend(best.take().map(|best| best.step));
            lowest = None;
        }
        // At its last step a run has ended anyway, and more steps may follow.
        let has_ended_early = || config_in(&path).is_ok_and(|before| index.step < before.train.steps as u64);
        if let (Some(Lowest { since, .. }), Some(patience)) = (lowest, config.train.patience)
            && since >= patience as u64
            && has_ended_early()
        {
            return Err(TrainError::OutOfPatience { path, step: index.step, since });
        }
        let trained = trained::of(&checkpoint)?;
        Ok(Self {
            path,
            index,
            checkpoint,
            ranks_are_here,
            partial,
            in_place,
            tokenizer,
            new_tokenizer,
            best,
            lowest,
            kept,
            trained,
        })
    }

    /// Steps made before.
    pub fn step(&self) -> usize {
        self.index.step as usize
    }

    /// Verifies and reads this rank's share, and returns when all ranks have theirs. A collective. Parameters that the
    /// checkpoint lacks are set to their values in `initial`.
    pub fn load(
        &self,
        fsdp: Unloaded<Batch>,
        initial: &Initial,
        rank: usize,
        world_size: usize,
    ) -> Result<Fsdp<Batch>, TrainError> {
        // Each process looks up the newest checkpoint on its own.
        let digest =
            self.index.digest.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default();
        let mine = [self.index.step as f64, f64::from(digest)];
        if fsdp.all_reduce(&mine)? != mine.map(|value| value * world_size as f64) {
            return Err(TrainError::OtherCheckpoint { path: self.path.clone() });
        }
        // A process compares the digest of every byte it uses once. Its ranks share that work; a single rank does it
        // while reading.
        if self.ranks_are_here {
            self.checkpoint.verify(rank, world_size)?;
            fsdp.all_reduce(&[0.0])?;
        }
        let scale =
            |scale: checkpoint::LossScale| fsdp::LossScale { factor: scale.factor, good_steps: scale.good_steps };
        let progress = fsdp::Progress {
            optimizer_steps: self.index.optimizer_steps,
            loss_scale: self.index.loss_scale.map(scale),
        };
        let has_moments = progress.optimizer_steps > 0;
        let mut values = |wanted: &Part| match &self.partial {
            Some(partial) if !partial.takes(&wanted.name) => Ok(initial_values(initial, wanted, has_moments)),
            _ => fsdp::read_part(&self.checkpoint, wanted).map_err(|error| hints::checkpoint(&error)),
        };
        let fsdp = fsdp.load_state(progress, &mut values)?;
        fsdp.all_reduce(&[0.0])?;
        self.checkpoint.close();
        Ok(fsdp)
    }

    /// Takes over the folder of the run: removes what it wrote after this checkpoint and sets its later checkpoints
    /// aside.
    pub fn take_over(&self, folder: &RunFolder, config: &Config, progress: &Progress) -> Result<(), TrainError> {
        // Happens before the metrics are truncated: a later checkpoint that is still in place needs its own.
        for path in Folder::of_run(folder.path()).set_aside(self.index.step)? {
            progress.say(&format!("a checkpoint of later steps is now {}", path.display()));
        }
        folder.go_on_after(self.step(), config)
    }
}

/// Whether the run before a checkpoint was validated on the same sequences.
fn validates_on_the_same(checkpoint: &Path, config: &Config) -> bool {
    let validated_on = |Config { data, train, .. }: &Config| {
        (
            DataConfig { buckets: None, ..data.clone() },
            train.seq_len,
            train.val_batches.saturating_mul(train.global_batch_size),
        )
    };
    config_in(checkpoint).is_ok_and(|before| validated_on(&before) == validated_on(config))
}

/// Rejects a checkpoint that already has all `steps`.
pub(crate) fn expect_unfinished(checkpoint: &Checkpoint, steps: usize) -> Result<(), TrainError> {
    let step = checkpoint.index().step;
    let path = checkpoint.path().to_path_buf();
    match step.cmp(&(steps as u64)) {
        Ordering::Less => Ok(()),
        Ordering::Equal => Err(TrainError::Finished { path, step }),
        Ordering::Greater => Err(TrainError::Beyond { path, step, steps }),
    }
}

/// Names of the files that belong to the tokenizer.
fn tokenizer_names(checkpoint: &Checkpoint) -> impl Iterator<Item = &String> {
    checkpoint
        .index()
        .extra()
        .iter()
        .map(|file| &file.name)
        .filter(|name| ![CONFIG, trained::FILE, data_mark::FILE].contains(&name.as_str()))
}

/// Whether a checkpoint has a tokenizer that can be opened. A run on tokens alone has none, and some from other
/// programs cannot be opened.
pub(crate) fn has_tokenizer(checkpoint: &Checkpoint) -> bool {
    let has = |file: &str| tokenizer_names(checkpoint).any(|name| name == file);
    has("tokenizer.json") || (has("vocab.json") && has("merges.txt"))
}

/// Opens data for the model of a checkpoint, with its tokenizer if it has one.
///
/// # Errors
/// If it has none and a text would be read as bytes, which may not match its tokens.
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
    // Not by the name in the metadata: whoever prepared the same text first may have given a folder with this
    // tokenizer.
    let tokenizer = prepared.tokenizer.as_ref().filter(|_| prepared.meta.is_some());
    let bytes = tokenizer.is_some_and(|tokenizer| tokenizer.same_as(&Tokenizer::byte()));
    match bytes && !has_tokenizer {
        true => Err(TrainError::NoTokenizer { path: checkpoint.path().into() }),
        false => Ok(prepared),
    }
}

/// Names and contents of the tokenizer's files.
pub(crate) fn tokenizer_files(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>, CheckpointError> {
    let read = |name: &String| Ok((name.clone(), checkpoint.read_file(name)?));
    tokenizer_names(checkpoint).map(read).collect()
}

/// Where a run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// At its first step, in the folder of a run without checkpoints if there is one.
    Anew { again_in: Option<PathBuf> },
    /// At a checkpoint, a folder `step-N`.
    From(PathBuf),
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
            false => Ok(Start::From(Folder::find(which)?)),
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
    let newest = if auto { newest_whole(&run, verification)? } else { Folder::of_run(&run).latest()? };
    match newest {
        Some(checkpoint) => Ok(Start::From(checkpoint)),
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

/// The newest intact checkpoint. Reports each newer one that is damaged.
///
/// # Errors
/// If there are checkpoints but none is intact.
fn newest_whole(run: &Path, verification: Verification) -> Result<Option<PathBuf>, TrainError> {
    let mut damaged = None;
    for (_, path) in Folder::of_run(run).list()?.into_iter().rev() {
        let opened = Checkpoint::open(&path).and_then(|checkpoint| match verification {
            Verification::EveryByte => checkpoint.verify_all(),
            Verification::Index => Ok(()),
        });
        match opened {
            Ok(()) => return Ok(Some(path)),
            Err(error @ CheckpointError::OtherFormat { .. }) => return Err(error.into()),
            Err(error) => {
                let line =
                    format!("warning: {} is damaged and is skipped: {}", path.display(), hints::checkpoint(&error));
                let _ = writeln!(io::stderr(), "{}", shown(&line, io::stderr().is_terminal()));
                damaged = damaged.or(Some(error));
            }
        }
    }
    damaged.map_or(Ok(None), |error| Err(error.into()))
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
