use crate::config::{Config, TrainConfig};
use checkpoint::Index;
use std::ops::Range;

/// Which sequences of the data a rank computes in which step. Steps go through the data's order one global batch after another,
/// whatever the number of ranks; a run that goes on with another batch size goes on at the same sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batches {
    global_batch_size: usize,
    micro_batch_size: usize,
    seq_len: usize,
    rank: usize,
    ranks: usize,
    /// The step after which this run goes on, and the tokens trained on until then.
    done: (usize, u64),
}

/// A micro-batch: rows of a global batch, and whether they count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub rows: Range<u64>,
    pub count: bool,
}

impl Batches {
    /// Of a rank among those that share the batch.
    pub fn new(config: &Config, (rank, ranks): (usize, usize), resumed: Option<&Index>) -> Self {
        let TrainConfig { global_batch_size, seq_len, .. } = config.train;
        let micro_batch_size = config.micro_batch_size();
        let done = resumed.map_or((0, 0), |index| (index.step as usize, index.tokens));
        Self { global_batch_size, micro_batch_size, seq_len, rank, ranks, done }
    }

    /// Sequences that a rank computes at once.
    pub fn micro_batch_size(&self) -> usize {
        self.micro_batch_size
    }

    /// Tokens trained on after `steps` steps.
    pub fn tokens(&self, steps: usize) -> u64 {
        let (steps_done, tokens_done) = self.done;
        tokens_done + ((steps - steps_done) * self.step_tokens()) as u64
    }

    /// Tokens of a step, on all ranks.
    pub fn step_tokens(&self) -> usize {
        self.global_batch_size * self.seq_len
    }

    /// The rows of a step's global batch that the rank computes, a micro-batch at a time. Micro-batches go round the ranks: their
    /// gradients are then added in the same order on any number of ranks. Where they do not come out even, the last one is smaller, and
    /// ranks that have one fewer than others compute a first row again, which does not count: all take part in all collectives.
    pub fn rows(&self) -> Vec<Rows> {
        let (micro, batch) = (self.micro_batch_size, self.global_batch_size);
        let micro_batch = |round: usize| match (round * self.ranks + self.rank) * micro {
            first if first < batch => Rows { rows: first as u64..(first + micro).min(batch) as u64, count: true },
            _ => Rows { rows: 0..1, count: false },
        };
        (0..batch.div_ceil(micro * self.ranks)).map(micro_batch).collect()
    }

    /// The same rows as numbers of sequences in the data's order, in the step after `steps` steps.
    pub fn sequences(&self, steps: usize) -> Vec<Range<u64>> {
        let first = self.tokens(steps) / self.seq_len as u64;
        self.rows().into_iter().map(|Rows { rows, .. }| first + rows.start..first + rows.end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(global_batch_size: usize, rank: (usize, usize), resumed: Option<&Index>) -> Batches {
        let train = TrainConfig { global_batch_size, micro_batch_size: Some(2), seq_len: 16, ..TrainConfig::default() };
        Batches::new(&Config { train, ..Config::default() }, rank, resumed)
    }

    #[test]
    fn ranks_share_each_step_and_miss_no_sequence() {
        let of_rank = |rank, step| batches(8, (rank, 2), None).sequences(step);
        assert_eq!(of_rank(0, 0), [0..2, 4..6]);
        assert_eq!(of_rank(1, 0), [2..4, 6..8]);
        assert_eq!(of_rank(0, 1), [8..10, 12..14]);
    }

    #[test]
    fn every_row_counts_once_and_all_ranks_have_as_many_micro_batches() {
        for batch in 1..20 {
            for ranks in 1..6 {
                let of_rank = |rank| batches(batch, (rank, ranks), None).rows();
                let all: Vec<Vec<Rows>> = (0..ranks).map(of_rank).collect();
                assert!(all.iter().all(|rows| rows.len() == all[0].len()), "{batch} on {ranks}");
                let counting = all.iter().flatten().filter(|rows| rows.count);
                let mut rows: Vec<u64> = counting.flat_map(|rows| rows.rows.clone()).collect();
                rows.sort_unstable();
                assert_eq!(rows, (0..batch as u64).collect::<Vec<_>>(), "{batch} on {ranks}");
            }
        }
    }

    #[test]
    fn another_batch_size_goes_on_where_the_checkpoint_was() {
        let before = batches(8, (0, 1), None);
        let index = Index { step: 3, tokens: before.tokens(3), ..Index::default() };
        let after = batches(4, (0, 1), Some(&index));
        assert_eq!(after.sequences(3), [24..26, 26..28]);
        assert_eq!(after.sequences(4), [28..30, 30..32]);
        assert_eq!(after.tokens(4), (3 * 8 + 4) * 16);
    }
}
