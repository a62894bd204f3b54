//! How fast steps are.

use std::time::Duration;

/// What the steps of a process took, without validations and checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// Steps made.
    pub steps: usize,
    /// Tokens trained on, by all ranks.
    pub tokens: u64,
    /// What the first step took, which makes and warms up what the others find.
    pub first: Duration,
    /// What all took together.
    pub all: Duration,
}

impl Pace {
    /// A step more.
    pub(crate) fn add(&mut self, took: Duration, tokens: u64) {
        if self.steps == 0 {
            self.first = took;
        }
        self.steps += 1;
        self.tokens += tokens;
        self.all += took;
    }

    /// Of all steps; 0 without any.
    pub fn tokens_per_second(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens as f64 / self.all.as_secs_f64() }
    }

    /// What a step takes behind the first, or that one if there is no other.
    pub fn step(&self) -> Duration {
        match self.steps {
            0 | 1 => self.first,
            steps => (self.all - self.first) / (steps - 1) as u32,
        }
    }

    /// What so many steps will take of a process that begins.
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
