//! `train plan`: how long a step takes on a cluster, and whether it fits.

mod compare;
mod found;
mod page;
mod sweep;

use super::train::TrainArgs;
use crate::atomic_write::write_whole;
use crate::config::Config;
use crate::dry_run::Scratch;
use crate::error::TrainError;
use crate::format::{bytes, count, human};
use crate::host::launch::Launch;
use crate::host::signals::stop_at_once;
use crate::plan::measure::measure;
use crate::plan::search::search;
use crate::plan::step_plan::StepPlan;
use crate::terminal::{say, to_stderr};
use crate::training::set_vocabulary;
use ::report::PLANNED;
use clap::Args;
use data::{Tokenizer, TokenizerSpec};
use plan::{Cluster, PlanError};
use std::fs;
use std::path::{Path, PathBuf};
use sweep::Sweep;

/// Estimate what a step takes on a cluster that need not exist: memory, time, and what it waits for
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// A cluster: a100-40, a100-80, h100-sxm, h200, h800, b200, cpu (two cores), or a YAML file
    #[arg(long, value_name = "NAME|FILE", default_value = "h100-sxm")]
    cluster: String,
    /// Search for the fastest layouts of --gpus ranks: stages, schedule, tensor and expert parallelism, strategy,
    /// micro-batch, recomputation
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
        "none of the {valid} valid layouts fits: the smallest needs {needs} per device, and a device has {has}: \
         plan more ranks (--gpus), a cluster with more memory, or shorter sequences"
    )]
    Nothing { valid: usize, needs: String, has: String },
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
    #[error("{first} and {second} would both write {}: give each a file of its own", path.display())]
    SameFile { first: &'static str, second: &'static str, path: PathBuf },
    #[error("{}: there is no folder {}: create it, or give another path", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error(
        "the run computed on {run}, and cluster {cluster} has {has}: give --cluster the cluster that it ran on \
         (--measure writes one)"
    )]
    OtherDevice { run: &'static str, cluster: String, has: &'static str },
    #[error("{} has made no step yet: there is nothing to compare", .0.display())]
    NoSteps(PathBuf),
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("plan starts no run: leave {0} out")]
    OfRuns(&'static str),
    #[error("give the file a name that ends with .yaml: --cluster {0} would be looked up among the built-in clusters")]
    Suffix(String),
    #[error("{} exists and is no cluster: give another file for what is measured", path.display())]
    NoCluster { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

pub fn run(args: &PlanArgs) -> Result<(), PlanCommandError> {
    if let Some(path) = &args.measure {
        if args.train.without_device() != TrainArgs::default() {
            return Err(PlanCommandError::OfDevices);
        }
        return measured(args.train.device(), path);
    }
    if let Some(option) = args.train.of_runs() {
        return Err(PlanCommandError::OfRuns(option));
    }
    let cluster = Cluster::named(&args.cluster)?;
    if let Some(run) = &args.run {
        if args.train != TrainArgs::default() {
            return Err(PlanCommandError::OfTheRun);
        }
        let rows = compare::compare(run, &cluster)?;
        let text = serde_json::to_string_pretty(&rows).expect("figures are plain data");
        say(&if args.json { text.clone() } else { compare::table(&rows) });
        if let Err(error) = write_file(&run.join(PLANNED), &text) {
            to_stderr(&format!("warning: the run's report will not show this: {error}"));
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
    args.check_files()?;
    let config = configured(&args.train, &cluster)?;
    if args.find {
        let found = search(&config, &cluster, &|key| args.train.fixes(key))?;
        if found.valid == 0 {
            return Err(PlanCommandError::NoLayout(config.parallel.gpus));
        }
        if found.best.is_empty() {
            let (needs, has) = (bytes(found.smallest), bytes(cluster.device.memory as usize));
            return Err(PlanCommandError::Nothing { valid: found.valid, needs, has });
        }
        say(&match args.json {
            true => found::json(&found, &cluster),
            false => {
                let file = args.train.file(&config, &found::settings(&found.best[0]))?;
                found::text(&found, &config, &cluster) + "\n\n# train --config FILE\n" + file.trim_end()
            }
        });
        return Ok(());
    }
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
            write(path, &page::page(&config, &cluster, timeline, &text(&config, &cluster, &plan)))?;
        }
    }
    if args.json {
        say(&serde_json::to_string_pretty(&plan.figures).expect("figures are plain data"));
    } else {
        say(&text(&config, &cluster, &plan));
    }
    Ok(())
}

/// Returns the configuration that arguments of training give, on a cluster.
fn configured(train: &TrainArgs, cluster: &Cluster) -> Result<Config, PlanCommandError> {
    let mut config = train.config()?;
    if config.model.vocab_size() == 0 {
        // Without a corpus, this is all that is known of its tokens.
        let named = config.data.tokenizer.as_ref().map(TokenizerSpec::open).transpose().map_err(TrainError::from)?;
        let tokenizer = named.flatten().unwrap_or_else(Tokenizer::byte);
        set_vocabulary(&mut config, Some(tokenizer.vocab_size()))?;
    }
    on_cluster(&mut config, cluster)?;
    Ok(config)
}

/// Measures this machine and writes it to a file, which may hold what was measured before.
fn measured(device: &str, path: &Path) -> Result<(), PlanCommandError> {
    if !path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml") {
        return Err(PlanCommandError::Suffix(path.display().to_string()));
    }
    if path.exists() && !fs::read_to_string(path).is_ok_and(|text| Cluster::parse("", &text).is_ok()) {
        return Err(PlanCommandError::NoCluster { path: path.into() });
    }
    in_folder(path)?;
    // Before the measurement, which takes a while.
    let beside = path.with_extension("yaml.tmp");
    fs::write(&beside, "").map_err(|source| PlanCommandError::Write { path: path.into(), source })?;
    let _ = fs::remove_file(&beside);
    let launch = Launch::threads();
    stop_at_once(Scratch::remover(&launch));
    let cluster = measure(device, &Scratch::at(&launch)?)?;
    let text = yaml_serde::to_string(&cluster).expect("a cluster is plain data");
    Cluster::parse("what was measured", &text)?;
    write_file(path, &text)?;
    say(&format!("wrote {}: use it with --cluster {}", path.display(), path.display()));
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<(), PlanCommandError> {
    let written = write_whole(path, |path| fs::write(path, text));
    written.map_err(|source| PlanCommandError::Write { path: path.into(), source })
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

impl PlanArgs {
    /// Refuses the same file for two formats.
    fn check_files(&self) -> Result<(), PlanCommandError> {
        let files = [("--trace", &self.trace), ("--svg", &self.svg), ("--html", &self.html)];
        let files = files.iter().filter_map(|(flag, path)| Some((*flag, path.as_ref()?)));
        let mut known: Vec<(&str, PathBuf)> = vec![];
        for (second, path) in files {
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            if let Some((first, _)) = known.iter().find(|(_, other)| *other == whole) {
                return Err(PlanCommandError::SameFile { first, second, path: path.clone() });
            }
            known.push((second, whole));
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), PlanCommandError> {
    in_folder(path)?;
    write_file(path, text)?;
    to_stderr(&format!("wrote {}", path.display()));
    Ok(())
}

/// Refuses a path in a folder that there is not.
fn in_folder(path: &Path) -> Result<(), PlanCommandError> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(PlanCommandError::NoFolder { path: path.into(), folder: folder.into() }),
        None => Ok(()),
    }
}

fn text(config: &Config, cluster: &Cluster, plan: &StepPlan) -> String {
    let figures = &plan.figures;
    let gpus = config.parallel.gpus;
    let nodes = count(cluster.nodes_of(gpus), "node");
    let place = match cluster.is_cpu() {
        true => {
            format!("{} on {nodes} of {}, {} cores each", count(gpus, "rank"), cluster.name, cluster.device.cpu_cores)
        }
        false => format!("{gpus} x {} ({nodes} of {})", cluster.name, cluster.devices_per_node),
    };
    let mut text = format!("{}: {} parameters, {place}\n", config.describe_model(), human(config.parameter_count()));
    let line = |name: &str, seconds: f64| {
        format!("  {name:<26}{:>10.2} ms{:>7.1}%\n", 1e3 * seconds, 100.0 * seconds / figures.time.step)
    };
    text += &format!(
        "\nstep{:>34.2} ms   {} tokens, {} tokens/s, {} per rank, {:.1}% MFU\n",
        1e3 * figures.time.step,
        human(figures.tokens_per_step),
        human(figures.tokens_per_second as usize),
        human((figures.tokens_per_second / gpus as f64) as usize),
        100.0 * figures.mfu,
    );
    text += &line("computation", figures.time.compute);
    for (axes, seconds) in &figures.time.exposed {
        text += &line(&format!("waiting for {axes}"), *seconds);
    }
    text += &line("waiting for stages", figures.time.bubble);
    if config.parallel.cpu_offload && !cluster.is_cpu() {
        text += "  parallel.cpu_offload: its transfers are not included, nor that the optimizer runs on the CPU\n";
    }
    text += &format!(
        "\nmemory of {}: {} of {}\n",
        if cluster.is_cpu() { "the ranks of a node" } else { "the fullest device" },
        bytes(figures.memory.most),
        bytes(cluster.device.memory as usize)
    );
    for (name, count) in &figures.memory.rows {
        text += &format!("  {name:<26}{:>13}\n", bytes(*count));
    }
    if !figures.memory.fits {
        let over = figures.memory.most - cluster.device.memory as usize;
        text += &format!("  This does not fit: {} too much.\n", bytes(over));
    }
    text
}
