//! The assignment of sequences to steps, ranks and micro-batches.

use crate::config::Config;
use checkpoint::Index;
use data::{Buckets, DataError, Windows};
use std::ops::Range;
use std::sync::Arc;

/// The sequences of the data that a rank computes in each step.
///
/// Steps take one global batch after another in the data's order, independent of the number of ranks. A run that is
/// resumed with a different batch size or length continues with the sequences that it has not seen. If documents are
/// packed into rows of several lengths, the content of a step depends only on its number, the seed and the batch sizes.
#[derive(Debug, Clone)]
pub(crate) struct Batches {
    /// One portion per row length.
    portions: Vec<Portion>,
    buckets: Option<Arc<Buckets>>,
    /// The sequences that are left; only without buckets.
    windows: Option<Arc<Windows>>,
    seed: u64,
    rank: usize,
    ranks: usize,
    /// The step after which this run resumes.
    first_step: usize,
}

/// Batch sizes for one row length.
#[derive(Debug, Clone, Copy)]
struct Portion {
    global_batch_size: usize,
    micro_batch_size: usize,
    seq_len: usize,
}

/// The rows of a micro-batch within the global batch, and whether they count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MicroBatchRows {
    pub rows: Range<u64>,
    pub count: bool,
}

impl Batches {
    /// Creates the batches of one rank among those that share the batch.
    pub fn new(
        config: &Config,
        (rank, ranks): (usize, usize),
        resumed: Option<&Index>,
        windows: Option<Arc<Windows>>,
        buckets: Option<Arc<Buckets>>,
    ) -> Self {
        let portion = |config: Config| Portion {
            global_batch_size: config.train.global_batch_size,
            micro_batch_size: config.micro_batch_size(),
            seq_len: config.train.seq_len,
        };
        let portions = config.by_length().into_iter().map(portion).collect();
        let first_step = resumed.map_or(0, |index| index.step as usize);
        Self { portions, buckets, windows, seed: config.train.seed, rank, ranks, first_step }
    }

    /// Micro-batch size for the longest rows.
    pub fn micro_batch_size(&self) -> usize {
        self.portions.last().expect("there is a length").micro_batch_size
    }

    /// Index of the row length, shortest first, that the step after `steps` steps uses.
    pub fn bucket(&self, steps: usize) -> usize {
        self.buckets.as_ref().map_or(0, |buckets| buckets.bucket(self.seed, steps as u64, &self.batch_sizes()))
    }

    /// Tokens of the step after `steps` steps, over all ranks.
    pub fn step_tokens(&self, steps: usize) -> usize {
        let Portion { global_batch_size, seq_len, .. } = self.portions[self.bucket(steps)];
        global_batch_size * seq_len
    }

    /// The rows of a step's global batch that the rank computes, one micro-batch at a time.
    ///
    /// Ranks take the micro-batches in turn, so their gradients are added in the same order on any number of
    /// ranks. If they do not divide evenly, the last one is smaller. Ranks that would have one fewer compute the first
    /// row again without counting it, because all ranks take part in all collectives.
    pub fn rows(&self, steps: usize) -> Vec<MicroBatchRows> {
        let Portion { micro_batch_size: micro, global_batch_size: batch, .. } = self.portions[self.bucket(steps)];
        let micro_batch = |round: usize| match (round * self.ranks + self.rank) * micro {
            first if first < batch => {
                MicroBatchRows { rows: first as u64..(first + micro).min(batch) as u64, count: true }
            }
            _ => MicroBatchRows { rows: 0..1, count: false },
        };
        (0..batch.div_ceil(micro * self.ranks)).map(micro_batch).collect()
    }

    /// Reads the tokens of these rows.
    ///
    /// # Errors
    /// If a token file can no longer be read.
    pub fn cut(&self, steps: usize) -> Result<Vec<data::Batch>, DataError> {
        let rows = self.rows(steps).into_iter().map(|MicroBatchRows { rows, .. }| rows);
        let Some(buckets) = &self.buckets else {
            let first = self.first_sequence(steps);
            let windows = self.windows.as_ref().expect("what has no buckets has windows");
            return rows.map(|rows| windows.batch(first + rows.start..first + rows.end)).collect();
        };
        let step = buckets.step(self.seed, steps as u64, &self.batch_sizes());
        rows.map(|rows| buckets.batch(&step, rows.start as usize..rows.end as usize)).collect()
    }

    fn batch_sizes(&self) -> Vec<usize> {
        self.portions.iter().map(|portion| portion.global_batch_size).collect()
    }

    /// The first sequence of the step after `steps` steps, counted from where this run resumes.
    fn first_sequence(&self, steps: usize) -> u64 {
        ((steps - self.first_step) * self.portions[0].global_batch_size) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;
    use data::{Dataset, Trained};

    fn dataset() -> Dataset {
        Dataset::new((0..20_000).collect(), 16).unwrap()
    }

    /// Batches of a run that trained with different batch sizes or lengths before.
    fn after(trained: &[Trained], (global_batch_size, seq_len): (usize, usize), rank: (usize, usize)) -> Batches {
        let train = TrainConfig { global_batch_size, micro_batch_size: Some(2), seq_len, ..TrainConfig::default() };
        let windows = Arc::new(Windows::new(&dataset(), trained, train.seed, seq_len));
        let index = Index { step: 3, ..Index::default() };
        let resumed = Some(&index).filter(|_| !trained.is_empty());
        Batches::new(&Config { train, ..Config::default() }, rank, resumed, Some(windows), None)
    }

    fn batches(global_batch_size: usize, rank: (usize, usize)) -> Batches {
        after(&[], (global_batch_size, 16), rank)
    }

    /// The targets of a step.
    fn targets(batches: &Batches, step: usize) -> Vec<i32> {
        batches.cut(step).unwrap().into_iter().flat_map(|batch| batch.targets).collect()
    }

    /// The rows of a step as sequence numbers in the data's order.
    fn sequences(batches: &Batches, steps: usize) -> Vec<Range<u64>> {
        let first = batches.first_sequence(steps);
        batches
            .rows(steps)
            .into_iter()
            .map(|MicroBatchRows { rows, .. }| first + rows.start..first + rows.end)
            .collect()
    }

    #[test]
    fn ranks_share_each_step_and_miss_no_sequence() {
        let of_rank = |rank, step| sequences(&batches(8, (rank, 2)), step);
        assert_eq!(of_rank(0, 0), [0..2, 4..6]);
        assert_eq!(of_rank(1, 0), [2..4, 6..8]);
        assert_eq!(of_rank(0, 1), [8..10, 12..14]);
    }

    #[test]
    fn every_row_counts_once_and_all_ranks_have_as_many_micro_batches() {
        for batch in 1..20 {
            for ranks in 1..6 {
                let of_rank = |rank| batches(batch, (rank, ranks)).rows(0);
                let all: Vec<Vec<MicroBatchRows>> = (0..ranks).map(of_rank).collect();
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
        let before = batches(8, (0, 1));
        let seed = TrainConfig::default().seed;
        let trained = [Trained { seed, seq_len: 16, tokens: 3 * before.step_tokens(0) as u64 }];
        let after = after(&trained, (4, 16), (0, 1));
        assert_eq!([targets(&after, 3), targets(&after, 4)].concat(), targets(&before, 3));
    }

    #[test]
    fn another_length_goes_on_with_what_was_not_seen() {
        let seed = TrainConfig::default().seed;
        let (mut trained, mut seen) = (vec![], vec![]);
        // An epoch has 1,124 sequences of 16, which is 17,984 tokens or a few less.
        for (seq_len, batch, steps) in [(16, 8, 40), (64, 4, 20), (24, 4, 30), (16, 2, 20)] {
            let batches = after(&trained, (batch, seq_len), (0, 1));
            let first = batches.first_step;
            (first..first + steps).for_each(|step| seen.extend(targets(&batches, step)));
            trained.push(Trained { seed, seq_len, tokens: (steps * batch * seq_len) as u64 });
        }
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((all, seen.len()), (13_760, 13_760), "no token is predicted twice");
    }

    /// Lengths 4 and 8 have 6 and 3 sequences per step, on any number of ranks.
    #[test]
    fn ranks_share_steps_of_rows_of_several_lengths() {
        // Documents of 3 and of 9 tokens.
        let tokens = (0..2000).map(|i| if i % 12 == 2 || i % 12 == 11 { 1 } else { i + 2 }).collect();
        let dataset = Dataset::new(tokens, 8).unwrap();
        let buckets = Arc::new(Buckets::new(&dataset, &[4, 8], 1, false).unwrap());
        let train =
            TrainConfig { global_batch_size: 3, micro_batch_size: Some(1), seq_len: 8, ..TrainConfig::default() };
        let mut config = Config { train, ..Config::default() };
        config.data.buckets = Some(vec![4, 8]);
        let batches = |rank| Batches::new(&config, rank, None, None, Some(buckets.clone()));
        let mut lengths = [false; 2];
        for step in 0..30 {
            let alone = batches((0, 1));
            let whole = alone.cut(step).unwrap();
            let (length, all) = (whole[0].seq_len, whole.iter().flat_map(|batch| batch.inputs.clone()));
            lengths[usize::from(length == 8)] = true;
            assert_eq!(whole.iter().map(|batch| batch.sequences).sum::<usize>(), if length == 8 { 3 } else { 6 });
            assert_eq!(alone.step_tokens(step), 24);
            let mut shared: Vec<(u64, Vec<i32>)> = vec![];
            for rank in 0..2 {
                let of_rank = batches((rank, 2));
                let rows = of_rank.rows(step).into_iter().zip(of_rank.cut(step).unwrap());
                shared.extend(rows.filter(|(rows, _)| rows.count).map(|(rows, cut)| (rows.rows.start, cut.inputs)));
            }
            shared.sort_unstable();
            assert_eq!(shared.into_iter().flat_map(|(_, inputs)| inputs).collect::<Vec<_>>(), all.collect::<Vec<_>>());
        }
        assert_eq!(lengths, [true; 2], "both lengths come");
    }
}
