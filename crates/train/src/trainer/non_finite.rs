//! Steps whose loss or gradient is not finite.

use super::Trainer;
use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::format::count;
use fsdp::{NonFinite, StepReport};

impl Trainer<'_> {
    /// Fails once too many consecutive steps were skipped, or at the end of a run that skipped all of its steps, whose
    /// model would otherwise be saved as if it were trained.
    pub(super) fn expect_a_step(&mut self, step: usize, what: String) -> Result<(), TrainError> {
        let TrainConfig { steps, max_skips, .. } = self.job.config.train;
        let skipped = match self.skips {
            skips if skips >= max_skips => format!("{} in a row were skipped (train.max_skips)", count(skips, "step")),
            skips if skips == steps => format!("all of the run's {} were skipped", count(skips, "step")),
            _ => return Ok(()),
        };
        self.finish_saving(false)?;
        Err(TrainError::Skipped { step, what, skipped, last_good: self.saver.last_good() })
    }
}

/// Describes what was not finite, and where.
pub(super) fn describe(report: &StepReport, at: &NonFinite) -> String {
    let NonFinite { unit, rank } = at;
    match rank {
        Some(rank) => format!("the output of {unit} on rank {rank} is not finite (loss {})", report.loss),
        None => format!("the gradient of {unit} is not finite (loss {}, norm {})", report.loss, report.grad_norm),
    }
}
