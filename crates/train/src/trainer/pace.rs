//! The speed of steps.

use std::time::Duration;

/// Durations of a process's steps, without validations and checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// Steps made.
    pub steps: usize,
    /// Tokens trained on, by all ranks.
    pub tokens: u64,
    /// Duration of the first step, which initializes and warms up what later steps reuse.
    pub first: Duration,
    /// Duration of all steps.
    pub all: Duration,
}

impl Pace {
    /// Adds a step.
    pub(crate) fn add(&mut self, took: Duration, tokens: u64) {
        if self.steps == 0 {
            self.first = took;
        }
        self.steps += 1;
        self.tokens += tokens;
        self.all += took;
    }

    /// Throughput over all steps; 0 without any.
    pub fn tokens_per_second(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens as f64 / self.all.as_secs_f64() }
    }

    /// Duration of a step after the first, or of the first if there is no other.
    pub fn step(&self) -> Duration {
        match self.steps {
            0 | 1 => self.first,
            steps => (self.all - self.first) / (steps - 1) as u32,
        }
    }

    /// Estimated duration of `steps` steps in a new process.
    pub fn of(&self, steps: usize) -> Duration {
        let later = steps.saturating_sub(1) as f64;
        if steps == 0 { Duration::ZERO } else { self.first + self.step().mul_f64(later) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_counts_once() {
        let mut pace = Pace::default();
        [10.0, 2.0, 4.0].map(Duration::from_secs_f64).iter().for_each(|took| pace.add(*took, 8));
        assert_eq!((pace.step(), pace.of(1), pace.of(101)), [3, 10, 310].map(Duration::from_secs).into());
        assert_eq!((pace.of(0), pace.tokens_per_second()), (Duration::ZERO, 1.5));
        assert_eq!(Pace::default().tokens_per_second(), 0.0);
    }
}
