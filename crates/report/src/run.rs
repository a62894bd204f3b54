//! A run as the page shows it.

use crate::config::{self, Entries};
use crate::lines::{Setup, StageSeconds, StepLine};
use crate::loads::{Loads, loads};
use crate::log::{Log, SAVED};
use crate::marks::{Mark, Spike, marks, spikes};
use crate::pipeline::{self, medians};
use crate::planned::Planned;
use crate::series::{POINTS, Rounded, Series, median};
use crate::setup::setups;
use crate::verdict::{State, Verdict};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of samples of a run on the page, and of characters in one.
const SAMPLES: usize = 50;
const SAMPLE_CHARS: usize = 10_000;

/// What the page's script reads about a run.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub name: String,
    pub model: Option<String>,
    pub parameters: Option<u64>,
    pub verdict: Verdict,
    /// The last step, and the planned number of steps.
    pub step: Option<u64>,
    pub steps: Option<u64>,
    pub tokens: Rounded,
    pub seconds: Rounded,
    /// The mean of the last fiftieth of the steps, because one batch's loss says little.
    pub loss: Rounded,
    pub val_loss: Rounded,
    /// Step and loss of the best validation.
    pub best_val: Option<(u64, Rounded)>,
    /// Medians over the steps.
    pub tokens_per_second: Option<Rounded>,
    pub flops: Option<Rounded>,
    pub mfu: Option<Rounded>,
    /// Fraction of the time of all steps spent waiting for data.
    pub data_wait: Rounded,
    pub skipped: usize,
    /// Seconds spent on checkpoints.
    pub saving: Rounded,
    /// Number of checkpoints saved.
    pub saved: usize,
    /// Names of the checkpoints that were kept.
    pub checkpoints: Vec<String>,
    pub notes: Vec<String>,
    /// Seconds since 1970 at the last line.
    pub written: Option<u64>,
    /// How the run was set up, once per change.
    pub setups: Vec<Setup>,
    /// Step and text.
    pub samples: Vec<(u64, String)>,
    pub axis: Axis,
    pub series: BTreeMap<&'static str, Series>,
    /// Losses of each validation set, if there are several.
    pub val_losses: BTreeMap<String, Series>,
    pub spikes: BTreeMap<&'static str, Vec<Spike>>,
    pub marks: Vec<Mark>,
    /// Category, bytes at rest, peak bytes.
    pub memory: Vec<(String, Rounded, Rounded)>,
    pub device: Option<(Rounded, Rounded)>,
    /// Collective, calls, bytes, seconds.
    pub traffic: Vec<(String, Rounded, Rounded, Rounded)>,
    /// For each pipeline stage, medians over the reported steps: seconds of computing, and the fraction of time spent
    /// waiting.
    pub stages: Vec<(Rounded, Rounded)>,
    /// The timeline of these stages.
    pub pipeline: Option<pipeline::PipelineStep>,
    pub planned: Vec<Planned>,
    pub experts: Vec<Loads>,
    pub config: Entries,
}

/// Tokens and wall time at some steps. Values in between are interpolated.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Axis {
    pub step: Vec<u64>,
    pub tokens: Vec<Rounded>,
    pub seconds: Vec<Rounded>,
}

impl Run {
    /// `written` is the time of the last line of the metrics in seconds since 1970; `state` says whether more may
    /// follow.
    pub fn new(
        name: &str,
        log: &Log,
        config: &Entries,
        checkpoints: &[String],
        notes: Vec<String>,
        written: Option<u64>,
        state: State,
    ) -> Self {
        let (steps, stages) = (&log.steps, medians(&log.stages));
        let total = |of: fn(&StepLine) -> f64| steps.iter().map(of).filter(|v| v.is_finite()).sum::<f64>();
        let median = |of: fn(&StepLine) -> f64| median(steps.iter().map(of)).map(Rounded);
        let finite = log.validations.iter().filter(|(_, loss)| loss.is_finite());
        let best_val = finite.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(step, loss)| (*step, Rounded(*loss)));
        Self {
            name: name.to_owned(),
            model: config::model(config),
            parameters: log.parameters,
            verdict: Verdict::new(log, planned(config), state),
            step: log.last_step(),
            steps: planned(config),
            tokens: Rounded(steps.last().map_or(f64::NAN, |step| step.tokens)),
            seconds: Rounded(log.seconds.last().copied().unwrap_or(f64::NAN)),
            loss: Rounded(final_loss(steps)),
            val_loss: Rounded(log.validations.last().map_or(f64::NAN, |(_, loss)| *loss)),
            best_val,
            tokens_per_second: median(|step| step.tokens_per_second),
            flops: median(|step| step.tflops * 1e12),
            mfu: median(|step| step.mfu),
            data_wait: Rounded(data_wait(steps)),
            skipped: steps.iter().filter(|step| step.skipped).count(),
            saving: Rounded(total(|step| step.checkpoint_seconds)),
            saved: saved(log).max(checkpoints.len()),
            checkpoints: checkpoints.to_vec(),
            notes,
            written,
            setups: setups(log, config),
            samples: samples(&log.samples),
            axis: Axis::new(log),
            series: series(log),
            val_losses: log
                .validations_of_sets
                .iter()
                .map(|(name, of_set)| (name.clone(), of_validations(of_set)))
                .collect(),
            spikes: BTreeMap::from([
                ("loss", spikes(steps, |step| (step.loss, step.loss_z))),
                ("grad_norm", spikes(steps, |step| (step.grad_norm, step.grad_norm_z))),
            ]),
            marks: marks(log),
            memory: log.memory.iter().map(|(name, m)| (name.clone(), Rounded(m.at_rest), Rounded(m.peak))).collect(),
            device: log.device.map(|(in_use, reserved)| (Rounded(in_use), Rounded(reserved))),
            traffic: log
                .traffic()
                .into_iter()
                .map(|(name, t)| (name, Rounded(t.calls), Rounded(t.bytes), Rounded(t.seconds)))
                .collect(),
            stages: stages.iter().map(stage).collect(),
            pipeline: pipeline::PipelineStep::new(config, log.setups.last(), &stages),
            planned: vec![],
            experts: loads(&log.experts),
            config: config.clone(),
        }
    }
}

/// The planned number of steps.
pub(crate) fn planned(config: &Entries) -> Option<u64> {
    config::get(config, "train.steps").and_then(|steps| steps.parse().ok())
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

/// Number of steps after which a checkpoint was saved.
fn saved(log: &Log) -> usize {
    let steps = log.events.iter().filter(|(_, text)| text.starts_with(SAVED)).map(|(step, _)| step);
    steps.collect::<BTreeSet<_>>().len()
}

/// At most [`SAMPLES`] samples, spread from the first to the last, each cut to [`SAMPLE_CHARS`] characters.
fn samples(all: &[(u64, String)]) -> Vec<(u64, String)> {
    let kept = all.len().min(SAMPLES);
    let at = |index: usize| if kept < 2 { index } else { index * (all.len() - 1) / (kept - 1) };
    let short = |text: &str| match text.char_indices().nth(SAMPLE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    (0..kept).map(|index| &all[at(index)]).map(|(step, text)| (*step, short(text))).collect()
}

/// Seconds of computing, and the fraction of waiting.
fn stage(of: &StageSeconds) -> (Rounded, Rounded) {
    (Rounded(of.computing), Rounded(of.waiting / (of.computing + of.waiting)))
}

/// The mean waiting fraction of all stages, in percent.
fn bubble(stages: &[StageSeconds]) -> f64 {
    stages.iter().map(|of| 100.0 * stage(of).1.0).sum::<f64>() / stages.len() as f64
}

/// All series that have a value.
fn series(log: &Log) -> BTreeMap<&'static str, Series> {
    let steps: Vec<_> = log.steps.iter().map(|step| step.step).collect();
    let of = |value: fn(&StepLine) -> f64| {
        let values: Vec<_> = log.steps.iter().map(value).collect();
        Series::new(&steps, &values, POINTS)
    };
    let (stage_steps, bubbles): (Vec<_>, Vec<_>) =
        log.stages.iter().map(|(step, stages)| (*step, bubble(stages))).unzip();
    let mut series = BTreeMap::from([
        ("bubble", Series::new(&stage_steps, &bubbles, POINTS)),
        ("loss", of(|step| step.loss)),
        ("aux_loss", of(|step| step.aux_loss)),
        ("lr", of(|step| step.lr)),
        ("grad_norm", of(|step| step.grad_norm)),
        ("tokens_per_second", of(|step| step.tokens_per_second)),
        ("step_seconds", of(|step| step.step_seconds)),
        ("data_wait_seconds", of(|step| step.data_wait_seconds)),
        ("flops", of(|step| step.tflops * 1e12)),
        ("mfu", of(|step| step.mfu * 100.0)),
        ("val_loss", of_validations(&log.validations)),
    ]);
    series.retain(|_, series| !series.is_empty());
    // A model without a load-balancing loss reports zeros.
    if series.get("aux_loss").is_some_and(|aux| aux.value.iter().all(|v| v.0 == 0.0)) {
        series.remove("aux_loss");
    }
    series
}

fn of_validations(validations: &[(u64, f64)]) -> Series {
    let (steps, losses): (Vec<_>, Vec<_>) = validations.iter().copied().unzip();
    Series::new(&steps, &losses, POINTS)
}

/// The mean loss of the last fiftieth of the steps, but at least of the last step.
fn final_loss(steps: &[StepLine]) -> f64 {
    let last = &steps[steps.len() - (steps.len() / 50).max(1).min(steps.len())..];
    let finite: Vec<_> = last.iter().map(|step| step.loss).filter(|loss| loss.is_finite()).collect();
    finite.iter().sum::<f64>() / finite.len() as f64
}

/// The fraction of time spent waiting for data, over the steps that report it.
fn data_wait(steps: &[StepLine]) -> f64 {
    let told = steps.iter().filter(|step| step.data_wait_seconds.is_finite() && step.step_seconds.is_finite());
    let (wait, all) = told.fold((0.0, 0.0), |(w, a), step| (w + step.data_wait_seconds, a + step.step_seconds));
    wait / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_samples_the_first_the_last_and_some_between_are_kept() {
        let of = |count: u64| samples(&(0..count).map(|step| (step, "é".into())).collect::<Vec<_>>());
        for count in [0, 1, 2, SAMPLES as u64, 1001] {
            let steps: Vec<_> = of(count).into_iter().map(|(step, _)| step).collect();
            assert_eq!(steps.len() as u64, count.min(SAMPLES as u64));
            assert!(steps.is_sorted_by(|a, b| a < b));
            assert_eq!(
                (steps.first().copied(), steps.last().copied()),
                ((count > 0).then_some(0), count.checked_sub(1))
            );
        }
        let long = samples(&[(1, "é".repeat(SAMPLE_CHARS + 1))]);
        assert_eq!(long[0].1, "é".repeat(SAMPLE_CHARS) + "…");
    }
}
