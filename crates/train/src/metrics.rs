use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};

/// Writes `metrics.jsonl`, a whole line at a time, so that a run that is stopped leaves whole lines.
pub(crate) struct Metrics(pub File);

/// A training step.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct StepMetrics {
    /// Number of the step, from 1.
    pub step: usize,
    /// Cross entropy of the global batch before the step, in nats per token.
    pub loss: f64,
    pub lr: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Tokens trained on so far.
    pub tokens: usize,
    pub tokens_per_second: f64,
    pub step_seconds: f64,
}

/// A validation.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ValMetrics {
    pub step: usize,
    /// Cross entropy, in nats per token.
    pub val_loss: f64,
}

impl Metrics {
    pub fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
        text.push('\n');
        self.0.write_all(text.as_bytes())
    }
}
