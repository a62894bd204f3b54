//! Checkpoints, written while training continues.
//!
//! ```text
//! rank 0   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ step 103: saved ───┬─ step 104
//!                                   └─ thread: write ─ all alike? ─ complete it ─┘└─ thread: remove older ones
//! rank 1   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ step 103
//!                                   └─ thread: digest copies, write, sync ─┘
//! ```
//!
//! A disk that refuses a part is asked three times. Then all ranks skip the checkpoint, and the run goes on: the next one
//! may succeed, and the older ones are there. Only the last checkpoint of a run must not be missing.
//!
//! Keeping the tensors costs no copy: the optimizer's next step does not overwrite a tensor that is being written. A
//! rank marks that it is done in the checkpoint's folder, where rank 0's thread looks for it, so no step and no
//! collective waits for a disk. Only the next checkpoint and the end of the run wait, in rounds of one small sum each,
//! so a failing rank is noticed at once.

use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::format::bytes;
use crate::run::copies;
use crate::run::remote::upload::Uploads;
use checkpoint::{Checkpoint, CheckpointError, Folder, Index, LossScale, Piece, Values, Written, write_rank};
use comm::rank_list;
use fsdp::{FsdpError, Progress, State};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval of checks whether other ranks are done: initial and longest.
const LOOK: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// How long to wait before reporting a wait, and the longest interval between reports.
const TELL: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// Waits between the attempts to write.
const AGAIN: [Duration; 2] =
    if cfg!(test) { [Duration::from_millis(10); 2] } else { [Duration::from_secs(1), Duration::from_secs(4)] };

/// Writes one rank's part of checkpoints, one at a time; rank 0's saver completes them.
pub(crate) struct Saver {
    folder: Folder,
    rank: usize,
    /// Which checkpoints are kept, and how long one may take from its first byte to its final name.
    config: CheckpointConfig,
    /// Names and contents of files that belong to every checkpoint.
    extra: Vec<(String, Vec<u8>)>,
    under_way: Option<Save>,
    /// Threads that still write checkpoints that were skipped.
    skipped: Vec<JoinHandle<Result<Option<PathBuf>, TrainError>>>,
    /// Copies complete checkpoints to a store, on rank 0.
    uploads: Option<Arc<Uploads>>,
    /// Whether rank 0 completes checkpoints. Otherwise their parts stay what they are.
    completes: bool,
    /// Removes older checkpoints; returns the error, if any.
    pruning: Option<JoinHandle<Option<CheckpointError>>>,
}

/// A checkpoint being written.
struct Save {
    step: u64,
    /// The ranks whose parts were missing when rank 0's thread last looked. The training thread itself never waits for
    /// a disk.
    missing: Arc<Mutex<Vec<usize>>>,
    /// Steps whose checkpoints are [`kept`] once this one is complete.
    kept: Vec<u64>,
    started: Instant,
    written: Arc<Written>,
    /// Set once this rank no longer waits for the other ranks.
    given_up: Arc<AtomicBool>,
    /// The disk's error after the last attempt.
    failure: Option<TrainError>,
    /// Returns the folder on rank 0, unless it has given up.
    thread: Option<JoinHandle<Result<Option<PathBuf>, TrainError>>>,
}

/// How a checkpoint has ended.
pub(crate) struct Finished {
    /// Its step and folder, on rank 0.
    pub saved: Option<(u64, PathBuf)>,
    /// Whether a rank's disk has refused its part; the same on all ranks.
    pub has_failed: bool,
}

impl Save {
    fn missing(&self) -> Vec<usize> {
        self.missing.lock().expect("no writer panics").clone()
    }
}

impl Saver {
    /// Creates a saver of checkpoints in `folder`.
    pub fn new(folder: Folder, rank: usize, config: CheckpointConfig, extra: Vec<(String, Vec<u8>)>) -> Self {
        Self {
            folder,
            rank,
            config,
            extra,
            under_way: None,
            skipped: vec![],
            uploads: None,
            completes: true,
            pruning: None,
        }
    }

    /// Only writes parts, which nobody completes: they may be in several folders.
    pub fn of_parts(mut self) -> Self {
        self.completes = false;
        self
    }

    /// Also uploads each complete checkpoint, and removes none before it is uploaded.
    pub fn with_uploads(mut self, uploads: Option<Arc<Uploads>>) -> Self {
        self.uploads = uploads;
        self
    }

    /// Starts a checkpoint; `index` holds what is known of the run.
    ///
    /// # Panics
    /// If another checkpoint is being written.
    pub fn start(&mut self, state: State, index: Index) {
        let State { parts, progress, copies } = state;
        let rank = self.rank;
        self.write(with_progress(index, progress), move || {
            let (digests, pieces) = (copies.digests(), fsdp::pieces(parts));
            (move |partial: &Path| copies::write(partial, rank, &digests), pieces)
        });
    }

    /// Writes this rank's part. `part` returns its pieces, and a function that writes whatever file must exist before the
    /// part counts as written, given the folder.
    fn write<F>(&mut self, index: Index, part: impl FnOnce() -> (F, Vec<(Piece, Values<'static>)>) + Send + 'static)
    where
        F: Fn(&Path) -> Result<(), CheckpointError>,
    {
        assert!(self.under_way.is_none(), "one checkpoint is written at a time");
        let (step, world_size) = (index.step, index.world_size);
        let kept = kept(&index);
        let (written, given_up) = (Arc::<Written>::default(), Arc::<AtomicBool>::default());
        let (of_thread, is_given_up) = (written.clone(), given_up.clone());
        let missing = Arc::new(Mutex::new((0..world_size).collect()));
        let of_writer: Arc<Mutex<Vec<usize>>> = missing.clone();
        let (folder, rank, extra, completes) = (self.folder.clone(), self.rank, self.extra.clone(), self.completes);
        // A failure leaves everything in place, because other ranks are still writing; the run's end cleans up.
        let write = move || {
            let (partial, (before, pieces)) = (folder.partial(step), part());
            retry(&is_given_up, || {
                if rank == 0 {
                    folder.begin(&index, &extra)?;
                }
                before(&partial)?;
                write_rank(&partial, rank, &pieces, &of_thread).inspect_err(|_| {
                    // Half a file must not keep the disk full, also for others.
                    let _ = fs::File::create(partial.join(format!("rank-{rank}.safetensors")));
                })
            })?;
            drop(pieces); // the optimizer's next step need not keep the old values any longer
            if rank > 0 || !completes {
                return Ok(None);
            }
            let mut pause = LOOK[0];
            loop {
                let missing = folder.missing(step, world_size);
                let is_whole = missing.is_empty();
                *of_writer.lock().expect("no writer panics") = missing;
                if is_whole {
                    break;
                }
                if is_given_up.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                thread::sleep(pause);
                pause = (2 * pause).min(LOOK[1]);
            }
            copies::compare(&folder, step, world_size)?;
            Ok(Some(retry(&is_given_up, || folder.complete(step))?))
        };
        let (thread, started) = (Some(thread::spawn(write)), Instant::now());
        self.under_way = Some(Save { step, missing, kept, started, written, given_up, failure: None, thread });
    }

    /// The newest complete checkpoint.
    pub fn newest(&self) -> Option<PathBuf> {
        self.folder.latest().ok().flatten()
    }

    /// The newest complete checkpoint, as words for an error message.
    pub fn last_good(&self) -> String {
        match self.newest() {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "there is no checkpoint yet".into(),
        }
    }

    /// Returns, on rank 0, step and folder of the checkpoint being written, once it is complete; older ones are then
    /// removed in the background.
    ///
    /// A part that the disk refuses is no error: [`has_failed`](Self::has_failed) says so.
    ///
    /// # Errors
    /// If this rank's part has a non-finite parameter; on rank 0, if it takes too long, or if ranks differ in parameters
    /// they replicate, in which case the checkpoint is removed.
    pub fn completed(&mut self) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let limit = Duration::from_secs(self.config.timeout);
        let Some(save) = &mut self.under_way else { return Ok(None) };
        if let Some(thread) = save.thread.take_if(|thread| thread.is_finished()) {
            let (step, kept) = (save.step, std::mem::take(&mut save.kept));
            return match thread.join().expect("writing does not panic") {
                Ok(path) => Ok(path.map(|path| {
                    self.uploads.iter().for_each(|uploads| uploads.start(&path));
                    self.prune(kept);
                    (step, path)
                })),
                Err(TrainError::Checkpoint(CheckpointError::NotFinite { parameter, value, .. })) => {
                    Err(TrainError::NotSaved { step, parameter, value, last_good: self.last_good() })
                }
                Err(TrainError::Checkpoint(error)) if is_of_disk(&error) => {
                    save.failure = Some(error.into());
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
        if self.rank == 0 && save.thread.is_some() && save.started.elapsed() > limit {
            let what = match &save.missing()[..] {
                [] => "all parts are written, but not the index".into(),
                missing => format!("not written yet is that of {}", rank_list(missing)),
            };
            return Err(TrainError::SlowDisk { path: self.folder.partial(save.step), limit, what });
        }
        Ok(None)
    }

    /// Whether this rank's part is still being written.
    pub fn is_writing(&self) -> bool {
        let thread = self.under_way.as_ref().and_then(|save| save.thread.as_ref());
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Whether this rank's disk has refused its part of the checkpoint being written, also when tried again. All ranks then
    /// [`skip`](Self::skip) it.
    pub fn has_failed(&self) -> bool {
        self.under_way.as_ref().is_some_and(|save| save.failure.is_some())
    }

    /// Abandons the checkpoint being written. Returns its step, and the error of this rank's disk.
    pub fn skip(&mut self) -> Option<(u64, Option<TrainError>)> {
        let save = self.under_way.take()?;
        save.given_up.store(true, Ordering::Relaxed);
        self.skipped.retain(|thread| !thread.is_finished());
        self.skipped.extend(save.thread);
        if self.rank == 0 {
            // Its files may fill the disk. A rank that still writes keeps some of them; the next start removes these.
            let _ = fs::remove_dir_all(self.folder.partial(save.step));
        }
        Some((save.step, save.failure))
    }

    /// Waits until all ranks are done with the checkpoint being written, if there is one, or one has failed to write it;
    /// returns as [`completed`](Self::completed). A collective: `sum` adds up the values of all ranks. `tell` receives
    /// lines about a long wait, on rank 0.
    pub fn finish(
        &mut self,
        sum: impl Fn(&[f64]) -> Result<Vec<f64>, FsdpError>,
        mut tell: impl FnMut(&str),
    ) -> Result<Finished, TrainError> {
        let (mut saved, mut pause, began, mut next) = (None, LOOK[0], Instant::now(), TELL[0]);
        while self.under_way.is_some() {
            saved = saved.or(self.completed()?);
            let Some(save) = &self.under_way else { break };
            let (bytes_written, of) = save.written.bytes();
            let pending = if save.thread.is_some() { 1.0 } else { 0.0 };
            let failed = if save.failure.is_some() { 1.0 } else { 0.0 };
            let sums = sum(&[pending, bytes_written as f64, of as f64, failed])?;
            if sums[3] > 0.0 {
                return Ok(Finished { saved, has_failed: true });
            }
            if sums[0] == 0.0 {
                self.under_way = None;
                break;
            }
            if self.rank == 0 && began.elapsed() > next {
                next = began.elapsed() + TELL[1].min(next);
                let (bytes_written, of) = (bytes(sums[1] as usize), bytes(sums[2] as usize));
                let missing = match &save.missing()[..] {
                    [] => "to be completed".into(),
                    missing => format!("not done: {}", rank_list(missing)),
                };
                tell(&format!(
                    "waiting for the checkpoint of step {}: {bytes_written} of {of} written, {missing}",
                    save.step
                ));
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LOOK[1]);
        }
        Ok(Finished { saved, has_failed: false })
    }

    /// Removes all but the newest checkpoints, the best ones, the milestones and those not uploaded yet, after any removal
    /// already running.
    fn prune(&mut self, mut kept: Vec<u64>) {
        kept.extend(self.uploads.iter().flat_map(|uploads| uploads.pending()));
        let (folder, config, before) = (self.folder.clone(), self.config.clone(), self.pruning.take());
        self.pruning = Some(thread::spawn(move || {
            let before = before.and_then(|thread| thread.join().ok().flatten());
            before.or(folder.prune(config.keep, config.keep_every as u64, &kept).err())
        }));
    }

    /// The error of removing older checkpoints, once it is known; with `wait`, waits for it.
    pub fn pruned(&mut self, wait: bool) -> Option<CheckpointError> {
        let thread = self.pruning.take_if(|thread| wait || thread.is_finished())?;
        thread.join().expect("removing does not panic")
    }
}

impl Drop for Saver {
    /// A run that ends early leaves no writing thread. A checkpoint that all ranks have written is completed at the
    /// run's end.
    fn drop(&mut self) {
        if let Some(save) = self.under_way.take() {
            save.given_up.store(true, Ordering::Relaxed);
            save.thread.map(JoinHandle::join);
        }
        self.skipped.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Removes the checkpoints that only waited for their uploads.
pub(crate) fn prune_uploaded(folder: &Folder, config: &CheckpointConfig) -> Result<(), CheckpointError> {
    let Some(newest) = folder.latest()? else { return Ok(()) };
    folder.prune(config.keep, config.keep_every as u64, &kept(Checkpoint::open(&newest)?.index()))
}

/// Steps whose checkpoints are kept once this one is complete: the best validation's and earlier best ones.
fn kept(index: &Index) -> Vec<u64> {
    index.kept.iter().copied().chain(index.best.map(|best| best.step)).collect()
}

/// Adds the optimizer's progress to what is known of the run.
pub(crate) fn with_progress(index: Index, progress: Progress) -> Index {
    let loss_scale = progress.loss_scale.map(|scale| LossScale { factor: scale.factor, good_steps: scale.good_steps });
    Index { optimizer_steps: progress.optimizer_steps, loss_scale, ..index }
}

/// Whether an error is one of a disk or network file system, which may be over soon.
fn is_of_disk(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Write { .. } | CheckpointError::Read { .. })
}

/// Tries to write three times, unless nobody waits for it any more.
fn retry<T>(
    given_up: &AtomicBool,
    mut write: impl FnMut() -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    for wait in AGAIN {
        match write() {
            Err(error) if is_of_disk(&error) && !given_up.load(Ordering::Relaxed) => thread::sleep(wait),
            other => return other,
        }
    }
    write()
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
