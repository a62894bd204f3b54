//! The command line.

use crate::commands::completions::{self, CompletionsArgs};
use crate::commands::config;
use crate::commands::doctor::{self, DoctorArgs};
use crate::commands::eval::{self, EvalArgs};
use crate::commands::export::{self, ExportArgs};
use crate::commands::generate::{self, GenerateArgs};
use crate::commands::import::{self, ImportArgs};
use crate::commands::inspect::{self, InspectArgs};
use crate::commands::launch::{self, LaunchArgs};
use crate::commands::logits::{self, LogitsArgs};
use crate::commands::man::{self, ManArgs};
use crate::commands::plan::{self, PlanArgs};
use crate::commands::prepare::{self, PrepareArgs};
use crate::commands::presets::{self, PresetsArgs};
use crate::commands::profile::{self, ProfileArgs};
use crate::commands::report::{self, ReportArgs};
use crate::commands::train::{self, TrainArgs};
use crate::config::{add_family, has_added};
use crate::error::TrainError;
use crate::host::launch::Launch;
use crate::program;
use crate::terminal;
use crate::unknown_argument;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use cpu::simd::Simd;
use model::Architecture;
use std::env;
use std::error::Error;
use std::process::ExitCode;

/// Train GPT-2, Llama and DeepSeek language models on many ranks, in pure Rust.
#[derive(Debug, Parser)]
#[command(
    name = "train",
    version = env!("KILN_VERSION"),
    styles = terminal::HELP,
    max_term_width = terminal::HELP_WIDTH,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
struct Cli {
    #[command(flatten)]
    train: TrainArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the configuration that the training arguments give: every key with its documentation, default and type, as
    /// YAML for `--config`
    Config(ConfigArgs),
    Presets(PresetsArgs),
    Plan(PlanArgs),
    Profile(ProfileArgs),
    Prepare(PrepareArgs),
    Generate(GenerateArgs),
    Eval(EvalArgs),
    Inspect(InspectArgs),
    Report(ReportArgs),
    Launch(LaunchArgs),
    Doctor(DoctorArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Logits(LogitsArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

#[derive(Debug, Args)]
struct ConfigArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// Print it as JSON, without documentation
    #[arg(long)]
    json: bool,
}

/// The program `train`. Your own program can add model families to it.
#[derive(Debug)]
pub struct Program(());

/// The program `train`.
///
/// ```no_run
/// use train::cli;
///
/// fn main() -> std::process::ExitCode {
///     cli().run() // .with::<MyConfig>() before .run() adds your own model
/// }
/// ```
pub fn cli() -> Program {
    Program(())
}

impl Program {
    /// Adds a model family, and a preset with the name and the defaults of the family: `--model NAME`. The family's
    /// keys are those of the section `model`, as in `--set model.KEY=VALUE`.
    ///
    /// # Panics
    /// If Kiln, or a family that was added before, has a model or a preset of this name; if the name has other characters
    /// than lower-case letters, digits, `-` and `_`, or does not start with a letter; or if a key has no default.
    #[must_use]
    pub fn with<C: Architecture>(self) -> Self {
        add_family::<C>();
        self
    }

    /// Parses the command line, runs the command, and prints its error.
    pub fn run(self) -> ExitCode {
        run()
    }
}

fn run() -> ExitCode {
    program::set_name();
    // SAFETY: SIG_IGN runs no code of this program. A file beyond `ulimit -f` then gives an error, like a full disk.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let command = command();
    let args: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let matches = command.clone().try_get_matches();
    let matches = matches.unwrap_or_else(|error| unknown_argument::explain(error, &command, &args).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Err(error) = Simd::asked_for() {
        return Launch::threads().fail(&TrainError::Device(error));
    }
    let Some(command) = cli.command else { return train::launch(&cli.train) };
    command.run().unwrap_or_else(|error| Launch::threads().fail(&*error))
}

/// The whole command line.
fn command() -> clap::Command {
    let completions = |command: clap::Command| command.long_about(completions::about());
    // A program with models of its own has a version of its own.
    let version = if has_added() { concat!("on Kiln ", env!("KILN_VERSION")) } else { env!("KILN_VERSION") };
    Cli::command()
        .name(program::name())
        .version(version)
        .mut_subcommand("completions", completions)
        .mut_subcommand("plan", plan::without_options_of_runs)
        .after_help(presets::help())
}

impl Command {
    fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        match self {
            Self::Config(args) => config::run(&args.train.shown()?, args.json),
            Self::Presets(args) => presets::run(args)?,
            Self::Plan(args) => plan::run(args)?,
            Self::Profile(args) => profile::run(args)?,
            Self::Prepare(args) => prepare::run(args)?,
            Self::Generate(args) => generate::run(args)?,
            Self::Eval(args) => eval::run(args)?,
            Self::Inspect(args) => inspect::run(args)?,
            Self::Report(args) => report::run(args)?,
            Self::Doctor(args) => doctor::run(args)?,
            Self::Launch(args) => return Ok(launch::run(args)?),
            Self::Import(args) => import::run(args)?,
            Self::Export(args) => export::run(args)?,
            Self::Logits(args) => logits::run(args)?,
            Self::Completions(args) => completions::run(args, command()),
            Self::Man(args) => man::run(args, command())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
