//! Rows of several lengths, and the choice of rows for each step.

use std::ops::Range;

use crate::order::{Epoch, Epochs, mix};
use crate::packing::{self, PackedRows};
use crate::tokens::Tokens;
use crate::{Batch, DataError, Dataset};

/// The documents of the training split, packed by length into rows of several lengths. Each bucket holds the rows of
/// one length.
///
/// ```text
/// documents      eeeeeeeeeeee.  aaaaaaa.  bbb.  cc.  d.       . is the end-of-text token
///
/// bucket of 8    eeeeeeeee  aaaaaaa.d                         a row has length + 1 tokens:
/// bucket of 4    eeee.  bbb.d  cc.d.                          all but the last are inputs, all but the first targets
/// ```
///
/// A document longer than the longest row is cut into such rows, and its remainder is packed like a document. Then,
/// from longest to shortest, each document opens a row of the shortest length that has room for it, and the longest
/// documents that fit fill the row (best fit decreasing, as in [Fewer Truncations](https://arxiv.org/abs/2404.10830)).
/// A gap that no document fits is filled with the beginning of the shortest longer one, whose remainder is packed later
/// and starts with the last token used.
///
/// So there is no padding, and every token that has a successor in its document is an input once, in a row of one
/// bucket. Short documents first fill up the rows of longer ones. Three things are left out: documents that consist of
/// an end-of-text token alone, the last of the shortest documents if they fill no row, and the last tokens of a split
/// that ends inside a document. The rows depend on tokens and lengths alone.
#[derive(Debug, Clone)]
pub struct Buckets {
    tokens: Tokens,
    lengths: Vec<usize>,
    rows: Vec<PackedRows>,
}

/// The sequences of a step: its global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketStep {
    /// The bucket of the rows.
    pub bucket: usize,
    /// The rows, by their numbers in the bucket.
    pub rows: Vec<usize>,
}

impl Buckets {
    /// Packs the training split of `dataset` into rows of `lengths` inputs, in one pass over it.
    ///
    /// # Errors
    /// If the split does not fill one row of the shortest length, or if a token file can no longer be read.
    ///
    /// # Panics
    /// If `lengths` is empty, not strictly ascending, or starts at 0.
    pub fn new(dataset: &Dataset, lengths: &[usize], end_of_text: u32, progress: bool) -> Result<Self, DataError> {
        assert!(lengths.is_sorted_by(|a, b| a < b) && lengths.first().is_some_and(|&length| length > 0), "{lengths:?}");
        let tokens = dataset.train.clone();
        let rows = packing::pack(&tokens, lengths, end_of_text as i32, progress)?;
        if rows.iter().all(|rows| rows.len() == 0) {
            return Err(DataError::NoRow { found: tokens.len(), needed: lengths[0] + 1 });
        }
        Ok(Self { tokens, lengths: lengths.into(), rows })
    }

    /// Number of rows in a bucket.
    pub fn rows(&self, bucket: usize) -> usize {
        self.rows[bucket].len()
    }

    /// Number of documents that are whole in a bucket's rows.
    pub fn documents(&self, bucket: usize) -> usize {
        self.rows[bucket].pieces().iter().filter(|piece| piece.whole).count()
    }

    /// Number of pieces of cut documents in a bucket's rows, including single tokens that fill a row's last place.
    pub fn cut_pieces(&self, bucket: usize) -> usize {
        self.rows[bucket].pieces().len() - self.documents(bucket)
    }

    /// The number of steps that train `epochs` times on all rows of all buckets, if a step of bucket `i` has `batch[i]`
    /// sequences. Rows that do not fill a step count as the fraction that they fill.
    ///
    /// # Panics
    /// If `batch` lacks a number for a bucket, or has a 0 for a bucket that has rows.
    pub fn steps_in(&self, epochs: f64, batch: &[usize]) -> f64 {
        assert_eq!(batch.len(), self.lengths.len(), "a batch size for each bucket");
        let of_bucket = |bucket: usize| match self.rows(bucket) {
            0 => 0.0,
            rows => epochs * rows as f64 / batch[bucket] as f64,
        };
        (0..self.lengths.len()).map(of_bucket).sum()
    }

    /// The rows that step `step`, counted from the start of the run, trains on under this seed, if a step of bucket `i`
    /// has `batch[i]` sequences.
    ///
    /// ```text
    /// bucket 0   rows 5 0 3 | 9 1 7 | 2 8 6 | 4 .         reordered each time, without a gap from one pass to the next
    /// bucket 1   rows 7 2 | 4 1 | 0 .
    /// step       0: bucket 1, rows 7 2   1: bucket 0, rows 5 0 3   2: bucket 0, rows 9 1 7   3: bucket 1, rows 4 1 ...
    /// ```
    ///
    /// Each row of a bucket is used once before any row is repeated, whatever the batch sizes. In each epoch a bucket
    /// has as many steps as its rows fill; rows that fill only part of a step wait for those of the next epochs. The
    /// steps of an epoch are shuffled. All orders are functions of (`seed`, epoch) alone.
    ///
    /// # Panics
    /// If `batch` lacks a number for a bucket, or has a 0 for a bucket that has rows.
    pub fn step(&self, seed: u64, step: u64, batch: &[usize]) -> BucketStep {
        let (bucket, number) = self.place(seed, step, batch);
        let mut epochs = Epochs::new(mix(seed ^ mix(bucket as u64 + 1)), self.rows(bucket) as u64, 1);
        let first = number * batch[bucket] as u128;
        BucketStep {
            bucket,
            rows: (first..first + batch[bucket] as u128).map(|index| epochs.at(index).0 as usize).collect(),
        }
    }

    /// The bucket of [`step`](Self::step), without its rows.
    ///
    /// # Panics
    /// As for [`step`](Self::step).
    pub fn bucket(&self, seed: u64, step: u64, batch: &[usize]) -> usize {
        self.place(seed, step, batch).0
    }

    /// The bucket of a step, and the number of earlier steps of this bucket in the run.
    fn place(&self, seed: u64, step: u64, batch: &[usize]) -> (usize, u128) {
        let epoch = self.epoch(step, batch);
        let (first, all) = (self.steps(epoch, batch), self.steps(epoch + 1, batch));
        let steps = (all - first) as u64;
        let mut number = u128::from(Epoch::new(seed, epoch as u64, steps, 1).window((u128::from(step) - first) as u64));
        for bucket in 0..self.lengths.len() {
            // The bucket's steps before this epoch, and those in it.
            let before = self.steps_of_bucket(bucket, epoch, batch);
            let here = self.steps_of_bucket(bucket, epoch + 1, batch) - before;
            if number < here {
                return (bucket, before + number);
            }
            number -= here;
        }
        unreachable!("the steps of an epoch are those of its buckets")
    }

    /// The epoch of a step.
    fn epoch(&self, step: u64, batch: &[usize]) -> u128 {
        assert_eq!(batch.len(), self.lengths.len(), "a batch size for each bucket");
        let (step, mut low, mut high) = (u128::from(step), 0, 1);
        while self.steps(high, batch) <= step {
            (low, high) = (high, high * 2);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.steps(middle, batch) <= step { low = middle } else { high = middle }
        }
        low
    }

    /// Steps of all buckets before an epoch.
    fn steps(&self, epoch: u128, batch: &[usize]) -> u128 {
        (0..self.lengths.len()).map(|bucket| self.steps_of_bucket(bucket, epoch, batch)).sum()
    }

    /// Steps of one bucket before an epoch.
    fn steps_of_bucket(&self, bucket: usize, epoch: u128, batch: &[usize]) -> u128 {
        match self.rows(bucket) {
            0 => 0,
            rows => epoch * rows as u128 / batch[bucket] as u128,
        }
    }

    /// Part `sequences` of the batch of `step`: a rank's share, or a micro-batch.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    ///
    /// # Panics
    /// If the step does not have these sequences, or belongs to other buckets.
    pub fn batch(&self, step: &BucketStep, sequences: Range<usize>) -> Result<Batch, DataError> {
        let seq_len = self.lengths[step.bucket];
        let mut batch = Batch { seq_len, ..Batch::default() };
        let mut row = Vec::with_capacity(seq_len + 1);
        for &number in &step.rows[sequences] {
            row.clear();
            let pieces = self.rows[step.bucket].row(number);
            pieces.iter().try_for_each(|piece| self.tokens.read(piece.range(), &mut row))?;
            batch.push(&row);
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [usize; 3] = [4, 9, 16];

    /// Buckets with the letters of `text` as training tokens. Documents end in full stops.
    fn buckets(text: &str, lengths: &[usize]) -> Result<Buckets, DataError> {
        let tokens = Tokens::from_vec(text.bytes().map(u32::from).collect());
        Buckets::new(&Dataset::split(tokens, 0), lengths, u32::from(b'.'), false)
    }

    /// Documents with these numbers of letters.
    fn documents(lens: &[usize]) -> String {
        let letters = ('a'..='z').cycle();
        lens.iter().zip(letters).map(|(&len, letter)| String::from(letter).repeat(len) + ".").collect()
    }

    fn join(mut whole: Batch, part: Batch) -> Batch {
        whole.inputs.extend(part.inputs);
        whole.targets.extend(part.targets);
        Batch { sequences: whole.sequences + part.sequences, ..whole }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn each_row_comes_before_any_of_its_bucket_comes_again_and_buckets_by_what_they_have(
            lens in prop::collection::vec(0usize..40, 5..80), seed: u64, epochs in 1u128..9,
            batch in [1usize..12, 1usize..12, 1usize..12],
        ) {
            let buckets = buckets(&(documents(&lens) + "zzzz."), &LENGTHS).unwrap();
            let mut visits = [0, 1, 2].map(|bucket| vec![0usize; buckets.rows(bucket)]);
            for step in 0..buckets.steps(epochs, &batch) {
                let step = buckets.step(seed, step as u64, &batch);
                prop_assert_eq!(step.rows.len(), batch[step.bucket]);
                step.rows.into_iter().for_each(|row| visits[step.bucket][row] += 1);
            }
            for (bucket, visits) in visits.into_iter().enumerate() {
                let (rows, all) = (buckets.rows(bucket), visits.iter().sum::<usize>());
                prop_assert_eq!(all, epochs as usize * rows / batch[bucket] * batch[bucket]);
                prop_assert!(visits.iter().all(|&times| times == all / rows || times == all.div_ceil(rows)));
            }
        }

        #[test]
        fn the_parts_of_ranks_concatenate_to_the_global_batch(
            lens in prop::collection::vec(1usize..40, 20..80), seed: u64, step in 0..u64::MAX, global in 1usize..12,
            ranks in 1usize..6,
        ) {
            let buckets = buckets(&documents(&lens), &LENGTHS).unwrap();
            let step = buckets.step(seed, step, &[global; 3]);
            let whole = buckets.batch(&step, 0..global).unwrap();
            let parts = (0..ranks).map(|rank| buckets.batch(&step, rank * global / ranks..(rank + 1) * global / ranks).unwrap());
            let empty = Batch { seq_len: LENGTHS[step.bucket], ..Batch::default() };
            prop_assert_eq!(&parts.fold(empty, join), &whole);
            prop_assert_eq!((whole.sequences, whole.inputs.len()), (global, global * whole.seq_len));
            for (inputs, targets) in whole.inputs.chunks(whole.seq_len).zip(whole.targets.chunks(whole.seq_len)) {
                prop_assert_eq!(&inputs[1..], &targets[..whole.seq_len - 1]);
            }
        }

        #[test]
        fn the_order_depends_on_seed_and_epoch(seed: u64, epoch in 0u64..1 << 40) {
            let text = documents(&Vec::from_iter((0..1000).map(|i| i * i % 37)));
            let [one, other] = [buckets(&text, &LENGTHS).unwrap(), buckets(&text, &LENGTHS).unwrap()];
            let batch = [4, 2, 1];
            let order = |buckets: &Buckets, seed: u64, epoch: u64| {
                let first = buckets.steps(epoch.into(), &batch) as u64;
                Vec::from_iter((first..first + 30).map(|step| buckets.step(seed, step, &batch)))
            };
            prop_assert_eq!(order(&one, seed, epoch), order(&other, seed, epoch));
            prop_assert_ne!(order(&one, seed, epoch), order(&one, seed, epoch + 1));
            prop_assert_ne!(order(&one, seed, epoch), order(&one, seed.wrapping_add(1), epoch));
        }
    }

    #[test]
    fn documents_become_the_rows_of_the_picture() {
        let buckets = buckets("eeeeeeeeeeee.aaaaaaa.bbb.cc.d.", &[4, 8, 100]).unwrap();
        let rows = |bucket| {
            let text = |row| {
                let batch = buckets.batch(&BucketStep { bucket, rows: vec![row] }, 0..1).unwrap();
                let tokens = batch.inputs.iter().chain(batch.targets.last());
                tokens.map(|&token| char::from(token as u8)).collect::<String>()
            };
            Vec::from_iter((0..buckets.rows(bucket)).map(text))
        };
        assert_eq!(rows(1), ["eeeeeeeee", "aaaaaaa.d"]);
        assert_eq!(rows(0), ["eeee.", "bbb.d", "cc.d."]);
        assert_eq!([0, 1, 2].map(|bucket| buckets.documents(bucket)), [3, 1, 0]);
        assert_eq!([0, 1, 2].map(|bucket| buckets.cut_pieces(bucket)), [2, 2, 0]);
        assert_eq!(buckets.rows(2), 0);
    }

    #[test]
    fn a_corpus_without_borders_is_one_document() {
        let buckets = buckets("abcdefghij", &[2, 4]).unwrap();
        let batch = buckets.batch(&BucketStep { bucket: 1, rows: vec![0, 1] }, 0..2).unwrap();
        assert!(batch.inputs.iter().copied().eq(i32::from(b'a')..=i32::from(b'h')));
        assert_eq!((buckets.rows(0), buckets.rows(1)), (0, 2));
    }

    #[test]
    fn a_corpus_that_fills_no_row_is_an_error_with_its_length() {
        let error = buckets("a.bc.......", &[5, 9]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the training split has 11 tokens, whose documents do not fill one row of 6 (the shortest length + 1): give \
             a longer text, or shorter rows"
        );
        assert_eq!(buckets("a.bcd.......", &[5, 9]).unwrap().rows(0), 1);
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        let buckets = buckets(&documents(&Vec::from_iter((0..1000).map(|i| i * i % 37))), &LENGTHS).unwrap();
        let steps = [0, 1, 1002].map(|step| buckets.step(1337, step, &[1, 2, 4]));
        assert_eq!(
            steps.map(|step| (step.bucket, step.rows)),
            [(1, vec![35, 90]), (2, vec![227, 386, 270, 82]), (2, vec![854, 719, 596, 442])]
        );
    }
}
