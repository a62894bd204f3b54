//! The data of the next step, which is read ahead.

use super::Trainer;
use crate::error::TrainError;
use crate::trainer::batch::RowCounts;
use crate::trainer::batches::{Batches, MicroBatchRows};
use crate::trainer::job::Job;
use data::Loader;
use model::{Batch, StepContext};
use std::time::{Duration, Instant};

/// A rank's part of a step.
pub(super) struct NextStep {
    pub micro_batches: Vec<Batch>,
    /// Number of counted sequences in each micro-batch.
    pub weights: Vec<f64>,
    /// Counts of the whole step, or of this rank's part if the proportions are the same.
    pub counts: RowCounts,
    /// Time spent waiting for it.
    pub waited: Duration,
}

impl Trainer<'_> {
    /// This rank's micro-batches of a step.
    pub(super) fn next_batches(&mut self, step: usize) -> Result<NextStep, TrainError> {
        let start = Instant::now();
        let tokens = self.loader.next().expect("the loader was started for this step")?;
        let waited = start.elapsed();
        let rows: Vec<_> = self.batches.rows(step).into_iter().zip(tokens).collect();
        let mut counts = RowCounts::default();
        rows.iter().filter(|(rows, _)| rows.count).for_each(|(_, tokens)| counts += self.maker.count(tokens));
        let counts = self.over_ranks(counts)?;
        let (mut micro_batches, mut weights) = (vec![], vec![]);
        for (MicroBatchRows { rows, count }, tokens) in rows {
            let place = StepContext { seed: self.job.config.train.seed, step: step as u64, first_row: rows.start };
            let place = Some(place).filter(|_| count); // filler micro-batches have no effect on the run
            micro_batches.push(self.maker.for_training(tokens, place, counts.scale())?);
            weights.push(if count { (rows.end - rows.start) as f64 } else { 0.0 });
        }
        Ok(NextStep { micro_batches, weights, counts, waited })
    }

    /// Sums the counts over all ranks. If every position has a label, returns this rank's counts, which have the same
    /// proportions.
    pub(super) fn over_ranks(&self, counts: RowCounts) -> Result<RowCounts, TrainError> {
        if !self.maker.documents_apart() {
            return Ok(counts);
        }
        let sums = self.fsdp.all_reduce(&[counts.positions, counts.labels, counts.squares])?;
        Ok(RowCounts { positions: sums[0], labels: sums[1], squares: sums[2] })
    }
}

/// Reads ahead, starting at the run's first step.
pub(super) fn start_loader(job: &Job, batches: Batches) -> Loader<Vec<data::Batch>> {
    let first = job.resume.as_ref().map_or(0, |resume| resume.index.step);
    Loader::start(first..job.config.train.steps as u64, move |step| batches.cut(step as usize))
}
