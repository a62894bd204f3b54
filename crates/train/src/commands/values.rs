//! Parsers of the values of arguments.

use crate::config::{EXACT, whole};

/// Parses a whole number, which may be written as `1e3`.
pub fn whole_number(text: &str) -> Result<usize, String> {
    whole_from(0, text)
}

/// Parses a count of at least 1.
pub fn at_least_1(text: &str) -> Result<usize, String> {
    whole_from(1, text)
}

fn whole_from(least: usize, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().or_else(|| whole(text.parse().ok()?).map(|number| number as usize));
    let is_digits = || text.bytes().all(|digit| digit.is_ascii_digit());
    match (number, text.parse::<f64>()) {
        (Some(number), _) if number >= least => Ok(number),
        (None, Ok(number)) if number >= EXACT && number.fract() == 0.0 => {
            let most = if is_digits() { usize::MAX } else { EXACT as usize };
            Err(format!("too large: give a whole number up to {most}"))
        }
        _ => Err(format!("give a whole number, {least} or above")),
    }
}

/// Parses any number.
pub fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "give a number, such as 0.5 or 3e-4".into())
}
