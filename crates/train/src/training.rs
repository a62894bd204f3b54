//! Runs training from a configuration to an outcome.

use crate::allocator::count_for;
use crate::config::{Config, ParallelConfig};
use crate::dry_run::{self, Scratch};
use crate::error::TrainError;
use crate::format::{count, human_count};
use crate::hints;
use crate::host::attempt;
use crate::host::device::Devices;
use crate::host::faults::Faults;
use crate::host::launch::{Launch, engine};
use crate::overview;
use crate::plan::memory_check::{self, Estimate, Watched};
use crate::plan::units;
use crate::reporting::progress::{Progress, Says};
use crate::run::data_mark;
use crate::run::folder::{RunFolder, config_in};
use crate::run::options::RunOptions;
use crate::run::remote;
use crate::run::remote::upload::{self, Uploads};
use crate::run::resume::{self, Resume};
use crate::run::saver::prune_uploaded;
use crate::run::survivors::Survivors;
use crate::trainer::batch::check_documents;
use crate::trainer::epochs;
use crate::trainer::job::Job;
use crate::trainer::validation;
use crate::trainer::vocabulary;
use crate::trainer::{self, Outcome};
use checkpoint::{Checkpoint, Folder, Index};
use comm::RankFailure;
use data::{Buckets, Windows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// Models with at least this many parameters take noticeable time to initialize.
const LARGE: usize = 20_000_000;

/// Trains according to `config`, on ranks that are threads. Once `stop` is set, ends early, after a whole step.
///
/// # Errors
/// If the configuration, the data or the run folder does not allow the run, or if a rank fails. The message names the
/// file, key or rank, and the remedy.
pub fn train(config: Config, options: &RunOptions, stop: Arc<AtomicBool>) -> Result<Outcome, TrainError> {
    train_launched(&Launch::threads(), config, options, || stop)
}

/// [`train`] for the ranks of this process; `stop` is called when the data is ready and the steps begin.
pub(crate) fn train_launched(
    launch: &Launch,
    mut config: Config,
    options: &RunOptions,
    stop: impl FnOnce() -> Arc<AtomicBool>,
) -> Result<Outcome, TrainError> {
    config.validate()?;
    let checkpoint = options.resume.as_deref().map(Checkpoint::open).transpose()?;
    let expect_unfinished = |checkpoint: Option<&Checkpoint>, steps: usize| {
        checkpoint.iter().try_for_each(|checkpoint| resume::expect_unfinished(checkpoint, steps))?;
        let again = options.out.as_ref().filter(|_| options.again);
        again.iter().try_for_each(|run| RunFolder::at(run).expect_unfinished(steps))
    };
    // With epochs, the data determines the number of steps.
    let in_steps = config.train.epochs.is_none();
    if in_steps {
        expect_unfinished(checkpoint.as_ref(), config.train.steps)?;
    }
    let bucket = if launch.has_rank_0() && !options.dry_run { upload::open(&config)? } else { None };
    let faults = Faults::of_environment(config.parallel.gpus)?; // of all ranks, even if fewer start
    let asked = config.parallel.clone();
    let devices = Devices::new(&config.train.device, 1)?;
    fit_ranks(&mut config, launch, devices.here, &faults)?;
    let ranks_here = launch.ranks_here(config.parallel.gpus);
    let devices = devices.for_ranks(ranks_here);
    config.parallel.precision.choose(devices.kind());
    devices.check_precision(config.parallel.precision.of_fsdp())?;
    let check = |config: &Config| {
        let mut scarce = None;
        for at in config.by_length().iter().rev() {
            let of_rows = |error| match (&config.data.buckets, at.train.seq_len) {
                (Some(_), length) => format!("with rows of {length} tokens (data.buckets) {error}"),
                (None, _) => error,
            };
            units::check(at)?;
            let line = memory_check::check(at, launch, &devices, options.force);
            scarce = scarce.or(line.map_err(|error| TrainError::Memory(of_rows(error)))?);
        }
        Ok::<_, TrainError>(scarce)
    };
    // If the size is known, checks before a large text is tokenized.
    let has_vocabulary = config.model.vocab_size() > 0;
    let known = has_vocabulary && in_steps;
    let scarce = if known { check(&config)? } else { None };
    let local = config.data.with_sources(|source| remote::data::local(source, options.quiet))?;
    let (source, reading) = (&local.source, config.data.options(launch.has_rank_0() && !options.quiet));
    let mut prepared = match checkpoint.as_ref().filter(|_| !options.new_tokenizer) {
        Some(checkpoint) => resume::open_data(checkpoint, source, reading.clone())?,
        None => data::open(source, &reading)?,
    };
    if store::is_of_store(&config.data.source) {
        prepared.name.clone_from(&config.data.source);
    }
    let validation = validation::open(&local, &mut prepared, &reading, config.train.seq_len)?;
    let dataset = Arc::new(prepared.dataset.clone());
    dataset.check(config.train.seq_len)?;
    let of_tokens = match prepared.vocab_size() {
        None if !has_vocabulary => vocabulary::of_tokens(&dataset, launch.has_rank_0())?,
        _ => None,
    };
    set_vocabulary(&mut config, prepared.vocab_size().or(of_tokens.as_ref().map(|(size, _)| *size)))?;
    check_documents(&config, &prepared)?;
    let buckets = match (&config.data.buckets, prepared.end_of_text()) {
        (Some(lengths), Some(end)) => {
            Some(Arc::new(Buckets::new(&dataset, lengths, end, launch.has_rank_0() && !options.quiet)?))
        }
        _ => None,
    };
    if !in_steps {
        epochs::set_steps(&mut config, &dataset, buckets.as_deref(), checkpoint.as_ref().map(Checkpoint::index))?;
        expect_unfinished(checkpoint.as_ref(), config.train.steps)?;
    }
    let scarce = if known { scarce } else { check(&config)? };
    config.data = config.data.with_absolute_paths();
    let change = |checkpoint: &Checkpoint| data_mark::change(checkpoint, &config.data.source, &prepared);
    let changed = checkpoint.as_ref().map(change).transpose()?.flatten();
    let scratch = options.dry_run.then(|| Scratch::new(launch, options)).transpose()?;
    let meant = options;
    let options = &scratch.as_ref().map_or_else(|| options.clone(), |scratch| scratch.instead_of(options));
    let resume = checkpoint.map(|checkpoint| Resume::new(checkpoint, options, &config, launch.processes().is_none()));
    let resume = resume.transpose()?;
    let trained = resume.as_ref().map_or(&[][..], |resume| &resume.trained);
    let windows = || Arc::new(Windows::new(&dataset, trained, config.train.seed, config.train.seq_len));
    let windows = buckets.is_none().then(windows);
    let whole = Config { parallel: ParallelConfig { precision: config.parallel.precision, ..asked }, ..config.clone() };
    let uploads = bucket.map(|bucket| Uploads::new(bucket, resume.as_ref(), &config, options.new_upload));
    let uploads = uploads.transpose()?.map(Arc::new);
    let folder = launch.has_rank_0().then(|| options.folder(&whole)).transpose()?;
    uploads.iter().for_each(|uploads| uploads.begin());

    let done = resume.as_ref().map_or(0, Resume::step);
    let says = match launch.has_rank_0() {
        true if options.quiet => Says::Warnings,
        true => Says::All,
        false => Says::Nothing,
    };
    let progress = Progress::new(config.train.steps, done, says);
    let count = if launch.processes().is_some() { config.parallel.gpus } else { devices.distinct };
    let stop = stop();
    let job = Arc::new(Job {
        config,
        whole,
        faults,
        dataset,
        validation,
        windows,
        buckets,
        data: prepared,
        folder,
        resume,
        uploads,
        progress,
        flights: Arc::default(),
        survivors: Survivors::default(),
        watched: Watched::new(&devices, launch.local_rank()),
        devices: count,
        dry_run: options.dry_run,
        stop,
    });
    let memory = Estimate::new(&job.config, launch, &devices);
    say_what_begins(&job, &devices, &memory);
    of_tokens.iter().for_each(|(_, line)| job.progress.say(line));
    changed.iter().for_each(|line| job.progress.say(line));
    scarce.iter().for_each(|line| job.progress.say(&format!("warning: {line}")));
    let (threads, of_ranks) = (threads_per_rank(ranks_here), job.clone());
    attempt::begin(&job.stop, job.config.micro_batch_size());
    let watch = job.flights.watch(job.config.comm.timeouts().call, launch.has_rank_0());
    let outcomes = launch.run_ranks(devices, job.config.comm.timeouts(), move |comm| {
        let comm = engine(comm, &of_ranks.config.comm)?;
        // Runs inside a dedicated thread pool: from outside, every operation would hand its work to the pool's threads
        // and sleep meanwhile.
        let counter: &'static AtomicIsize = Box::leak(Box::default()); // leaked because its threads may outlive the run
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(move |_| count_for(counter)).build();
        let pool = pool.map_err(TrainError::Threads)?;
        pool.install(|| trainer::run(&of_ranks, comm))
    });
    drop(watch);
    job.progress.finish();
    let told = outcomes.as_ref().err().and_then(|failure| job.flights.explain(failure));
    // Incomplete checkpoint parts, also of a skipped checkpoint, must not keep a disk full. A stuck rank may be stuck
    // because of the disk, and ranks in other processes may still be writing; in those cases, or if this fails, the next
    // start cleans up.
    if let Some(folder) = &job.folder
        && !matches!(outcomes, Err(RankFailure::Stuck { .. }))
        && launch.processes().is_none()
    {
        for (path, line) in folder.clean_checkpoints() {
            job.progress.say(&line);
            job.uploads.iter().for_each(|uploads| uploads.start(&path));
        }
    }
    if let (Some(folder), Err(failure), None) = (&job.folder, &outcomes, launch.processes())
        && let Some(saved) = trainer::saving::save_survivors(&job, folder, failure)
    {
        job.uploads.iter().for_each(|uploads| uploads.start(&saved));
    }
    // A supervisor starts a failed run again at once, and that attempt uploads what is missing.
    if let Some(uploads) = job.uploads.as_ref().filter(|_| outcomes.is_ok() || !attempt::is_supervised()) {
        uploads.finish(|line| job.progress.say(line), job.stop.load(Ordering::Relaxed));
        if let Some(folder) = job.folder.as_ref().filter(|_| outcomes.is_ok())
            && let Err(error) = prune_uploaded(&Folder::of_run(folder.path()), &job.config.checkpoint)
        {
            job.progress.say(&format!("older checkpoints stay: {}", hints::checkpoint(&error)));
        }
    }
    let outcomes = outcomes.map_err(|failure| match failure {
        // A single rank's error needs no rank; with several, the rank says where to look.
        RankFailure::Failed { source, .. } if job.config.parallel.gpus == 1 => source,
        failure => match told {
            Some(told) => TrainError::Waited { failure: Box::new(failure), told },
            None => TrainError::Rank(Box::new(failure)),
        },
    })?;
    let outcome = outcomes.into_iter().next().expect("there is a rank");
    if options.dry_run && launch.has_rank_0() {
        dry_run::tell(&job, meant, &memory, &outcome);
    }
    Ok(outcome)
}

/// Takes a layout of fewer ranks if there are fewer devices `here` than the run began with, or fewer processes than ranks.
fn fit_ranks(config: &mut Config, launch: &Launch, here: usize, faults: &Faults) -> Result<(), TrainError> {
    let asked = config.parallel.gpus;
    let available = match launch.processes() {
        Some(processes) => processes,
        None => {
            let first = attempt::devices_at_first(here).max(here);
            (asked * here.min(asked)).div_ceil(first.min(asked)).saturating_sub(faults.devices_lost())
        }
    };
    if available >= asked {
        return Ok(());
    }
    let least = config.resilience.min_gpus.unwrap_or(asked);
    let fewer = config.on_fewer_ranks(available).filter(|fewer| fewer.parallel.gpus >= least);
    let fewer = fewer.ok_or(TrainError::TooFewRanks { available, asked, least })?;
    let ranks = fewer.parallel.gpus;
    if let Some(processes) = launch.processes().filter(|processes| *processes != ranks) {
        return Err(TrainError::Config(format!(
            "this run fits on {ranks} of the {processes} processes that `mpirun -n {processes}` has started: give `mpirun -n {ranks}`"
        )));
    }
    *config = fewer;
    Ok(())
}

/// Prints the lines above the first step.
fn say_what_begins(job: &Job, devices: &Devices, memory: &Estimate) {
    let Job { config, data, progress, .. } = job;
    overview::say(job, devices, memory);
    config.describe_adaptive().iter().for_each(|line| progress.say(line));
    say_documents(job);
    let ParallelConfig { pp, schedule, .. } = &config.parallel;
    if *pp > 1 {
        let (micro_batches, sequences) = (config.micro_batches(), config.micro_batch_size());
        let (name, batches) = (schedule.name(), count(micro_batches, "micro-batch"));
        progress.say(&format!("{pp} stages ({name}), {batches} of {} per step and rank", count(sequences, "sequence")));
    }
    config.describe_padding().iter().for_each(|line| progress.say(line));
    config.describe_replicas().iter().for_each(|line| progress.say(line));
    devices.note().iter().for_each(|line| progress.say(line));
    if let (Some(tokens), size) = (data.vocab_size(), config.model.vocab_size())
        && tokens < size / 4
    {
        progress.say(&format!(
            "warning: the tokenizer has {tokens} tokens, and model.vocab_size is {size}: give the tokenizer that the model is meant for \
             with --set data.tokenizer=FILE, or model.vocab_size=0 for as many as there are"
        ));
    }
    job.faults.warning().iter().for_each(|warning| progress.say(&format!("warning: {warning}")));
    job.degraded().iter().for_each(|line| progress.say(&format!("warning: {line}")));
    config.warnings().iter().for_each(|warning| progress.say(&format!("warning: {warning}")));
    if let Some(Resume { index: Index { step, world_size, strategy, .. }, path, new_tokenizer, partial, .. }) =
        &job.resume
    {
        let (path, ranks) = (path.display(), count(*world_size, "rank"));
        progress.say(&format!("resuming after step {step} from {path}, saved by {ranks} with {strategy}"));
        say_changes(job);
        partial.iter().flat_map(|partial| partial.lines(false)).for_each(|line| progress.say(&line));
        if *new_tokenizer {
            progress.say("warning: data.tokenizer is given anew: tokens no longer mean what the model has learned, unless it is the same");
        }
    }
    if let Some(folder) = &job.folder {
        folder.warning().iter().for_each(|warning| progress.say(&format!("warning: {warning}")));
    }
    if config.parameter_count() >= LARGE {
        let what = if job.resume.is_some() { "reading" } else { "making" };
        progress.say(&format!("{what} the parameters on {}", count(config.parallel.gpus, "rank")));
    }
}

/// Reports differences between the configuration and the checkpoint's.
fn say_changes(job: &Job) {
    let Some(Resume { index, path, .. }) = &job.resume else { return };
    let Ok(before) = config_in(path) else { return };
    let changes = job.whole.changes_since(&before, index.step as usize);
    if !changes.is_empty() {
        job.progress.say("the configuration differs from the checkpoint's:");
    }
    changes.iter().for_each(|line| job.progress.say(&format!("  {line}")));
}

/// Reports the rows of each length, if documents are packed, and their batches.
fn say_documents(job: &Job) {
    let data = &job.config.data;
    let keys = [("data.document_mask", data.document_mask), ("data.buckets", data.buckets.is_some())];
    let keys: Vec<&str> = keys.into_iter().filter_map(|(key, given)| given.then_some(key)).collect();
    if !keys.is_empty() && job.data.meta.as_ref().is_some_and(|meta| meta.documents == 1) {
        let (name, keys) = (&job.data.name, keys.join(" and "));
        job.progress.say(&format!(
            "warning: {keys} without effect: {name} is a single document (JSONL, Parquet and folders of files have several)"
        ));
    }
    let Some(buckets) = &job.buckets else { return };
    for (i, config) in job.config.by_length().into_iter().enumerate() {
        let (length, rows) = (config.train.seq_len, buckets.rows(i));
        let of = match rows {
            0 => "no document is left for them".into(),
            _ => format!(
                "{} whole and {} of others; {} a step, in {} of {} a rank",
                human_count(buckets.documents(i), "document"),
                human_count(buckets.cut_pieces(i), "part"),
                count(config.train.global_batch_size, "row"),
                count(config.micro_batches(), "micro-batch"),
                config.micro_batch_size(),
            ),
        };
        job.progress.say(&format!("{} of {}: {of}", human_count(rows, "row"), count(length, "token")));
    }
}

/// An equal share of the CPU's cores, at least one per rank.
pub(crate) fn threads_per_rank(ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks).max(1)
}

/// Replaces a vocabulary of 0 by the tokenizer's size, if known. Rejects a vocabulary smaller than the tokenizer's.
pub(crate) fn set_vocabulary(config: &mut Config, tokens: Option<usize>) -> Result<(), TrainError> {
    match (config.model.vocab_size(), tokens) {
        (0, None) => Err(TrainError::Config(
            "model.vocab_size is 0, and the data does not say how many tokens there are: give a number, or the tokenizer \
             that made the data (data.tokenizer)"
                .into(),
        )),
        (given @ 1.., Some(tokens)) if given < tokens => Err(TrainError::Config(format!(
            "model.vocab_size is {given}, but the tokenizer has {tokens} tokens: give at least that, or 0 for as many"
        ))),
        (0, Some(tokens)) => {
            config.model.set_vocab_size(tokens);
            config.validate_parallel()
        }
        _ => Ok(()),
    }
}
