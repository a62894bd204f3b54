//! What a configuration has otherwise than the one before it.

use super::Config;
use super::describe::scalar;
use crate::learning_rate::learning_rate;
use yaml_serde::Value;

/// What other keys decide.
const FILLED_IN: &str = "parallel.adapted";

impl Config {
    /// A line for each key whose value is another than `before`, and one on the learning rate, where the step that
    /// follows on `done` ones has another: with more steps a cosine is stretched.
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

/// Lines on what is different below a key.
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
