//! The work of one rank in a run.

pub(crate) mod batch;
pub(crate) mod batches;
pub(crate) mod epochs;
pub(crate) mod job;
mod nearly_full;
mod next_step;
mod non_finite;
mod pace;
pub(crate) mod profile;
pub(crate) mod recorder;
mod reporting;
mod sampling;
pub(crate) mod saving;
mod signs;
mod stragglers;
mod validating;
pub(crate) mod validation;
pub(crate) mod vocabulary;
pub(crate) mod z_score;

use crate::allocator::allocated;
use crate::config::learning_rate::learning_rate;
use crate::config::{Config, OnNonFinite};
use crate::error::TrainError;
use crate::host::{attempt, device, faults};
use crate::plan::units::{units, update_selection_biases};
use crate::run::folder::RunFolder;
use crate::run::memory::MemorySaver;
use crate::run::resume::Resume;
use crate::run::saver::Saver;
use crate::trainer::batch::BatchMaker;
use crate::trainer::batches::Batches;
use crate::trainer::job::{Job, MEASURED};
use crate::trainer::recorder::Recorder;
use crate::trainer::z_score::Recent;
use burn::tensor::Device;
use checkpoint::{Best, Lowest};
use comm::Communicator;
use data::Loader;
use fsdp::{BeforeStep, Fsdp, FsdpConfig, StageTimes, Unloaded};
use model::{Batch, ExpertLoads, Flops, Parallel};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use next_step::NextStep;
use non_finite::describe;
pub use pace::Pace;
use profile::StepProfile;
use saving::Made;
use signs::Signs;

/// The outcome of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outcome {
    /// The run's folder.
    pub folder: PathBuf,
    /// Number of the last step made.
    pub steps: usize,
    /// Whether it was stopped before its end; then there is no sample.
    pub stopped: bool,
    /// The last validation's loss, in nats per token.
    pub val_loss: Option<f64>,
    /// The step and loss of the best validation, if its checkpoint is kept.
    pub best: Option<(usize, f64)>,
    /// The generated sample.
    pub sample: Option<String>,
    /// A prompt from the data, if the tokenizer is known.
    pub prompt: Option<String>,
    /// Whether there is a checkpoint to resume from.
    pub is_saved: bool,
    /// The pace of this process's steps.
    pub pace: Pace,
}

/// Trains, validates and samples. Every rank returns the same outcome, except that only rank 0 has the sample.
pub(crate) fn run(job: &Job, comm: Communicator) -> Result<Outcome, TrainError> {
    let mut trainer = comm.abort_on_failure(|| Trainer::new(job, comm.clone()))?;
    trainer.say_placement();
    // The other ranks learn of a failure before this one drops the trainer, which waits for a checkpoint being written.
    let outcome = comm.abort_on_failure(|| train(&mut trainer));
    job.flights.end();
    if let Err(error) = &outcome {
        trainer.leave_state();
        trainer.recorder.warn(&format!("failed: {error}"));
    }
    outcome
}

/// Makes the steps and what follows them.
fn train(trainer: &mut Trainer) -> Result<Outcome, TrainError> {
    let job = trainer.job;
    let steps = job.config.train.steps;
    let first = job.resume.as_ref().map_or(0, Resume::step);
    let mut val_loss = job.resume.as_ref().and_then(|resume| resume.index.val_loss);
    let mut end = steps;
    for step in first..steps {
        let (done, every) = (step + 1, |steps: usize| steps > 0 && (step + 1).is_multiple_of(steps));
        let tell = step == first || done == steps;
        let report = tell || every(job.config.metrics.every);
        trainer.loads.begin(report);
        let loss = trainer.train_step(step, report)?;
        if job.dry_run {
            if done == steps || done == first + MEASURED || trainer.stop {
                return Ok(trainer.outcome(done, trainer.stop, None, None));
            }
            continue;
        }
        if report {
            trainer.report(done, tell)?;
        }
        let (mut is_best, mut ends_early) = (false, false);
        if (done == steps || every(job.config.train.val_every))
            && let Some(loss) = trainer.validate(done)?
        {
            val_loss = Some(loss);
            is_best = trainer.is_best(done, loss);
            ends_early = trainer.is_out_of_patience(done, loss)?;
        }
        // A run that resumes from what is left of this step would not validate it.
        trainer.made =
            Some(Made { step: done, optimizer_steps: trainer.fsdp.progress().optimizer_steps, loss, val_loss });
        let saved = trainer.saver.completed()?;
        trainer.tell_saved(saved)?;
        let stop = trainer.stop;
        let is_over = ends_early || done == steps;
        let shrinks = trainer.shrinks && !is_over && !stop;
        if is_over || stop || is_best || shrinks || trainer.is_due(done) {
            trainer.save(done, loss, val_loss)?;
        }
        if every(job.config.resilience.memory_every) && !is_over && !stop {
            trainer.save_in_memory(done, loss, val_loss)?;
        }
        if shrinks {
            trainer.finish_saving(true)?;
            return Err(TrainError::NearlyFull { step: done as u64 });
        }
        // A run that is out of patience has ended, even if it was asked to stop in the meantime.
        if stop && !ends_early {
            trainer.finish_saving(true)?;
            trainer.tell_pruned(true);
            return Ok(trainer.outcome(done, true, val_loss, None));
        }
        if is_over {
            end = done;
            break;
        }
        if every(job.config.train.sample_every) {
            trainer.tell_sample(done)?;
        }
    }
    trainer.finish_saving(true)?;
    let sample = trainer.sample(end)?;
    trainer.tell_pruned(true);
    Ok(trainer.outcome(end, false, val_loss, sample))
}

struct Trainer<'a> {
    job: &'a Job,
    rank: usize,
    device: Device,
    folder: RunFolder,
    /// All ranks. For the flight recorder: `fsdp` makes the calls.
    comm: Communicator,
    fsdp: Fsdp<Batch>,
    maker: BatchMaker,
    loads: ExpertLoads,
    /// Expert loads of the last step, over all ranks, if requested.
    load_sums: Vec<f64>,
    /// Whether any rank was asked to stop; known to all ranks.
    stop: bool,
    /// Number of consecutive steps skipped because a loss or a gradient was not finite.
    skips: usize,
    batches: Batches,
    loader: Loader<Vec<data::Batch>>,
    /// Tokens trained on so far, over all ranks.
    tokens: u64,
    saver: Saver,
    memory: Option<MemorySaver>,
    /// Whether a checkpoint is due as soon as a step is not skipped.
    is_due: bool,
    /// When the last checkpoint, or else this process, was started.
    saved_at: Instant,
    recorder: Recorder<'a>,
    /// One for each row length.
    flops: Vec<Flops>,
    losses: Recent,
    grad_norms: Recent,
    /// Seconds the last step spent on a checkpoint.
    checkpoint_seconds: f64,
    /// Times of the last step's forwards and backwards.
    times: StageTimes,
    /// The best validation, whose checkpoint is kept.
    best: Option<Best>,
    /// The lowest validation loss; only with `train.patience`.
    lowest: Option<Lowest>,
    pace: Pace,
    busy: stragglers::Busy,
    /// Whether the user was warned that memory is nearly full.
    told_of_memory: bool,
    /// Whether the metrics lack steps because rank 0's disk is full.
    lacks_metrics: bool,
    /// Whether the run restarts after this step, because a rank's memory is nearly full.
    shrinks: bool,
    /// The steps whose operations were timed.
    profile: Vec<StepProfile>,
    /// The last step made.
    made: Option<Made>,
}

impl<'a> Trainer<'a> {
    fn new(job: &'a Job, comm: Communicator) -> Result<Self, TrainError> {
        let (rank, world_size, device) = (comm.rank(), comm.world_size(), comm.device().clone());
        let folder = RunFolder::of_rank_0(job.folder.as_ref(), &comm)?;
        let (done, of_run) = (job.resume.as_ref().map_or(0, Resume::step), comm.clone());
        comm.note_place(done as u64, "start");
        if !job.dry_run {
            job.flights.add(rank, comm.flight(), &folder, done);
        }
        let loads = ExpertLoads::new(job.config.moe.as_ref());
        let config = job.config.fsdp();
        let parallel = Parallel::new(&config, &comm)?;
        let units = units(&job.config, &loads, &parallel, &device);
        let allocated = (device::meant(&job.config.train.device) == "cpu").then_some(allocated as fn() -> isize);
        let config = FsdpConfig { allocated, ..config };
        let mut fsdp = match &job.resume {
            None => Fsdp::new(units, comm, config)?,
            Some(resume) => {
                resume.load(Unloaded::new(units, comm, config)?, &job.config.initial(), rank, world_size)?
            }
        };
        let (flight, progress) = (of_run.flight(), job.progress.watch(done + 1, job.config.micro_batches()));
        fsdp.watch(move |part, whole| {
            flight.heartbeat();
            if rank == 0 {
                progress(part, whole);
            }
        });
        if let Some(resume) = job.resume.as_ref().filter(|resume| rank == 0 && resume.in_place) {
            resume.take_over(&folder, &job.whole, &job.progress)?;
        }
        if rank == 0 {
            attempt::take_folder(&folder.supervisor());
        }
        let (resumed, buckets) = (job.resume.as_ref().map(|from| &from.index), job.buckets.clone());
        let batches = Batches::new(&job.config, fsdp.data_parallel(), resumed, job.windows.clone(), buckets);
        Ok(Self {
            job,
            rank,
            saver: saving::saver(job, &folder, rank)?,
            memory: saving::memory(job, &of_run)?,
            recorder: reporting::recorder(job, &folder, rank, batches.micro_batch_size())?,
            maker: BatchMaker::new(&job.config, job.data.end_of_text(), parallel.sequences, &device),
            device,
            folder,
            comm: of_run,
            fsdp,
            loads,
            load_sums: vec![],
            stop: false,
            skips: 0,
            is_due: false,
            saved_at: Instant::now(),
            loader: next_step::start_loader(job, batches.clone()),
            batches,
            tokens: resumed.map_or(0, |index| index.tokens),
            flops: job.config.by_length().iter().map(Config::flops).collect(),
            losses: Recent::default(),
            grad_norms: Recent::default(),
            checkpoint_seconds: 0.0,
            times: StageTimes::default(),
            best: job.resume.as_ref().and_then(|resume| resume.best),
            lowest: job
                .resume
                .as_ref()
                .filter(|_| job.config.train.patience.is_some())
                .and_then(|resume| resume.lowest),
            pace: Pace::default(),
            busy: stragglers::Busy::default(),
            told_of_memory: false,
            lacks_metrics: false,
            shrinks: false,
            profile: vec![],
            made: None,
        })
    }

    /// Fetch, forward and backward, clip, step, log. Returns the loss, which is shown to the user if `tell` is set.
    fn train_step(&mut self, step: usize, tell: bool) -> Result<f64, TrainError> {
        self.job.progress.doing("in this step");
        self.job.flights.begin_step();
        attempt::begin_step(step + 1);
        self.comm.note_place(step as u64 + 1, "start");
        let Config { train, optim, .. } = &self.job.config;
        let (started, in_calls) = (Instant::now(), self.comm.flight().time_in_calls());
        let struck = self.job.faults.strike(step + 1, self.rank)?;
        let is_nearly_full = self.is_nearly_full(step + 1, struck.nearly_full)?;
        let lr = learning_rate(optim, step, train.steps);
        self.comm.note_place(step as u64 + 1, "waiting for data");
        let NextStep { micro_batches, mut weights, counts, waited } = self.next_batches(step)?;
        if struck.nan {
            weights.fill(f64::NAN);
        }
        if struck.flip {
            faults::flip(&mut self.fsdp, &self.job.config);
        }
        self.comm.note_place(step as u64 + 1, "forward and backward");
        self.begin_profile(self.pace.steps);
        let (job, loads) = (self.job, &self.loads);
        let is_time = self.is_time();
        let mine = Signs {
            stops: job.stop.load(Ordering::Relaxed),
            is_time,
            save_has_failed: self.saver.has_failed(),
            is_nearly_full,
            writes_memory: self.memory.as_ref().is_some_and(MemorySaver::is_writing),
            lacks_metrics: self.recorder.is_refused(),
        };
        let numbers = || [&mine.numbers()[..], &loads.numbers(job.config.expert_layers())].concat();
        let mut update =
            |fsdp: &mut Fsdp<Batch>, sums: &[f64]| update_selection_biases(&job.config, fsdp, &sums[Signs::COUNT..]);
        let update: Option<BeforeStep<Batch>> = if loads.follows { Some(&mut update) } else { None };
        let report = self.fsdp.train_step_with(&micro_batches, &weights, lr, numbers, update)?;
        self.end_profile(self.pace.steps, step + 1, started)?;
        self.times = report.times;
        let any = Signs::of_any(&report.sums);
        self.stop |= any.stops;
        self.is_due |= any.is_time;
        self.load_sums = report.sums[Signs::COUNT..].to_vec();
        if any.save_has_failed {
            self.skip_saving()?;
        }
        self.lacks_metrics = any.lacks_metrics;
        if !any.writes_memory {
            self.finish_in_memory()?;
        }
        self.shrinks = any.is_nearly_full && self.may_shrink();
        let done = step + 1;
        match &report.non_finite {
            Some(at) if train.on_non_finite == OnNonFinite::Stop && !attempt::skips(done) => {
                self.finish_saving(false)?;
                let (what, last_good) = (describe(&report, at), self.saver.last_good());
                return Err(TrainError::NotFinite { step: done, what, last_good });
            }
            Some(at) => {
                self.skips += 1;
                self.recorder.skipped(done, &describe(&report, at))?;
            }
            None if report.skipped => self.recorder.skipped(done, "gradients beyond fp16, the loss scale is halved")?,
            None => self.skips = 0,
        }
        let tokens = self.batches.step_tokens(step) as u64;
        self.tokens += tokens;
        self.pace.add(started.elapsed(), tokens);
        let in_calls = self.comm.flight().time_in_calls() - in_calls;
        self.compare_ranks(done, started.elapsed().saturating_sub(in_calls + waited))?;
        let metrics = self.step_metrics(done, lr, &report, counts, [started.elapsed(), waited]);
        self.recorder.step(&metrics, tell, self.stop)?;
        if let Some(at) = &report.non_finite {
            self.expect_a_step(done, describe(&report, at))?;
        }
        Ok(report.loss)
    }

    /// Whether any rank was asked to stop; all ranks get the same answer. For periods without steps; during steps, the
    /// step's messages carry the answer.
    fn should_stop(&mut self) -> Result<bool, TrainError> {
        self.comm.flight().heartbeat();
        self.stop |= self.fsdp.all_reduce(&[f64::from(self.job.stop.load(Ordering::Relaxed))])?[0] > 0.0;
        Ok(self.stop)
    }

    fn outcome(&self, steps: usize, stopped: bool, val_loss: Option<f64>, sample: Option<String>) -> Outcome {
        let best = self.best.map(|best| (best.step as usize, best.val_loss));
        Outcome {
            folder: self.folder.path().to_path_buf(),
            steps,
            stopped,
            val_loss,
            best,
            sample,
            prompt: self.prompt(),
            is_saved: self.rank == 0 && self.saver.newest().is_some(),
            pace: self.pace,
        }
    }
}
