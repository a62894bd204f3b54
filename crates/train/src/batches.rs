use crate::config::TrainConfig;
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

impl Batches {
    /// Of a rank among those that share the batch.
    pub fn new(train: &TrainConfig, (rank, ranks): (usize, usize), resumed: Option<&Index>) -> Self {
        let TrainConfig { global_batch_size, seq_len, .. } = *train;
        let share = global_batch_size / ranks;
        let micro_batch_size = train.micro_batch_of(share);
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
    /// gradients are then added in the same order on any number of ranks.
    pub fn rows(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let micro = self.micro_batch_size;
        let firsts = (self.rank * micro..self.global_batch_size).step_by(micro * self.ranks);
        firsts.map(move |first| first as u64..(first + micro) as u64)
    }

    /// The same rows as numbers of sequences in the data's order, in the step after `steps` steps.
    pub fn sequences(&self, steps: usize) -> Vec<Range<u64>> {
        let first = self.tokens(steps) / self.seq_len as u64;
        self.rows().map(|rows| first + rows.start..first + rows.end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(global_batch_size: usize, rank: (usize, usize), resumed: Option<&Index>) -> Batches {
        let train = TrainConfig { global_batch_size, micro_batch_size: Some(2), seq_len: 16, ..TrainConfig::default() };
        Batches::new(&train, rank, resumed)
    }

    #[test]
    fn ranks_share_each_step_and_miss_no_sequence() {
        let of_rank = |rank, step| batches(8, (rank, 2), None).sequences(step);
        assert_eq!(of_rank(0, 0), [0..2, 4..6]);
        assert_eq!(of_rank(1, 0), [2..4, 6..8]);
        assert_eq!(of_rank(0, 1), [8..10, 12..14]);
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
