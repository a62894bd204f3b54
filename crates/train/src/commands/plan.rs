//! `train plan`: how long a step takes on a cluster, and whether it fits.

mod compare;
mod figures;
mod found;
mod measured;
mod page;
mod sweep;

use super::train::TrainArgs;
use crate::atomic_write::write_whole;
use crate::config::{Config, ParallelConfig};
use crate::error::TrainError;
use crate::format::bytes;
use crate::output::{self, OutputError, check_different};
use crate::plan::search::{Found, Needs, search};
use crate::plan::step_plan::{StepPlan, help};
use crate::run::resume::run_named;
use crate::terminal::{say, to_stderr};
use ::report::PLANNED;
use clap::{Args, Command};
use data::{Tokenizer, TokenizerSpec};
use plan::{Cluster, PlanError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use sweep::Sweep;

/// Estimate what a step takes on a cluster that need not exist: memory, time, and what it waits for
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    train: TrainArgs,
    #[arg(long, value_name = "NAME|FILE", default_value = "h100-sxm", help = cluster_help())]
    cluster: String,
    /// Print the cluster as a YAML file
    #[arg(long, conflicts_with_all = ["find", "trace", "svg", "json", "sweep", "measure", "run", "html"])]
    print_cluster: bool,
    /// Search for the fastest layouts of --gpus ranks: stages, schedule, tensor, context and expert parallelism, strategy,
    /// micro-batch, recomputation, offload
    #[arg(long, conflicts_with_all = ["trace", "svg"])]
    find: bool,
    /// Plan several values of a key, as in --sweep parallel.gpus=8,16,32 or --sweep train.seq_len=1024,4096
    #[arg(long, value_name = "KEY=A,B,...", conflicts_with_all = ["find", "trace", "svg", "measure", "run"])]
    sweep: Vec<Sweep>,
    /// Measure the devices of this machine (choose with --device) for less than a minute, and write them as a cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["find", "trace", "svg", "json", "cluster"])]
    measure: Option<PathBuf>,
    /// Print what is planned for a run beside what it has measured: time, memory, communication. The report of the run
    /// shows it then, too
    #[arg(long, value_name = "RUN", conflicts_with_all = ["find", "measure", "trace", "svg"])]
    run: Option<PathBuf>,
    /// Write the timeline of a rank of each stage in Chrome's trace format, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw the same timeline as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the figures, the timeline, memory over the step, and the speed with more and fewer ranks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["find", "sweep", "measure", "run"])]
    html: Option<PathBuf>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanCommandError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(
        "the run has {gpus} ranks, and cluster {cluster} has room for {room}: plan fewer ranks (--gpus), or describe a \
         larger cluster in a file"
    )]
    TooSmall { gpus: usize, cluster: String, room: usize },
    #[error(
        "none of the {valid} valid layouts fits: the smallest needs at least {needs}, and {has}: plan more ranks (--gpus), \
         a cluster with more memory, or shorter sequences\n\nThe smallest: {layout}\n\n{help}"
    )]
    Nothing { valid: usize, needs: String, has: String, layout: String, help: String },
    #[error("no layout of {0} ranks is valid with what the command line sets: set fewer keys, or change --gpus")]
    NoLayout(usize),
    #[error("--run plans the run's own configuration: leave the options of training out")]
    OfTheRun,
    #[error("--measure measures devices, which --device chooses: leave the other options of training out")]
    OfDevices,
    #[error(
        "a step of {micro_batches} micro-batches on {stages} stages is too long to draw: lower train.global_batch_size, \
         or raise train.micro_batch_size"
    )]
    TooLong { micro_batches: usize, stages: usize },
    #[error("--sweep {first} and --sweep {second}: give one key")]
    TwoSweeps { first: String, second: String },
    #[error("--sweep {key} and {flag} set the same key: leave one of them out")]
    SweptAndSet { key: String, flag: &'static str },
    #[error("{0}")]
    NoneSwept(String),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(
        "the run computed on {run}, and cluster {cluster} has {has}: give --cluster the cluster that it ran on \
         (--measure writes one)"
    )]
    OtherDevice { run: &'static str, cluster: String, has: &'static str },
    #[error("--run latest: there is no run in runs/: give the folder of a run")]
    NoRun,
    #[error("{} has made no step yet: there is nothing to compare", .0.display())]
    NoSteps(PathBuf),
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: no line of it is JSON: it is no run's metrics", .0.display())]
    NoMetrics(PathBuf),
    #[error("plan starts no run, so {0} has no effect: remove it")]
    OfRuns(&'static str),
    #[error("give the file a name that ends with .yaml: --cluster {0} would be looked up among the built-in clusters")]
    Suffix(String),
    #[error("{} exists and is no cluster: give another file for what is measured", path.display())]
    NoCluster { path: PathBuf },
}

pub fn run(args: &PlanArgs) -> Result<(), PlanCommandError> {
    if let Some(path) = &args.measure {
        if args.train.without_device() != TrainArgs::default() {
            return Err(PlanCommandError::OfDevices);
        }
        return measured::measured(args.train.device(), path);
    }
    if let Some(option) = args.train.of_runs() {
        return Err(PlanCommandError::OfRuns(option));
    }
    let cluster = Cluster::named(&args.cluster)?;
    if args.print_cluster {
        say(yaml_serde::to_string(&cluster).expect("a cluster is plain data").trim_end());
        return Ok(());
    }
    if let Some(run) = &args.run {
        if args.train != TrainArgs::default() {
            return Err(PlanCommandError::OfTheRun);
        }
        let run = run_named(run).map_err(|error| match error {
            TrainError::NoRun { .. } => PlanCommandError::NoRun,
            error => error.into(),
        })?;
        let rows = compare::compare(&run, &cluster)?;
        let text = serde_json::to_string_pretty(&rows).expect("figures are plain data");
        let table = || compare::table(&rows) + &compare::note(&rows).map_or(String::new(), |note| format!("\n{note}"));
        say(&if args.json { text.clone() } else { table() });
        let path = run.join(PLANNED);
        if let Err(error) = write_whole(&path, |path| fs::write(path, &text)) {
            to_stderr(&format!("warning: the run's report will not show this: {}: {error}", path.display()));
        }
        return Ok(());
    }
    if let Some(of) = args.sweep.first() {
        if let Some(second) = args.sweep.get(1) {
            let [first, second] = [of, second].map(|sweep| sweep.key.clone());
            return Err(PlanCommandError::TwoSweeps { first, second });
        }
        say(&sweep::sweep(of, &args.train, &cluster, args.json)?);
        return Ok(());
    }
    let files = [("--trace", args.trace.as_deref()), ("--svg", args.svg.as_deref()), ("--html", args.html.as_deref())];
    check_different(&files)?;
    if args.find {
        let config = resolved(&args.train, &cluster)?;
        on_one_rank(&config).validate()?;
        let found = search(&config, &cluster, &|key| args.train.fixes(key))?;
        if found.valid == 0 {
            config.validate()?;
            return Err(PlanCommandError::NoLayout(config.parallel.gpus));
        }
        if found.best.is_empty() {
            return Err(nothing(&found, &cluster));
        }
        say(&match args.json {
            true => found::json(&found, &config, &cluster),
            false => {
                let file = args.train.file(&config, &found::settings(&found.best[0]))?;
                found::text(&found, &config, &cluster) + "\n\n# train --config FILE\n" + file.trim_end()
            }
        });
        return Ok(());
    }
    let config = configured(&args.train, &cluster)?;
    config.layout_warnings().iter().for_each(|warning| to_stderr(&format!("warning: {warning}")));
    let plan = StepPlan::new(&config, &cluster)?;
    if [&args.trace, &args.svg, &args.html].iter().any(|path| path.is_some()) {
        let Some(timeline) = &plan.timeline else {
            let (micro_batches, stages) = (config.micro_batches(), config.parallel.pp);
            return Err(PlanCommandError::TooLong { micro_batches, stages });
        };
        if let Some(path) = &args.trace {
            write(path, &timeline.chrome_trace().to_string())?;
        }
        if let Some(path) = &args.svg {
            write(path, &timeline.svg())?;
        }
        if let Some(path) = &args.html {
            let text = figures::text(&config, &cluster, &plan.figures);
            write(path, &page::page(&config, &cluster, timeline, &text))?;
        }
    }
    if args.json {
        say(&serde_json::to_string_pretty(&plan.figures).expect("figures are plain data"));
    } else {
        say(&figures::text(&config, &cluster, &plan.figures));
    }
    Ok(())
}

/// Returns the configuration that arguments of training give, on a cluster.
fn configured(train: &TrainArgs, cluster: &Cluster) -> Result<Config, PlanCommandError> {
    let config = resolved(train, cluster)?;
    config.validate()?;
    Ok(config)
}

/// The configuration without its layout, which a search replaces.
fn on_one_rank(config: &Config) -> Config {
    let mut config = config.clone();
    let plain = config.parallel.without_pipeline();
    config.parallel = ParallelConfig { gpus: 1, tp: 1, cp: 1, ep: 1, dp_shard: None, dp_replicate: None, ..plain };
    config.train.micro_batch_size = None;
    config
}

/// The configuration without the checks of its layout.
fn resolved(train: &TrainArgs, cluster: &Cluster) -> Result<Config, PlanCommandError> {
    // The cluster decides which layouts are valid, not this machine.
    let mut config = train.with("train.device", cluster.kind()).unchecked()?;
    if config.model.vocab_size() == 0 {
        // Without a corpus, this is all that is known of its tokens.
        let named = config.data.tokenizer.as_ref().map(TokenizerSpec::open).transpose().map_err(TrainError::from)?;
        let tokenizer = named.flatten().unwrap_or_else(Tokenizer::byte);
        config.model.set_vocab_size(tokenizer.vocab_size());
    }
    on_cluster(&mut config, cluster)?;
    if config.parallel.cpu_offload && cluster.offload.is_none() {
        static WARNED: Once = Once::new();
        let warning = "warning: the time of parallel.cpu_offload is not included, because the cluster has no `offload`";
        WARNED.call_once(|| to_stderr(warning));
    }
    Ok(config)
}

/// Why a search has found nothing.
fn nothing(found: &Found, cluster: &Cluster) -> PlanCommandError {
    let (needs, config) = found.smallest.as_ref().expect("a valid layout was examined");
    let (needs, has) = match needs {
        Needs::OfDevice(needs) => {
            (format!("{} per device", bytes(*needs)), format!("a device has {}", bytes(cluster.device.memory as usize)))
        }
        Needs::OfHost(needs) => {
            let has = bytes(cluster.host_memory.unwrap_or(0.0) as usize);
            (format!("{} of a node's CPU memory", bytes(*needs)), format!("a node has {has}"))
        }
    };
    let (layout, help) = (found::describe(config), help(config, cluster));
    PlanCommandError::Nothing { valid: found.valid, needs, has, layout, help }
}

/// Gives a run the devices of a cluster, if it has enough of them.
fn on_cluster(config: &mut Config, cluster: &Cluster) -> Result<(), PlanCommandError> {
    let gpus = config.parallel.gpus;
    if let Some(room) = cluster.ranks().filter(|room| gpus > *room) {
        return Err(PlanCommandError::TooSmall { gpus, cluster: cluster.name.clone(), room });
    }
    config.train.device = cluster.kind().into();
    config.parallel.precision.choose(cluster.kind());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), PlanCommandError> {
    output::write(path, text)?;
    to_stderr(&format!("wrote {}", path.display()));
    Ok(())
}

/// Hides the options of training that a plan refuses.
pub fn without_options_of_runs(command: Command) -> Command {
    let hidden = ["out", "resume", "partial", "force", "dry_run", "restarts", "quiet"];
    hidden.into_iter().fold(command, |command, option| command.mut_arg(option, |option| option.hide(true)))
}

/// The help of --cluster.
fn cluster_help() -> String {
    let names: Vec<&str> = Cluster::names().collect();
    format!("A cluster: {} (two cores), or a YAML file", names.join(", "))
}
