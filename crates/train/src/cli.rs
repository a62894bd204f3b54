//! The command line.

use crate::commands::config;
use crate::commands::eval::{self, EvalArgs};
use crate::commands::export::{self, ExportArgs};
use crate::commands::generate::{self, GenerateArgs};
use crate::commands::import::{self, ImportArgs};
use crate::commands::inspect::{self, InspectArgs};
use crate::commands::logits::{self, LogitsArgs};
use crate::commands::prepare::{self, PrepareArgs};
use crate::commands::presets::{self, PresetsArgs};
use crate::commands::report::{self, ReportArgs};
use crate::config::{Config, ConfigError, PRESETS, Source, is_overridden, whole};
use crate::error::TrainError;
use crate::launch::Launch;
use crate::place::Place;
use crate::resume::{self, Start};
use crate::run::train_launched;
use crate::run_folder::{CONFIG, run_of};
use crate::terminal::shown;
use crate::trainer::Outcome;
use crate::unknown_argument;
use crate::words::count;
use checkpoint::Folder;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use fsdp::Strategy;
use std::env;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process returns that Ctrl-C or another signal has stopped, by custom 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Trains GPT-2 and DeepSeek language models on many ranks, in pure Rust.
#[derive(Debug, Parser)]
#[command(name = "train", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    train: TrainArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the configuration that the arguments of training make: every key with its documentation, default and type, as YAML for
    /// `--config`
    Config(TrainArgs),
    Presets(PresetsArgs),
    Prepare(PrepareArgs),
    Generate(GenerateArgs),
    Eval(EvalArgs),
    Inspect(InspectArgs),
    Report(ReportArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Logits(LogitsArgs),
}

#[derive(Debug, Default, PartialEq, Args)]
struct TrainArgs {
    /// A preset, listed below
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    model: Option<String>,
    /// A YAML file; it may inherit from another (`base: FILE`, `base: preset:NAME`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ranks; with fewer devices they share them
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    gpus: Option<usize>,
    /// What each rank holds of parameters, gradients and optimizer state
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Strategy::ALL.map(Strategy::name)).try_map(strategy))]
    strategy: Option<Strategy>,
    /// Optimizer steps
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    steps: Option<usize>,
    /// Highest learning rate; optim.min_lr changes in proportion, unless --set gives it
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    lr: Option<f64>,
    /// Sequences of a step, over all ranks
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    batch_size: Option<usize>,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    seq_len: Option<usize>,
    /// Text, JSONL, Parquet (also .gz, .zst), a folder of them, .bin tokens, a folder of `train prepare`, `shakespeare`, or
    /// `rust-crates`: Rust source that the build has put on disk
    #[arg(long, value_name = "SRC")]
    data: Option<String>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Run folder; a new one under runs/ if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from a checkpoint, at any number of ranks, under any strategy: a folder step-N, a run's folder, `latest`, or `auto`, which
    /// begins anew where there is no checkpoint
    #[arg(long, value_name = "auto|latest|DIR")]
    resume: Option<PathBuf>,
    /// With --resume, for a model with other parameters than the checkpoint's: take those that fit by name and shape, and begin with new
    /// ones for the others
    #[arg(long, requires = "resume")]
    partial: bool,
    /// Seed of the initial parameters and of the order of the data
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    seed: Option<usize>,
    /// Try a run for which there is not enough memory
    #[arg(long)]
    force: bool,
    /// Sets any key of the configuration, as in `--set optim.warmup_steps=50`; `train config` lists them. The flags above count more
    #[arg(long, value_name = "A.B=C")]
    set: Vec<String>,
}

/// Parses the command line, runs the command, and prints what went wrong.
pub fn main() -> ExitCode {
    let command = Cli::command().after_help(models());
    let args: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let matches = command.clone().try_get_matches();
    let matches = matches.unwrap_or_else(|error| unknown_argument::explain(error, &command, &args).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Some(command) = cli.command else { return launch(&cli.train) };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Launch::threads().fail(&*error),
    }
}

impl Command {
    fn run(&self) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Config(args) => config::run(&args.shown()?),
            Self::Presets(args) => presets::run(args)?,
            Self::Prepare(args) => prepare::run(args)?,
            Self::Generate(args) => generate::run(args)?,
            Self::Eval(args) => eval::run(args)?,
            Self::Inspect(args) => inspect::run(args)?,
            Self::Report(args) => report::run(args)?,
            Self::Import(args) => import::run(args)?,
            Self::Export(args) => export::run(args)?,
            Self::Logits(args) => logits::run(args)?,
        }
        Ok(())
    }
}

fn launch(args: &TrainArgs) -> ExitCode {
    match Launch::start() {
        Ok(launch) => run(args, &launch).unwrap_or_else(|error| launch.fail(&*error)),
        Err(error) => Launch::threads().fail(&error),
    }
}

fn run(args: &TrainArgs, launch: &Launch) -> Result<ExitCode, Box<dyn Error>> {
    let (config, place) = args.resolve(launch.processes())?;
    let steps = config.train.steps;
    let outcome = match train_launched(launch, config, &place, stop_after_a_step) {
        // A script that starts the run until it ends well is at its end.
        Err(done @ TrainError::Finished { .. }) if args.resume.as_deref() == Some(Path::new(resume::AUTO)) => {
            if launch.has_rank_0() {
                say(&done.to_string());
            }
            return Ok(ExitCode::SUCCESS);
        }
        outcome => outcome?,
    };
    if launch.has_rank_0() {
        print(&outcome, steps);
    }
    Ok(if outcome.stopped { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// From here on Ctrl-C, SIGTERM (of Slurm, Kubernetes, `kill`) and SIGHUP (of a terminal that closes) set the flag, and end the process
/// only when it is asked twice.
fn stop_after_a_step() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let handler = stop.clone();
    let keep_ignored = ignored_hangup();
    let set = ctrlc::set_handler(move || {
        if handler.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
        let _ = writeln!(io::stderr(), "\nstopping after this step; a second Ctrl-C or signal stops at once");
    });
    if let Err(error) = set {
        let _ = writeln!(io::stderr(), "Ctrl-C will stop at once: {error}");
    }
    keep_ignored();
    stop
}

/// What has SIGHUP ignored again, if it is ignored now: `nohup` means the run to go on when the terminal closes.
fn ignored_hangup() -> impl FnOnce() {
    // SAFETY: SIG_IGN runs no code of ours, and the handler that was there is put back.
    let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    unsafe { libc::signal(libc::SIGHUP, before) };
    move || {
        if before == libc::SIG_IGN {
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        }
    }
}

/// What a run of so many steps came to.
fn print(outcome: &Outcome, steps: usize) {
    let folder = outcome.folder.display();
    match outcome.val_loss {
        _ if outcome.stopped => {
            let last = if outcome.steps == steps { ", the last one: `train eval` validates it" } else { "" };
            say(&format!("stopped after {}{last}; metrics are in {folder}", count(outcome.steps, "step")))
        }
        Some(loss) => {
            say(&format!("validation loss {loss:.4} after {}; metrics are in {folder}", count(outcome.steps, "step")))
        }
        None => say(&format!("{}; metrics are in {folder}", count(outcome.steps, "step"))),
    }
    if let Some((step, loss)) = outcome.best.filter(|(step, _)| *step != outcome.steps) {
        say(&format!(
            "the best validation loss was {loss:.4} after step {step}, kept as {folder}/checkpoints/step-{step}"
        ));
    }
    if let Some(sample) = &outcome.sample {
        say(&format!("--- sample ---\n{sample}\n--------------"));
    }
}

/// Prints a line on stdout. Where nobody reads it any more (`train ... | head`), `println!` would panic; where it cannot be written, as on
/// a full disk, the process ends with an error. A terminal obeys nothing that is in it.
pub(crate) fn say(line: &str) {
    let line = shown(line, io::stdout().is_terminal());
    match writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

impl TrainArgs {
    /// The configuration, and a name for the run. `processes`: as many as `mpirun` has started are the ranks.
    fn resolve(&self, processes: Option<usize>) -> Result<(Config, Place), TrainError> {
        let find = |which: &PathBuf| resume::find(which, self.out.as_deref(), self.model.as_deref());
        let (resume, again_in) = match self.resume.as_ref().map(find).transpose()? {
            None => (None, None),
            Some(Start::From(checkpoint)) => (Some(checkpoint), None),
            Some(Start::Anew { again_in }) => (None, again_in),
        };
        let resumed = resume.as_ref().or(again_in.as_ref()).map(|folder| folder.join(CONFIG));
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (source, name) = match (&self.config, &resumed, &self.model) {
            (None, Some(_), Some(name)) if !self.resume.as_deref().is_some_and(resume::is_word) => {
                return Err(ConfigError::Invalid(format!(
                    "--model {name} with --resume: the checkpoint has its model and configuration; leave --model out, \
                     or say with --resume latest that the newest of its runs is meant"
                ))
                .into());
            }
            (Some(file), ..) => (Source::File(file), stem(file)),
            (None, Some(_), Some(name)) if again_in.is_some() => (Source::Preset(name), name.clone()),
            (None, Some(file), _) => {
                let run = resume.as_deref().and_then(run_of).or(again_in.as_deref());
                (Source::File(file), stem(run.unwrap_or(Path::new("resumed"))))
            }
            (None, None, Some(name)) => (Source::Preset(name), name.clone()),
            (None, None, None) => {
                let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
                let message = format!("give --model NAME or --config FILE; models: {}", names.join(", "));
                return Err(ConfigError::Invalid(message).into());
            }
        };
        let mut config = Config::load(source, &self.overrides(processes))?;
        let gpus = config.parallel.gpus;
        if let Some(processes) = processes.filter(|processes| *processes != gpus) {
            return Err(ConfigError::Invalid(format!(
                "parallel.gpus is {gpus}, but `mpirun -n {processes}` has started the ranks, a process each: leave the \
                 number of ranks out, or give `mpirun -n {gpus}`"
            ))
            .into());
        }
        self.set_lr(&mut config);
        config.train.seed = self.seed.map_or(config.train.seed, |seed| seed as u64);
        self.data.iter().for_each(|data| config.data.source.clone_from(data));
        self.device.iter().for_each(|device| config.train.device.clone_from(device));
        config.validate()?;
        // That of a file counts where it is not the one that the checkpoint was configured with.
        let before = || resumed.as_ref().and_then(|file| Config::load(Source::File(file), &[]).ok()?.data.tokenizer);
        let of_file = self.config.is_some() && config.data.tokenizer.is_some() && config.data.tokenizer != before();
        let new_tokenizer = of_file || self.sets("data.tokenizer");
        let run = resume.as_deref().and_then(run_of).or(again_in.as_deref());
        let newest = run.map(|run| Folder::of_run(run).latest()).transpose()?.flatten();
        let (out, again) = (again_in.clone().or(self.out.clone()), again_in.is_some());
        Ok((
            config,
            Place { name, out, again, resume, newest, partial: self.partial, new_tokenizer, force: self.force },
        ))
    }

    /// `--set`, and over it the flags that `parallel.adaptive` looks at. Processes that are there are the ranks, where none are asked for.
    fn overrides(&self, processes: Option<usize>) -> Vec<String> {
        let asked = self.gpus.is_some() || self.sets("parallel.gpus");
        let flags = [
            ("parallel.gpus", if asked { self.gpus } else { processes }),
            ("train.steps", self.steps),
            ("train.global_batch_size", self.batch_size),
            ("train.seq_len", self.seq_len),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        let strategy = self.strategy.map(|strategy| format!("parallel.strategy={}", strategy.name()));
        self.set.iter().cloned().chain(flags).chain(strategy).collect()
    }

    /// Whether `--set` gives this key.
    fn sets(&self, key: &str) -> bool {
        is_overridden(&self.set, key)
    }

    /// Where only the highest learning rate is given, the lowest keeps its proportion to it.
    fn set_lr(&self, config: &mut Config) {
        let Some(lr) = self.lr else { return };
        let optim = &mut config.optim;
        if !self.sets("optim.min_lr") && optim.lr > 0.0 {
            // A product like 5.000000000000001e-6 is one of 5e-6.
            let min_lr = format!("{:.12e}", lr * (optim.min_lr / optim.lr));
            optim.min_lr = min_lr.parse().expect("a float is written as one");
        }
        optim.lr = lr;
    }

    /// The configuration to be shown; without any argument the defaults.
    fn shown(&self) -> Result<Config, TrainError> {
        if *self == Self::default() { Ok(Config::default()) } else { Ok(self.resolve(None)?.0) }
    }
}

/// A whole number, which may be written as `1e3`.
pub(crate) fn whole_number(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().or_else(|| whole(text.parse().ok()?).map(|number| number as usize));
    number.ok_or_else(|| "give a whole number, 0 or above".into())
}

/// A strategy by its name, which is one of those there are.
fn strategy(name: String) -> Result<Strategy, String> {
    Strategy::ALL.into_iter().find(|strategy| strategy.name() == name).ok_or(name)
}

/// What `--model` may be, for `--help`.
fn models() -> String {
    let line = |preset: &crate::config::Preset| format!("  {:<18}{}\n", preset.name, preset.about);
    format!("Models (--model):\n{}", PRESETS.iter().map(line).collect::<String>())
}
