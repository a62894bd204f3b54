//! Resuming from a checkpoint, regardless of the ranks and strategy that wrote it.

mod find;
mod partial;

use crate::config::{Config, DataConfig};
use crate::error::TrainError;
use crate::hints;
use crate::reporting::progress::Progress;
use crate::run::data_mark;
use crate::run::folder::{CONFIG, RunFolder, config_in, run_of};
use crate::run::options::RunOptions;
use crate::run::trained;
use crate::terminal::to_stderr;
use checkpoint::{Best, Checkpoint, CheckpointError, Folder, Index, Lowest};
use data::{OpenOptions, Prepared, Tokenizer, TokenizerSpec, Trained};
pub(crate) use find::{AUTO, LATEST, Start, Verification, find, is_word, run_named};
use fsdp::{Fsdp, Part, Unloaded};
use model::{Batch, Initial};
use partial::{Partial, initial_values};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// What a run resumes from.
pub(crate) struct Resume {
    /// The checkpoint's folder.
    pub path: PathBuf,
    pub index: Index,
    /// All ranks of this process read it and then close it, because open files would keep their disk space after a
    /// removal.
    checkpoint: Checkpoint,
    /// Lines about newer checkpoints that are damaged.
    passed_over: Vec<String>,
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
            passed_over: options.passed_over.clone(),
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
            // Rank 0 has told of what it passes over itself.
            self.passed_over.iter().filter(|_| rank != 0).for_each(|line| to_stderr(&format!("rank {rank}: {line}")));
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
