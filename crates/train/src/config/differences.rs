//! Differences between two configurations.

use super::Config;
use super::describe::scalar;
use crate::config::learning_rate::learning_rate;
use yaml_serde::Value;

/// A key that Kiln fills in from others.
const FILLED_IN: &str = "parallel.adapted";

impl Config {
    /// Lines for each key whose value differs from `before`, and one for the learning rate if it differs in the step
    /// after `done` steps: more steps stretch a cosine, for example.
    pub(crate) fn changes_since(&self, before: &Self, done: usize) -> Vec<String> {
        let [old, new] = [before, self].map(|config| yaml_serde::to_value(config).unwrap_or_default());
        let mut lines = vec![];
        compare(Some(&old), Some(&new), "", &mut lines);
        let lr = |config: &Self| {
            format!("{:.2e}", learning_rate(&config.optim, done.min(config.train.steps), config.train.steps))
        };
        let (old, new) = (lr(before), lr(self));
        lines.extend((old != new).then(|| format!("learning rate of step {}: {old} -> {new}", done + 1)));
        lines
    }
}

/// Adds lines for the differences below a key.
fn compare(old: Option<&Value>, new: Option<&Value>, key: &str, lines: &mut Vec<String>) {
    match (old, new) {
        (old, new) if old == new || key == FILLED_IN => {}
        (Some(Value::Mapping(old)), Some(Value::Mapping(new))) => {
            let gone = old.keys().filter(|name| !new.contains_key(name));
            for name in new.keys().chain(gone) {
                let dot = if key.is_empty() { "" } else { "." };
                let key = format!("{key}{dot}{}", name.as_str().unwrap_or_default());
                compare(old.get(name), new.get(name), &key, lines);
            }
        }
        (old, new) => {
            let [old, new] = [old, new].map(|value| value.map_or("none".into(), scalar));
            lines.push(format!("{key}: {old} -> {new}"));
        }
    }
}
