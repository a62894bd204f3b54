//! Checkpoints of a run, written while it goes on.
//!
//! ```text
//! rank 0   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ all done? ─ commit: index, rename, prune
//!                                   └─ thread: copy, write, sync, digest ──┘
//! rank 1   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ all done?
//!                                   └─ thread: ... ─────────┘
//! ```
//!
//! What is kept costs no copy: a tensor that is written down is a tensor that the optimizer's next step does not overwrite. Whether all
//! ranks are done is part of the one small sum that every step ends with.

use crate::error::TrainError;
use burn::tensor::Tensor;
use checkpoint::{CheckpointError, Folder, Index, Kind, LossScale, Piece, Region, Values, Written, write_rank};
use fsdp::{Part, State, StatePart};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// Writes one rank's part of checkpoints, one at a time.
pub(crate) struct Saver {
    folder: Folder,
    rank: usize,
    keep: usize,
    /// Files that belong to every checkpoint: name and bytes.
    extra: Vec<(String, Vec<u8>)>,
    /// Steps whose checkpoints stay, by what the newest complete one knows: of the best validation, and of those before.
    kept: Vec<u64>,
    under_way: Option<Save>,
}

/// A checkpoint on its way to the disk.
struct Save {
    index: Index,
    thread: Option<JoinHandle<Result<(), CheckpointError>>>,
}

impl Saver {
    /// Keeps the newest `keep` checkpoints in `folder`.
    pub fn new(folder: Folder, rank: usize, keep: usize, extra: Vec<(String, Vec<u8>)>) -> Self {
        Self { folder, rank, keep, extra, kept: vec![], under_way: None }
    }

    /// Begins a checkpoint; `index` holds what is known of the run.
    ///
    /// # Panics
    /// If another one is under way.
    pub fn start(&mut self, state: State, index: Index) {
        assert!(self.under_way.is_none(), "one checkpoint is written at a time");
        let State { parts, progress } = state;
        let index = Index {
            optimizer_steps: progress.optimizer_steps,
            loss_scale: progress
                .loss_scale
                .map(|scale| LossScale { factor: scale.factor, good_steps: scale.good_steps }),
            ..index
        };
        let (partial, rank) = (self.folder.partial(index.step), self.rank);
        // A failure leaves all as it is: other ranks still write beside it. The run's end cleans up.
        let write = move || write_rank(&partial, rank, parts.into_iter().map(piece).collect(), &Written::default());
        self.under_way = Some(Save { index, thread: Some(thread::spawn(write)) });
    }

    /// The newest complete checkpoint.
    pub fn newest(&self) -> Option<PathBuf> {
        self.folder.latest().ok().flatten()
    }

    /// Whether a checkpoint is under way.
    pub fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether this rank's part of the one under way is written.
    ///
    /// # Errors
    /// If it could not be.
    pub fn is_written(&mut self) -> Result<bool, TrainError> {
        match &mut self.under_way {
            None => Ok(false),
            Some(save) => {
                if save.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                    save.finish()?;
                }
                Ok(save.thread.is_none())
            }
        }
    }

    /// Waits until this rank's part of the one under way is written.
    pub fn wait(&mut self) -> Result<(), TrainError> {
        self.under_way.as_mut().map_or(Ok(()), Save::finish)
    }

    /// Completes the one under way, which all ranks have written; rank 0 returns its step and folder.
    pub fn commit(&mut self) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let Some(save) = self.under_way.take().filter(|_| self.rank == 0) else { return Ok(None) };
        let best = save.index.best.map(|best| best.step);
        let (step, kept) = (save.index.step, save.index.kept.iter().copied().chain(best).collect());
        let path = self.folder.commit(save.index, &self.extra)?;
        self.kept = kept;
        Ok(Some((step, path)))
    }

    /// Removes all but the newest checkpoints, and the best ones that are complete.
    pub fn prune(&self) -> Result<(), CheckpointError> {
        self.folder.prune(self.keep, &self.kept)
    }
}

impl Save {
    fn finish(&mut self) -> Result<(), TrainError> {
        match self.thread.take() {
            None => Ok(()),
            Some(thread) => thread.join().expect("writing does not panic").map_err(TrainError::from),
        }
    }
}

impl Drop for Saver {
    /// A run that ends early leaves no thread that still writes.
    fn drop(&mut self) {
        if let Some(thread) = self.under_way.take().and_then(|save| save.thread) {
            let _ = thread.join();
        }
    }
}

fn piece(part: StatePart) -> (Piece, Values<'static>) {
    let StatePart { of: Part { name, shape, view, start, size, range }, param, moments } = part;
    let region = (size != view).then(|| Region { view: (view != shape).then_some(view), start, size });
    let (offset, len) = (range.start, range.len());
    let piece = Piece { name, shape, region, offset, len, has_moments: moments.is_some() };
    let floats = |tensor: &Tensor<1>| tensor.clone().into_data().try_into_vec::<f32>().expect("masters are f32");
    let values = move |kind: Kind| match (kind, &moments) {
        (Kind::Param, _) => floats(&param),
        (Kind::ExpAvg, Some([mean, _])) => floats(mean),
        (Kind::ExpAvgSq, Some([_, square])) => floats(square),
        _ => unreachable!("a piece without moments is asked for its values only"),
    };
    (piece, Box::new(values))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_rank_whose_disk_is_full_says_so_and_the_others_write_on() {
        for _ in 0..3 {
            let run = tempfile::tempdir().unwrap();
            let folder = Folder::of_run(run.path());
            fs::create_dir_all(folder.partial(3)).unwrap();
            symlink("/dev/full", folder.partial(3).join("rank-1.safetensors")).unwrap();
            let mut savers: Vec<Saver> = (0..4).map(|rank| Saver::new(folder.clone(), rank, 1, vec![])).collect();
            for saver in &mut savers {
                // Large enough that the others still write when the full disk is found.
                let (len, offset, param) = (1 << 20, saver.rank << 20, Tensor::zeros([1 << 20], &Device::flex()));
                let (name, shape) = ("w".into(), vec![4 << 20]);
                let (view, size) = (shape.clone(), shape.clone());
                let of = Part { name, start: vec![0], view, size, shape, range: offset..offset + len };
                let parts = vec![StatePart { of, param, moments: None }];
                let progress = fsdp::Progress { optimizer_steps: 3, loss_scale: None };
                saver.start(State { parts, progress }, Index { step: 3, world_size: 4, ..Index::default() });
            }
            for saver in &mut savers {
                let answer = saver.wait().err().map(|error| error.to_string()).unwrap_or_default();
                match saver.rank {
                    1 => assert!(answer.contains("rank-1.safetensors: No space left on device"), "{answer}"),
                    rank => assert_eq!(answer, "", "rank {rank}"),
                }
            }
        }
    }
}
