//! One run as the page shows it.

use crate::ReportError;
use crate::config::{self, Entries};
use crate::lines::Step;
use crate::loads::{Loads, loads};
use crate::log::Log;
use crate::series::{POINTS, Rounded, Series, median};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A step whose loss or gradient norm is that many standard deviations above recent steps is marked.
const SPIKE: f64 = 4.0;
/// The most marks of a run in a plot: beyond, they hide it.
const SPIKES: usize = 100;
/// The most events of a run.
const EVENTS: usize = 500;

/// What the page's script reads of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub name: String,
    pub model: Option<String>,
    pub parameters: Option<u64>,
    /// The last step, and how many there are to be.
    pub step: Option<u64>,
    pub steps: Option<u64>,
    pub ranks: Option<u64>,
    pub tokens: Rounded,
    pub seconds: Rounded,
    /// The mean of the last fiftieth of the steps: one batch's loss says little.
    pub loss: Rounded,
    pub val_loss: Rounded,
    /// Medians.
    pub tokens_per_second: Option<Rounded>,
    pub tflops: Option<Rounded>,
    pub mfu: Option<Rounded>,
    /// Share of the time of all steps that went into waiting for data.
    pub data_wait: Rounded,
    pub skipped: usize,
    /// Seconds spent on checkpoints.
    pub saving: Rounded,
    pub checkpoints: Vec<String>,
    pub notes: Vec<String>,
    pub axis: Axis,
    pub series: BTreeMap<&'static str, Series>,
    pub spikes: BTreeMap<&'static str, Vec<Spike>>,
    pub events: Vec<(u64, String)>,
    /// Category, bytes at rest, bytes at most.
    pub memory: Vec<(String, Rounded, Rounded)>,
    pub device: Option<(Rounded, Rounded)>,
    /// Collective, calls, bytes, seconds.
    pub traffic: Vec<(String, Rounded, Rounded, Rounded)>,
    pub experts: Vec<Loads>,
    pub config: Entries,
}

/// Tokens and wall time at some steps; what lies between is interpolated.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Axis {
    pub step: Vec<u64>,
    pub tokens: Vec<Rounded>,
    pub seconds: Vec<Rounded>,
}

/// A value far above those before it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spike {
    pub step: u64,
    pub value: Rounded,
    pub z: Rounded,
}

impl Run {
    /// Reads a run's folder.
    pub fn read(folder: &Path, name: String) -> Result<Self, ReportError> {
        if !folder.is_dir() {
            return Err(ReportError::NotAFolder { path: folder.to_owned() });
        }
        let mut log = Log::read(&folder.join("metrics.jsonl"))?;
        let config = read_config(folder, &mut log.notes);
        Ok(Self::new(name, log, config, checkpoints(folder)))
    }

    fn new(name: String, log: Log, config: Entries, checkpoints: Vec<String>) -> Self {
        let steps = &log.steps;
        let last = steps.last();
        let total = |of: fn(&Step) -> f64| steps.iter().map(of).filter(|v| v.is_finite()).sum::<f64>();
        let median = |of: fn(&Step) -> f64| median(steps.iter().map(of)).map(Rounded);
        let whole = |key| config::get(&config, key).and_then(|value| value.parse().ok());
        let events = log.events.len();
        let mut notes = log.notes.clone();
        if events > EVENTS {
            notes.push(format!("{events} events; the last {EVENTS} are shown"));
        }
        Self {
            name,
            model: config::model(&config),
            parameters: log.parameters,
            step: last.map(|step| step.step).or(log.validations.last().map(|(step, _)| *step)),
            steps: whole("train.steps"),
            ranks: whole("parallel.gpus"),
            tokens: Rounded(last.map_or(f64::NAN, |step| step.tokens)),
            seconds: Rounded(log.seconds.last().copied().unwrap_or(f64::NAN)),
            loss: Rounded(final_loss(steps)),
            val_loss: Rounded(log.validations.last().map_or(f64::NAN, |(_, loss)| *loss)),
            tokens_per_second: median(|step| step.tokens_per_second),
            tflops: median(|step| step.tflops),
            mfu: median(|step| step.mfu),
            data_wait: Rounded(data_wait(steps)),
            skipped: steps.iter().filter(|step| step.skipped).count(),
            saving: Rounded(total(|step| step.checkpoint_seconds)),
            checkpoints,
            notes,
            axis: Axis::new(&log),
            series: series(&log),
            spikes: BTreeMap::from([
                ("loss", spikes(steps, |step| (step.loss, step.loss_z))),
                ("grad_norm", spikes(steps, |step| (step.grad_norm, step.grad_norm_z))),
            ]),
            events: log.events[events.saturating_sub(EVENTS)..].to_vec(),
            memory: log.memory.iter().map(|(name, m)| (name.clone(), Rounded(m.at_rest), Rounded(m.peak))).collect(),
            device: log.device.map(|(in_use, reserved)| (Rounded(in_use), Rounded(reserved))),
            traffic: log
                .traffic
                .iter()
                .map(|(name, t)| (name.clone(), Rounded(t.calls), Rounded(t.bytes), Rounded(t.seconds)))
                .collect(),
            experts: loads(&log.experts),
            config,
        }
    }
}

impl Axis {
    fn new(log: &Log) -> Self {
        let (len, stride) = (log.steps.len(), log.steps.len().div_ceil(POINTS / 2).max(1));
        let mut kept: Vec<_> = (0..len).step_by(stride).collect();
        if kept.last().is_some_and(|&index| index + 1 < len) {
            kept.push(len - 1);
        }
        Self {
            step: kept.iter().map(|&index| log.steps[index].step).collect(),
            tokens: kept.iter().map(|&index| Rounded(log.steps[index].tokens)).collect(),
            seconds: kept.iter().map(|&index| Rounded(log.seconds[index])).collect(),
        }
    }
}

/// All series that have a value.
fn series(log: &Log) -> BTreeMap<&'static str, Series> {
    let steps: Vec<_> = log.steps.iter().map(|step| step.step).collect();
    let of = |value: fn(&Step) -> f64| {
        let values: Vec<_> = log.steps.iter().map(value).collect();
        Series::new(&steps, &values, POINTS)
    };
    let (val_steps, val_losses): (Vec<_>, Vec<_>) = log.validations.iter().copied().unzip();
    let mut series = BTreeMap::from([
        ("loss", of(|step| step.loss)),
        ("aux_loss", of(|step| step.aux_loss)),
        ("lr", of(|step| step.lr)),
        ("grad_norm", of(|step| step.grad_norm)),
        ("tokens_per_second", of(|step| step.tokens_per_second)),
        ("step_seconds", of(|step| step.step_seconds)),
        ("data_wait_seconds", of(|step| step.data_wait_seconds)),
        ("tflops", of(|step| step.tflops)),
        ("mfu", of(|step| step.mfu * 100.0)),
        ("val_loss", Series::new(&val_steps, &val_losses, POINTS)),
    ]);
    series.retain(|_, series| !series.is_empty());
    // A model without a balance loss reports zeros.
    if series.get("aux_loss").is_some_and(|aux| aux.value.iter().all(|v| v.0 == 0.0)) {
        series.remove("aux_loss");
    }
    series
}

/// The mean loss of the last fiftieth of the steps, at least of the last.
fn final_loss(steps: &[Step]) -> f64 {
    let last = &steps[steps.len() - (steps.len() / 50).max(1).min(steps.len())..];
    let finite: Vec<_> = last.iter().map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
    finite.iter().sum::<f64>() / finite.len() as f64
}

/// What waiting for data took of the steps that tell it.
fn data_wait(steps: &[Step]) -> f64 {
    let told = steps.iter().filter(|step| step.data_wait_seconds.is_finite() && step.step_seconds.is_finite());
    let (wait, all) = told.fold((0.0, 0.0), |(w, a), step| (w + step.data_wait_seconds, a + step.step_seconds));
    wait / all
}

/// The steps far above those before them; of very many, the farthest.
fn spikes(steps: &[Step], of: fn(&Step) -> (f64, f64)) -> Vec<Spike> {
    let spike = |step: &Step| {
        let (value, z) = of(step);
        (z >= SPIKE && value.is_finite()).then_some(Spike { step: step.step, value: Rounded(value), z: Rounded(z) })
    };
    let mut spikes: Vec<_> = steps.iter().filter_map(spike).collect();
    spikes.sort_by(|a, b| b.z.0.total_cmp(&a.z.0));
    spikes.truncate(SPIKES);
    spikes.sort_by_key(|spike| spike.step);
    spikes
}

/// The configuration; a run without one is still worth a page.
fn read_config(folder: &Path, notes: &mut Vec<String>) -> Entries {
    let entries = fs::read_to_string(folder.join("config.yaml")).map_err(|e| e.to_string());
    entries.and_then(|text| config::entries(&text)).unwrap_or_else(|error| {
        notes.push(format!("config.yaml: {error}"));
        vec![]
    })
}

/// The names of the checkpoints, by step.
fn checkpoints(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder.join("checkpoints")) else { return vec![] };
    let step = |name: &str| name.strip_prefix("step-").and_then(|step| step.parse::<u64>().ok());
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter_map(|name| Some((step(&name)?, name))).collect();
    names.sort();
    names.into_iter().map(|(_, name)| name).collect()
}
