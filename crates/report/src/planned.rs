//! Planned figures of a run beside measured ones.

use serde::{Deserialize, Serialize};

/// The file of a run's folder that has them: a list of [`Planned`], as JSON.
pub const PLANNED: &str = "planned.json";

/// A planned figure and the measured one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// What it is, as in `step` or `activations, peak of rank 0`.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// What was planned.
    pub planned: f64,
    /// What was measured.
    pub measured: f64,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Tokens per second.
    Rate,
    /// A part of a whole, from 0 to 1.
    Part,
    /// Bytes.
    Bytes,
}
