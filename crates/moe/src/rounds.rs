//! The rounds in which rows go to the ranks of their experts.

use std::ops::Range;

/// The number of rows that each rank has for each expert, and the rounds that keep any rank from getting too many at
/// once. All ranks know the same counts, so they agree on the rounds and their collectives without further
/// communication.
///
/// ```text
/// rows for ranks 0 1 2 3      at most 8 at once: 3 rounds             arriving at rank 1 in rounds 0, 1, 2
/// of rank 0      0 6 1 1      a third of each number in each          5 7 8   (20 rows)
/// of rank 1      1 5 2 0
/// of rank 2      0 4 2 2      a rank that gets few rows takes part in all rounds, with few rows or none
/// of rank 3      1 5 0 2
/// ```
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    rank: usize,
    ranks: usize,
    /// Rows by the rank that holds them, then by expert.
    counts: Vec<usize>,
    /// The same, summed by the rank that receives them: by the rank that holds the rows, then by the rank that has the
    /// experts.
    rows: Vec<usize>,
    rounds: usize,
}

impl Rounds {
    /// Finds the fewest rounds in which no rank of `ranks` gets more than `max_load` times the mean of all ranks at
    /// once, or one row from each rank if that is more. `counts` are by rank, then by expert; rank i has the i-th part
    /// of the experts.
    pub fn new(rank: usize, ranks: usize, counts: Vec<usize>, max_load: f64) -> Self {
        let experts = counts.len() / ranks / ranks;
        let rows: Vec<usize> = counts.chunks(experts).map(|of_rank| of_rank.iter().sum()).collect();
        let mean = rows.iter().sum::<usize>() as f64 / ranks as f64;
        let most = ((max_load * mean).ceil() as usize).max(ranks);
        let arriving = |to: usize, rounds: usize| (0..ranks).map(|from| rows[from * ranks + to].div_ceil(rounds)).sum();
        let fit = |rounds: &usize| (0..ranks).all(|to| arriving(to, *rounds) <= most);
        let busiest: usize = (0..ranks).map(|to| arriving(to, 1)).max().unwrap_or(0);
        let rounds = (busiest.div_ceil(most).max(1)..).find(fit).expect("with a row of each rank at a time they fit");
        Self { rank, ranks, counts, rows, rounds }
    }

    /// The same rows in at least `rounds` rounds.
    pub fn at_least(self, rounds: usize) -> Self {
        Self { rounds: self.rounds.max(rounds), ..self }
    }

    /// Number of rounds, at least one.
    pub fn len(&self) -> usize {
        self.rounds
    }

    /// The rows of this rank, which are sorted by expert, that go to each rank in a round.
    pub fn sent(&self, round: usize) -> Vec<Range<usize>> {
        let mut start = 0;
        let to_rank = |rows: &usize| {
            let part = self.part(*rows, round);
            start += rows;
            start - rows + part.start..start - rows + part.end
        };
        self.rows[self.rank * self.ranks..][..self.ranks].iter().map(to_rank).collect()
    }

    /// Number of rows that arrive from each rank in a round.
    pub fn arriving(&self, round: usize) -> Vec<usize> {
        let of_rank = |from: usize| self.part(self.rows[from * self.ranks + self.rank], round).len();
        (0..self.ranks).map(of_rank).collect()
    }

    /// Number of rows that arrive in a round from each rank for each of this rank's experts: by rank, then by expert,
    /// in the order of arrival.
    pub fn arriving_by_expert(&self, round: usize) -> Vec<usize> {
        let (all, mine) = (self.counts.len() / self.ranks, self.counts.len() / self.ranks / self.ranks);
        let of_rank = |from: usize| {
            let counts = &self.counts[from * all + self.rank * mine..][..mine];
            let part = self.part(counts.iter().sum(), round);
            let mut start = 0;
            counts.iter().map(move |count| {
                start += count;
                start.min(part.end).saturating_sub((start - count).max(part.start))
            })
        };
        (0..self.ranks).flat_map(of_rank).collect()
    }

    /// The range of a round within `rows` rows.
    fn part(&self, rows: usize, round: usize) -> Range<usize> {
        round * rows / self.rounds..(round + 1) * rows / self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts() -> impl Strategy<Value = (usize, Vec<usize>)> {
        let few_or_many = prop_oneof![Just(0usize), 0..5usize, 0..500usize];
        (1..=6usize, 1..=3usize).prop_flat_map(move |(ranks, each)| {
            (Just(ranks), prop::collection::vec(few_or_many.clone(), ranks * ranks * each))
        })
    }

    proptest! {
        #[test]
        fn every_row_goes_once_and_no_rank_gets_more_at_once_than_it_may(
            (ranks, counts) in counts(),
            max_load in 1.0..3.0f64,
        ) {
            let of_rank: Vec<Rounds> = (0..ranks).map(|rank| Rounds::new(rank, ranks, counts.clone(), max_load)).collect();
            let total: usize = counts.iter().sum();
            let most = ((max_load * total as f64 / ranks as f64).ceil() as usize).max(ranks);
            let experts = counts.len() / ranks;
            let mut next: Vec<Vec<usize>> = vec![vec![]; ranks];
            for (rank, rounds) in of_rank.iter().enumerate() {
                // All ranks agree.
                prop_assert_eq!(rounds.len(), of_rank[0].len());
                let mut start = 0;
                for to in 0..ranks {
                    next[rank].push(start);
                    start += counts[rank * experts..][to * experts / ranks..(to + 1) * experts / ranks].iter().sum::<usize>();
                }
            }
            let mut came = vec![0; counts.len()];
            for round in 0..of_rank[0].len() {
                for (rank, rounds) in of_rank.iter().enumerate() {
                    let arriving = rounds.arriving(round);
                    prop_assert!(arriving.iter().sum::<usize>() <= most, "{:?} of at most {}", arriving, most);
                    let by_expert = rounds.arriving_by_expert(round);
                    for from in 0..ranks {
                        let sent = of_rank[from].sent(round)[rank].clone();
                        prop_assert_eq!(sent.len(), arriving[from]);
                        prop_assert_eq!(sent.start, next[from][rank], "in the order in which they lie");
                        next[from][rank] = sent.end;
                        let each = experts / ranks;
                        let of_experts = &by_expert[from * each..][..each];
                        prop_assert_eq!(of_experts.iter().sum::<usize>(), arriving[from]);
                        for (expert, rows) in of_experts.iter().enumerate() {
                            came[from * experts + rank * each + expert] += rows;
                        }
                    }
                }
            }
            prop_assert_eq!(came, counts);
        }
    }

    #[test]
    fn even_loads_go_at_once_and_uneven_ones_in_as_few_rounds_as_they_fit() {
        let rounds = |counts: &[usize], max_load| Rounds::new(0, 2, counts.to_vec(), max_load).len();
        assert_eq!(rounds(&[10, 10, 10, 10], 1.0), 1);
        assert_eq!(rounds(&[20, 0, 20, 0], 1.0), 2);
        assert_eq!(rounds(&[20, 0, 20, 0], 2.0), 1);
        assert_eq!(rounds(&[0, 0, 0, 0], 1.0), 1);
        // One row from each rank is always allowed.
        assert_eq!(rounds(&[1, 0, 1, 0], 1.0), 1);
    }
}
