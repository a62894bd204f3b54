//! Finds ranks that keep the others waiting.

use super::Trainer;
use crate::error::TrainError;
use std::time::Duration;

/// Number of steps over which ranks are compared.
const STEPS: usize = 20;
/// A rank is a straggler if it computes this many times as long as the median of the ranks with the same work, ...
const TIMES: f64 = 1.5;
/// ... and this many seconds longer per step.
const SECONDS: f64 = 0.005;

/// How long this rank has computed in the last steps, and not waited for other ranks or data.
#[derive(Debug, Default)]
pub(super) struct Busy {
    steps: usize,
    seconds: f64,
    /// Ranks that were reported.
    told: Vec<usize>,
}

impl Trainer<'_> {
    /// Adds a step in which this rank computed this long. Every 20 steps, compares the ranks. A collective then.
    pub(super) fn compare_ranks(&mut self, step: usize, computed: Duration) -> Result<(), TrainError> {
        let world_size = self.comm.world_size();
        if world_size == 1 {
            return Ok(());
        }
        self.busy.seconds += computed.as_secs_f64();
        self.busy.steps += 1;
        if self.busy.steps < STEPS {
            return Ok(());
        }
        let mut values = vec![0.0; 2 * world_size];
        values[2 * self.rank] = self.busy.seconds / STEPS as f64;
        values[2 * self.rank + 1] = self.fsdp.stage().0 as f64;
        (self.busy.steps, self.busy.seconds) = (0, 0.0);
        let values = self.fsdp.all_reduce(&values)?;
        let ranks: Vec<(f64, f64)> = values.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        for (rank, seconds, median) in stragglers(&ranks) {
            if self.busy.told.contains(&rank) {
                continue;
            }
            self.busy.told.push(rank);
            let line = format!(
                "rank {rank} is a straggler: it computed {:.0} ms a step over {STEPS} steps, and the median of the other \
                 ranks with the same work is {:.0} ms",
                1e3 * seconds,
                1e3 * median
            );
            self.recorder.say(&format!("warning: {line}"));
            self.recorder.event(step, &line)?;
        }
        Ok(())
    }
}

/// Returns the stragglers among ranks with these seconds and stages: rank, seconds, and the median of the others of its
/// stage.
fn stragglers(ranks: &[(f64, f64)]) -> Vec<(usize, f64, f64)> {
    let with_median = |(rank, &(seconds, stage)): (usize, &(f64, f64))| {
        let others = ranks.iter().enumerate().filter(|(other, of)| *other != rank && of.1 == stage);
        let mut others: Vec<f64> = others.map(|(_, of)| of.0).collect();
        others.sort_by(f64::total_cmp);
        Some((rank, seconds, *others.get(others.len() / 2)?))
    };
    let is_slow = |(_, seconds, median): &(usize, f64, f64)| *seconds > TIMES * median && seconds - median > SECONDS;
    ranks.iter().enumerate().filter_map(with_median).filter(is_slow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_is_compared_with_the_other_ranks_of_its_stage() {
        assert_eq!(stragglers(&[(0.1, 0.0), (0.1, 0.0), (0.3, 0.0), (0.12, 0.0)]), [(2, 0.3, 0.1)]);
        // Stages may differ, small differences do not matter, and one rank has nobody to be compared with.
        assert!(stragglers(&[(0.1, 0.0), (0.1, 0.0), (0.3, 1.0), (0.3, 1.0)]).is_empty());
        assert!(stragglers(&[(0.001, 0.0), (0.004, 0.0)]).is_empty());
        assert!(stragglers(&[(0.1, 0.0), (0.3, 1.0)]).is_empty());
        assert_eq!(stragglers(&[(0.1, 0.0), (0.2, 0.0)]), [(1, 0.2, 0.1)]);
    }
}
