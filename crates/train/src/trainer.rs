//! What one rank does in a run.

mod sampling;
mod telling;
mod validating;

use crate::allocator::allocated;
use crate::batch::{Batch, BatchMaker, RowCounts};
use crate::batches::{Batches, Rows};
use crate::config::{CheckpointConfig, Config, OnNonFinite};
use crate::device;
use crate::error::TrainError;
use crate::expert_loads::ExpertLoads;
use crate::flops::Flops;
use crate::learning_rate::learning_rate;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::resume::Resume;
use crate::run_folder::{CONFIG, RunFolder};
use crate::saver::Saver;
use crate::spikes::Recent;
use crate::trained;
use crate::units::{Parts, initial, parallel, units};
use burn::tensor::Device;
use checkpoint::{Best, Folder, Index};
use comm::Communicator;
use data::{Buckets, Dataset, Loader, Prepared, Tokenizer, Windows};
use fsdp::{Fsdp, FsdpConfig, NonFinite, StageTimes, StepReport, Unloaded};
use model::RunPlace;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A rank's part of a step.
struct Next {
    micro_batches: Vec<Batch>,
    /// The sequences that count in each.
    weights: Vec<f64>,
    /// Of the whole step, or of this rank's part: in the same proportions.
    counts: RowCounts,
    /// How long it had to be waited for.
    waited: Duration,
}

/// What all ranks share.
pub(crate) struct Job {
    pub config: Config,
    pub dataset: Arc<Dataset>,
    /// Its documents, where they are packed into rows of several lengths.
    pub buckets: Option<Arc<Buckets>>,
    /// The sequences that are left to train on, where there are no buckets.
    pub windows: Option<Arc<Windows>>,
    /// What the dataset is of, and its tokenizer, where that is known.
    pub data: Prepared,
    /// The run's; None in a process without rank 0, which is told.
    pub folder: Option<RunFolder>,
    /// What the run goes on from.
    pub resume: Option<Resume>,
    pub progress: Progress,
    /// Devices of all ranks, each counted once.
    pub devices: usize,
    pub stop: Arc<AtomicBool>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its folder.
    pub folder: PathBuf,
    /// Steps it made.
    pub steps: usize,
    /// Whether it was stopped before its end; then there is no sample.
    pub stopped: bool,
    /// The last validation's loss, in nats per token.
    pub val_loss: Option<f64>,
    /// The step and loss of the best validation, if its checkpoint is kept.
    pub best: Option<(usize, f64)>,
    /// Generated text.
    pub sample: Option<String>,
}

/// Trains, validates and samples; every rank returns the same, but for the sample, which rank 0 makes.
pub(crate) fn run(job: &Job, comm: Communicator) -> Result<Outcome, TrainError> {
    let mut trainer = Trainer::new(job, comm.clone())?;
    trainer.say_placement();
    // The other ranks learn of a failure before this one drops the trainer, which waits for a checkpoint that is being written.
    let outcome = comm.abort_on_failure(|| train(&mut trainer));
    if let Err(error) = &outcome {
        trainer.recorder.warn(&format!("failed: {error}"));
    }
    outcome
}

/// The steps, and what follows on them.
fn train(trainer: &mut Trainer) -> Result<Outcome, TrainError> {
    let job = trainer.job;
    let steps = job.config.train.steps;
    let first = job.resume.as_ref().map_or(0, Resume::step);
    let mut val_loss = job.resume.as_ref().and_then(|resume| resume.index.val_loss);
    for step in first..steps {
        let (done, every) = (step + 1, |steps: usize| steps > 0 && (step + 1).is_multiple_of(steps));
        let tell = step == first || done == steps;
        let report = tell || every(job.config.metrics.every);
        trainer.loads.begin(report);
        let loss = trainer.train_step(step, report)?;
        if report {
            trainer.report(done, tell)?;
        }
        let mut is_best = false;
        if (done == steps || every(job.config.train.val_every))
            && let Some(loss) = trainer.validate(done)?
        {
            val_loss = Some(loss);
            is_best = trainer.is_best(done, loss);
        }
        let saved = trainer.saver.completed()?;
        trainer.tell_saved(saved)?;
        let stop = trainer.stop;
        if done == steps || stop || is_best || every(job.config.checkpoint.every) {
            trainer.save(done, loss, val_loss)?;
        }
        if stop {
            trainer.finish_saving()?;
            trainer.tell_pruned(true);
            return Ok(trainer.outcome(done, true, val_loss, None));
        }
    }
    trainer.finish_saving()?;
    let sample = trainer.sample(steps)?;
    trainer.tell_pruned(true);
    Ok(trainer.outcome(steps, false, val_loss, sample))
}

struct Trainer<'a> {
    job: &'a Job,
    rank: usize,
    device: Device,
    folder: RunFolder,
    fsdp: Fsdp<Batch>,
    parts: Parts,
    maker: BatchMaker,
    loads: ExpertLoads,
    /// Where all ranks' tokens went in the last step, as far as that is asked for.
    load_sums: Vec<f64>,
    /// Whether a rank was asked to stop, as all ranks know.
    stop: bool,
    batches: Batches,
    loader: Loader,
    /// Trained on so far, by all ranks.
    tokens: u64,
    saver: Saver,
    recorder: Recorder<'a>,
    /// Of each length of rows.
    flops: Vec<Flops>,
    losses: Recent,
    grad_norms: Recent,
    /// What the last step has spent on a checkpoint.
    checkpoint_seconds: f64,
    /// What its forwards and backwards took.
    times: StageTimes,
    /// The best validation, whose checkpoint is kept.
    best: Option<Best>,
}

impl<'a> Trainer<'a> {
    fn new(job: &'a Job, comm: Communicator) -> Result<Self, TrainError> {
        let (rank, world_size, device) = (comm.rank(), comm.world_size(), comm.device().clone());
        let folder = RunFolder::of_rank_0(job.folder.as_ref(), &comm)?;
        let loads = ExpertLoads::new(&job.config);
        let config = job.config.fsdp();
        let parallel = parallel(&config, &comm)?;
        let (units, parts) = units(&job.config, &loads, &parallel, &device);
        let allocated = (device::meant(&job.config.train.device) == "cpu").then_some(allocated as fn() -> isize);
        let config = FsdpConfig { allocated, ..config };
        let fsdp = match &job.resume {
            None => Fsdp::new(units, comm, config)?,
            Some(resume) => {
                resume.load(Unloaded::new(units, comm, config)?, &initial(&job.config), rank, world_size)?
            }
        };
        if let Some(resume) = job.resume.as_ref().filter(|resume| rank == 0 && resume.in_place) {
            resume.take_over(&folder, &job.config, &job.progress)?;
        }
        let (resumed, buckets) = (job.resume.as_ref().map(|from| &from.index), job.buckets.clone());
        let batches = Batches::new(&job.config, fsdp.data_parallel(), resumed, job.windows.clone(), buckets);
        Ok(Self {
            job,
            rank,
            saver: saver(job, &folder, rank)?,
            recorder: telling::recorder(job, &folder, rank, batches.micro_batch_size())?,
            maker: BatchMaker::new(&job.config, job.data.end_of_text(), parallel.sequences, &device),
            device,
            folder,
            fsdp,
            parts,
            loads,
            load_sums: vec![],
            stop: false,
            loader: start_loader(job, batches.clone()),
            batches,
            tokens: resumed.map_or(0, |index| index.tokens),
            flops: job.config.by_length().iter().map(Flops::new).collect(),
            losses: Recent::default(),
            grad_norms: Recent::default(),
            checkpoint_seconds: 0.0,
            times: StageTimes::default(),
            best: job.resume.as_ref().and_then(|resume| resume.best),
        })
    }

    /// Fetch, forward and backward, clip, step, log. Returns the loss, which is told to the user if `tell`.
    fn train_step(&mut self, step: usize, tell: bool) -> Result<f64, TrainError> {
        self.job.progress.doing("in this step");
        let Config { train, optim, .. } = &self.job.config;
        let started = Instant::now();
        let lr = learning_rate(optim, step, train.steps);
        let Next { micro_batches, weights, counts, waited } = self.next_batches(step)?;
        let (job, parts, loads) = (self.job, &self.parts, &self.loads);
        let numbers = || [&[asked_to_stop(job)][..], &loads.numbers(&job.config)].concat();
        let update =
            |fsdp: &mut Fsdp<Batch>, sums: &[f64]| parts.update_selection_biases(&job.config, fsdp, &sums[1..]);
        let report = self.fsdp.train_step_with(&micro_batches, &weights, lr, numbers, update)?;
        self.times = report.times;
        self.stop |= report.sums[0] > 0.0;
        self.load_sums = report.sums[1..].to_vec();
        let done = step + 1;
        match &report.non_finite {
            Some(at) if train.on_non_finite == OnNonFinite::Stop => {
                self.finish_saving()?;
                return Err(self.not_finite(done, &report, at));
            }
            Some(at) => self.recorder.skipped(done, &describe(&report, at))?,
            None if report.skipped => self.recorder.skipped(done, "gradients beyond fp16, the loss scale is halved")?,
            None => {}
        }
        self.tokens += self.batches.step_tokens(step) as u64;
        let metrics = self.step_metrics(done, lr, &report, counts, [started.elapsed(), waited]);
        self.recorder.step(&metrics, tell, self.job.stop.load(Ordering::Relaxed))?;
        Ok(report.loss)
    }

    /// This rank's micro-batches of a step.
    fn next_batches(&mut self, step: usize) -> Result<Next, TrainError> {
        let (tokens, waited) = self.loader.next()?;
        let rows: Vec<_> = self.batches.rows(step).into_iter().zip(tokens).collect();
        let mut counts = RowCounts::default();
        rows.iter().filter(|(rows, _)| rows.count).for_each(|(_, tokens)| counts += self.maker.count(tokens));
        let counts = self.over_ranks(counts)?;
        let (mut micro_batches, mut weights) = (vec![], vec![]);
        for (Rows { rows, count }, tokens) in rows {
            let place = RunPlace { seed: self.job.config.train.seed, step: step as u64, first_row: rows.start };
            let place = Some(place).filter(|_| count); // what does not count leaves no trace
            micro_batches.push(self.maker.for_training(tokens, place, counts.scale())?);
            weights.push(if count { (rows.end - rows.start) as f64 } else { 0.0 });
        }
        Ok(Next { micro_batches, weights, counts, waited })
    }

    /// The counts of all ranks, each as often as ranks compute it; this rank's where every position has a label, for then its shares are those of all.
    fn over_ranks(&self, counts: RowCounts) -> Result<RowCounts, TrainError> {
        if !self.maker.documents_apart() {
            return Ok(counts);
        }
        let sums = self.fsdp.all_reduce(&[counts.positions, counts.labels, counts.squares])?;
        Ok(RowCounts { positions: sums[0], labels: sums[1], squares: sums[2] })
    }

    fn not_finite(&self, step: usize, report: &StepReport, at: &NonFinite) -> TrainError {
        let last_good = match self.saver.newest() {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "there is no checkpoint yet".into(),
        };
        TrainError::NotFinite { step, what: describe(report, at), last_good }
    }

    /// Begins to save the run after `step` steps, as soon as the checkpoint before is complete.
    fn save(&mut self, step: usize, loss: f64, val_loss: Option<f64>) -> Result<(), TrainError> {
        let Config { train, parallel, checkpoint, .. } = &self.job.config;
        if checkpoint.keep == 0 {
            return Ok(());
        }
        let started = Instant::now();
        self.job.progress.doing("saving");
        self.finish_saving()?;
        let index = Index {
            step: step as u64,
            seed: train.seed,
            tokens: self.tokens,
            loss: Some(loss).filter(|loss| loss.is_finite()),
            val_loss: val_loss.filter(|loss| loss.is_finite()),
            best: self.best,
            kept: self.job.resume.as_ref().map_or(vec![], |resume| resume.kept.clone()),
            world_size: parallel.gpus,
            strategy: parallel.describe(),
            ..Index::default()
        };
        self.saver.start(self.fsdp.state(), index);
        self.checkpoint_seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Waits until the checkpoint under way is complete, if there is one.
    fn finish_saving(&mut self) -> Result<(), TrainError> {
        let saved = self.saver.finish(|values| self.fsdp.all_reduce(values), |line| self.recorder.say(line))?;
        self.tell_saved(saved)
    }

    /// Tells of a checkpoint that is complete by now, and of older ones that could not be removed.
    fn tell_saved(&mut self, saved: Option<(u64, PathBuf)>) -> Result<(), TrainError> {
        if let Some((step, path)) = saved {
            let event = format!("saved {}", path.display());
            self.job.progress.say(&event);
            self.recorder.event(step as usize, &event)?;
        }
        self.tell_pruned(false);
        Ok(())
    }

    /// Tells of older checkpoints that could not be removed, which is no reason to end a run; `wait`: until they are removed.
    fn tell_pruned(&mut self, wait: bool) {
        if let Some(error) = self.saver.pruned(wait) {
            self.recorder.say(&format!("older checkpoints stay: {error}"));
        }
    }

    /// Whether any rank was asked to stop; all ranks get the same answer. For a while without steps, whose messages say it too.
    fn should_stop(&mut self) -> Result<bool, TrainError> {
        self.stop |= self.fsdp.all_reduce(&[asked_to_stop(self.job)])?[0] > 0.0;
        Ok(self.stop)
    }

    fn outcome(&self, steps: usize, stopped: bool, val_loss: Option<f64>, sample: Option<String>) -> Outcome {
        let best = self.best.map(|best| (best.step as usize, best.val_loss));
        Outcome { folder: self.folder.path().to_path_buf(), steps, stopped, val_loss, best, sample }
    }
}

/// What a rank says in every step: 1 if it was asked to stop.
fn asked_to_stop(job: &Job) -> f64 {
    if job.stop.load(Ordering::Relaxed) { 1.0 } else { 0.0 }
}

/// What writes the checkpoints; rank 0, which completes them, adds configuration and tokenizer, and writes the tokenizer into the run's
/// folder too.
fn saver(job: &Job, folder: &RunFolder, rank: usize) -> Result<Saver, TrainError> {
    let mut files = vec![];
    if rank == 0 {
        let kept = job.resume.as_ref().and_then(|resume| resume.tokenizer.clone());
        files = kept.or(job.data.tokenizer.as_ref().map(Tokenizer::files)).unwrap_or_default();
        if !files.is_empty() {
            folder.write_tokenizer(&files)?;
        }
        files.push((CONFIG.into(), job.config.to_yaml().into_bytes()));
        files.extend(job.resume.as_ref().and_then(|resume| trained::file(&resume.trained, &job.config.train)));
    }
    let CheckpointConfig { keep, timeout, .. } = job.config.checkpoint;
    Ok(Saver::new(Folder::of_run(folder.path()), rank, keep, Duration::from_secs(timeout), files))
}

/// Reads ahead, from the step that the run goes on with.
fn start_loader(job: &Job, batches: Batches) -> Loader {
    let first = job.resume.as_ref().map_or(0, |resume| resume.index.step);
    Loader::start(first..job.config.train.steps as u64, move |step| batches.cut(step as usize))
}

/// What was not finite, and where.
fn describe(report: &StepReport, at: &NonFinite) -> String {
    let NonFinite { unit, rank } = at;
    match rank {
        Some(rank) => format!("the output of {unit} on rank {rank} is not finite (loss {})", report.loss),
        None => format!("the gradient of {unit} is not finite (loss {}, norm {})", report.loss, report.grad_norm),
    }
}
