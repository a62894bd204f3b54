//! Checkpoints of a run, written while it goes on.
//!
//! ```text
//! rank 0   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ step 103: saved ───┬─ step 104
//!                                   └─ thread: write ─ all alike? ─ complete it ─┘└─ thread: remove older ones
//! rank 1   step 100 ─ keep tensors ─┬─ step 101 ─ step 102 ─ step 103
//!                                   └─ thread: digest copies, write, sync ─┘
//! ```
//!
//! What is kept costs no copy: a tensor that is written down is a tensor that the optimizer's next step does not overwrite. That a rank is
//! done stands in the checkpoint's folder, where rank 0's thread looks for it; no step and no collective waits for a disk. Only the next
//! checkpoint does, and the end of the run, in rounds of one small sum each, so that a rank that fails is noticed at once.

use crate::copies;
use crate::error::TrainError;
use crate::words::{bytes, ranks};
use burn::tensor::Tensor;
use checkpoint::{CheckpointError, Folder, Index, Kind, LossScale, Piece, Region, Values, Written, write_rank};
use fsdp::{FsdpError, Part, State, StatePart};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it is looked whether others are done: at first, and at last.
const LOOK: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// How long a wait is not told, and then how often it is.
const TELL: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Writes one rank's part of checkpoints, one at a time; rank 0's completes them.
pub(crate) struct Saver {
    folder: Folder,
    rank: usize,
    keep: usize,
    /// What a checkpoint may take, from its first byte to its name.
    timeout: Duration,
    /// Files that belong to every checkpoint: name and bytes.
    extra: Vec<(String, Vec<u8>)>,
    under_way: Option<Save>,
    /// Removes older checkpoints; returns what was wrong.
    pruning: Option<JoinHandle<Option<CheckpointError>>>,
}

/// A checkpoint on its way to the disk.
struct Save {
    step: u64,
    world_size: usize,
    /// Steps whose checkpoints stay once this one is complete: of the best validation, and of those before.
    kept: Vec<u64>,
    started: Instant,
    written: Arc<Written>,
    /// Set when nobody waits for the others any more.
    given_up: Arc<AtomicBool>,
    /// Returns the folder on rank 0, unless that has given up.
    thread: Option<JoinHandle<Result<Option<PathBuf>, TrainError>>>,
}

impl Saver {
    /// Keeps the newest `keep` checkpoints in `folder`.
    pub fn new(folder: Folder, rank: usize, keep: usize, timeout: Duration, extra: Vec<(String, Vec<u8>)>) -> Self {
        Self { folder, rank, keep, timeout, extra, under_way: None, pruning: None }
    }

    /// Begins a checkpoint; `index` holds what is known of the run.
    ///
    /// # Panics
    /// If another one is under way.
    pub fn start(&mut self, state: State, index: Index) {
        let State { parts, progress, copies } = state;
        let index = Index {
            optimizer_steps: progress.optimizer_steps,
            loss_scale: progress
                .loss_scale
                .map(|scale| LossScale { factor: scale.factor, good_steps: scale.good_steps }),
            ..index
        };
        let rank = self.rank;
        self.write(index, move |partial| {
            copies::write(partial, rank, &copies.digests())?;
            Ok(parts.into_iter().map(piece).collect())
        });
    }

    /// `pieces` are this rank's, which has the folder that is written in; what is to be there before the rank's part counts as written, it writes.
    fn write(
        &mut self,
        index: Index,
        pieces: impl FnOnce(&Path) -> Result<Vec<(Piece, Values<'static>)>, CheckpointError> + Send + 'static,
    ) {
        assert!(self.under_way.is_none(), "one checkpoint is written at a time");
        let (step, world_size) = (index.step, index.world_size);
        let kept = index.kept.iter().copied().chain(index.best.map(|best| best.step)).collect();
        let (written, given_up) = (Arc::<Written>::default(), Arc::<AtomicBool>::default());
        let (of_thread, is_given_up) = (written.clone(), given_up.clone());
        let (folder, rank, extra) = (self.folder.clone(), self.rank, self.extra.clone());
        // A failure leaves all as it is: other ranks still write beside it. The run's end cleans up.
        let write = move || {
            if rank == 0 {
                folder.begin(&index, &extra)?;
            }
            let partial = folder.partial(step);
            write_rank(&partial, rank, pieces(&partial)?, &of_thread)?;
            if rank > 0 {
                return Ok(None);
            }
            let mut pause = LOOK[0];
            while !folder.missing(step, world_size).is_empty() {
                if is_given_up.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                thread::sleep(pause);
                pause = (2 * pause).min(LOOK[1]);
            }
            copies::compare(&partial, world_size)?;
            Ok(Some(folder.complete(step)?))
        };
        let (thread, started) = (Some(thread::spawn(write)), Instant::now());
        self.under_way = Some(Save { step, world_size, kept, started, written, given_up, thread });
    }

    /// The newest complete checkpoint.
    pub fn newest(&self) -> Option<PathBuf> {
        self.folder.latest().ok().flatten()
    }

    /// Rank 0 gets step and folder of the checkpoint under way, once it is complete; then older ones are removed in the background.
    ///
    /// # Errors
    /// If this rank's part of it cannot be written, or on rank 0 if it takes too long, or if ranks do not have the same copies of what several
    /// hold: then it is removed.
    pub fn completed(&mut self) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let Some(save) = &mut self.under_way else { return Ok(None) };
        if let Some(thread) = save.thread.take_if(|thread| thread.is_finished()) {
            let path = thread.join().expect("writing does not panic")?;
            let (step, kept) = (save.step, std::mem::take(&mut save.kept));
            return Ok(path.map(|path| {
                self.prune(kept);
                (step, path)
            }));
        }
        if self.rank == 0 && save.thread.is_some() && save.started.elapsed() > self.timeout {
            let missing = self.folder.missing(save.step, save.world_size);
            let what = match missing.is_empty() {
                true => "all parts are written, but not the index".into(),
                false => format!("not written yet is that of {}", ranks(&missing)),
            };
            return Err(TrainError::SlowDisk { path: self.folder.partial(save.step), limit: self.timeout, what });
        }
        Ok(None)
    }

    /// Waits until all ranks are done with the one under way, if there is one; returns as [`completed`](Self::completed). A collective:
    /// `sum` adds up the values of all ranks. `tell` gets a line of a long wait, on rank 0.
    pub fn finish(
        &mut self,
        sum: impl Fn(&[f64]) -> Result<Vec<f64>, FsdpError>,
        mut tell: impl FnMut(&str),
    ) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let (mut saved, mut pause, began, mut next) = (None, LOOK[0], Instant::now(), TELL[0]);
        while self.under_way.is_some() {
            saved = saved.or(self.completed()?);
            let Some(save) = &self.under_way else { break };
            let (bytes_written, of) = save.written.bytes();
            let pending = if save.thread.is_some() { 1.0 } else { 0.0 };
            let sums = sum(&[pending, bytes_written as f64, of as f64])?;
            if sums[0] == 0.0 {
                self.under_way = None;
                break;
            }
            if self.rank == 0 && began.elapsed() > next {
                next = began.elapsed() + TELL[1].min(next);
                let (bytes_written, of) = (bytes(sums[1] as usize), bytes(sums[2] as usize));
                let missing = match self.folder.missing(save.step, save.world_size) {
                    missing if missing.is_empty() => "to be completed".into(),
                    missing => format!("not done: {}", ranks(&missing)),
                };
                tell(&format!(
                    "waiting for the checkpoint of step {}: {bytes_written} of {of} written, {missing}",
                    save.step
                ));
            }
            thread::sleep(pause);
            pause = (2 * pause).min(LOOK[1]);
        }
        Ok(saved)
    }

    /// Removes all but the newest checkpoints and the best ones, after whatever is being removed.
    fn prune(&mut self, kept: Vec<u64>) {
        let (folder, keep, before) = (self.folder.clone(), self.keep, self.pruning.take());
        self.pruning = Some(thread::spawn(move || {
            let before = before.and_then(|thread| thread.join().ok().flatten());
            before.or(folder.prune(keep, &kept).err())
        }));
    }

    /// Why older checkpoints could not be removed, once that is known; `wait`: until it is.
    pub fn pruned(&mut self, wait: bool) -> Option<CheckpointError> {
        let thread = self.pruning.take_if(|thread| wait || thread.is_finished())?;
        thread.join().expect("removing does not panic")
    }
}

impl Drop for Saver {
    /// A run that ends early leaves no thread that still writes; what all have written, the run's end completes.
    fn drop(&mut self) {
        if let Some(save) = self.under_way.take() {
            save.given_up.store(true, Ordering::Relaxed);
            save.thread.map(JoinHandle::join);
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
    use burn::nn::{Initializer, Linear, LinearConfig};
    use burn::tensor::Device;
    use comm::run_ranks;
    use fsdp::{Copies, Fsdp, FsdpConfig, Strategy, Units};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_checkpoint_of_ranks_whose_copies_differ_is_not_completed() {
        let device = Device::flex();
        let constant = Initializer::Constant { value: 0.1 };
        let linear: Linear = LinearConfig::new(4, 4).with_initializer(constant).init(&device);
        for spoilt in [None, Some(1)] {
            let run = tempfile::tempdir().unwrap();
            let (folder, linear) = (Folder::of_run(run.path()), linear.clone());
            let of_rank = folder.clone();
            let found = run_ranks(vec![Device::flex(); 2], Duration::from_secs(60), move |comm| {
                let (rank, mut units) = (comm.rank(), Units::<Tensor<3>>::new());
                let first = units.add("first", linear.clone());
                units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
                units.last(first, |linear: &Linear, x, _| linear.forward(x).powi_scalar(2).mean());
                let config = FsdpConfig { strategy: Strategy::Ddp, ..FsdpConfig::default() };
                let mut fsdp = Fsdp::new(units, comm, config)?;
                fsdp.train_step(&[Tensor::ones([1, 2, 4], &Device::flex())], 0.1)?;
                if spoilt == Some(rank) {
                    fsdp.add_to_parameter(first, "bias", &[1e-6; 4]);
                }
                let mut saver = Saver::new(of_rank.clone(), rank, 1, Duration::MAX, vec![]);
                saver.start(fsdp.state(), Index { step: 1, world_size: 2, ..Index::default() });
                // The next step changes nothing of what is written and compared.
                fsdp.train_step(&[Tensor::ones([1, 2, 4], &Device::flex())], 0.1)?;
                let written = saver.under_way.as_mut().and_then(|save| save.thread.take()).unwrap().join().unwrap();
                fsdp.all_reduce(&[0.0])?;
                Ok::<_, TrainError>(written.err().map(|error| error.to_string()))
            })
            .unwrap();
            let names: Vec<_> = fs::read_dir(folder.step(1).parent().unwrap()).unwrap().flatten().collect();
            match spoilt {
                None => {
                    assert_eq!(found, [None, None]);
                    let mut files: Vec<_> = fs::read_dir(folder.step(1)).unwrap().flatten().collect();
                    files.retain(|file| file.path().extension().is_some_and(|kind| kind == "copies"));
                    assert!(files.is_empty(), "{files:?}");
                }
                Some(_) => {
                    let error = found[0].as_ref().expect("rank 0 completes it");
                    assert!(error.contains("unit first is not the same on ranks 0 and 1"), "{error}");
                    assert!(names.is_empty(), "there is nothing that could be taken for a checkpoint: {names:?}");
                }
            }
        }
    }

    /// As many elements of `w` as there are ranks, each rank one; rank 1 takes `delay` to come by its own.
    fn write_slowly(saver: &mut Saver, step: u64, world_size: usize, delay: Duration) {
        let rank = saver.rank;
        let index = Index { step, world_size, ..Index::default() };
        saver.write(index, move |_| {
            let (name, shape) = ("w".into(), vec![world_size]);
            let piece = Piece { name, shape, region: None, offset: rank, len: 1, has_moments: false };
            let values: Values = Box::new(move |_| {
                thread::sleep(if rank == 1 { delay } else { Duration::ZERO });
                vec![1.0]
            });
            Ok(vec![(piece, values)])
        });
    }

    /// Three ranks whose calls may take a second write checkpoints one after another; what each of them came to, and what rank 0 told.
    fn on_three_ranks(
        run: &Path,
        timeout: Duration,
        delay: Duration,
    ) -> Result<Vec<Vec<String>>, comm::RankFailure<TrainError>> {
        let folder = Folder::of_run(run);
        comm::run_ranks(vec![Device::flex(); 3], Duration::from_secs(1), move |comm| {
            let mut saver = Saver::new(folder.clone(), comm.rank(), 1, timeout, vec![]);
            let sum = |values: &[f64]| {
                let values = burn::tensor::TensorData::new(values.to_vec(), [values.len()]);
                let tensor = Tensor::<1>::from_data(values, (comm.device(), burn::tensor::DType::F64));
                Ok(comm.all_reduce(tensor, comm::Reduce::Sum)?.into_data().iter::<f64>().collect())
            };
            let mut told = vec![];
            for step in [3, 6] {
                write_slowly(&mut saver, step, 3, delay);
                let saved = saver.finish(sum, |line| told.push(line.to_string()))?;
                assert_eq!(saved, (comm.rank() == 0).then(|| (step, folder.step(step))));
            }
            assert!(saver.pruned(true).is_none());
            Ok(told)
        })
    }

    #[test]
    fn a_disk_that_takes_longer_than_a_call_may_is_waited_for_and_the_wait_is_told() {
        let run = tempfile::tempdir().unwrap();
        let told = on_three_ranks(run.path(), Duration::from_secs(600), Duration::from_secs(3)).unwrap();
        assert!(told[1..].iter().all(Vec::is_empty), "{told:?}");
        let line = told[0].join("\n");
        assert!(line.contains("waiting for the checkpoint of step 3: ") && line.contains("not done: rank 1"), "{line}");
        let checkpoints = Folder::of_run(run.path());
        assert_eq!(checkpoints.list().unwrap(), [(6, checkpoints.step(6))]);
        checkpoint::Checkpoint::open(&checkpoints.step(6)).unwrap().verify_all().unwrap();
    }

    #[test]
    fn a_disk_that_takes_longer_than_a_checkpoint_may_ends_the_run_and_its_rank_is_named() {
        let run = tempfile::tempdir().unwrap();
        let answer =
            on_three_ranks(run.path(), Duration::from_secs(1), Duration::from_secs(4)).unwrap_err().to_string();
        for part in ["rank 0: ", ".step-3.partial", "not written yet is that of rank 1", "checkpoint.timeout"] {
            assert!(answer.contains(part), "no `{part}` in: {answer}");
        }
        // It is whole by now.
        assert_eq!(Folder::of_run(run.path()).clean(&copies::are_same).unwrap(), [Folder::of_run(run.path()).step(3)]);
    }

    #[test]
    fn a_rank_whose_disk_is_full_says_so_and_the_others_write_on() {
        for _ in 0..3 {
            let run = tempfile::tempdir().unwrap();
            let folder = Folder::of_run(run.path());
            fs::create_dir_all(folder.partial(3)).unwrap();
            symlink("/dev/full", folder.partial(3).join("rank-1.safetensors")).unwrap();
            let mut savers: Vec<Saver> =
                (0..4).map(|rank| Saver::new(folder.clone(), rank, 1, Duration::MAX, vec![])).collect();
            for saver in &mut savers {
                // Large enough that the others still write when the full disk is found.
                let (len, offset, param) = (1 << 20, saver.rank << 20, Tensor::zeros([1 << 20], &Device::flex()));
                let (name, shape) = ("w".into(), vec![4 << 20]);
                let (view, size) = (shape.clone(), shape.clone());
                let of = Part { name, start: vec![0], view, size, shape, range: offset..offset + len };
                let parts = vec![StatePart { of, param, moments: None }];
                let progress = fsdp::Progress { optimizer_steps: 3, loss_scale: None };
                let index = Index { step: 3, world_size: 4, ..Index::default() };
                saver.start(State { parts, progress, copies: Copies::default() }, index);
            }
            for saver in &mut savers {
                let save = saver.under_way.as_mut().unwrap();
                save.given_up.store(true, Ordering::Relaxed); // rank 0 would wait for rank 1
                let written = save.thread.take().unwrap().join().unwrap();
                let answer = written.err().map(|error| error.to_string()).unwrap_or_default();
                match saver.rank {
                    1 => assert!(answer.contains("rank-1.safetensors: No space left on device"), "{answer}"),
                    rank => assert_eq!(answer, "", "rank {rank}"),
                }
            }
        }
    }
}
