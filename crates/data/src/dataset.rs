//! The two splits of a corpus, and the batches cut from them.

use std::ops::Range;

use crate::tokens::Tokens;
use crate::{DataError, Windows};

/// Maximum length of the validation split, unless a fraction is given.
const MAX_VAL_TOKENS: u64 = 10_000_000;

/// A selection of a dataset's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The training tokens.
    Train,
    /// The validation tokens.
    Val,
    /// All of them: training tokens, then validation tokens.
    All,
}

/// Two streams of tokens: the training split and the validation split.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub(crate) train: Tokens,
    val: Tokens,
}

/// Sequences of tokens, each with the token that follows every position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Input tokens, row-major `[sequences, seq_len]`.
    pub inputs: Vec<i32>,
    /// The next token at each position of `inputs`, `[sequences, seq_len]`.
    pub targets: Vec<i32>,
    /// Number of sequences (rows).
    pub sequences: usize,
    /// Tokens per sequence (columns).
    pub seq_len: usize,
}

impl Batch {
    /// Appends a sequence: of `seq_len + 1` tokens, the first `seq_len` are the inputs and the last `seq_len` the
    /// targets.
    pub(crate) fn push(&mut self, tokens: &[i32]) {
        self.inputs.extend_from_slice(&tokens[..self.seq_len]);
        self.targets.extend_from_slice(&tokens[1..]);
        self.sequences += 1;
    }
}

/// The length of the validation split at the end of `total` tokens: the given fraction, or by default 10%, at most 10
/// million tokens.
pub(crate) fn val_tokens(total: u64, fraction: Option<f64>) -> u64 {
    match fraction {
        Some(fraction) => ((total as f64 * fraction).round() as u64).min(total),
        None => total.div_ceil(10).min(MAX_VAL_TOKENS),
    }
}

impl Dataset {
    /// A dataset in memory. The last 10%, at most 10 million tokens, is the validation split.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub fn new(tokens: Vec<u32>, seq_len: usize) -> Result<Self, DataError> {
        let tokens = Tokens::from_vec(tokens);
        let val = val_tokens(tokens.len(), None);
        let dataset = Self::split(tokens, val);
        dataset.check(seq_len)?;
        Ok(dataset)
    }

    /// The dataset whose last `val` tokens are the validation split.
    pub(crate) fn split(tokens: Tokens, val: u64) -> Self {
        let at = tokens.len().saturating_sub(val);
        let (train, val) = tokens.split(at);
        Self { train, val }
    }

    /// The dataset of two streams.
    pub(crate) fn pair(train: Tokens, val: Tokens) -> Self {
        Self { train, val }
    }

    /// A dataset with the tokens of `split` as its validation split and no training tokens, for evaluating a model on
    /// them.
    pub fn only(&self, split: Split) -> Self {
        Self { train: Tokens::from_vec(vec![]), val: self.tokens(split) }
    }

    /// The tokens of `split`.
    pub(crate) fn tokens(&self, split: Split) -> Tokens {
        let Self { train, val } = self.clone();
        match split {
            Split::Train => train,
            Split::Val => val,
            Split::All => train.then(val),
        }
    }

    /// Checks that both splits have room for a sequence.
    ///
    /// # Errors
    /// If a split has fewer than `seq_len + 1` tokens, too few for one sequence and its targets.
    pub fn check(&self, seq_len: usize) -> Result<(), DataError> {
        let (needed, total) = (seq_len as u64 + 1, self.train.len() + self.val.len());
        for (split, found) in [("training", self.train.len()), ("validation", self.val.len())] {
            if found < needed {
                return Err(DataError::TooShort { split, found, needed, total });
            }
        }
        Ok(())
    }

    /// The largest token of both splits, found in a pass over all tokens. With `progress` the pass is shown on stderr.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    pub fn largest_token(&self, progress: bool) -> Result<Option<u32>, DataError> {
        Ok(self.train.largest(progress)?.max(self.val.largest(progress)?))
    }

    /// The same training tokens, with the validation tokens of all `sets`, one after another, as the validation split.
    /// The old validation tokens join the training split unless `leave_out` is set.
    pub(crate) fn validated_on(self, sets: &[Self], leave_out: bool) -> Self {
        let train = if leave_out { self.train } else { self.train.then(self.val) };
        let val = sets.iter().fold(Tokens::from_vec(vec![]), |all, set| all.then(set.val.clone()));
        Self { train, val }
    }

    /// Number of training tokens.
    pub fn train_tokens(&self) -> u64 {
        self.train.len()
    }

    /// Number of validation tokens.
    pub fn val_tokens(&self) -> u64 {
        self.val.len()
    }

    /// The number of sequences in an epoch: the number of adjacent windows of `seq_len` tokens, plus the last target,
    /// that fit into the training split at any offset.
    pub fn epoch_sequences(&self, seq_len: usize) -> u64 {
        (self.train.len().saturating_sub(seq_len as u64) / seq_len as u64).max(1)
    }

    /// Sequences `sequences` of the run with this seed, counted from its start. The first sequence of step `s` has
    /// number `s * global_batch_size`.
    ///
    /// ```text
    /// tokens   |offset|   window 0   |   window 1   |   window 2   | rest |      offset < seq_len, new in each epoch
    /// epoch 0  sequence 0 = window 2, 1 = window 0, 2 = window 1
    /// epoch 1  sequence 3 = window 1, ...
    /// ```
    ///
    /// An epoch visits every window once, in an order that is a function of (`seed`, epoch) alone. So all ranks and
    /// micro-batches cut their parts from the same order, and the loader's state is one number.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    ///
    /// # Panics
    /// If the training split has fewer than `seq_len + 1` tokens: see [`check`](Self::check).
    pub fn train_batch(&self, seed: u64, sequences: Range<u64>, seq_len: usize) -> Result<Batch, DataError> {
        Windows::new(self, &[], seed, seq_len).batch(sequences)
    }

    /// The number of adjacent windows of `seq_len` tokens in the validation split.
    pub fn val_windows(&self, seq_len: usize) -> usize {
        (self.val.len().saturating_sub(1) / seq_len as u64) as usize // the last target takes one more token
    }

    /// The windows to validate on: `n` spread evenly over the split, in order. All windows if `n` is 0 or exceeds their
    /// number.
    pub fn val_indices(&self, n: usize, seq_len: usize) -> Vec<usize> {
        let all = self.val_windows(seq_len);
        let n = if n == 0 { all } else { n.min(all) };
        (0..n).map(|i| i * all / n).collect()
    }

    /// The given windows of the validation split, in the given order. Window `i` starts at token `i * seq_len`.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    ///
    /// # Panics
    /// If a window is not below [`val_windows`](Self::val_windows).
    pub fn val_batch(&self, windows: impl IntoIterator<Item = usize>, seq_len: usize) -> Result<Batch, DataError> {
        cut(&self.val, windows.into_iter().map(|window| (window * seq_len) as u64), seq_len)
    }
}

/// One sequence of `seq_len` tokens at each of `starts`, with targets shifted by one token.
fn cut(tokens: &Tokens, starts: impl Iterator<Item = u64>, seq_len: usize) -> Result<Batch, DataError> {
    let mut batch = Batch { seq_len, ..Batch::default() };
    let mut window = Vec::with_capacity(seq_len + 1);
    for start in starts {
        window.clear();
        tokens.read(start..start + seq_len as u64 + 1, &mut window)?;
        batch.push(&window);
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A dataset in which token `i` is `i`, so a batch shows where it was cut.
    fn counting(tokens: u32, seq_len: usize) -> Dataset {
        Dataset::new((0..tokens).collect(), seq_len).unwrap()
    }

    fn starts(batch: &Batch) -> Vec<i32> {
        batch.inputs.iter().copied().step_by(batch.seq_len).collect()
    }

    proptest! {
        #[test]
        fn the_slices_of_ranks_concatenate_to_the_global_batch(
            seed: u64, first in 0..u64::MAX / 2, global in 1u64..40, ranks in 1u64..9, seq_len in 1usize..20,
        ) {
            let data = counting(1000, seq_len);
            let mut joined = Batch { seq_len, ..Batch::default() };
            for rank in 0..ranks {
                let part = first + rank * global / ranks..first + (rank + 1) * global / ranks;
                let part = data.train_batch(seed, part, seq_len).unwrap();
                joined.inputs.extend(part.inputs);
                joined.targets.extend(part.targets);
                joined.sequences += part.sequences;
            }
            prop_assert_eq!(joined, data.train_batch(seed, first..first + global, seq_len).unwrap());
        }

        #[test]
        fn an_epoch_trains_on_every_token_between_its_ends_once(
            seed: u64, epoch in 0u64..1000, tokens in 230u32..2000, seq_len in 1usize..20,
        ) {
            let data = counting(tokens, seq_len);
            let n = data.epoch_sequences(seq_len);
            let mut seen = data.train_batch(seed, epoch * n..(epoch + 1) * n, seq_len).unwrap().inputs;
            seen.sort_unstable();
            let first = seen[0];
            prop_assert!((first as usize) < seq_len);
            let last = first + (n as usize * seq_len) as i32;
            prop_assert!(seen.into_iter().eq(first..last));
            prop_assert!(data.train_tokens() - u64::try_from(last).unwrap() < 2 * seq_len as u64);
        }

        #[test]
        fn the_order_depends_on_seed_and_epoch(seed: u64, epoch in 0u64..1 << 40) {
            let data = counting(10_000, 8);
            let n = data.epoch_sequences(8);
            let order = |seed: u64, epoch| starts(&data.train_batch(seed, epoch * n..epoch * n + 20, 8).unwrap());
            prop_assert_eq!(order(seed, epoch), order(seed, epoch));
            prop_assert_ne!(order(seed, epoch), order(seed, epoch + 1));
            prop_assert_ne!(order(seed, epoch), order(seed.wrapping_add(1), epoch));
        }

        #[test]
        fn targets_are_the_inputs_shifted_by_one(seed: u64, first in 0..u64::MAX / 2, seq_len in 1usize..50) {
            let data = counting(1000, seq_len);
            for batch in [data.train_batch(seed, first..first + 4, seq_len).unwrap(), data.val_batch(0..2, seq_len).unwrap()] {
                prop_assert_eq!(batch.inputs.len(), batch.sequences * seq_len);
                let next: Vec<i32> = batch.inputs.iter().map(|token| token + 1).collect();
                prop_assert_eq!(batch.targets, next);
            }
        }

        #[test]
        fn validation_windows_lie_side_by_side_and_fill_the_split(tokens in 200u32..2000, seq_len in 1usize..20) {
            let data = counting(tokens, seq_len);
            let batch = data.val_batch(data.val_indices(0, seq_len), seq_len).unwrap();
            prop_assert_eq!(batch.sequences, data.val_windows(seq_len));
            let first = data.train_tokens() as i32;
            let inputs = (batch.sequences * seq_len) as i32;
            prop_assert!(batch.inputs.into_iter().eq(first..first + inputs));
            prop_assert!(data.val_tokens() - (inputs as u64 + 1) < seq_len as u64); // no room for one more
        }
    }

    #[test]
    fn one_split_or_all_of_them_is_evaluated_in_order() {
        let data = counting(100, 4);
        for (split, tokens) in [(Split::Train, 0..90), (Split::Val, 90..100), (Split::All, 0..100)] {
            let only = data.only(split);
            assert_eq!((only.train_tokens(), only.val_tokens()), (0, tokens.len() as u64));
            let batch = only.val_batch(only.val_indices(0, 1), 1).unwrap();
            assert!(batch.targets.into_iter().eq(tokens.skip(1)), "{split:?}");
        }
    }

    #[test]
    fn a_split_of_a_single_window_trains() {
        let data = counting(20, 1); // 18 training tokens
        assert_eq!(data.epoch_sequences(17), 1);
        assert_eq!(data.train_batch(0, 5..6, 17).unwrap().inputs, Vec::from_iter(0..17));
    }

    #[test]
    fn validation_on_a_few_windows_spreads_them_over_the_split() {
        let data = counting(1010, 10); // 101 validation tokens, so 10 windows
        assert_eq!(data.val_indices(4, 10), [0, 2, 5, 7]);
        assert_eq!(data.val_indices(0, 10), Vec::from_iter(0..10));
        assert_eq!(data.val_indices(99, 10), Vec::from_iter(0..10));
    }

    #[test]
    fn a_tenth_but_at_most_ten_million_tokens_validate_unless_a_share_is_given() {
        assert_eq!([109, 1_000_000_000].map(|total| val_tokens(total, None)), [11, 10_000_000]);
        assert_eq!([0.0, 0.25, 1.0].map(|share| val_tokens(1000, Some(share))), [0, 250, 1000]);
    }

    #[test]
    fn a_split_shorter_than_a_sequence_is_an_error_with_its_length() {
        let error = |tokens, seq_len| Dataset::new(vec![0; tokens], seq_len).unwrap_err().to_string();
        assert_eq!(
            error(109, 16),
            "the validation split has 11 tokens and needs at least seq_len + 1 = 17 (109 in all): give a longer \
             text, lower seq_len, or raise val_fraction, the fraction held out for validation"
        );
        assert!(error(10, 16).starts_with("the training split has 9 tokens"));
        assert_eq!(Dataset::new(vec![0; 109], 10).unwrap().val_tokens(), 11);
    }
}
