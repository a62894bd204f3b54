//! A split as a list of sequences of one length, for loaders that choose their own order.

use crate::tokens::Tokens;
use crate::{DataError, Dataset, Split};

/// The sequences of a split, by number: adjacent windows of `seq_len` tokens. A remainder that fills no window is left
/// out. With the feature `burn` this is a Burn `Dataset<Sequence>`.
#[derive(Debug, Clone)]
pub struct Sequences {
    tokens: Tokens,
    seq_len: usize,
}

/// Consecutive tokens, each but the last an input, and each but the first the target of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// `seq_len + 1` tokens.
    pub tokens: Vec<i32>,
}

impl Sequence {
    /// The first `seq_len` tokens.
    pub fn inputs(&self) -> &[i32] {
        &self.tokens[..self.tokens.len() - 1]
    }

    /// The last `seq_len` tokens.
    pub fn targets(&self) -> &[i32] {
        &self.tokens[1..]
    }
}

impl Dataset {
    /// The adjacent sequences of `seq_len` tokens of a split, in order.
    ///
    /// # Errors
    /// If the split has fewer than `seq_len + 1` tokens.
    ///
    /// # Panics
    /// If `seq_len` is 0.
    pub fn sequences(&self, split: Split, seq_len: usize) -> Result<Sequences, DataError> {
        assert!(seq_len > 0, "a sequence has at least one token");
        let tokens = self.tokens(split);
        let (found, needed) = (tokens.len(), seq_len as u64 + 1);
        if found < needed {
            let split = match split {
                Split::Train => "training",
                Split::Val => "validation",
                Split::All => "whole",
            };
            let total = self.train_tokens() + self.val_tokens();
            return Err(DataError::TooShort { split, found, needed, total });
        }
        Ok(Sequences { tokens, seq_len })
    }
}

#[expect(clippy::len_without_is_empty, reason = "there is always at least one")]
impl Sequences {
    /// The number of sequences, at least 1.
    pub fn len(&self) -> usize {
        ((self.tokens.len() - 1) / self.seq_len as u64) as usize // the last target takes one more token
    }

    /// Sequence `index`, which begins at token `index * seq_len` of the split.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn get(&self, index: usize) -> Result<Sequence, DataError> {
        assert!(index < self.len(), "sequence {index} of {}", self.len());
        let (start, mut tokens) = (index as u64 * self.seq_len as u64, Vec::with_capacity(self.seq_len + 1));
        self.tokens.read(start..start + self.seq_len as u64 + 1, &mut tokens)?;
        Ok(Sequence { tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_fill_their_split_and_share_only_a_last_target() {
        let data = Dataset::new((0..101).collect(), 4).unwrap(); // 90 tokens train, 11 validate
        for (split, tokens, n) in [(Split::Train, 0..90, 22), (Split::Val, 90..101, 2), (Split::All, 0..101, 25)] {
            let sequences = data.sequences(split, 4).unwrap();
            assert_eq!(sequences.len(), n, "{split:?}");
            for (i, first) in (0..n).zip(tokens.step_by(4)) {
                let sequence = sequences.get(i).unwrap();
                assert!(sequence.inputs().iter().copied().eq(first..first + 4));
                assert!(sequence.targets().iter().copied().eq(first + 1..first + 5));
            }
        }
        assert_eq!(
            (data.sequences(Split::Val, 10).unwrap().len(), data.sequences(Split::All, 100).unwrap().len()),
            (1, 1)
        );
        let error = data.sequences(Split::All, 101).unwrap_err().to_string();
        assert!(error.starts_with("the whole split has 101 tokens and needs at least seq_len + 1 = 102"), "{error}");
    }
}
