//! Rows of several lengths: the configuration of a run at each length.
//!
//! ```text
//! data.buckets [512, 2048], train.seq_len 2048, global_batch_size 8, micro_batch_size 2
//!
//! rows of 2,048    as configured                                                     8 sequences a step, 2 at once
//! rows of 512      as many tokens, or what parallel.adaptive's table says for 512    32 sequences a step, 8 at once
//! ```
//!
//! All lengths use the layout of the longest rows.

use super::Config;
use super::adaptive::AdaptedKey;
use super::validate::require;
use crate::error::TrainError;

impl Config {
    /// The configuration of each row length, shortest first. The last is this configuration, and the only one without
    /// `data.buckets`.
    pub(crate) fn by_length(&self) -> Vec<Self> {
        let shorter = self.data.buckets.iter().flatten().filter(|length| **length < self.train.seq_len);
        shorter.map(|length| self.at_length(*length)).chain([self.clone()]).collect()
    }

    fn at_length(&self, length: usize) -> Self {
        let mut config = self.clone();
        config.data.buckets = None;
        let (own, table) = (&self.train, &self.parallel.adaptive);
        // The same number of tokens, rounded to whole rows.
        let rows =
            |of_longest: usize| ((of_longest as f64 * own.seq_len as f64 / length as f64).round() as usize).max(1);
        config.train.seq_len = length;
        config.train.global_batch_size = rows(own.global_batch_size);
        config.train.micro_batch_size = own.micro_batch_size.map(rows);
        let (longest, row) = (table.row(own.seq_len), table.row(length));
        // Values given instead of the table's take precedence at all lengths, even if they equal the table's.
        let (Some((longest, _)), Some((row, _))) = (longest, row) else { return config };
        if self.is_adapted(AdaptedKey::GlobalBatchSize) && own.global_batch_size == longest.global_batch_size {
            config.train.global_batch_size = row.global_batch_size;
            if self.is_adapted(AdaptedKey::MicroBatchSize) {
                config.train.micro_batch_size = Some(config.share().div_ceil(row.micro_batches));
            }
        }
        config
    }

    /// Rejects lengths that are out of order, and those at which other values do not fit.
    pub(super) fn validate_buckets(&self) -> Result<(), TrainError> {
        let (Some(lengths), longest) = (&self.data.buckets, self.train.seq_len) else { return Ok(()) };
        require(
            lengths.iter().is_sorted_by(|a, b| a < b) && lengths.first().is_some_and(|length| *length > 0),
            || {
                format!(
                    "data.buckets is {lengths:?}: give lengths of rows from short to long, each once, such as [512, 2048], or null"
                )
            },
        )?;
        require(lengths.last() == Some(&longest), || {
            let last = lengths.last().copied().unwrap_or_default();
            format!(
                "data.buckets {lengths:?} end at {last}, and train.seq_len is {longest}: the last is the longest row, give --seq-len {last}, or \
                 end the list with {longest}"
            )
        })?;
        let mut shorter = self.by_length();
        shorter.pop();
        shorter
            .iter()
            .try_for_each(|config| config.validate_keys().map_err(|error| at_length(config.train.seq_len, error)))
    }
}

/// Adds to an error the row length at which it occurs.
fn at_length(length: usize, error: TrainError) -> TrainError {
    match error {
        TrainError::Config(message) => {
            let message = message.replace("train.seq_len", "the length").replace("--seq-len", "in data.buckets");
            TrainError::Config(format!("of data.buckets, at rows of {length} tokens: {message}"))
        }
        other => other,
    }
}
