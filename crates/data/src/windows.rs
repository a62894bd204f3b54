//! The order of a run's sequences, including changes of their length within an epoch.
//!
//! ```text
//! tokens       |offset|  w0  |  w1  |  w2  |  w3  |  w4  |  w5  | rest |
//! seq_len 4    sequences w3 w0 | here the length becomes 6
//! remaining    w1 w2 w4 w5, end to end     |  v0  .  v1  .  v0' ...          cut anew; an incomplete last one dropped
//! seq_len 6    sequences v1 v0 | next epoch: adjacent windows of 6 again
//! ```
//!
//! The rest of an epoch is concatenated in text order and cut into sequences of the new length, which are visited in a
//! new order. So no token is predicted twice in an epoch, and fewer tokens than one sequence are left out at its end. A
//! sequence may join several parts of the text, but each of its targets is the token that follows in the text.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::order::{Epoch, Epochs, mix};
use crate::tokens::Tokens;
use crate::{Batch, DataError, Dataset};

/// A part of a run so far: tokens that it has trained on in sequences of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trained {
    /// The seed of the order.
    pub seed: u64,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Number of tokens, over all ranks.
    pub tokens: u64,
}

/// The sequences that a run has yet to train on, after training on sequences of this or other lengths.
///
/// They depend only on the seeds, the lengths and the numbers of tokens.
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: Tokens,
    seed: u64,
    seq_len: usize,
    /// The epoch of the next sequence.
    epoch: u64,
    /// The epoch's earlier orders, from before its changes of length. Empty if there were none.
    cuts: Vec<Cut>,
    /// The current order.
    now: Order,
    /// Sequences of it that are done.
    done: u64,
}

/// Adjacent sequences of one length, and their order.
#[derive(Debug, Clone)]
struct Order {
    seq_len: u64,
    windows: u64,
    /// None if too few tokens are left for one window.
    epoch: Option<Epoch>,
    /// Number of tokens cut into windows.
    len: u64,
}

/// An order that was replaced by another.
#[derive(Debug, Clone)]
struct Cut {
    order: Order,
    left: Left,
}

impl Windows {
    /// The sequences of the training split of `dataset`, for a run that has `trained` on parts of it and continues with
    /// sequences of `seq_len` tokens.
    ///
    /// Each change of length within an epoch costs one bit of memory per window, and a lookup in the order for at most
    /// half of the windows.
    ///
    /// # Panics
    /// If the training split has fewer than `seq_len + 1` tokens: see [`Dataset::check`].
    pub fn new(dataset: &Dataset, trained: &[Trained], seed: u64, seq_len: usize) -> Self {
        let mut windows = Self::begin(dataset, seed, seq_len);
        // Earlier parts may have used other data, with sequences too long for this one.
        let fits = |seq_len| seq_len > 0 && windows.tokens.len() > seq_len as u64;
        let mut parts =
            trained.iter().copied().filter(|part| part.tokens > 0 && fits(part.seq_len)).collect::<Vec<_>>();
        parts.push(Trained { seed, seq_len, tokens: 0 });
        (windows.seed, windows.seq_len) = (parts[0].seed, parts[0].seq_len);
        windows.now = windows.whole();
        for part in parts {
            windows.turn_to(part.seed, part.seq_len);
            windows.skip(part.tokens / part.seq_len as u64);
        }
        windows
    }

    fn begin(dataset: &Dataset, seed: u64, seq_len: usize) -> Self {
        let tokens = dataset.train.clone();
        assert!(tokens.len() > seq_len as u64, "{} training tokens for a seq_len of {seq_len}", tokens.len());
        let now = Order { seq_len: seq_len as u64, windows: 0, epoch: None, len: 0 };
        Self { tokens, seed, seq_len, epoch: 0, cuts: vec![], now, done: 0 }
    }

    /// The number of windows in an epoch that begins with this length, and the number of offsets.
    fn windows(&self) -> (u64, u64) {
        let (len, seq_len) = (self.tokens.len(), self.seq_len as u64);
        let windows = (len.saturating_sub(seq_len) / seq_len).max(1);
        // One of the spare tokens is the last target.
        (windows, len.saturating_sub(windows * seq_len).clamp(1, seq_len))
    }

    /// The order of an epoch that begins with this length.
    fn whole(&self) -> Order {
        let (windows, offsets) = self.windows();
        let epoch = Epoch::new(self.seed, self.epoch, windows, offsets);
        Order { seq_len: self.seq_len as u64, windows, epoch: Some(epoch), len: windows * self.seq_len as u64 }
    }

    /// Continues with a different length or seed.
    fn turn_to(&mut self, seed: u64, seq_len: usize) {
        if (seed, seq_len) == (self.seed, self.seq_len) {
            return;
        }
        (self.seed, self.seq_len) = (seed, seq_len);
        if self.cuts.is_empty() && self.done == 0 {
            self.now = self.whole();
            return;
        }
        let left = Left::after(&self.now, self.done);
        let len = self.now.len - self.done * self.now.seq_len;
        let windows = len / seq_len as u64;
        let seed = mix(seed ^ mix(self.cuts.len() as u64 + 1));
        let epoch = (windows > 0).then(|| Epoch::new(seed, self.epoch, windows, 1));
        let order = Order { seq_len: seq_len as u64, windows, epoch, len };
        self.cuts.push(Cut { order: std::mem::replace(&mut self.now, order), left });
        self.done = 0;
    }

    /// Skips this many sequences.
    fn skip(&mut self, sequences: u64) {
        let here = self.now.windows - self.done;
        if sequences < here {
            self.done += sequences;
            return;
        }
        let (windows, _) = self.windows();
        self.epoch += 1 + (sequences - here) / windows;
        self.done = (sequences - here) % windows;
        self.cuts.clear();
        self.now = self.whole();
    }

    /// Sequences `sequences`, counted from the first one that the run has yet to train on.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    pub fn batch(&self, sequences: Range<u64>) -> Result<Batch, DataError> {
        let mut batch = Batch { seq_len: self.seq_len, ..Batch::default() };
        let here = self.now.windows - self.done;
        let (windows, offsets) = self.windows();
        let mut epochs = Epochs::new(self.seed, windows, offsets);
        let (mut parts, mut row) = (Vec::new(), Vec::new());
        for sequence in sequences {
            parts.clear();
            if sequence < here {
                let window = self.now.epoch.as_ref().map_or(0, |epoch| epoch.window(self.done + sequence));
                let start = window * self.now.seq_len;
                self.find(self.cuts.len(), start..start + self.now.seq_len, &mut parts);
            } else {
                // Counts as if each earlier epoch had this many sequences.
                let before = u128::from(self.epoch + 1) * u128::from(windows);
                let (window, offset) = epochs.at(before + u128::from(sequence - here));
                let start = offset + window * self.seq_len as u64;
                parts.push(start..start + self.seq_len as u64);
            }
            for part in &parts {
                row.clear();
                self.tokens.read(part.start..part.end + 1, &mut row)?;
                batch.inputs.extend_from_slice(&row[..row.len() - 1]);
                batch.targets.extend_from_slice(&row[1..]);
            }
            batch.sequences += 1;
        }
        Ok(batch)
    }

    /// Maps a range of the tokens as cut after `cuts` changes to parts of the text.
    fn find(&self, cuts: usize, mut range: Range<u64>, parts: &mut Vec<Range<u64>>) {
        let Some(cut) = cuts.checked_sub(1).map(|last| &self.cuts[last]) else {
            let first = self.cuts.first().map_or(&self.now, |cut| &cut.order);
            let offset = first.epoch.as_ref().map_or(0, |epoch| epoch.offset);
            let range = range.start + offset..range.end + offset;
            match parts.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => parts.push(range),
            }
            return;
        };
        let (seq_len, windows) = (cut.order.seq_len, cut.left.len());
        while range.start < range.end {
            let (number, within) = (range.start / seq_len, range.start % seq_len);
            let (start, end) = match number < windows {
                true => (cut.left.nth(number) * seq_len + within, range.end.min((number + 1) * seq_len)),
                // The tokens that filled no window come last.
                false => (cut.order.windows * seq_len + range.start - windows * seq_len, range.end),
            };
            self.find(cuts - 1, start..start + end - range.start, parts);
            range.start = end;
        }
    }
}

/// The windows of an order that were not visited, by number.
#[derive(Debug, Clone)]
struct Left {
    /// One bit per window.
    bits: Vec<u64>,
    /// How many windows are left before each [`BLOCK`] of words.
    before: Vec<u64>,
}

const BLOCK: usize = 8;

impl Left {
    /// The windows of `order` that are left after `done` sequences.
    fn after(order: &Order, done: u64) -> Self {
        let words = order.windows.div_ceil(64) as usize;
        let few = done <= order.windows / 2;
        let mut bits = vec![if few { u64::MAX } else { 0 }; words];
        if let Some(last) = bits.last_mut().filter(|_| few && !order.windows.is_multiple_of(64)) {
            *last = (1 << (order.windows % 64)) - 1;
        }
        if let Some(epoch) = &order.epoch {
            let changed = if few { 0..done } else { done..order.windows };
            for window in changed.map(|index| epoch.window(index)) {
                bits[(window / 64) as usize] ^= 1 << (window % 64);
            }
        }
        let mut count = 0;
        let mut before = vec![0];
        for words in bits.chunks(BLOCK) {
            count += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            before.push(count);
        }
        Self { bits, before }
    }

    fn len(&self) -> u64 {
        *self.before.last().expect("it begins with 0")
    }

    /// The window that is left after `number` others.
    fn nth(&self, number: u64) -> u64 {
        let block = self.before.partition_point(|&before| before <= number) - 1;
        let mut rest = number - self.before[block];
        let mut place = block * BLOCK;
        while rest >= u64::from(self.bits[place].count_ones()) {
            rest -= u64::from(self.bits[place].count_ones());
            place += 1;
        }
        let mut word = self.bits[place];
        for _ in 0..rest {
            word &= word - 1; // clears its lowest bit
        }
        place as u64 * 64 + u64::from(word.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A dataset in which token `i` is `i` and all tokens train.
    fn counting(tokens: u32) -> Dataset {
        Dataset::split(Tokens::from_vec((0..tokens).collect()), 0)
    }

    /// The next sequences of a run up to its epoch's end, at most `most`.
    fn of_epoch(windows: &Windows, most: u64) -> Batch {
        windows.batch(0..most.min(windows.now.windows - windows.done)).unwrap()
    }

    proptest! {
        #[test]
        fn whatever_lengths_an_epoch_has_no_token_is_predicted_twice_and_fewer_than_a_sequence_are_left_out(
            tokens in 200u32..3000, seed: u64, epochs in 0u64..4, reseeded: bool,
            changes in prop::collection::vec((1usize..40, 0u64..30, 1u64..5), 1..7),
        ) {
            let dataset = counting(tokens);
            let mut trained = vec![Trained { seed, seq_len: 7, tokens: epochs * dataset.epoch_sequences(7) * 7 }];
            let (mut seen, mut lost, mut epoch) = (vec![0; tokens as usize + 1], 0, None);
            // The longest sequence since the last that was trained on.
            let mut longest = 0;
            for (number, &(seq_len, sequences, batch)) in changes.iter().enumerate() {
                let seed = if reseeded { seed ^ number as u64 } else { seed };
                let windows = Windows::new(&dataset, &trained, seed, seq_len);
                longest = longest.max(seq_len as u64);
                let part = of_epoch(&windows, sequences * batch);
                if part.sequences == 0 {
                    // An epoch without a sequence has not begun: a shorter length may continue the previous one.
                    trained.push(Trained { seed, seq_len, tokens: 0 });
                    continue;
                }
                // A new epoch begins only if the last one had less left than a sequence of the previous or the current
                // length.
                if epoch.is_some_and(|epoch| epoch != windows.epoch) {
                    prop_assert!(lost < longest, "{lost} lost");
                    seen = vec![0; tokens as usize + 1];
                }
                (epoch, longest) = (Some(windows.epoch), seq_len as u64);
                prop_assert_eq!(part.inputs.len(), part.sequences * seq_len);
                for (input, target) in part.inputs.iter().zip(&part.targets) {
                    prop_assert_eq!(input + 1, *target, "a target is the next token of the text");
                    seen[*target as usize] += 1;
                }
                prop_assert!(seen.iter().all(|&times| times <= 1));
                lost = windows.now.len - (windows.done + part.sequences as u64) * seq_len as u64;
                trained.push(Trained { seed, seq_len, tokens: (part.sequences * seq_len) as u64 });
            }
            // The epoch's end with the last length.
            let &(seq_len, ..) = changes.last().unwrap();
            let windows = Windows::new(&dataset, &trained, trained.last().unwrap().seed, seq_len);
            if epoch == Some(windows.epoch) {
                for target in of_epoch(&windows, u64::MAX).targets {
                    seen[target as usize] += 1;
                }
                let first = windows.cuts.first().map_or(&windows.now, |cut| &cut.order);
                let range = 1 + first.epoch.as_ref().unwrap().offset as usize..;
                let range = &seen[range][..first.len as usize];
                prop_assert!(seen.iter().all(|&times| times <= 1));
                let missing = range.iter().filter(|&&times| times == 0).count();
                prop_assert!(missing < seq_len, "{missing} of {} are left out at {seq_len}", range.len());
            }
        }

        #[test]
        fn where_no_length_changes_a_run_has_the_sequences_of_one_that_never_stopped(
            tokens in 100u32..2000, seed: u64, seq_len in 1usize..40, stops in prop::collection::vec(0u64..200, 0..5),
        ) {
            let dataset = counting(tokens);
            let trained: Vec<_> =
                stops.iter().map(|stop| Trained { seed, seq_len, tokens: stop * seq_len as u64 }).collect();
            let (first, windows) = (stops.iter().sum::<u64>(), Windows::new(&dataset, &trained, seed, seq_len));
            prop_assert_eq!(windows.batch(0..50).unwrap(), dataset.train_batch(seed, first..first + 50, seq_len).unwrap());
            prop_assert_eq!(windows.batch(7..9).unwrap(), dataset.train_batch(seed, first + 7..first + 9, seq_len).unwrap());
        }

        #[test]
        fn after_an_epoch_with_another_length_the_next_is_an_ordinary_one(
            tokens in 100u32..2000, seed: u64, [before, seq_len] in [1usize..40, 1usize..40], done in 0u64..500,
        ) {
            let dataset = counting(tokens);
            let trained = [Trained { seed, seq_len: before, tokens: done * before as u64 }];
            let windows = Windows::new(&dataset, &trained, seed, seq_len);
            let (here, all) = (windows.now.windows - windows.done, dataset.epoch_sequences(seq_len));
            let next = (windows.epoch + 1) * all;
            let expected = dataset.train_batch(seed, next..next + all, seq_len).unwrap();
            prop_assert_eq!(windows.batch(here..here + all).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_left_is_found_by_number() {
        for done in [0, 1, 30, 999, 1000] {
            let epoch = Epoch::new(3, 1, 1000, 1);
            let order = Order { seq_len: 1, windows: 1000, epoch: Some(epoch.clone()), len: 1000 };
            let left = Left::after(&order, done);
            let mut expected: Vec<u64> = (done..1000).map(|index| epoch.window(index)).collect();
            expected.sort_unstable();
            assert!((0..left.len()).map(|number| left.nth(number)).eq(expected), "{done}");
        }
    }
}
