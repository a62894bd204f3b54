//! Checks that configurations of all families share. Messages name the key, its value and what to give instead.

use crate::ModelError;

/// A block's modules are built before its parameters; this many take seconds.
pub(crate) const MAX_LAYERS: usize = 10_000;

/// A model holds a table of its rotary frequencies.
pub(crate) const MAX_ROPE_DIM: usize = 4096;

/// Checks that each value is between 1 and the given limit.
pub(crate) fn sizes(values: &[(&str, usize, usize)]) -> Result<(), ModelError> {
    match values.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
        Some((key, 0, _)) => Err(format!("model.{key} is 0: give at least 1").into()),
        Some((key, value, most)) => Err(format!("model.{key} is {value}: give at most {most}").into()),
        None => Ok(()),
    }
}

/// Checks an epsilon: positive and finite in fp32.
pub(crate) fn epsilon(key: &str, value: f64) -> Result<(), ModelError> {
    number(key, value, value as f32 > 0.0, "a small number above 0, such as 1e-5")
}

/// Checks that a number meets its condition and is finite in fp32.
pub(crate) fn number(key: &str, value: f64, fits: bool, expected: &str) -> Result<(), ModelError> {
    match fits && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(format!("model.{key} is {value:?}: give {expected}").into()),
    }
}
