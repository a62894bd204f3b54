//! What was planned for a run, beside what it measured.

use super::PlanCommandError;
use crate::config::Config;
use crate::error::TrainError;
use crate::format::bytes;
use crate::plan::layout::shares;
use crate::plan::memory_check::forecast;
use crate::plan::step_plan::StepPlan;
use crate::run::folder::{RunFolder, config_in};
use fsdp::Category;
use plan::Cluster;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
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

/// Returns a table of planned and measured figures.
pub fn compare(run: &Path, cluster: &Cluster) -> Result<String, PlanCommandError> {
    let config = config_in(run)?;
    let metrics = RunFolder::at(run).metrics();
    let text = fs::read_to_string(&metrics).map_err(|source| TrainError::RunFolder { path: metrics, source })?;
    let measured = Measured::read(&text);
    let on_cpu = text.lines().find_map(|line| Some(json(line)?["device"].as_str()? == "cpu")).unwrap_or(true);
    if on_cpu != cluster.is_cpu() {
        let of = |cpu| if cpu { "the CPU" } else { "GPUs" };
        return Err(PlanCommandError::OtherDevice { run: of(on_cpu), cluster: cluster.name.clone(), has: of(!on_cpu) });
    }
    if measured.steps.is_empty() {
        return Err(PlanCommandError::NoSteps(run.into()));
    }
    let mut config = config;
    super::on_cluster(&mut config, cluster);
    let figures = StepPlan::new(&config, cluster)?.figures;
    let mut text = format!("{:<34}{:>12}{:>12}{:>12}\n", "", "planned", "measured", "difference");
    let mut row = |name: &str, planned: f64, measured: f64, show: &dyn Fn(f64) -> String| {
        let difference = match (100.0 * (planned / measured - 1.0)).round() {
            _ if measured <= 0.0 => "-".into(),
            0.0 => "0%".into(),
            percent => format!("{percent:+.0}%"),
        };
        text += &format!("{name:<34}{:>12}{:>12}{difference:>12}\n", show(planned), show(measured));
    };
    let step = measured.step();
    row("step", figures.time.step, step, &|seconds| format!("{:.1} ms", 1e3 * seconds));
    let tokens = figures.tokens_per_step as f64;
    row("tokens/s", tokens / figures.time.step, tokens / step, &|rate| format!("{rate:.0}"));
    if !measured.waits.is_empty() {
        let waits = measured.waits.iter().sum::<f64>() / measured.waits.len() as f64;
        row("waiting for stages", figures.time.bubble / figures.time.step, waits, &|part| {
            format!("{:.0}%", 100.0 * part)
        });
    }
    let size = |count: f64| bytes(count as usize);
    let memory = forecast(&balanced(&config), 0).memory;
    for category in Category::ALL {
        let (planned, measured) = (memory.peak[category] as f64, measured.memory.get(category.name()).copied());
        row(&format!("{}, peak of rank 0", category.name()), planned, measured.unwrap_or(0.0), &size);
    }
    for (name, planned) in received(&config) {
        row(&format!("{name}, received in a step"), planned, measured.received(name), &size);
    }
    Ok(text.trim_end().into())
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
        let mut usages = vec![];
        for line in text.lines().filter_map(json) {
            if let Some(seconds) = line["step_seconds"].as_f64() {
                found.steps.push(seconds);
            }
            if line["memory"].is_object() {
                found.memory = numbers(&line["memory"], "peak");
                usages.push((line["step"].as_f64().unwrap_or(1.0), numbers(&line["traffic"], "bytes")));
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
