//! Training, which is the command without a subcommand.

use super::values::{at_least_1, number, whole_number};
use crate::config::{Config, Source, Validation, file_with, is_overridden, names_of, presets, strategy_called};
use crate::dry_run::Scratch;
use crate::ending;
use crate::error::TrainError;
use crate::host::attempt;
use crate::host::launch::Launch;
use crate::host::signals::{self, interrupted, stop_after_a_step, stop_at_once};
use crate::run::folder::{CONFIG, run_of};
use crate::run::options::RunOptions;
use crate::run::remote::download;
use crate::run::resume::{self, Start, Verification};
use crate::supervisor::{self, Threads};
use crate::terminal::{say, to_stderr};
use crate::training::train_launched;
use checkpoint::{Checkpoint, Folder};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fsdp::Strategy;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct TrainArgs {
    /// A preset (the command `presets` lists them)
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    model: Option<String>,
    /// A YAML file; it may inherit from another (`base: FILE`, `base: preset:NAME`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of ranks; they share devices if there are fewer
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_1)]
    gpus: Option<usize>,
    /// What each rank holds of parameters, gradients and optimizer state; zero2 is shard_grad_op, zero3 and fsdp are
    /// full_shard, hsdp is hybrid_shard
    #[arg(long, value_name = "NAME", ignore_case = true)]
    #[arg(value_parser = PossibleValuesParser::new(strategies()).try_map(strategy))]
    strategy: Option<Strategy>,
    /// Optimizer steps
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_1)]
    steps: Option<usize>,
    /// Passes over the training data, instead of --steps; may be fractional, such as 0.5
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number, conflicts_with = "steps")]
    epochs: Option<f64>,
    /// Peak learning rate; optim.min_lr scales with it unless --set gives it
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number)]
    lr: Option<f64>,
    /// Sequences per step, over all ranks
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_1)]
    batch_size: Option<usize>,
    /// Tokens per sequence
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_1)]
    seq_len: Option<usize>,
    /// Text, JSONL, CSV, TSV, Parquet (also .gz, .zst), a folder of them, .bin tokens, a folder that `prepare` wrote,
    /// any of these in an object store (s3://BUCKET/FOLDER), `shakespeare`, or `rust-crates`: the source of Kiln's
    /// dependencies
    #[arg(long, value_name = "SRC")]
    data: Option<String>,
    /// Separate validation data, in any form that --data accepts; all of --data is then used for training. For several
    /// sources set data.validation
    #[arg(long, value_name = "SRC")]
    val_data: Option<String>,
    /// auto, cpu, cuda, vulkan, metal, or a single device such as cuda:1
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Run folder; by default a new one under runs/
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Resume from a checkpoint, on any number of ranks, under any strategy: a run's folder, RUN@best, RUN@12 (that
    /// step), a folder step-N, `latest`, or `auto`, which skips damaged checkpoints and starts from the beginning if
    /// there is none; or s3://BUCKET/PREFIX, with @best or @12 too, which is downloaded into the run's folder
    #[arg(long, value_name = "auto|latest|DIR|URL")]
    resume: Option<PathBuf>,
    /// With --resume, for a model whose parameters differ from the checkpoint's: load those that match by name and
    /// shape, and initialize the others
    #[arg(long, requires = "resume")]
    partial: bool,
    /// Seed of the initial parameters and the data order
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    seed: Option<usize>,
    /// Run even if there is not enough memory
    #[arg(long)]
    force: bool,
    /// Estimate what the run needs (memory, tokens, disk, and time after three steps), and leave nothing behind
    #[arg(long)]
    dry_run: bool,
    /// Restart the run from its newest checkpoint up to N times if it fails: a rank panics, hangs or is killed
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    restarts: Option<usize>,
    /// Print only warnings, errors and the final result
    #[arg(long, short)]
    quiet: bool,
    /// Set any configuration key, as in `--set optim.warmup_steps=50`; the command `config` lists them. The flags above take
    /// precedence
    #[arg(long, value_name = "A.B=C")]
    set: Vec<String>,
}

/// Runs training and prints its errors.
pub fn launch(args: &TrainArgs) -> ExitCode {
    match Launch::start() {
        Ok(launch) => {
            launch.warn();
            signals::note_requests(); // which would otherwise end the process
            attempt::start_heartbeat();
            run(args, &launch).unwrap_or_else(|error| launch.fail(&*error))
        }
        Err(error) => Launch::threads().fail(&error),
    }
}

fn run(args: &TrainArgs, launch: &Launch) -> Result<ExitCode, Box<dyn Error>> {
    let (config, options) = args.resolve(launch.processes())?;
    if config.resilience.restarts > 0 && !args.dry_run && !attempt::is_supervised() {
        match launch.processes() {
            None => return Ok(supervisor::supervise(&config, &options, env::args_os().skip(1).collect(), &Threads)?),
            Some(_) if launch.has_rank_0() => to_stderr(
                "warning: resilience.restarts is without effect: mpirun has started the ranks, and only it can start them again; start the run with \
                 `launch`",
            ),
            Some(_) => {}
        }
    }
    if launch.has_rank_0() {
        options.passed_over.iter().for_each(|line| to_stderr(line));
    }
    let steps = config.train.steps;
    let outcome = match train_launched(launch, config, &options, || match args.dry_run {
        true => stop_at_once(Scratch::remover(launch)),
        false => stop_after_a_step(stopping(launch)),
    }) {
        // A script that restarts the run until it succeeds can stop.
        Err(done @ (TrainError::Finished { .. } | TrainError::OutOfPatience { .. }))
            if args.resume.as_deref() == Some(Path::new(resume::AUTO)) =>
        {
            if launch.has_rank_0() {
                say(&done.to_string());
                attempt::ended_well(false);
            }
            return Ok(ExitCode::SUCCESS);
        }
        outcome => outcome?,
    };
    if launch.has_rank_0() && !args.dry_run {
        // In quiet mode, the single line also says what the last lines would.
        let how_to_resume = ending::how_to_resume(&outcome, launch).filter(|_| args.quiet);
        ending::say_result(&outcome, steps, how_to_resume);
        if !args.quiet {
            ending::say(&outcome, launch);
        }
        attempt::ended_well(outcome.stopped);
    }
    // mpirun would call the code of a stopped run a failure; its supervisor knows.
    let is_launched = attempt::is_supervised() && launch.processes().is_some();
    Ok(if outcome.stopped && !is_launched { interrupted() } else { ExitCode::SUCCESS })
}

/// What to say at a signal. With several processes, it usually comes from mpirun, which ends all of them if one has failed;
/// a supervisor gets those of the user, and says so itself.
fn stopping(launch: &Launch) -> Option<&'static str> {
    match launch.processes() {
        _ if !launch.has_rank_0() => None,
        None => Some(signals::STOPPING),
        Some(_) if attempt::is_supervised() => None,
        Some(_) => Some("a signal, or mpirun, ends the processes: stopping after this step, if there is time"),
    }
}

impl TrainArgs {
    /// The configuration, and a name for the run. `processes` is the number of processes that `mpirun` started, which
    /// are the ranks.
    pub(crate) fn resolve(&self, processes: Option<usize>) -> Result<(Config, RunOptions), TrainError> {
        let whole = if processes.is_some() { Verification::Index } else { Verification::EveryByte };
        let fetched = self
            .resume
            .as_deref()
            .and_then(download::url)
            .map(|url| download::fetch(url, self.out.as_deref(), self.dry_run, self.quiet));
        let fetched = fetched.transpose()?;
        let find = |which: &PathBuf| resume::find(which, self.out.as_deref(), self.model.as_deref(), whole);
        let (resume, passed_over, again_in) = match fetched.as_ref().or(self.resume.as_ref()).map(find).transpose()? {
            None => (None, vec![], None),
            Some(Start::From { checkpoint, passed_over }) => (Some(checkpoint), passed_over, None),
            Some(Start::Anew { again_in }) => (None, vec![], again_in),
        };
        let resumed = resume.as_ref().or(again_in.as_ref()).map(|folder| folder.join(CONFIG));
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (source, name) = match (&self.config, &resumed, &self.model) {
            (None, Some(_), Some(name)) if !self.resume.as_deref().is_some_and(resume::is_word) => {
                return Err(TrainError::Config(format!(
                    "--model {name} with --resume: the checkpoint has its model and configuration; leave --model out, \
                     or use --resume latest for the newest of its runs"
                )));
            }
            (Some(file), ..) => (Source::File(file), stem(file)),
            (None, Some(_), Some(name)) if again_in.is_some() => (Source::Preset(name), name.clone()),
            (None, Some(file), _) => {
                let run = resume.as_deref().and_then(run_of).or(again_in.as_deref());
                (Source::File(file), stem(run.unwrap_or(Path::new("resumed"))))
            }
            (None, None, Some(name)) => (Source::Preset(name), name.clone()),
            (None, None, None) => return Err(no_model()),
        };
        let mut config = Config::load(source, &self.overrides(processes)).or_else(|error| {
            if let (Some(checkpoint), None) = (&resume, &self.config) {
                Checkpoint::open(checkpoint)?.read_file(CONFIG)?; // a changed file is a better error than its contents
            }
            Err(error)
        })?;
        let gpus = config.parallel.gpus;
        let may_be_fewer = config.resilience.min_gpus.is_some();
        if let Some(processes) = processes.filter(|n| *n != gpus && !(may_be_fewer && *n < gpus)) {
            return Err(TrainError::Config(format!(
                "parallel.gpus is {gpus}, but `mpirun -n {processes}` has started the ranks, a process each: leave the \
                 number of ranks out, or give `mpirun -n {gpus}`"
            )));
        }
        self.apply(&mut config);
        config.validate()?;
        // A file's tokenizer takes effect if it differs from the one in the checkpoint's configuration.
        let before = || resumed.as_ref().and_then(|file| Config::load(Source::File(file), &[]).ok()?.data.tokenizer);
        let of_file = self.config.is_some() && config.data.tokenizer.is_some() && config.data.tokenizer != before();
        let new_tokenizer = of_file || self.sets("data.tokenizer");
        let run = resume.as_deref().and_then(run_of).or(again_in.as_deref());
        let newest = run.map(|run| Folder::of_run(run).latest()).transpose()?.flatten();
        let (out, again) = (again_in.clone().or(self.out.clone()), again_in.is_some());
        Ok((
            config,
            RunOptions {
                name,
                out,
                again,
                resume,
                passed_over,
                newest,
                partial: self.partial,
                new_tokenizer,
                new_upload: self.config.is_some() || self.sets("checkpoint.upload"),
                force: self.force,
                quiet: self.quiet,
                dry_run: self.dry_run,
            },
        ))
    }

    /// Whether the arguments only ask what a run would take.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Whether the arguments download a checkpoint into a folder that they do not name.
    pub fn downloads_anywhere(&self) -> bool {
        self.out.is_none() && self.resume.as_deref().and_then(download::url).is_some()
    }

    /// `--set`, followed by the flags that `parallel.adaptive` considers. Without an explicit number of ranks, the
    /// started processes are the ranks.
    fn overrides(&self, processes: Option<usize>) -> Vec<String> {
        let asked = self.gpus.is_some() || self.sets("parallel.gpus");
        let flags = [
            ("parallel.gpus", if asked { self.gpus } else { processes }),
            ("train.steps", self.steps),
            ("train.global_batch_size", self.batch_size),
            ("train.seq_len", self.seq_len),
            ("resilience.restarts", self.restarts),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        let epochs = self.epochs.map(|epochs| format!("train.epochs={epochs:?}"));
        let strategy = self.strategy.map(|strategy| format!("parallel.strategy={}", strategy.name()));
        self.set.iter().cloned().chain(flags).chain(epochs).chain(strategy).collect()
    }

    /// Whether `--set` sets this key.
    fn sets(&self, key: &str) -> bool {
        is_overridden(&self.set, key)
    }

    /// Applies the flags that are no overrides.
    fn apply(&self, config: &mut Config) {
        self.set_lr(config);
        config.train.seed = self.seed.map_or(config.train.seed, |seed| seed as u64);
        self.data.iter().for_each(|data| config.data.source.clone_from(data));
        self.val_data.iter().for_each(|data| config.data.validation = Some(Validation::One(data.clone())));
        self.device.iter().for_each(|device| config.train.device.clone_from(device));
    }

    /// If only the peak learning rate is given, the minimum keeps its ratio to it.
    fn set_lr(&self, config: &mut Config) {
        let Some(lr) = self.lr else { return };
        let optim = &mut config.optim;
        if !self.sets("optim.min_lr") && optim.lr > 0.0 {
            // Rounds 5.000000000000001e-6, the result of a product, to 5e-6.
            let min_lr = format!("{:.12e}", lr * (optim.min_lr / optim.lr));
            optim.min_lr = min_lr.parse().expect("a float is written as one");
        }
        optim.lr = lr;
    }

    /// Returns the same arguments with a value of a key that [no flag sets](Self::flag_of).
    pub fn with(&self, key: &str, value: &str) -> Self {
        let mut with = self.clone();
        with.set.push(format!("{key}={value}"));
        with
    }

    /// The flag that sets a key, or a part or the whole of its section, if it is given.
    pub fn flag_of(&self, key: &str) -> Option<&'static str> {
        let flags = [
            ("--gpus", "parallel.gpus", self.gpus.is_some()),
            ("--strategy", "parallel.strategy", self.strategy.is_some()),
            ("--steps", "train.steps", self.steps.is_some()),
            ("--epochs", "train.epochs", self.epochs.is_some()),
            ("--lr", "optim.lr", self.lr.is_some()),
            ("--batch-size", "train.global_batch_size", self.batch_size.is_some()),
            ("--seq-len", "train.seq_len", self.seq_len.is_some()),
            ("--data", "data.source", self.data.is_some()),
            ("--val-data", "data.validation", self.val_data.is_some()),
            ("--seed", "train.seed", self.seed.is_some()),
        ];
        let within = |key: &str, of: &str| key == of || key.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'));
        let flag = flags.iter().find(|(_, of, given)| *given && (within(of, key) || within(key, of)));
        flag.map(|(flag, ..)| *flag).or(self.sets(key).then_some("--set"))
    }

    /// Returns a configuration file of what these arguments give, and of more settings.
    pub fn file(&self, config: &Config, more: &BTreeMap<&str, Value>) -> Result<String, TrainError> {
        let (lr, seed) = (self.lr.is_some(), self.seed.is_some());
        let flags = [
            (lr, "optim.lr", json!(config.optim.lr)),
            (lr, "optim.min_lr", json!(config.optim.min_lr)),
            (seed, "train.seed", json!(config.train.seed)),
            (self.data.is_some(), "data.source", json!(config.data.source)),
            (self.val_data.is_some(), "data.validation", json!(config.data.validation)),
        ];
        let flags = flags.iter().filter(|(given, ..)| *given).map(|(_, key, value)| (*key, value));
        let more = more.iter().map(|(key, value)| (*key, value));
        let settings = flags.chain(more).map(|(key, value)| format!("{key}={value}"));
        let base = self.config.as_deref().map(Source::File);
        let base = base.or(self.model.as_deref().map(Source::Preset));
        file_with(base, &self.overrides(None).into_iter().chain(settings).collect::<Vec<_>>())
    }

    /// Whether the command line sets a key of the configuration.
    pub fn fixes(&self, key: &str) -> bool {
        is_overridden(&self.overrides(None), key)
    }

    /// Returns the same arguments without --device.
    pub fn without_device(&self) -> Self {
        Self { device: None, ..self.clone() }
    }

    /// The first option that only a run can use, if one is given.
    pub fn of_runs(&self) -> Option<&'static str> {
        let given = [
            ("--device (its cluster says what it computes on)", self.device.is_some()),
            ("--out", self.out.is_some()),
            ("--resume", self.resume.is_some()),
            ("--partial", self.partial),
            ("--force", self.force),
            ("--dry-run", self.dry_run),
            ("--restarts", self.restarts.is_some()),
            ("--quiet", self.quiet),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The device to use, as in `--device`.
    pub fn device(&self) -> &str {
        self.device.as_deref().unwrap_or("auto")
    }

    /// The configuration of a run.
    pub fn config(&self) -> Result<Config, TrainError> {
        Ok(self.resolve(None)?.0)
    }

    /// The configuration of a run that resumes nothing, without its checks.
    pub fn unchecked(&self) -> Result<Config, TrainError> {
        let source = match (&self.config, &self.model) {
            (Some(file), _) => Source::File(file),
            (None, Some(name)) => Source::Preset(name),
            (None, None) => return Err(no_model()),
        };
        let mut config = Config::load(source, &self.overrides(None))?;
        self.apply(&mut config);
        Ok(config)
    }

    /// The configuration to show; the defaults if there are no arguments.
    pub fn shown(&self) -> Result<Config, TrainError> {
        if *self == Self::default() { Ok(Config::default()) } else { self.config() }
    }
}

fn no_model() -> TrainError {
    let names: Vec<_> = presets().into_iter().map(|preset| preset.name).collect();
    TrainError::Config(format!("give --model NAME or --config FILE; models: {}", names.join(", ")))
}

/// The strategies with all their names.
fn strategies() -> [PossibleValue; Strategy::ALL.len()] {
    Strategy::ALL.map(|strategy| PossibleValue::new(strategy.name()).aliases(names_of(strategy)))
}

/// Finds a strategy by its name; the parser accepts only valid ones.
fn strategy(name: String) -> Result<Strategy, String> {
    strategy_called(&name).ok_or(name)
}
