//! The command line.

use crate::commands::eval::{self, EvalArgs};
use crate::commands::export::{self, ExportArgs};
use crate::commands::generate::{self, GenerateArgs};
use crate::commands::import::{self, ImportArgs};
use crate::commands::inspect::{self, InspectArgs};
use crate::commands::logits::{self, LogitsArgs};
use crate::commands::prepare::{self, PrepareArgs};
use crate::commands::report::{self, ReportArgs};
use crate::config::{Config, ConfigError, PRESETS, Source};
use crate::launch::Launch;
use crate::resume;
use crate::run_folder::CONFIG;
use crate::trainer::{Outcome, Place, TrainError, human, set_vocabulary, train_launched};
use crate::units::parameter_count;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process stopped by Ctrl-C returns, by custom 128 + SIGINT.
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
    Prepare(PrepareArgs),
    Generate(GenerateArgs),
    Eval(EvalArgs),
    Inspect(InspectArgs),
    Report(ReportArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Logits(LogitsArgs),
}

#[derive(Debug, Args)]
struct TrainArgs {
    /// A preset, listed below
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    model: Option<String>,
    /// A YAML file; it may inherit from another (`base: FILE`, `base: preset:NAME`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ranks; with fewer devices they share them
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    gpus: Option<usize>,
    /// Optimizer steps
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    steps: Option<usize>,
    /// Text, JSONL, Parquet (also .gz, .zst), a folder of them, .bin tokens, a folder of `train prepare`, `shakespeare`, or
    /// `rust-crates`: Rust source that the build has put on disk
    #[arg(long, value_name = "SRC")]
    data: Option<String>,
    /// cpu, cuda or cuda:N
    #[arg(long, value_name = "DEV")]
    device: Option<String>,
    /// Run folder; a new one under runs/ if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from a checkpoint: a folder step-N, a run's folder, or `latest`; at any number of ranks, under any strategy
    #[arg(long, value_name = "latest|DIR")]
    resume: Option<PathBuf>,
    /// Seed of the initial parameters and of the order of the data
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Try a run for which there is not enough memory
    #[arg(long)]
    force: bool,
    /// Sets any key of the configuration, as in `--set parallel.strategy=ddp`
    #[arg(long, value_name = "A.B=C")]
    set: Vec<String>,
}

/// Parses the command line, runs the command, and prints what went wrong.
pub fn main() -> ExitCode {
    let matches = Cli::command().after_help(presets()).get_matches();
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
    let outcome = train_launched(launch, config, &place, stop_after_a_step)?;
    if launch.has_rank_0() {
        print(&outcome);
    }
    Ok(if outcome.stopped { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// From here on Ctrl-C sets the flag, and ends the process only when it is asked twice.
fn stop_after_a_step() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let handler = stop.clone();
    let set = ctrlc::set_handler(move || {
        if handler.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
        let _ = writeln!(io::stderr(), "\nstopping after this step; press Ctrl-C again to stop at once");
    });
    if let Err(error) = set {
        let _ = writeln!(io::stderr(), "Ctrl-C will stop at once: {error}");
    }
    stop
}

fn print(outcome: &Outcome) {
    let folder = outcome.folder.display();
    match outcome.val_loss {
        _ if outcome.stopped => say(&format!("stopped after {} steps; metrics are in {folder}", outcome.steps)),
        Some(loss) => say(&format!("validation loss {loss:.4} after {} steps; metrics are in {folder}", outcome.steps)),
        None => say(&format!("{} steps; metrics are in {folder}", outcome.steps)),
    }
    if let Some(sample) = &outcome.sample {
        say(&format!("--- sample ---\n{sample}\n--------------"));
    }
}

/// Prints a line on stdout. Where nobody reads it any more (`train ... | head`), `println!` would panic.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

impl TrainArgs {
    /// The configuration, and a name for the run. `processes`: as many as `mpirun` has started are the ranks.
    fn resolve(&self, processes: Option<usize>) -> Result<(Config, Place), TrainError> {
        let find = |which: &PathBuf| resume::find(which, self.out.as_deref(), self.model.as_deref());
        let resume = self.resume.as_ref().map(find).transpose()?;
        let resumed = resume.as_ref().map(|checkpoint| checkpoint.join(CONFIG));
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (source, name) = match (&self.config, &resumed, &self.model) {
            (None, Some(_), Some(name)) if self.resume.as_deref() != Some(Path::new(resume::LATEST)) => {
                return Err(ConfigError::Invalid(format!(
                    "--model {name} with --resume: the checkpoint has its model and configuration; leave --model out, \
                     or say with --resume latest that the newest of its runs is meant"
                ))
                .into());
            }
            (Some(file), ..) => (Source::File(file), stem(file)),
            (None, Some(file), _) => {
                (Source::File(file), stem(resume.as_deref().and_then(resume::run_of).unwrap_or(Path::new("resumed"))))
            }
            (None, None, Some(name)) => (Source::Preset(name), name.clone()),
            (None, None, None) => {
                let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
                let message = format!("give --model NAME or --config FILE; models: {}", names.join(", "));
                return Err(ConfigError::Invalid(message).into());
            }
        };
        let mut config = Config::load(source, &self.set)?;
        let set = |target: &mut usize, value: Option<usize>| *target = value.unwrap_or(*target);
        set(&mut config.parallel.gpus, self.gpus);
        if let Some(processes) = processes {
            let asked = self.gpus.is_some() || self.set.iter().any(|set| set.starts_with("parallel.gpus"));
            if asked && config.parallel.gpus != processes {
                let gpus = config.parallel.gpus;
                return Err(ConfigError::Invalid(format!(
                    "{gpus} ranks are asked for, but mpirun has started {processes} processes, one for each rank: leave \
                     the number of ranks out, or give `mpirun -n {gpus}`"
                ))
                .into());
            }
            config.parallel.gpus = processes;
        }
        set(&mut config.train.steps, self.steps);
        config.train.seed = self.seed.unwrap_or(config.train.seed);
        self.data.iter().for_each(|data| config.data.source.clone_from(data));
        self.device.iter().for_each(|device| config.train.device.clone_from(device));
        config.validate()?;
        // That of a file counts where it is not the one that the checkpoint was configured with.
        let before = || resumed.as_ref().and_then(|file| Config::load(Source::File(file), &[]).ok()?.data.tokenizer);
        let of_file = self.config.is_some() && config.data.tokenizer.is_some() && config.data.tokenizer != before();
        let new_tokenizer = of_file || self.set.iter().any(|set| set.starts_with("data.tokenizer="));
        Ok((config, Place { name, out: self.out.clone(), resume, new_tokenizer, force: self.force }))
    }
}

/// The presets with their parameter counts, for `--help`.
fn presets() -> String {
    let line = |preset: &crate::config::Preset| {
        let count = match Config::load(Source::Preset(preset.name), &[]) {
            Ok(mut config) => {
                // A preset without a vocabulary takes the tokenizer's, which the kind of byte tokens tells without a corpus.
                set_vocabulary(&mut config, Some(data::Tokenizer::byte().vocab_size()))
                    .map_or_else(|error| error.to_string(), |()| human(parameter_count(&config)))
            }
            Err(error) => error.to_string(),
        };
        format!("  {:<18}{count:>8}  {}\n", preset.name, preset.about)
    };
    format!("Models (--model), with their parameters:\n{}", PRESETS.iter().map(line).collect::<String>())
}
