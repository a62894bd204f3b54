//! `--dry-run`: estimates what a run needs, after a few steps that leave nothing behind.

use crate::config::{CheckpointConfig, Config};
use crate::error::TrainError;
use crate::format::{bytes, count, duration};
use crate::host::launch::Launch;
use crate::overview;
use crate::plan::memory_check::Estimate;
use crate::run::folder::RunFolder;
use crate::run::options::RunOptions;
use crate::run::resume::Resume;
use crate::terminal::say;
use crate::trainer::Outcome;
use crate::trainer::job::Job;
use checkpoint::Folder;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process};

/// A checkpoint holds each parameter and its two moments in fp32.
const CHECKPOINT_BYTES: usize = 3 * size_of::<f32>();
/// A forward takes this fraction of a step, because the backward is twice as much work.
const FORWARD: f64 = 1.0 / 3.0;

/// The folder of steps that are only measured, removed at the end.
pub(crate) struct Scratch {
    path: PathBuf,
    /// Whether this process created it.
    is_mine: bool,
}

impl Scratch {
    /// Creates the folder, in rank 0's process.
    ///
    /// # Errors
    /// If it cannot be created, or if the real run could not start in its `options`.
    pub fn new(launch: &Launch, options: &RunOptions) -> Result<Self, TrainError> {
        if let (None, Some(out), false) = (options.same_run(), &options.out, options.again) {
            RunFolder::expect_new(out)?;
        }
        Self::at(launch)
    }

    /// Creates the folder, in rank 0's process.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn at(launch: &Launch) -> Result<Self, TrainError> {
        let path = Self::place(launch);
        let is_mine = launch.has_rank_0();
        if is_mine {
            // An existing folder belongs to somebody else.
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.map_err(|source| TrainError::RunFolder { path: path.clone(), source })?;
        }
        Ok(Self { path, is_mine })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder for this process.
    fn place(launch: &Launch) -> PathBuf {
        // Processes on several machines need a folder that all of them can see.
        let parent = if launch.processes().is_some() { PathBuf::new() } else { env::temp_dir() };
        parent.join(format!(".kiln-steps-{}", process::id()))
    }

    /// Returns a function that removes this process's folder, for a signal handler.
    pub fn remover(launch: &Launch) -> impl Fn() + Send + use<> {
        let mine = launch.has_rank_0().then(|| Self::place(launch));
        // A rank that creates a file meanwhile makes a removal fail.
        let remove = |path: &PathBuf| (0..20).any(|_| fs::remove_dir_all(path).is_ok() || !path.exists());
        move || mine.iter().for_each(|path| _ = remove(path))
    }

    /// The options of the dry run's steps.
    pub fn instead_of(&self, options: &RunOptions) -> RunOptions {
        RunOptions { out: Some(self.path.clone()), again: false, ..options.clone() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_mine {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Prints what a run at `options` needs; `outcome` is that of its first few steps.
pub(crate) fn tell(job: &Job, options: &RunOptions, memory: &Estimate, outcome: &Outcome) {
    let base = options.same_run().is_some_and(|run| Folder::of_run(run).step(0).is_dir());
    say(&format!("steps        {}", overview::run(job)));
    say(&format!("memory       {}\n{}", memory.line(), memory.table()));
    say(&format!("checkpoints  {}", checkpoints(&job.config, job.config.parameter_count(), base)));
    let done = job.resume.as_ref().map_or(0, Resume::step);
    say(&format!("time         {}", time(job, done, outcome)));
}

/// Describes the disk space of the checkpoints.
fn checkpoints(config: &Config, parameters: usize, base: bool) -> String {
    let CheckpointConfig { keep, .. } = config.checkpoint;
    if keep == 0 {
        return "none (checkpoint.keep is 0)".into();
    }
    let (size, at_once) = (parameters * CHECKPOINT_BYTES, at_once(config, base));
    format!("{} each; at most {at_once} at once, {}", bytes(size), bytes(size * at_once))
}

/// Maximum number of checkpoints at once: the newest, the best, the milestones, and the one written before an older one
/// is removed. `base` adds that of an imported model.
fn at_once(config: &Config, base: bool) -> usize {
    let CheckpointConfig { every, every_minutes, keep, keep_every, keep_best, .. } = config.checkpoint;
    let (steps, val_every) = (config.train.steps, if keep_best { config.train.val_every } else { 0 });
    let is_saved =
        |step| step == steps || [every, val_every, keep_every].iter().any(|every| *every > 0 && step % every == 0);
    let by_time = every_minutes.is_some();
    let last = if config.saves_on_the_way() { 1..=steps } else { steps..=steps };
    let newest: Vec<usize> =
        last.rev().filter(|step| by_time || is_saved(*step)).take(keep.saturating_add(1)).collect();
    let milestones = (newest.last().unwrap_or(&1) - 1).checked_div(keep_every).unwrap_or(0);
    let best = steps.checked_div(val_every).unwrap_or(0) > 1;
    newest.len() + milestones + usize::from(best) + usize::from(base)
}

/// The estimated time of the steps after `done`, extrapolated from the first few.
fn time(job: &Job, done: usize, outcome: &Outcome) -> String {
    let (train, pace) = (&job.config.train, &outcome.pace);
    let validations = validations(&job.config, done);
    let windows = job.dataset.val_windows(train.seq_len);
    let sequences = match train.val_batches {
        0 => windows,
        batches => windows.min(batches.saturating_mul(train.global_batch_size)),
    };
    let validation = pace.step().mul_f64(FORWARD * sequences as f64 / train.global_batch_size as f64);
    let left = train.steps - done;
    let of_validations: Duration = validation * validations as u32;
    format!(
        "about {}: {} of {} (the first took {}), {} of about {}; measured over {}",
        duration(pace.of(left) + of_validations),
        count(left, "step"),
        duration(pace.step()),
        duration(pace.first),
        count(validations, "validation"),
        duration(validation),
        count(pace.steps, "step"),
    )
}

/// Number of validations after the first `done` steps.
fn validations(config: &Config, done: usize) -> usize {
    let (steps, every) = (config.train.steps, config.train.val_every);
    let until = |step: usize| step.checked_div(every).unwrap_or(0);
    until(steps - 1) - until(done) + 1 // the one after the last step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn config(overrides: &[&str]) -> Config {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        Config::load(Source::Preset("gpt2"), &overrides).unwrap()
    }

    #[test]
    fn the_disk_holds_the_newest_the_best_and_the_one_under_way() {
        let steps = "train.steps=1000";
        for (overrides, expected) in [
            (&[steps, "checkpoint.every=100", "train.val_every=0"][..], 3),
            (&[steps, "checkpoint.every=100", "train.val_every=50"], 4),
            (&[steps, "checkpoint.every=100", "train.val_every=50", "checkpoint.keep_best=false"], 3),
            (&[steps, "checkpoint.every=0", "train.val_every=0"], 1),
            (&[steps, "checkpoint.every=500", "train.val_every=0"], 2),
            // 1000 being written, 900 and 800 kept; 250, 500 and 750 are older.
            (&[steps, "checkpoint.every=100", "train.val_every=0", "checkpoint.keep_every=250"], 6),
            (&[steps, "checkpoint.every=0", "train.val_every=0", "checkpoint.keep_every=100"], 10),
            (&[steps, "checkpoint.every=0", "train.val_every=0", "checkpoint.every_minutes=5"], 3),
        ] {
            assert_eq!(at_once(&config(overrides), false), expected, "{overrides:?}");
            assert_eq!(at_once(&config(overrides), true), expected + 1, "{overrides:?}");
        }
        assert!(checkpoints(&config(&["checkpoint.keep=0"]), 10, false).starts_with("none"));
    }

    #[test]
    fn the_last_step_validates_once() {
        let of = |steps: usize, every: usize, done| {
            validations(&config(&[&format!("train.steps={steps}"), &format!("train.val_every={every}")]), done)
        };
        assert_eq!(
            [of(10, 0, 0), of(10, 5, 0), of(11, 5, 0), of(10, 3, 0), of(10, 3, 6), of(10, 3, 9)],
            [1, 2, 3, 4, 2, 1]
        );
    }
}
