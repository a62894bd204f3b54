//! A micro-batch on a device.

use crate::config::Config;
use crate::error::TrainError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use comm::SequenceRanks;
use data::Prepared;
use model::deepseek::MtpBatch;
use model::{Documents, MicroBatch, RunPlace, Targets, TokenRows};

/// A micro-batch on a device: the rank's part of its rows, where ranks have parts of them.
pub(crate) struct Batch {
    pub inputs_bt: Tensor<2, Int>,
    pub targets: Targets,
    /// Where it stands in the run, if it is of training, and its documents, if they are apart.
    pub micro: MicroBatch,
    /// Of each module of multi-token prediction; none in evaluation, which has the main loss only.
    pub mtp: Vec<MtpBatch>,
}

/// Makes [`Batch`]es of tokens.
pub(crate) struct BatchMaker {
    vocab_size: usize,
    mtp_depth: usize,
    /// The token that ends a document, if there is one.
    end_of_text: Option<i32>,
    /// The same where documents are apart; see `data.document_mask`.
    border: Option<i32>,
    /// Those that have parts of the rows.
    ranks: SequenceRanks,
    device: Device,
}

/// Numbers of some rows, by which a step or a validation counts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowCounts {
    pub positions: f64,
    /// Positions that have a next token in their document.
    pub labels: f64,
    /// The sum of squares of the documents' lengths, to which the work of attention is proportional.
    pub squares: f64,
}

impl BatchMaker {
    /// For a model with such data, whose rows these ranks share.
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

    /// Whether documents are apart, so that not all positions have a next token.
    pub fn documents_apart(&self) -> bool {
        self.border.is_some()
    }

    /// What is to be counted of some rows.
    pub fn count(&self, batch: &data::Batch) -> RowCounts {
        let positions = batch.inputs.len() as f64;
        match self.border {
            None => RowCounts { positions, labels: positions, squares: positions * batch.seq_len as f64 },
            Some(end) => {
                // 1 + 3 + 5 + .. of each document.
                let starts = batch.document_starts(end);
                let ahead = starts.iter().enumerate().map(|(i, start)| i % batch.seq_len - *start as usize);
                let squares = ahead.map(|ahead| (2 * ahead + 1) as f64).sum();
                RowCounts { positions, labels: batch.labels(end) as f64, squares }
            }
        }
    }

    /// The targets of some rows, and whether each is one to be predicted.
    pub fn targets(&self, batch: &data::Batch) -> impl Iterator<Item = (i32, bool)> {
        let both = batch.inputs.iter().zip(&batch.targets);
        both.map(|(input, target)| (*target, Some(*input) != self.border))
    }

    /// One to train on, which leaves no trace where it has no `place`. Losses are multiplied with `scale`: see
    /// [`TokenRows::scale`].
    ///
    /// # Errors
    /// If a token is beyond the model's vocabulary: files of tokens alone do not say how many different ones there are.
    pub fn for_training(&self, batch: data::Batch, place: Option<RunPlace>, scale: f64) -> Result<Batch, TrainError> {
        self.make(batch, place, scale, self.mtp_depth)
    }

    /// One to evaluate.
    ///
    /// # Errors
    /// As [`for_training`](Self::for_training).
    pub fn for_evaluation(&self, batch: data::Batch) -> Result<Batch, TrainError> {
        self.make(batch, None, 1.0, 0)
    }

    fn make(
        &self,
        batch: data::Batch,
        place: Option<RunPlace>,
        scale: f64,
        mtp_depth: usize,
    ) -> Result<Batch, TrainError> {
        check_tokens(batch.inputs.iter().chain(&batch.targets).map(|token| *token as u32), self.vocab_size)?;
        let (t, device, context) = (batch.seq_len, &self.device, &self.ranks.cp);
        let padded = t.next_multiple_of(SequenceRanks::divisor(self.ranks.tp.size(), context.size()));
        // A document of its own, each.
        let starts = self.border.map(|end| pad(batch.document_starts(end), t, padded, |place| place as i32));
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
        let micro = MicroBatch { place, documents, padding: padded - t };
        Ok(Batch { inputs_bt, targets, micro, mtp })
    }
}

impl RowCounts {
    /// What the mean over positions is multiplied with to be that over labels.
    pub fn scale(&self) -> f64 {
        // On a rank without rows neither counts.
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

/// Rows of `t` values, each followed by as many of `with`, which is given the place, as make it `padded` long.
fn pad(values: Vec<i32>, t: usize, padded: usize, with: impl Fn(usize) -> i32) -> Vec<i32> {
    if t == padded {
        return values;
    }
    values.chunks_exact(t).flat_map(|row| row.iter().copied().chain((t..padded).map(&with))).collect()
}

/// Whether all tokens are in a vocabulary.
pub(crate) fn check_tokens(tokens: impl Iterator<Item = u32>, vocab_size: usize) -> Result<(), TrainError> {
    match tokens.max() {
        Some(token) if token as usize >= vocab_size => Err(TrainError::Token { token, vocab_size }),
        _ => Ok(()),
    }
}

/// Refuses to keep documents apart, or to pack them, where nothing says where they end.
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
