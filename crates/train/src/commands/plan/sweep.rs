//! A table of plans that differ in one key.

use super::{PlanCommandError, configured};
use crate::commands::train::TrainArgs;
use crate::error::TrainError;
use crate::format::{bytes, human};
use crate::plan::step_plan::{Figures, StepPlan};
use plan::Cluster;
use serde_json::json;
use std::str::FromStr;

/// A key and its values, as in `parallel.gpus=8,16`.
#[derive(Debug, Clone)]
pub struct Sweep {
    pub key: String,
    values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').unwrap_or((text, ""));
        let values: Vec<String> = split(values).into_iter().map(|value| value.trim().to_string()).collect();
        if key.split('.').any(str::is_empty) || values.iter().any(String::is_empty) {
            return Err("give a key and its values, as in parallel.gpus=8,16,32".into());
        }
        Ok(Self { key: key.into(), values })
    }
}

/// Splits a text at its commas, but not within brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (vec![], 0, 0_usize);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Names `--sweep` in an error of the swept key, which nothing else sets: it is set as `--set` would.
fn of_sweep(mut error: PlanCommandError, swept: &str) -> PlanCommandError {
    let PlanCommandError::Train(of_train) = &mut error else { return error };
    match of_train {
        TrainError::UnknownKey { key, origin, .. } | TrainError::WrongValue { key, origin, .. }
            if origin == "--set" && (*key == *swept || key.starts_with(&format!("{swept}."))) =>
        {
            *origin = "--sweep".into();
        }
        TrainError::ConfigSyntax { origin, .. } => {
            if let Some(given) = origin.strip_prefix("--set ").filter(|given| given.starts_with(&format!("{swept}="))) {
                *origin = format!("--sweep {given}");
            }
        }
        _ => {}
    }
    error
}

/// Plans every value. The row of a value that cannot be planned has the reason.
///
/// # Errors
/// If the arguments of training set the key, too, or if no value can be planned.
pub fn sweep(of: &Sweep, train: &TrainArgs, cluster: &Cluster, as_json: bool) -> Result<String, PlanCommandError> {
    if let Some(flag) = train.flag_of(&of.key) {
        return Err(PlanCommandError::SweptAndSet { key: of.key.clone(), flag });
    }
    let plan = |value: &String| -> Result<Figures, PlanCommandError> {
        let config = configured(&train.with(&of.key, value), cluster).map_err(|error| of_sweep(error, &of.key))?;
        let figures = StepPlan::new(&config, cluster)?.figures;
        Ok(figures)
    };
    let plans: Vec<(&String, Result<Figures, PlanCommandError>)> =
        of.values.iter().map(|value| (value, plan(value))).collect();
    let reason = |(_, plan): &(&String, Result<_, PlanCommandError>)| plan.as_ref().err().map(ToString::to_string);
    if let Some(reasons) = plans.iter().map(reason).collect::<Option<Vec<_>>>() {
        if reasons.iter().all(|reason| *reason == reasons[0]) {
            return Err(PlanCommandError::NoneSwept(reasons[0].clone()));
        }
        let of_value = |(value, reason): (&String, String)| format!("{}={value}: {reason}", of.key);
        let reasons: Vec<String> = of.values.iter().zip(reasons).map(of_value).collect();
        return Err(PlanCommandError::NoneSwept(reasons.join("\n")));
    }
    if as_json {
        let value = |(value, plan): &(&String, Result<Figures, PlanCommandError>)| match plan {
            Ok(figures) => json!({ "value": value, "plan": figures }),
            Err(error) => json!({ "value": value, "error": error.to_string() }),
        };
        let all: Vec<_> = plans.iter().map(value).collect();
        return Ok(serde_json::to_string_pretty(&all).expect("figures are plain data"));
    }
    let width = of.values.iter().map(String::len).max().unwrap_or(0).max(of.key.len());
    let mut text = format!(
        "{:<width$}{:>12}{:>12}{:>8}{:>12}{:>10}{:>15}{:>10}",
        of.key, "step, ms", "tokens/s", "MFU", "computes", "stages", "communication", "memory"
    );
    for (value, plan) in plans {
        let row = match plan {
            Err(error) => format!("  {error}"),
            Ok(Figures { time, tokens_per_second, mfu, memory, .. }) => {
                let part = |seconds: f64| format!("{:.0}%", 100.0 * seconds / time.step);
                let exposed = time.exposed.iter().fold(0.0, |sum, (_, seconds)| sum + seconds);
                format!(
                    "{:>12.1}{:>12}{:>7.1}%{:>12}{:>10}{:>15}{:>10}{}",
                    1e3 * time.step,
                    human(tokens_per_second as usize),
                    100.0 * mfu,
                    part(time.compute),
                    part(time.bubble),
                    part(exposed),
                    bytes(memory.most),
                    if memory.fits { "" } else { "  does not fit" },
                )
            }
        };
        text += &format!("\n{value:<width$}{row}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_values() {
        let values = |text: &str| Sweep::from_str(text).map(|sweep| sweep.values);
        assert_eq!(values("parallel.gpus=8, 16").unwrap(), ["8", "16"]);
        assert_eq!(values("parallel.stages=[2,2],[1, 3]").unwrap(), ["[2,2]", "[1, 3]"]);
        assert_eq!(values("parallel={pp: 2, stages: [1,1]}").unwrap(), ["{pp: 2, stages: [1,1]}"]);
        assert!(values("parallel.pp=1,,2").is_err() && values("parallel.pp").is_err());
    }
}
