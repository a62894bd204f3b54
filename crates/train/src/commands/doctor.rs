//! `train doctor`: the likely cause of a failure or hang.

use crate::atomic_write::read_regular;
use crate::commands::saved::SavedError;
use crate::error::TrainError;
use crate::format::count;
use crate::run::flight::{last_records, written};
use crate::run::folder::{RUNS, RunFolder, config_in};
use crate::terminal::{say, to_stderr};
use checkpoint::Folder;
use chrono::{DateTime, SecondsFormat};
use clap::Args;
use comm::flight::{Finding, FlightRecord, diagnose};
use comm::rank_list;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Name the likely cause of a run that fails, hangs or is slow. Compares the ranks' last calls, which they record on a
/// failure, a timeout or SIGUSR1, and reads the metrics.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The run's folder
    run: PathBuf,
}

/// Number of last steps whose times are looked at.
const STEPS: usize = 20;
/// The share of the time that steps may spend waiting for data or a checkpoint.
const SHARE: f64 = 0.2;
/// Seconds without progress after which ranks are likely stuck.
const SILENT: f64 = 5.0;
/// Number of last events that are shown.
const EVENTS: usize = 5;

pub fn run(args: &DoctorArgs) -> Result<(), SavedError> {
    let folder = RunFolder::at(&args.run);
    if !folder.metrics().is_file() {
        let among_runs = Path::new(RUNS).join(&args.run);
        let hint = match RunFolder::at(&among_runs).metrics().is_file() {
            true => format!("did you mean {}?", among_runs.display()),
            false => format!("give a run's folder, with metrics.jsonl ({RUNS}/ has those without --out)"),
        };
        return Err(SavedError::NoRun { path: args.run.clone(), hint });
    }
    let metrics =
        read_regular(&folder.metrics()).map_err(|source| TrainError::Metrics { path: folder.metrics(), source });
    let metrics = Metrics::of(&String::from_utf8_lossy(&metrics?));
    say_state(&args.run, &metrics)?;
    let (records, errors) = last_records(&folder);
    errors.iter().for_each(|error| to_stderr(&format!("warning: {error}")));
    match records.is_empty() {
        true => say(
            "The ranks have recorded no calls: they do at a failure, at a timeout, and when their process gets SIGUSR1 \
             (`kill -USR1 PID`).",
        ),
        false => say_records(&records, &metrics),
    }
    metrics.slow().iter().for_each(|line| say(line));
    Ok(())
}

/// Says how far the run is, and what has happened to it.
fn say_state(run: &Path, metrics: &Metrics) -> Result<(), TrainError> {
    let of = config_in(run).map_or(String::new(), |config| format!(" of {}", config.train.steps));
    let checkpoint = match Folder::of_run(run).latest()? {
        Some(path) => format!("the newest checkpoint is {}", path.display()),
        None => "there is no checkpoint".into(),
    };
    say(&format!("{}: {}{of} made, and {checkpoint}", run.display(), count(metrics.steps, "step")));
    let first = metrics.events.len().saturating_sub(EVENTS);
    metrics.events[first..].iter().for_each(|(step, event)| say(&format!("  step {step}: {event}")));
    Ok(())
}

/// Says what the ranks' records tell.
fn say_records(records: &[FlightRecord], metrics: &Metrics) {
    let at = DateTime::from_timestamp_millis((written(records) * 1e3) as i64).unwrap_or_default();
    let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let step = records.iter().filter_map(|record| record.place.as_ref()).map(|place| place.step).max().unwrap_or(0);
    let since = match metrics.steps.saturating_sub(step as usize) {
        0 => String::new(),
        steps => format!("; the run has made {} since", count(steps, "step")),
    };
    let numbers: Vec<usize> = records.iter().map(|record| record.rank).collect();
    let of =
        if records.len() == records[0].world_size { String::new() } else { format!(" of {}", records[0].world_size) };
    say(&format!("The last calls of {}{of}, recorded at {at} in step {step}{since}:", rank_list(&numbers)));
    let findings = diagnose(records).findings;
    let is_healthy = findings.contains(&Finding::Healthy);
    for (i, finding) in findings.iter().enumerate() {
        let likely = if i == 0 && !is_healthy { "likely cause: " } else { "" };
        say(&format!("  {likely}{finding}"));
    }
    // Nobody waits for a rank if all are stuck.
    let silent = records.iter().map(|record| record.silence).fold(f64::INFINITY, f64::min);
    if is_healthy && silent > SILENT {
        let place = records[0].place.as_ref().map_or(String::new(), |place| format!(" ({})", place.what));
        say(&format!(
            "  but no rank had made any progress for {silent:.0} s or longer{place}: look at what they do there"
        ));
    }
    let waits = |what: &str| -> Vec<usize> {
        let is_there = |record: &&FlightRecord| record.place.as_ref().is_some_and(|place| place.what == what);
        records.iter().filter(is_there).map(|record| record.rank).collect()
    };
    let waiting = waits("waiting for data");
    if !is_healthy && !waiting.is_empty() && waiting.len() < records.len() {
        say(&format!(
            "  {} waited for data: its file system is slow or does not answer, or another program uses it",
            rank_list(&waiting)
        ));
    }
}

/// What the doctor reads of `metrics.jsonl`.
struct Metrics {
    /// The last step.
    steps: usize,
    events: Vec<(usize, String)>,
    /// The last steps: seconds in all, waiting for data, and for a checkpoint.
    seconds: Vec<[f64; 3]>,
}

impl Metrics {
    fn of(text: &str) -> Self {
        let mut metrics = Self { steps: 0, events: vec![], seconds: vec![] };
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let step = line["step"].as_u64().unwrap_or(0) as usize;
            if let Some(event) = line["event"].as_str().filter(|event| !event.starts_with("saved ")) {
                metrics.events.push((step, event.into()));
            }
            if line.get("loss").is_some() {
                metrics.steps = step;
                let keys = ["step_seconds", "data_wait_seconds", "checkpoint_seconds"];
                metrics.seconds.push(keys.map(|key| line[key].as_f64().unwrap_or(0.0)));
            }
        }
        let first = metrics.seconds.len().saturating_sub(STEPS);
        metrics.seconds.drain(..first);
        metrics
    }

    /// Says what the last steps waited for.
    fn slow(&self) -> Vec<String> {
        let sum = |i: usize| self.seconds.iter().map(|seconds| seconds[i]).sum::<f64>();
        let whole = sum(0);
        let causes = [
            (
                1,
                "data: look at the disk or network file system that holds them, or prepare them once (`train prepare`)",
            ),
            (2, "checkpoints: look at the disk that holds the run, or save less often (checkpoint.every)"),
        ];
        let slow = causes.into_iter().filter(|(i, _)| sum(*i) > SHARE * whole);
        slow.map(|(i, what)| {
            let (share, steps) = (100.0 * sum(i) / whole, count(self.seconds.len(), "step"));
            format!("The last {steps} spent {share:.0}% of their time waiting for {what}.")
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_waits_for_its_data_is_told_so() {
        let line = |step: usize, data: f64| {
            format!("{{\"step\":{step},\"loss\":1.0,\"step_seconds\":2.0,\"data_wait_seconds\":{data}}}\n")
        };
        let text: String = (1..=30).map(|step| line(step, if step <= 10 { 0.0 } else { 1.0 })).collect();
        let metrics =
            Metrics::of(&(text + "{\"step\":30,\"event\":\"restart 1 of 2\"}\n{\"step\":30,\"event\":\"saved x\"}\n"));
        assert_eq!((metrics.steps, &metrics.events[..]), (30, &[(30, "restart 1 of 2".into())][..]));
        let slow = metrics.slow();
        assert_eq!(slow.len(), 1);
        assert!(slow[0].starts_with("The last 20 steps spent 50% of their time waiting for data"), "{slow:?}");
        assert!(Metrics::of(&line(1, 0.1)).slow().is_empty());
    }
}
