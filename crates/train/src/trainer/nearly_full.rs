//! What a run does when memory is nearly full: a warning, and with `resilience.dynamic_batch` a smaller micro-batch before
//! an allocation fails.
//!
//! ```text
//! rank 0  step 120: 91% used ─┐ in the step's sums
//! rank 1                      ├─ all ranks save step 120 ─ restart on half the micro-batch ─ step 121
//! ```

use super::Trainer;
use crate::error::TrainError;
use crate::host::attempt;
use crate::terminal::to_stderr;

/// The used fraction from which memory counts as nearly full.
const NEARLY_FULL: f64 = 0.9;
/// Steps between looks.
const EVERY: usize = 10;

impl Trainer<'_> {
    /// Whether the memory of the machine or of a device of this process is nearly full, before step `step`, which counts
    /// from 1; warns the first time. One rank of a process looks.
    pub(super) fn is_nearly_full(&mut self, step: usize, is_fault: bool) -> Result<bool, TrainError> {
        let is_first_here = self.rank == 0 || self.job.folder.is_none();
        let looks = is_first_here && step.is_multiple_of(EVERY);
        let fault = is_fault.then(|| (0.95, "the memory in KILN_FAULTS".into()));
        let fullest = || looks.then(|| self.job.watched.fullest()).flatten();
        let Some((used, of)) = fault.or_else(fullest).filter(|(used, _)| *used > NEARLY_FULL) else {
            return Ok(false);
        };
        if !self.told_of_memory {
            self.told_of_memory = true;
            let percent = format!("{:.0}% of {of} is used", 100.0 * used);
            let line = match self.may_shrink() {
                true => format!("{percent}: the run goes on with smaller micro-batches"),
                false => format!(
                    "{percent}, and the run ends when an allocation fails: what helps is a smaller \
                     train.micro_batch_size, or --set parallel.activation_checkpointing=full"
                ),
            };
            match self.rank {
                0 => self.recorder.say(&format!("warning: step {step}: {line}")),
                rank => {
                    self.recorder.warn(&line);
                    to_stderr(&format!("warning: rank {rank}: step {step}: {line}"));
                }
            }
            self.recorder.event(step - 1, &line)?;
        }
        Ok(true)
    }

    /// Whether the run restarts on smaller micro-batches when a rank's memory is nearly full. The same on all ranks.
    pub(super) fn may_shrink(&self) -> bool {
        let config = &self.job.config;
        let saves = config.checkpoint.keep > 0;
        config.resilience.dynamic_batch && attempt::is_supervised() && saves && config.micro_batch_size() > 1
    }
}
