//! When the run is saved, and the messages about it.

use super::{Job, Trainer};
use crate::config::{CheckpointConfig, Config};
use crate::error::TrainError;
use crate::hints;
use crate::host::attempt;
use crate::run::data_mark;
use crate::run::folder::{CONFIG, RunFolder};
use crate::run::memory::MemorySaver;
use crate::run::saver::Saver;
use crate::run::survivors;
use crate::run::trained;
use crate::terminal::to_stderr;
use crate::trainer::recorder;
use checkpoint::{Folder, Index};
use comm::{Communicator, RankFailure};
use data::Tokenizer;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A step that is made, recorded and, if that was due, validated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub step: usize,
    pub optimizer_steps: u64,
    pub loss: f64,
    /// The last validation before it.
    pub val_loss: Option<f64>,
}

impl Trainer<'_> {
    /// Whether a checkpoint is due after `step` steps. If the step is skipped, the checkpoint waits for the next one
    /// that is not: parameters that give non-finite results must not replace older ones.
    pub fn is_due(&mut self, step: usize) -> bool {
        let CheckpointConfig { every, keep_every, .. } = self.job.config.checkpoint;
        self.is_due |= [every, keep_every].iter().any(|every| *every > 0 && step.is_multiple_of(*every));
        self.is_due && self.skips == 0
    }

    /// Returns whether a checkpoint is due by rank 0's clock; all ranks learn of it in the [sums](super::signs) of a
    /// step.
    pub fn is_time(&self) -> bool {
        let due = |minutes: f64| self.saved_at.elapsed().as_secs_f64() >= 60.0 * minutes;
        let minutes = self.job.config.checkpoint.every_minutes.filter(|_| self.rank == 0);
        minutes.is_some_and(due)
    }

    /// Starts saving the run after `step` steps, once the previous checkpoint is complete.
    pub fn save(&mut self, step: usize, loss: f64, val_loss: Option<f64>) -> Result<(), TrainError> {
        if self.job.config.checkpoint.keep == 0 {
            return Ok(());
        }
        let started = Instant::now();
        (self.is_due, self.saved_at) = (false, started);
        self.job.progress.doing("saving");
        self.comm.note_place(step as u64, "saving");
        self.finish_saving(false)?;
        let index = self.index(step, loss, val_loss);
        self.saver.start(self.fsdp.state(), index);
        self.checkpoint_seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Starts saving the run in memory, once the previous checkpoint there is complete. A run that resumes from a checkpoint
    /// must have the metrics of all steps before.
    pub fn save_in_memory(&mut self, step: usize, loss: f64, val_loss: Option<f64>) -> Result<(), TrainError> {
        if self.skips == 0 && !self.lacks_metrics {
            self.finish_in_memory()?;
            let index = self.index(step, loss, val_loss);
            self.memory.iter_mut().for_each(|memory| memory.start(self.fsdp.state(), index.clone()));
        }
        Ok(())
    }

    /// Waits until the checkpoint in memory is complete, if one is being written. It replaces the one before only if there are
    /// metrics of its step. Where there is no room, the run goes on without.
    pub fn finish_in_memory(&mut self) -> Result<(), TrainError> {
        let Some(memory) = self.memory.take() else { return Ok(()) };
        let finished = memory.finish(!self.lacks_metrics, |values| self.fsdp.all_reduce(values));
        let (memory, failure) = finished.map_err(|error| match error {
            TrainError::NotSaved { step, parameter, value, .. } => {
                TrainError::NotSaved { step, parameter, value, last_good: self.saver.last_good() }
            }
            error => error,
        })?;
        if let Some(error) = failure {
            let error = error.to_string(); // its remedy is for a disk
            let why = error.split(';').next().unwrap_or_default();
            let rank = self.rank;
            to_stderr(&format!("warning: rank {rank}: no more checkpoints in memory, make /dev/shm larger: {why}"));
        }
        self.memory = memory;
        Ok(())
    }

    /// Leaves this rank's state to the end of a run that has failed, unless it is not that after the last step in the
    /// metrics, or gave a loss that is not finite.
    pub fn leave_state(&self) {
        let Some(Made { step, optimizer_steps, loss, val_loss }) = self.made.filter(|_| self.skips == 0) else {
            return;
        };
        if let Some(state) = self.fsdp.held_state().filter(|state| state.progress.optimizer_steps == optimizer_steps) {
            self.job.survivors.add(self.rank, self.index(step, loss, val_loss), state);
        }
    }

    /// What is known of the run after `step` steps.
    fn index(&self, step: usize, loss: f64, val_loss: Option<f64>) -> Index {
        let Config { train, parallel, .. } = &self.job.config;
        Index {
            step: step as u64,
            seed: train.seed,
            tokens: self.tokens,
            loss: Some(loss).filter(|loss| loss.is_finite()),
            val_loss: val_loss.filter(|loss| loss.is_finite()),
            best: self.best,
            lowest: self.lowest,
            kept: self.job.resume.as_ref().map_or(vec![], |resume| resume.kept.clone()),
            world_size: parallel.gpus,
            strategy: parallel.describe(),
            ..Index::default()
        }
    }

    /// Waits until the checkpoint being written is complete, if there is one. If a disk refuses it, that is an error only
    /// with `last`.
    pub fn finish_saving(&mut self, last: bool) -> Result<(), TrainError> {
        let sum = |values: &[f64]| {
            self.comm.flight().heartbeat();
            self.fsdp.all_reduce(values)
        };
        let finished = self.saver.finish(sum, |line| self.recorder.say(line))?;
        self.tell_saved(finished.saved)?;
        match self.saver.skip().filter(|_| finished.has_failed) {
            None => Ok(()),
            Some((_, Some(error))) if last => Err(error),
            Some((step, None)) if last => {
                self.fsdp.all_reduce(&[0.0])?; // fails with the rank that has the error, which says it
                Err(TrainError::NotSavedElsewhere { step })
            }
            Some((step, error)) => self.tell_skipped(step, error),
        }
    }

    /// Skips the checkpoint being written, which the disk of a rank has refused.
    pub fn skip_saving(&mut self) -> Result<(), TrainError> {
        match self.saver.skip() {
            Some((step, error)) => self.tell_skipped(step, error),
            None => Ok(()),
        }
    }

    /// Reports a skipped checkpoint: the rank with the error says why, and rank 0 notes it among the events.
    fn tell_skipped(&mut self, step: u64, error: Option<TrainError>) -> Result<(), TrainError> {
        let rank = self.rank;
        if let Some(error) = &error {
            let line =
                format!("warning: rank {rank}: the checkpoint of step {step} is skipped after three attempts: {error}");
            self.recorder.warn(&line);
            to_stderr(&line);
        }
        let why = error.map_or("a rank could not write its part".into(), |error| error.to_string());
        self.recorder.event(step as usize, &format!("skipped the checkpoint: {why}"))
    }

    /// Reports a completed checkpoint, and older ones that could not be removed.
    pub fn tell_saved(&mut self, saved: Option<(u64, PathBuf)>) -> Result<(), TrainError> {
        if let Some((step, path)) = saved {
            let event = format!("saved {}", path.display());
            self.job.progress.say(&event);
            self.recorder.event(step as usize, &event)?;
        }
        self.tell_pruned(false);
        self.tell_uploads()
    }

    /// Reports what has happened to uploads, by rank 0; warnings are also noted among the events.
    fn tell_uploads(&mut self) -> Result<(), TrainError> {
        let Some(uploads) = self.job.uploads.as_ref().filter(|_| self.rank == 0) else { return Ok(()) };
        for (step, line) in uploads.lines() {
            self.job.progress.say(&line);
            if let Some(event) = line.strip_prefix("warning: ") {
                self.recorder.event(step as usize, event)?;
            }
        }
        Ok(())
    }

    /// Reports older checkpoints that could not be removed, which must not end a run; with `wait`, waits until they are
    /// removed.
    pub fn tell_pruned(&mut self, wait: bool) {
        if let Some(error) = self.saver.pruned(wait) {
            self.recorder.say(&format!("older checkpoints stay: {}", hints::checkpoint(&error)));
        }
    }
}

/// Creates the saver of checkpoints on disk. Rank 0, which completes them, also writes the tokenizer to the run's folder.
pub(super) fn saver(job: &Job, folder: &RunFolder, rank: usize) -> Result<Saver, TrainError> {
    let tokenizer = if rank == 0 { tokenizer(job) } else { vec![] };
    if !tokenizer.is_empty() {
        folder.write_tokenizer(&tokenizer)?;
    }
    let files = files(job, rank)?;
    let saver = Saver::new(Folder::of_run(folder.path()), rank, job.config.checkpoint.clone(), files);
    Ok(saver.with_uploads(job.uploads.clone().filter(|_| rank == 0)))
}

/// Creates the saver of checkpoints in memory, if there are any.
pub(super) fn memory(job: &Job, comm: &Communicator) -> Result<Option<MemorySaver>, TrainError> {
    let Some(folder) = attempt::memory().filter(|_| job.config.resilience.memory_every > 0) else { return Ok(None) };
    let files = files(job, comm.rank())?;
    let saver = MemorySaver::new(&folder, comm.clone(), job.config.checkpoint.clone(), files);
    let saver = saver.map_err(|source| TrainError::InMemory { path: folder, source })?;
    Ok(Some(saver))
}

/// Saves what is left of a run that has failed, if the survivors hold all of its state. Returns the checkpoint. A disk that
/// does not answer, which may be why a rank is stuck, is given up after `checkpoint.timeout`.
pub(crate) fn save_survivors(job: &Arc<Job>, folder: &RunFolder, failure: &RankFailure<TrainError>) -> Option<PathBuf> {
    let CheckpointConfig { keep, timeout, .. } = job.config.checkpoint;
    if keep == 0 || !survivors::can_save(failure) {
        return None;
    }
    let (of_thread, checkpoints, (done, saved)) = (job.clone(), Folder::of_run(folder.path()), mpsc::channel());
    thread::spawn(move || {
        let parameters = of_thread.config.parameter_count();
        let save = |extra: Vec<_>| of_thread.survivors.save(&checkpoints, &extra, parameters);
        drop(done.send(files(&of_thread, 0).and_then(save)));
    });
    match saved.recv_timeout(Duration::from_secs(timeout)) {
        Ok(Ok(saved)) => saved.map(|(step, path)| {
            let shown = path.display();
            job.progress.say(&format!("the remaining ranks hold the whole state after step {step}: saved {shown}"));
            recorder::late_event(folder, step, &format!("saved {shown} from what the remaining ranks held"));
            path
        }),
        Ok(Err(error)) => {
            to_stderr(&format!("warning: what the remaining ranks hold is not saved: {error}"));
            None
        }
        Err(_) => {
            to_stderr(&format!("warning: what the remaining ranks hold is not saved within {timeout} s"));
            None
        }
    }
}

/// The tokenizer's files, as names and contents.
fn tokenizer(job: &Job) -> Vec<(String, Vec<u8>)> {
    let kept = job.resume.as_ref().and_then(|resume| resume.tokenizer.clone());
    kept.or(job.data.tokenizer.as_ref().map(Tokenizer::files)).unwrap_or_default()
}

/// The files that rank 0 adds to each checkpoint: tokenizer, configuration and marks of the data.
fn files(job: &Job, rank: usize) -> Result<Vec<(String, Vec<u8>)>, TrainError> {
    if rank != 0 {
        return Ok(vec![]);
    }
    let mut files = tokenizer(job);
    files.push((CONFIG.into(), job.whole.to_yaml().into_bytes()));
    files.push(data_mark::file(&job.config.data.source, &job.data)?);
    files.extend(job.resume.as_ref().and_then(|resume| trained::file(&resume.trained, &job.config.train)));
    Ok(files)
}
