//! Validations, and which is the best.

use super::Trainer;
use crate::batch::RowCounts;
use crate::config::CheckpointConfig;
use crate::error::TrainError;
use checkpoint::Best;

impl Trainer<'_> {
    /// The mean loss over the validation's windows, shared by the ranks; the same windows on any number of ranks. None if it is
    /// asked to stop before the last of them, or none has a label.
    pub fn validate(&mut self, step: usize) -> Result<Option<f64>, TrainError> {
        self.job.progress.doing("validating");
        let train = &self.job.config.train;
        let count = train.val_batches.saturating_mul(train.global_batch_size);
        let windows = self.job.dataset.val_indices(count, train.seq_len);
        let (rank, ranks) = self.fsdp.data_parallel();
        let micro = self.batches.micro_batch_size();
        let (mut sum, mut count, mut counts) = (0.0, 0.0, RowCounts::default());
        // As many at a time as keep the stages of a pipeline busy.
        let (_, stages) = self.fsdp.stage();
        let at_once = if stages > 1 { 4 * stages } else { 1 };
        let rounds: Vec<_> = windows.chunks(micro * ranks).collect();
        for rounds in rounds.chunks(at_once) {
            if self.should_stop()? {
                return Ok(None);
            }
            let (mut batches, mut weights) = (vec![], vec![]);
            for round in rounds {
                let mine = round.chunks(micro).nth(rank).unwrap_or_default();
                // A rank without a window takes part in the collectives with one that does not count.
                let (batch, weight) = if mine.is_empty() { (&round[..1], 0) } else { (mine, mine.len()) };
                let batch = self.job.dataset.val_batch(batch.iter().copied(), train.seq_len)?;
                if weight > 0 {
                    counts += self.maker.count(&batch);
                }
                batches.push(self.maker.for_evaluation(batch)?);
                weights.push(weight as f64);
            }
            for (loss, weight) in self.fsdp.evaluate(&batches, &weights)? {
                sum += loss * weight;
                count += weight;
            }
        }
        let counts = self.over_ranks(counts)?;
        if counts.labels == 0.0 {
            self.recorder
                .say(&format!("step {step}: no position of the validation has a token to predict in its document"));
            return Ok(None);
        }
        let val_loss = sum / count * counts.scale();
        self.recorder.validation(step, val_loss)?;
        Ok(Some(val_loss))
    }

    /// Whether a validation is better than all before it, and its checkpoint is to be kept.
    pub fn is_best(&mut self, step: usize, val_loss: f64) -> bool {
        let CheckpointConfig { keep, keep_best, .. } = self.job.config.checkpoint;
        let is_best =
            keep_best && keep > 0 && val_loss.is_finite() && self.best.is_none_or(|best| val_loss < best.val_loss);
        if is_best {
            self.best = Some(Best { step: step as u64, val_loss });
        }
        is_best
    }
}
