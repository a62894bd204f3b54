//! The lines of `metrics.jsonl`, distinguished by their keys. A key that an older run lacks is a gap; a line of another
//! kind is ignored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A line that the page uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Line {
    Step(Box<StepLine>),
    Validation {
        step: u64,
        loss: f64,
        /// The loss of each validation set, if there are several.
        of_sets: BTreeMap<String, f64>,
    },
    Usage(Usage),
    Experts {
        step: u64,
        layers: Vec<Layer>,
    },
    Stages {
        step: u64,
        stages: Vec<StageSeconds>,
    },
    Event {
        step: u64,
        text: String,
    },
    /// Text from the trained model.
    Sample {
        step: u64,
        text: String,
    },
    /// A process starts to train.
    Start(Box<Setup>),
    /// The model's number of parameters, in a separate line as older versions write it.
    Parameters(u64),
}

/// A process's description of itself when it starts to train. What an older version does not report is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Setup {
    /// In UTC, such as `2026-11-21T21:45:07Z`.
    pub started: Option<String>,
    /// The step after which it resumes, 0 in a new run.
    pub step: u64,
    pub version: Option<String>,
    /// The command line.
    pub command: Option<String>,
    pub host: Option<String>,
    pub cpu: Option<String>,
    pub cores: Option<u64>,
    pub device: Option<String>,
    pub ranks: Option<u64>,
    pub strategy: Option<String>,
    pub data: Option<String>,
    pub train_tokens: Option<u64>,
    pub val_tokens: Option<u64>,
    pub bytes_per_token: Option<f64>,
    pub parameters: Option<u64>,
    pub global_batch_size: Option<u64>,
    pub micro_batch_size: Option<u64>,
    pub seq_len: Option<u64>,
    /// The groups of several ranks.
    pub layout: Vec<Group>,
}

/// A group of ranks along axes of the mesh. The bytes are those of the rank with the most: its part of what the ranks
/// hold together, and what it receives from the others in a step, by collective.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Group {
    pub over: String,
    pub ranks: u64,
    pub at_rest: u64,
    pub received: BTreeMap<String, u64>,
}

/// A training step. Values missing from the line are NaN.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub aux_loss: f64,
    pub lr: f64,
    pub grad_norm: f64,
    pub skipped: bool,
    pub tokens: f64,
    pub tokens_per_second: f64,
    pub step_seconds: f64,
    pub data_wait_seconds: f64,
    pub checkpoint_seconds: f64,
    pub elapsed_seconds: f64,
    /// Per device.
    pub tflops: f64,
    /// A fraction of 1.
    pub mfu: f64,
    pub loss_z: f64,
    pub grad_norm_z: f64,
}

/// What rank 0 holds and has received.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Usage {
    pub memory: BTreeMap<String, Memory>,
    pub traffic: BTreeMap<String, Traffic>,
    /// Bytes in use and reserved.
    pub device: Option<(f64, f64)>,
}

/// Bytes of a category.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    pub at_rest: f64,
    pub peak: f64,
}

/// One collective's totals since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Traffic {
    pub calls: f64,
    pub bytes: f64,
    pub seconds: f64,
}

/// Seconds of a step in one pipeline stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StageSeconds {
    pub computing: f64,
    /// Waiting for other stages.
    pub waiting: f64,
}

/// The experts of a layer in one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layer {
    pub layer: u64,
    pub assigned: Vec<f64>,
    pub max_ratio: f64,
    pub cv: f64,
    pub dropped: f64,
}

impl Line {
    /// Parses one line. None for a line of an unknown kind.
    pub fn parse(text: &str) -> Result<Option<Self>, serde_json::Error> {
        let Value::Object(line) = serde_json::from_str(text)? else { return Ok(None) };
        Ok(Self::of(&line))
    }

    fn of(line: &Map<String, Value>) -> Option<Self> {
        if line.contains_key("started") {
            return Setup::deserialize(line).ok().map(|setup| Self::Start(Box::new(setup)));
        }
        if let (Some(parameters), false) = (line.get("parameters").and_then(Value::as_u64), line.contains_key("loss")) {
            return Some(Self::Parameters(parameters));
        }
        let step = line.get("step")?.as_u64()?;
        if let Some(text) = line.get("event") {
            return text.as_str().map(|text| Self::Event { step, text: text.to_owned() });
        }
        if let Some(text) = line.get("sample") {
            return text.as_str().map(|text| Self::Sample { step, text: text.to_owned() });
        }
        if line.contains_key("val_loss") {
            let sets = line.get("val_losses").and_then(Value::as_object).into_iter().flatten();
            let of_sets = sets.map(|(name, loss)| (name.clone(), loss.as_f64().unwrap_or(f64::NAN))).collect();
            return Some(Self::Validation { step, loss: number(line, "val_loss"), of_sets });
        }
        if let Some(layers) = line.get("experts").and_then(Value::as_array) {
            return Some(Self::Experts { step, layers: layers.iter().filter_map(Layer::of).collect() });
        }
        if let Some(stages) = line.get("stages").and_then(Value::as_array) {
            return Some(Self::Stages { step, stages: stages.iter().filter_map(StageSeconds::of).collect() });
        }
        if line.contains_key("memory") || line.contains_key("traffic") {
            return Some(Self::Usage(Usage::of(line)));
        }
        line.contains_key("loss").then(|| Self::Step(Box::new(StepLine::of(step, line))))
    }
}

impl StepLine {
    fn of(step: u64, line: &Map<String, Value>) -> Self {
        let number = |key| number(line, key);
        Self {
            step,
            loss: number("loss"),
            aux_loss: number("aux_loss"),
            lr: number("lr"),
            grad_norm: number("grad_norm"),
            skipped: line.get("skipped").and_then(Value::as_bool).unwrap_or(false),
            tokens: number("tokens"),
            tokens_per_second: number("tokens_per_second"),
            step_seconds: number("step_seconds"),
            data_wait_seconds: number("data_wait_seconds"),
            checkpoint_seconds: number("checkpoint_seconds"),
            elapsed_seconds: number("elapsed_seconds"),
            tflops: number("tflops"),
            mfu: number("mfu"),
            loss_z: number("loss_z"),
            grad_norm_z: number("grad_norm_z"),
        }
    }
}

impl Usage {
    fn of(line: &Map<String, Value>) -> Self {
        let memory = objects(line, "memory")
            .map(|(name, v)| (name.clone(), Memory { at_rest: number(v, "at_rest"), peak: number(v, "peak") }));
        let traffic = objects(line, "traffic").map(|(name, v)| {
            let [calls, bytes, seconds] = ["calls", "bytes", "seconds"].map(|key| number(v, key));
            (name.clone(), Traffic { calls, bytes, seconds })
        });
        let device = line.get("device").and_then(Value::as_object);
        let device = device.map(|device| (number(device, "in_use"), number(device, "reserved")));
        Self { memory: memory.collect(), traffic: traffic.collect(), device }
    }
}

impl StageSeconds {
    fn of(value: &Value) -> Option<Self> {
        let stage = value.as_object()?;
        Some(Self { computing: number(stage, "compute_seconds"), waiting: number(stage, "wait_seconds") })
    }
}

impl Layer {
    fn of(value: &Value) -> Option<Self> {
        let layer = value.as_object()?;
        let assigned = layer.get("assigned")?.as_array()?.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect();
        Some(Self {
            layer: layer.get("layer")?.as_u64()?,
            assigned,
            max_ratio: number(layer, "max_ratio"),
            cv: number(layer, "cv"),
            dropped: number(layer, "dropped"),
        })
    }
}

fn number(line: &Map<String, Value>, key: &str) -> f64 {
    line.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn objects<'a>(line: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = (&'a String, &'a Map<String, Value>)> {
    let entries = line.get(key).and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name, value.as_object()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart_by_their_keys() {
        let parse = |text| Line::parse(text).unwrap();
        let Some(Line::Step(step)) = parse(r#"{"step":3,"loss":null,"grad_norm":2,"skipped":true,"new":[1]}"#) else {
            panic!("a step")
        };
        assert!(step.step == 3 && step.loss.is_nan() && step.grad_norm == 2.0 && step.skipped && step.mfu.is_nan());
        let validation = |of_sets| Some(Line::Validation { step: 3, loss: 1.5, of_sets });
        assert_eq!(parse(r#"{"step":3,"val_loss":1.5}"#), validation(BTreeMap::new()));
        let of_sets = BTreeMap::from([("code".into(), 1.0), ("prose".into(), 2.0)]);
        assert_eq!(parse(r#"{"step":3,"val_loss":1.5,"val_losses":{"prose":2.0,"code":1.0}}"#), validation(of_sets));
        let stages = vec![StageSeconds { computing: 2.0, waiting: 0.5 }];
        assert_eq!(
            parse(r#"{"step":3,"stages":[{"compute_seconds":2,"wait_seconds":0.5}]}"#),
            Some(Line::Stages { step: 3, stages })
        );
        assert_eq!(parse(r#"{"step":3,"event":"a"}"#), Some(Line::Event { step: 3, text: "a".into() }));
        assert_eq!(parse(r#"{"parameters":12,"active":3}"#), Some(Line::Parameters(12)));
        assert_eq!(parse(r#"{"step":3,"sample":"fn"}"#), Some(Line::Sample { step: 3, text: "fn".into() }));
        let start = r#"{"started":"2026-11-21T21:45:07Z","step":7,"ranks":4,"parameters":12,"bytes_per_token":null,"new":1,
               "layout":[{"over":"tp","ranks":2,"received":{"all_gather":7}}]}"#;
        let setup = Setup { started: Some("2026-11-21T21:45:07Z".into()), step: 7, ..Setup::default() };
        let group = Group { over: "tp".into(), ranks: 2, at_rest: 0, received: [("all_gather".into(), 7)].into() };
        let setup = Setup { ranks: Some(4), parameters: Some(12), layout: vec![group], ..setup };
        assert_eq!(parse(start), Some(Line::Start(Box::new(setup))));
        let usage = r#"{"step":1,"memory":{"a":{"at_rest":1,"peak":2},"b":7},"traffic":{},"device":{"in_use":3}}"#;
        let Some(Line::Usage(usage)) = parse(usage) else { panic!("a usage") };
        assert_eq!(usage.memory.into_iter().collect::<Vec<_>>(), [("a".into(), Memory { at_rest: 1.0, peak: 2.0 })]);
        assert_eq!(usage.device.map(|(in_use, reserved)| (in_use, reserved.is_nan())), Some((3.0, true)));
        let experts = r#"{"step":1,"experts":[{"layer":2,"assigned":[1,3],"cv":0.5,"max_ratio":1.5},{"layer":"x"}]}"#;
        let Some(Line::Experts { layers, .. }) = parse(experts) else { panic!("experts") };
        assert_eq!((layers.len(), layers[0].layer, &layers[0].assigned[..]), (1, 2, &[1.0, 3.0][..]));
    }

    #[test]
    fn other_lines_are_left_out_and_torn_ones_are_errors() {
        for other in [
            r#"{"step":1,"hello":2}"#,
            r#"{"loss":1}"#,
            r#"{"step":-1,"loss":1}"#,
            r#"{"started":1}"#,
            "[]",
            "3",
            "null",
        ] {
            assert_eq!(Line::parse(other).unwrap(), None, "{other}");
        }
        for torn in [r#"{"step":1,"lo"#, "", "{\"step\":1,\"loss\":NaN}"] {
            assert!(Line::parse(torn).is_err(), "{torn}");
        }
    }
}
