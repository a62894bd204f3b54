//! `train profile`: the measured timeline of a run's ranks.

use crate::atomic_write::write_whole;
use crate::error::TrainError;
use crate::format::count;
use crate::output::{self, OutputError, check_different};
use crate::run::folder::config_in;
use crate::terminal::say;
use crate::trainer::profile::RankProfile;
use clap::Args;
use plan::{Activity, Span, Timeline};
use schedule::Op;
use std::fs;
use std::path::{Path, PathBuf};

/// Draw the timeline of a run's ranks, which it measured with --set metrics.profile_steps=N
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// The run's folder
    run: PathBuf,
    /// The step to show; the last one that was timed by default
    #[arg(long)]
    step: Option<usize>,
    /// Write it in Chrome's trace format, which ui.perfetto.dev opens, instead of to profile/trace.json
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw it as SVG, instead of to profile/timeline.svg
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("there is no folder {}", .0.display())]
    NoRun(PathBuf),
    #[error("{} has no profile: run it with --set metrics.profile_steps=3", .0.display())]
    NoProfile(PathBuf),
    #[error("{} has no profile of rank {rank} of {of}: copy its file from where the rank ran, or profile the run again", run.display())]
    MissingRank { run: PathBuf, rank: usize, of: usize },
    #[error("{}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("not all ranks have timed step {step}: give one of {known}")]
    NoStep { step: usize, known: String },
    #[error("the ranks of {} have timed no step together: profile the run again", .0.display())]
    NoStepOfAll(PathBuf),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

pub fn run(args: &ProfileArgs) -> Result<(), ProfileError> {
    let folder = RankProfile::folder(&args.run);
    let files = [("--trace", &args.trace, "trace.json"), ("--svg", &args.svg, "timeline.svg")];
    let at = files.map(|(_, given, default)| given.clone().unwrap_or_else(|| folder.join(default)));
    check_different(&[("--trace", Some(&at[0])), ("--svg", Some(&at[1]))])?;
    let ranks = profiles(&folder, &args.run)?;
    let has = |rank: &RankProfile, step| rank.steps.iter().any(|profile| profile.step == step);
    let steps = ranks[0].steps.iter().map(|step| step.step);
    let steps: Vec<usize> = steps.filter(|step| ranks.iter().all(|rank| has(rank, *step))).collect();
    let last = *steps.last().ok_or_else(|| ProfileError::NoStepOfAll(args.run.clone()))?;
    let step = args.step.unwrap_or(last);
    let timeline = timeline(&ranks, step).ok_or_else(|| {
        let known: Vec<String> = steps.iter().map(usize::to_string).collect();
        ProfileError::NoStep { step, known: known.join(", ") }
    })?;
    let summary = timeline.summary();
    let line = |name: &str, seconds: f64| {
        format!("\n  {name:<26}{:>10.2} ms{:>7.1}%", 1e3 * seconds, 100.0 * seconds / summary.step)
    };
    let title = format!("step {step} of {}", count(ranks.len(), "rank"));
    let mut text = format!("{title:<28}{:>10.2} ms", 1e3 * summary.step);
    text += &line("operations", summary.compute);
    for (name, seconds) in &summary.exposed {
        text += &line(&format!("waiting for {name}"), *seconds);
    }
    text += &line("waiting for stages", summary.bubble);
    let known = summary.compute + summary.bubble + summary.exposed.iter().map(|(_, seconds)| seconds).sum::<f64>();
    text += &line("between operations", (summary.step - known).max(0.0));
    say(&text);
    let contents = [timeline.chrome_trace().to_string(), timeline.svg()];
    for ((path, contents), (_, given, _)) in at.into_iter().zip(contents).zip(files) {
        match given {
            Some(path) => output::write(path, &contents)?,
            None => {
                let written = write_whole(&path, |path| fs::write(path, &contents));
                written.map_err(|source| ProfileError::Write { path: path.clone(), source })?;
            }
        }
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// Reads the profiles of all ranks, in their order.
fn profiles(folder: &Path, run: &Path) -> Result<Vec<RankProfile>, ProfileError> {
    let unreadable = |path: &Path, reason: String| ProfileError::Unreadable { path: path.into(), reason };
    let mut ranks = vec![];
    if !run.is_dir() {
        return Err(ProfileError::NoRun(run.into()));
    }
    for entry in fs::read_dir(folder).map_err(|_| ProfileError::NoProfile(run.into()))? {
        let path = entry.map_err(|error| unreadable(folder, error.to_string()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("rank-") && name.ends_with(".json") {
            let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, error.to_string()))?;
            let rank: RankProfile =
                serde_json::from_str(&text).map_err(|error| unreadable(&path, error.to_string()))?;
            ranks.push(rank);
        }
    }
    ranks.sort_by_key(|rank| rank.rank);
    if ranks.is_empty() {
        return Err(ProfileError::NoProfile(run.into()));
    }
    // A run that goes on with fewer ranks leaves the files of the others.
    let of = config_in(run)?.parallel.gpus;
    ranks.retain(|rank| rank.rank < of);
    match (0..of).find(|rank| ranks.get(*rank).is_none_or(|profile| profile.rank != *rank)) {
        Some(rank) => Err(ProfileError::MissingRank { run: run.into(), rank, of }),
        None => Ok(ranks),
    }
}

/// The timeline of a step, which begins when the first rank begins it; `None` if a rank has not timed it.
fn timeline(ranks: &[RankProfile], step: usize) -> Option<Timeline> {
    let of_ranks = ranks.iter().map(|rank| rank.steps.iter().find(|profile| profile.step == step));
    let of_ranks = of_ranks.collect::<Option<Vec<_>>>()?;
    let begin = of_ranks.iter().map(|profile| profile.started).fold(f64::INFINITY, f64::min);
    let spans = of_ranks.iter().enumerate().flat_map(|(i, profile)| {
        let late = profile.started - begin;
        profile.operations.iter().map(move |timed| Span {
            rank: i,
            start: late + timed.start,
            end: late + timed.end,
            activity: activity(timed.op),
            op: timed.op,
        })
    });
    let numbers = ranks.iter().map(|rank| (rank.rank, rank.stage)).collect();
    Some(Timeline::measured(numbers, vec!["gathers and reductions".into()], spans.collect()))
}

/// What a rank does in an operation. A run of a call that waits for its parameters counts as computation.
fn activity(op: Op) -> Activity {
    match op {
        Op::Recv { .. } | Op::Tie { .. } => Activity::Bubble,
        Op::Reduce { sends: false, .. } => Activity::Compute,
        Op::Gather { .. } | Op::Reduce { .. } | Op::Scatter { .. } | Op::Wait { .. } | Op::Send { .. } => {
            Activity::Exposed(0)
        }
        _ => Activity::Compute,
    }
}
