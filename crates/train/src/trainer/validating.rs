//! Validations, and which of them is best.

use super::Trainer;
use crate::config::CheckpointConfig;
use crate::error::TrainError;
use crate::format::count;
use crate::reporting::metrics::ValMetrics;
use crate::trainer::batch::RowCounts;
use crate::trainer::validation::ValidationSet;
use checkpoint::{Best, Lowest};
use data::Dataset;
use std::collections::BTreeMap;

impl Trainer<'_> {
    /// Computes the loss of each validation set, and returns their mean. Returns `None` if the run is asked to stop
    /// before the last of them, or none has a label.
    pub fn validate(&mut self, step: usize) -> Result<Option<f64>, TrainError> {
        self.job.progress.doing("validating");
        self.comm.note_place(step as u64, "validation");
        let job = self.job;
        let (mut named, mut losses) = (BTreeMap::new(), vec![]);
        for ValidationSet { name, dataset } in &job.validation {
            match self.loss_of(dataset)? {
                Loss::Stopped => return Ok(None),
                Loss::NoLabel => {
                    let of = name.as_ref().map_or(String::new(), |name| format!(" on {name}"));
                    self.recorder.say(&format!(
                        "step {step}: no position of the validation{of} has a token to predict in its document"
                    ));
                }
                Loss::Nats(loss) => {
                    losses.push(loss);
                    named.extend(name.as_deref().map(|name| (name, loss)));
                }
            }
        }
        if losses.is_empty() {
            return Ok(None);
        }
        let val_loss = losses.iter().sum::<f64>() / losses.len() as f64;
        self.recorder.validation(&ValMetrics { step, val_loss, val_losses: named })?;
        Ok(Some(val_loss))
    }

    /// The mean loss over the windows of a set, shared among the ranks; the windows are the same on any number of
    /// ranks.
    fn loss_of(&mut self, dataset: &Dataset) -> Result<Loss, TrainError> {
        let train = &self.job.config.train;
        let count = train.val_batches.saturating_mul(train.global_batch_size);
        let windows = dataset.val_indices(count, train.seq_len);
        let (rank, ranks) = self.fsdp.data_parallel();
        let micro = self.batches.micro_batch_size();
        let (mut sum, mut count, mut counts) = (0.0, 0.0, RowCounts::default());
        // Enough micro-batches at a time to keep a pipeline's stages busy.
        let (_, stages) = self.fsdp.stage();
        let at_once = if stages > 1 { 4 * stages } else { 1 };
        let rounds: Vec<_> = windows.chunks(micro * ranks).collect();
        for rounds in rounds.chunks(at_once) {
            if self.should_stop()? {
                return Ok(Loss::Stopped);
            }
            let (mut batches, mut weights) = (vec![], vec![]);
            for round in rounds {
                let mine = round.chunks(micro).nth(rank).unwrap_or_default();
                // A rank without a window takes part in the collectives with one that does not count.
                let (batch, weight) = if mine.is_empty() { (&round[..1], 0) } else { (mine, mine.len()) };
                let batch = dataset.val_batch(batch.iter().copied(), train.seq_len)?;
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
        // A rank without any window makes the same decision as the others.
        if counts.positions > 0.0 && counts.labels == 0.0 {
            return Ok(Loss::NoLabel);
        }
        Ok(Loss::Nats(sum / count * counts.scale()))
    }

    /// Whether a validation is better than all before it; its checkpoint is then kept.
    pub fn is_best(&mut self, step: usize, val_loss: f64) -> bool {
        let CheckpointConfig { keep, keep_best, .. } = self.job.config.checkpoint;
        let is_best =
            keep_best && keep > 0 && val_loss.is_finite() && self.best.is_none_or(|best| val_loss < best.val_loss);
        if is_best {
            self.best = Some(Best { step: step as u64, val_loss });
        }
        is_best
    }

    /// Whether training ends early because too many validations in a row had no lower loss (`train.patience`); reports
    /// it if so. A non-finite loss never counts as lower.
    pub fn is_out_of_patience(&mut self, step: usize, val_loss: f64) -> Result<bool, TrainError> {
        let Some(patience) = self.job.config.train.patience else { return Ok(false) };
        match &mut self.lowest {
            Some(lowest) if val_loss.is_nan() || val_loss >= lowest.val_loss => lowest.since += 1,
            lowest if val_loss.is_finite() => *lowest = Some(Lowest { step: step as u64, val_loss, since: 0 }),
            _ => {}
        }
        let is_out = |lowest: &Lowest| lowest.since >= patience as u64 && step < self.job.config.train.steps;
        let Some(Lowest { step: best, val_loss, since }) = self.lowest.filter(is_out) else { return Ok(false) };
        let validations = count(since as usize, "validation");
        let event = format!(
            "ended early after step {step}: {validations} without a lower loss (train.patience); the lowest was {val_loss:.4} after step {best}"
        );
        self.job.progress.say(&event);
        self.recorder.event(step, &event)?;
        Ok(true)
    }
}

/// The result of validating on a set.
enum Loss {
    /// Nats per token.
    Nats(f64),
    /// No result: no position has a token to predict.
    NoLabel,
    /// No result: the run was asked to stop.
    Stopped,
}
