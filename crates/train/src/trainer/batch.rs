//! Batches on a device, made of tokens.

use crate::config::Config;
use crate::error::TrainError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use comm::SequenceRanks;
use data::Prepared;
use model::{Batch, Documents, MicroBatch, MtpBatch, StepContext, Targets, TokenRows};

/// Creates [`Batch`]es from tokens.
pub(crate) struct BatchMaker {
    vocab_size: usize,
    mtp_depth: usize,
    /// The token that ends a document, if there is one.
    end_of_text: Option<i32>,
    /// The same, if documents are masked from each other; see `data.document_mask`.
    border: Option<i32>,
    /// The ranks that share the rows.
    ranks: SequenceRanks,
    device: Device,
}

/// Counts over some rows, which weight the losses of a step or a validation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowCounts {
    pub positions: f64,
    /// Positions with a next token in their document.
    pub labels: f64,
    /// The sum of the squared document lengths, which the work of attention is proportional to.
    pub squares: f64,
}

impl BatchMaker {
    /// Creates a maker for the configured model and data, with rows shared by these ranks.
    pub fn new(config: &Config, end_of_text: Option<u32>, ranks: SequenceRanks, device: &Device) -> Self {
        let end_of_text = end_of_text.map(|token| token as i32);
        Self {
            vocab_size: config.model.vocab_size(),
            mtp_depth: config.model.mtp_depth(),
            end_of_text,
            border: end_of_text.filter(|_| config.data.document_mask),
            ranks,
            device: device.clone(),
        }
    }

    /// Whether documents are masked from each other; some positions then have no next token.
    pub fn documents_apart(&self) -> bool {
        self.border.is_some()
    }

    /// Counts positions, labels and squared lengths of some rows.
    pub fn count(&self, batch: &data::Batch) -> RowCounts {
        let positions = batch.inputs.len() as f64;
        match self.border {
            None => RowCounts { positions, labels: positions, squares: positions * batch.seq_len as f64 },
            Some(end) => {
                // The square of a document's length: 1 + 3 + 5 + ..
                let starts = batch.first_keys(end);
                let ahead = starts.iter().enumerate().map(|(i, start)| i % batch.seq_len - *start as usize);
                let squares = ahead.map(|ahead| (2 * ahead + 1) as f64).sum();
                RowCounts { positions, labels: batch.labels(end) as f64, squares }
            }
        }
    }

    /// The targets of some rows, each with whether it is to be predicted.
    pub fn targets(&self, batch: &data::Batch) -> impl Iterator<Item = (i32, bool)> {
        let both = batch.inputs.iter().zip(&batch.targets);
        both.map(|(input, target)| (*target, Some(*input) != self.border))
    }

    /// Creates a training batch. Without a `step` it has no effect on the run: a filler whose expert loads are not
    /// recorded. Losses are multiplied by `scale`; see [`TokenRows::scale`].
    ///
    /// # Errors
    /// If a token is beyond the model's vocabulary, because token files alone do not state how large theirs is.
    pub fn for_training(&self, batch: data::Batch, step: Option<StepContext>, scale: f64) -> Result<Batch, TrainError> {
        self.make(batch, step, scale, self.mtp_depth)
    }

    /// Creates an evaluation batch.
    ///
    /// # Errors
    /// See [`for_training`](Self::for_training).
    pub fn for_evaluation(&self, batch: data::Batch) -> Result<Batch, TrainError> {
        self.make(batch, None, 1.0, 0)
    }

    fn make(
        &self,
        batch: data::Batch,
        step: Option<StepContext>,
        scale: f64,
        mtp_depth: usize,
    ) -> Result<Batch, TrainError> {
        check_tokens(batch.inputs.iter().chain(&batch.targets).map(|token| *token as u32), self.vocab_size)?;
        let (t, device, context) = (batch.seq_len, &self.device, &self.ranks.cp);
        let padded = t.next_multiple_of(SequenceRanks::divisor(self.ranks.tp.size(), context.size()));
        // Each padding position is a separate document.
        let starts = self.border.map(|end| pad(batch.first_keys(end), t, padded, |place| place as i32));
        let documents = starts.map(|starts| Documents::new(starts, padded, context, device));
        let rows = TokenRows {
            inputs: &batch.inputs,
            targets: &batch.targets,
            t,
            here: context.chunks(padded),
            end_of_text: self.end_of_text,
            documents_apart: self.documents_apart(),
            scale: scale * padded as f64 / t as f64,
        };
        let (targets, mtp) = (Targets::next(&rows, device), MtpBatch::of_rows(&rows, mtp_depth, device));
        let inputs = TensorData::new(pad(batch.inputs, t, padded, |_| 0), [batch.sequences, padded]);
        let inputs_bt = context.own(Tensor::<2, Int>::from_data(inputs, device), 1);
        let micro = MicroBatch { step, documents, padding: padded - t };
        Ok(Batch { inputs_bt, targets, micro, mtp })
    }
}

impl RowCounts {
    /// Factor that turns a mean over positions into a mean over labels.
    pub fn scale(&self) -> f64 {
        // A rank without rows has neither.
        if self.labels == self.positions { 1.0 } else { self.positions / self.labels.max(1.0) }
    }
}

impl std::ops::AddAssign for RowCounts {
    fn add_assign(&mut self, other: Self) {
        self.positions += other.positions;
        self.labels += other.labels;
        self.squares += other.squares;
    }
}

/// Pads rows of `t` values to `padded`; `with` returns the padding value for a position.
fn pad(values: Vec<i32>, t: usize, padded: usize, with: impl Fn(usize) -> i32) -> Vec<i32> {
    if t == padded {
        return values;
    }
    values.chunks_exact(t).flat_map(|row| row.iter().copied().chain((t..padded).map(&with))).collect()
}

/// Checks that all tokens are in the vocabulary.
pub(crate) fn check_tokens(tokens: impl Iterator<Item = u32>, vocab_size: usize) -> Result<(), TrainError> {
    match tokens.max() {
        Some(token) if token as usize >= vocab_size => Err(TrainError::Token { token, vocab_size }),
        _ => Ok(()),
    }
}

/// Rejects document masking and packing if no token marks where documents end.
pub(crate) fn check_documents(config: &Config, data: &Prepared) -> Result<(), TrainError> {
    let key = match (config.data.document_mask, &config.data.buckets) {
        (true, _) => "data.document_mask",
        (false, Some(_)) => "data.buckets",
        (false, None) => return Ok(()),
    };
    match data.end_of_text() {
        Some(_) => Ok(()),
        None => Err(TrainError::NoEndOfText { key, data: data.name.clone() }),
    }
}
