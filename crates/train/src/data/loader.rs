//! The two splits of a corpus, and the batches cut from them.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::DataError;

/// The tokens of a corpus in two splits: the first 90% train, the rest validate (nanoGPT's rule).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Tokens to train on.
    pub train: Vec<u32>,
    /// Tokens to validate on.
    pub val: Vec<u32>,
}

/// Sequences of tokens and the token that follows each.
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

impl Dataset {
    /// Splits `tokens` at 90%.
    ///
    /// # Errors
    /// A split with fewer than `seq_len + 1` tokens: it could not fill one sequence and its targets.
    pub fn new(mut tokens: Vec<u32>, seq_len: usize) -> Result<Self, DataError> {
        let total = tokens.len();
        let val = tokens.split_off(total * 9 / 10);
        for (split, found) in [("training", tokens.len()), ("validation", val.len())] {
            if found < seq_len + 1 {
                return Err(DataError::TooShort { split, found, needed: seq_len + 1, total });
            }
        }
        Ok(Self { train: tokens, val })
    }

    /// Sequences `range` of the global batch of training step `step`.
    ///
    /// Where sequence `i` starts depends on (`seed`, `step`, `i`) alone and is uniform over the training split, so
    /// ranks, micro-batches and resumed runs each cut their part out of one and the same batch.
    ///
    /// # Panics
    /// If the training split has fewer than `seq_len + 1` tokens.
    pub fn train_batch(&self, seed: u64, step: u64, range: Range<usize>, seq_len: usize) -> Batch {
        assert!(self.train.len() > seq_len, "{} training tokens for a seq_len of {seq_len}", self.train.len());
        let starts = (self.train.len() - seq_len) as u64; // a sequence and its last target: seq_len + 1 tokens
        cut(&self.train, range.map(|sequence| random_start(seed, step, sequence, starts)), seq_len)
    }

    /// How many windows of `seq_len` tokens, side by side, the validation split has.
    pub fn val_windows(&self, seq_len: usize) -> usize {
        (self.val.len() - 1) / seq_len // the last target of the last window is one token more
    }

    /// Which windows to validate on: `n` spread evenly over the split, in order; all if `n` is 0 or more than all.
    pub fn val_indices(&self, n: usize, seq_len: usize) -> Vec<usize> {
        let all = self.val_windows(seq_len);
        let n = if n == 0 { all } else { n.min(all) };
        (0..n).map(|i| i * all / n).collect()
    }

    /// The given windows of the validation split, in the given order; window `i` starts at token `i * seq_len`.
    ///
    /// # Panics
    /// If a window is not below [`val_windows`](Self::val_windows).
    pub fn val_batch(&self, windows: impl IntoIterator<Item = usize>, seq_len: usize) -> Batch {
        cut(&self.val, windows.into_iter().map(|window| window * seq_len), seq_len)
    }
}

/// One sequence of `seq_len` tokens at each of `starts`, with its targets one token further.
fn cut(tokens: &[u32], starts: impl Iterator<Item = usize>, seq_len: usize) -> Batch {
    let mut batch = Batch { seq_len, ..Batch::default() };
    for start in starts {
        let window = &tokens[start..=start + seq_len];
        batch.inputs.extend(window[..seq_len].iter().map(|&token| token as i32));
        batch.targets.extend(window[1..].iter().map(|&token| token as i32));
        batch.sequences += 1;
    }
    batch
}

/// A uniform number below `starts`: ChaCha8 with key `seed`, nonce `step` and block counter `sequence`.
fn random_start(seed: u64, step: u64, sequence: usize, starts: u64) -> usize {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(step);
    rng.set_word_pos(sequence as u128 * 16); // a block has 16 words

    // Lemire's method: the high half of a 128-bit product, without the draws that would favour some results.
    // Written out, because `random_range` of `rand` is slightly biased by default and may change with its version.
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(starts);
        if product as u64 >= starts.wrapping_neg() % starts {
            return (product >> 64) as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Token `i` is `i`, so a batch shows where it was cut.
    fn counting(tokens: u32, seq_len: usize) -> Dataset {
        Dataset::new((0..tokens).collect(), seq_len).unwrap()
    }

    proptest! {
        #[test]
        fn the_slices_of_ranks_concatenate_to_the_global_batch(
            seed: u64, step: u64, global in 1usize..40, ranks in 1usize..9, seq_len in 1usize..20,
        ) {
            let data = counting(1000, seq_len);
            let mut joined = Batch { seq_len, ..Batch::default() };
            for rank in 0..ranks {
                let part = data.train_batch(seed, step, rank * global / ranks..(rank + 1) * global / ranks, seq_len);
                joined.inputs.extend(part.inputs);
                joined.targets.extend(part.targets);
                joined.sequences += part.sequences;
            }
            prop_assert_eq!(joined, data.train_batch(seed, step, 0..global, seq_len));
        }

        #[test]
        fn a_batch_depends_on_seed_step_and_sequence(seed: u64, step in 0..u64::MAX) {
            let data = counting(1_000_000, 8);
            let batch = data.train_batch(seed, step, 0..4, 8);
            prop_assert_eq!(&batch, &data.train_batch(seed, step, 0..4, 8));
            prop_assert_ne!(&batch, &data.train_batch(seed, step + 1, 0..4, 8));
            prop_assert_ne!(&batch, &data.train_batch(seed.wrapping_add(1), step, 0..4, 8));
            prop_assert_ne!(&batch, &data.train_batch(seed, step, 4..8, 8));
        }

        #[test]
        fn targets_are_the_inputs_shifted_by_one(seed: u64, step: u64, seq_len in 1usize..50) {
            let data = counting(1000, seq_len);
            for batch in [data.train_batch(seed, step, 3..7, seq_len), data.val_batch(0..2, seq_len)] {
                prop_assert_eq!(batch.inputs.len(), batch.sequences * seq_len);
                let next: Vec<i32> = batch.inputs.iter().map(|token| token + 1).collect();
                prop_assert_eq!(batch.targets, next);
            }
        }

        #[test]
        fn validation_windows_lie_side_by_side_and_fill_the_split(tokens in 200u32..2000, seq_len in 1usize..20) {
            let data = counting(tokens, seq_len);
            let batch = data.val_batch(data.val_indices(0, seq_len), seq_len);
            prop_assert_eq!(batch.sequences, data.val_windows(seq_len));
            let expected: Vec<i32> = data.val[..batch.sequences * seq_len].iter().map(|&token| token as i32).collect();
            prop_assert_eq!(batch.inputs, expected);
            prop_assert!(data.val.len() - (batch.sequences * seq_len + 1) < seq_len); // no room for one more
        }
    }

    #[test]
    fn every_start_of_the_training_split_is_drawn_about_equally_often() {
        let data = counting(20, 1); // 18 training tokens, so 17 starts
        let mut counts = [0; 17];
        data.train_batch(7, 0, 0..17_000, 1).inputs.iter().for_each(|&start| counts[start as usize] += 1);
        // 1000 each, plus or minus five standard deviations.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_starts_of_a_seed_never_change() {
        let data = counting(1_000_000, 1);
        assert_eq!(data.train_batch(1337, 2, 0..4, 1).inputs, [357_238, 778_833, 795_525, 154_284]);
    }

    #[test]
    fn validation_on_a_few_windows_spreads_them_over_the_split() {
        let data = counting(1010, 10); // 101 validation tokens, so 10 windows
        assert_eq!(data.val_indices(4, 10), [0, 2, 5, 7]);
        assert_eq!(data.val_indices(0, 10), Vec::from_iter(0..10));
        assert_eq!(data.val_indices(99, 10), Vec::from_iter(0..10));
    }

    #[test]
    fn a_split_shorter_than_a_sequence_is_an_error_with_its_length() {
        let error = |tokens, seq_len| Dataset::new(vec![0; tokens], seq_len).unwrap_err().to_string();
        assert_eq!(
            error(109, 16),
            "the validation split has 11 tokens and needs at least seq_len + 1 = 17 (of 109 tokens the first 90% \
             train, the rest validate): give a longer text with --data FILE, or lower seq_len"
        );
        assert!(error(10, 16).starts_with("the training split has 9 tokens"));
        assert_eq!(Dataset::new(vec![0; 109], 10).unwrap().val.len(), 11);
    }
}
