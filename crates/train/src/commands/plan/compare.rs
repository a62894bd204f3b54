//! What was planned for a run, beside what it measured.

use super::PlanCommandError;
use crate::config::Config;
use crate::format::bytes;
use crate::plan::layout::shares;
use crate::plan::memory_check::forecast;
use crate::plan::step_plan::StepPlan;
use crate::run::folder::{RunFolder, config_in};
use ::report::{Planned, Unit};
use fsdp::Category;
use plan::Cluster;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What rank 0 of a run has written.
#[derive(Default)]
struct Measured {
    /// Seconds of its steps but the first.
    steps: Vec<f64>,
    /// Peak bytes by category.
    memory: BTreeMap<String, f64>,
    /// Bytes received by collective, at two steps or one.
    received: Vec<(f64, BTreeMap<String, f64>)>,
    /// The parts of a step that stages wait.
    waits: Vec<f64>,
}

/// Returns planned and measured figures of a run.
pub fn compare(run: &Path, cluster: &Cluster) -> Result<Vec<Planned>, PlanCommandError> {
    let mut config = config_in(run)?;
    let path = RunFolder::at(run).metrics();
    let text = fs::read_to_string(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => PlanCommandError::NoSteps(run.into()),
        _ => PlanCommandError::Read { path, source },
    })?;
    if !text.trim().is_empty() && text.lines().all(|line| json(line).is_none()) {
        return Err(PlanCommandError::NoMetrics(RunFolder::at(run).metrics()));
    }
    let measured = Measured::read(&text);
    let on_cpu = text.lines().find_map(|line| Some(json(line)?["device"].as_str()? == "cpu")).unwrap_or(true);
    if on_cpu != cluster.is_cpu() {
        let of = |cpu| if cpu { "the CPU" } else { "GPUs" };
        return Err(PlanCommandError::OtherDevice { run: of(on_cpu), cluster: cluster.name.clone(), has: of(!on_cpu) });
    }
    if measured.steps.is_empty() {
        return Err(PlanCommandError::NoSteps(run.into()));
    }
    super::on_cluster(&mut config, cluster)?;
    let figures = StepPlan::new(&config, cluster)?.figures;
    let row = |name: &str, unit, planned, measured| Planned { name: name.into(), unit, planned, measured };
    let (step, tokens) = (measured.step(), figures.tokens_per_step as f64);
    let mut rows = vec![
        row("step", Unit::Seconds, figures.time.step, step),
        row("tokens", Unit::Rate, tokens / figures.time.step, tokens / step),
    ];
    if !measured.waits.is_empty() {
        let waits = measured.waits.iter().sum::<f64>() / measured.waits.len() as f64;
        rows.push(row("waiting for stages", Unit::Part, figures.time.bubble / figures.time.step, waits));
    }
    let memory = forecast(&balanced(&config), 0).memory;
    for category in Category::ALL {
        let (planned, measured) = (memory.peak[category] as f64, measured.memory.get(category.name()).copied());
        let name = format!("{}, peak of rank 0", category.name());
        rows.push(row(&name, Unit::Bytes, planned, measured.unwrap_or(0.0)));
    }
    for (name, planned) in received(&config) {
        rows.push(row(&format!("{name}, received in a step"), Unit::Bytes, planned, measured.received(name)));
    }
    Ok(rows)
}

/// A table of these figures.
pub fn table(rows: &[Planned]) -> String {
    let mut text = format!("{:<34}{:>12}{:>12}{:>12}", "", "planned", "measured", "difference");
    for Planned { name, unit, planned, measured } in rows {
        let show = |value: f64| match unit {
            Unit::Seconds => format!("{:.1} ms", 1e3 * value),
            Unit::Rate => format!("{value:.0}/s"),
            Unit::Part => format!("{:.0}%", 100.0 * value),
            Unit::Bytes => bytes(value as usize),
        };
        let difference = match (100.0 * (planned / measured - 1.0)).round() {
            _ if matches!(unit, Unit::Part) => format!("{:+.0} points", 100.0 * (planned - measured)),
            _ if *measured <= 0.0 => "-".into(),
            0.0 => "0%".into(),
            percent => format!("{percent:+.0}%"),
        };
        text += &format!("\n{name:<34}{:>12}{:>12}{difference:>12}", show(*planned), show(*measured));
    }
    text
}

/// What the figures do not tell.
pub fn note(rows: &[Planned]) -> Option<&'static str> {
    let sends_less = |row: &Planned| row.name.starts_with("all_to_all") && row.measured < 0.98 * row.planned;
    rows.iter().any(sends_less).then_some(
        "all_to_all: planned as if no expert drops a token; with moe.capacity_factor, dropped ones are not sent",
    )
}

/// Loads are nearly even in the first steps.
fn balanced(config: &Config) -> Config {
    let mut config = config.clone();
    config.moe.iter_mut().for_each(|moe| moe.max_rank_load = 1.0);
    config
}

/// Returns the bytes that rank 0 is to receive in a step, by collective.
fn received(config: &Config) -> BTreeMap<&'static str, f64> {
    let mut all = BTreeMap::new();
    for share in shares(config, &[0]).remove(0) {
        share.received.into_iter().for_each(|(name, bytes)| *all.entry(name).or_default() += bytes as f64);
    }
    all
}

fn json(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok()
}

impl Measured {
    /// Reads the lines of `metrics.jsonl`; an interrupted last one is skipped.
    fn read(text: &str) -> Self {
        let mut found = Self::default();
        let numbers = |value: &Value, key: &str| -> BTreeMap<String, f64> {
            let entries = value.as_object().into_iter().flatten();
            entries.filter_map(|(name, of)| Some((name.clone(), of[key].as_f64()?))).collect()
        };
        let (mut usages, mut start, mut starts) = (vec![], 0.0, None);
        for line in text.lines().filter_map(json) {
            if line["started"].is_string() {
                starts = Some(line["step"].as_f64().unwrap_or(0.0));
            }
            if let Some(seconds) = line["step_seconds"].as_f64() {
                // The first step of another process: what that has received is counted from its start.
                if let Some(step) = starts.take() {
                    (found, usages, start) = (Self::default(), vec![], step);
                }
                found.steps.push(seconds);
            }
            if line["memory"].is_object() {
                found.memory = numbers(&line["memory"], "peak");
                usages.push((line["step"].as_f64().unwrap_or(1.0) - start, numbers(&line["traffic"], "bytes")));
            }
            for stage in line["stages"].as_array().into_iter().flatten() {
                if let (Some(computes), Some(waits)) =
                    (stage["compute_seconds"].as_f64(), stage["wait_seconds"].as_f64())
                {
                    found.waits.push(waits / (computes + waits));
                }
            }
        }
        if found.steps.len() > 1 {
            found.steps.remove(0); // it initializes and warms up
        }
        // The first and the last: what is received once, at the start, does not count.
        found.received = match usages.len() {
            0 | 1 => usages,
            _ => vec![usages.swap_remove(0), usages.pop().expect("there are two")],
        };
        found
    }

    /// Returns the median seconds of a step.
    fn step(&self) -> f64 {
        let mut steps = self.steps.clone();
        steps.sort_by(f64::total_cmp);
        steps[steps.len() / 2]
    }

    /// Returns the bytes received in a step with this collective.
    fn received(&self, name: &str) -> f64 {
        let of = |(_, bytes): &(f64, BTreeMap<String, f64>)| bytes.get(name).copied().unwrap_or(0.0);
        match &self.received[..] {
            [first, last] if last.0 > first.0 => (of(last) - of(first)) / (last.0 - first.0),
            [only, ..] => of(only) / only.0,
            [] => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has begun and made no step leaves the figures of the one before.
    #[test]
    fn a_new_process_counts_from_its_first_step() {
        let step = |seconds: f64| format!("{{\"step\": 1, \"step_seconds\": {seconds}}}\n");
        let started = "{\"started\": \"2026-11-27\", \"step\": 2}\n";
        let first = [started, &step(9.0), &step(1.0), &step(1.0)].concat();
        assert_eq!(Measured::read(&first).steps, [1.0, 1.0]);
        assert_eq!(Measured::read(&[&first, started].concat()).steps, [1.0, 1.0]);
        assert_eq!(Measured::read(&[&first, started, &step(8.0), &step(2.0)].concat()).steps, [2.0]);
    }
}
