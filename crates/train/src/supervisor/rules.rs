//! Which failures lead to a restart, and when.

use crate::format::count;
use rand::Rng;
use std::time::Duration;

/// The first wait, which doubles with each failure since the last checkpoint.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Waits differ by up to this fraction, so that many runs of one cluster do not all read a file system at once.
const JITTER: f64 = 0.2;
/// The same failure at the same step, as often as this in a row, will not go away by itself.
const SAME: usize = 3;

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// Whether the ranks had been started.
    pub begun: bool,
    /// The step that was not made.
    pub step: u64,
    /// Whether the attempt saved a checkpoint.
    pub saved: bool,
    /// Whether the step's loss or gradient was not finite.
    pub non_finite: bool,
    /// Whether the next attempt differs, so that it may succeed.
    pub changed: bool,
    /// Whether nothing has failed: the attempt has saved the run, to go on with smaller micro-batches.
    pub planned: bool,
    pub error: String,
}

/// What follows a failure.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Next {
    Restart {
        /// `None` for one that does not count.
        number: Option<usize>,
        of: usize,
        wait: Duration,
        /// The step to skip from now on if it is not finite.
        skip: Option<u64>,
    },
    /// With the reason, unless the failure itself says enough.
    GiveUp(Option<String>),
}

/// The failures so far.
#[derive(Debug)]
pub(super) struct Rules {
    most: usize,
    /// Whether a step that is not finite again and again is skipped.
    skips: bool,
    skipped: Vec<u64>,
    restarts: usize,
    /// Failures since the last checkpoint.
    without_progress: u32,
    /// Step and error of the last failure, and how often it has occurred in a row.
    same: Option<(u64, String, usize)>,
}

impl Rules {
    /// Allows `most` restarts; `skips` skips a step that is not finite again and again.
    pub fn new(most: usize, skips: bool) -> Self {
        Self { most, skips, skipped: vec![], restarts: 0, without_progress: 0, same: None }
    }

    /// The steps that are skipped if they are not finite.
    pub fn skipped(&self) -> &[u64] {
        &self.skipped
    }

    pub fn after(&mut self, failure: &Failure) -> Next {
        if self.restarts == 0 && !failure.begun {
            return Next::GiveUp(None); // an invalid configuration, or no data
        }
        let error = without_numbers(&failure.error);
        let times = match self.same.take() {
            Some((step, before, times)) if step == failure.step && before == error => times + 1,
            _ => 1,
        };
        self.same = Some((failure.step, error, times)).filter(|_| !failure.changed);
        let step = failure.step;
        let may_skip = self.skips && failure.non_finite && !self.skipped.contains(&step);
        let skip = (times >= SAME && may_skip).then_some(step);
        self.skipped.extend(skip);
        if times >= SAME && !failure.changed && skip.is_none() {
            return Next::GiveUp(Some(format!(
                "step {step} has failed {times} times in a row in the same way, so no restart will help"
            )));
        }
        if failure.planned {
            return Next::Restart { number: None, of: self.most, wait: FIRST_WAIT, skip: None };
        }
        if self.most == 0 {
            return Next::GiveUp(Some("the run has failed, and resilience.restarts is 0".into()));
        }
        if self.restarts == self.most {
            let restarts = count(self.most, "restart");
            return Next::GiveUp(Some(format!("the run has failed again after {restarts} (resilience.restarts)")));
        }
        self.restarts += 1;
        self.without_progress = if failure.saved { 0 } else { self.without_progress + 1 };
        let wait = FIRST_WAIT * 2_u32.saturating_pow(self.without_progress.saturating_sub(1)).min(1 << 16);
        let jitter = rand::rng().random_range(1.0 - JITTER..=1.0 + JITTER);
        Next::Restart { number: Some(self.restarts), of: self.most, wait: wait.min(LONGEST_WAIT).mul_f64(jitter), skip }
    }
}

/// An error without its numbers, such as times, which differ from one failure to the next.
fn without_numbers(error: &str) -> String {
    let mut text = String::with_capacity(error.len());
    for c in error.chars() {
        match c {
            '0'..='9' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(step: u64, error: &str, saved: bool) -> Failure {
        Failure { begun: true, step, saved, non_finite: false, changed: false, planned: false, error: error.into() }
    }

    /// The wait in whole seconds, jitter aside.
    fn wait(next: Next) -> u64 {
        let Next::Restart { wait, .. } = next else { panic!("no restart: {next:?}") };
        [1, 2, 4, 8, 16, 32, 60]
            .into_iter()
            .find(|seconds| (wait.as_secs_f64() / *seconds as f64 - 1.0).abs() <= JITTER)
            .unwrap()
    }

    #[test]
    fn waits_double_up_to_a_minute_and_begin_again_after_a_checkpoint() {
        let mut rules = Rules::new(100, false);
        let waits: Vec<_> = (0..8).map(|step| wait(rules.after(&failure(step, "lost", false)))).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(wait(rules.after(&failure(9, "lost", true))), 1);
        assert_eq!(wait(rules.after(&failure(10, "lost", false))), 1);
        assert_eq!(wait(rules.after(&failure(11, "lost", false))), 2);
    }

    #[test]
    fn the_same_error_at_the_same_step_three_times_in_a_row_ends_the_run() {
        let mut rules = Rules::new(100, false);
        for (step, error) in [(7, "rank 1: late by 3 s"), (7, "rank 1: late by 12 s"), (8, "rank 1: late by 3 s")] {
            wait(rules.after(&failure(step, error, true)));
        }
        wait(rules.after(&failure(8, "rank 1: late by 4 s", true)));
        let Next::GiveUp(Some(why)) = rules.after(&failure(8, "rank 1: late by 5 s", true)) else { panic!() };
        assert_eq!(why, "step 8 has failed 3 times in a row in the same way, so no restart will help");
    }

    #[test]
    fn what_fails_before_it_begins_is_not_restarted_and_restarts_end() {
        let mut rules = Rules::new(1, false);
        let invalid = Failure { begun: false, ..failure(1, "invalid", false) };
        assert_eq!(rules.after(&invalid), Next::GiveUp(None));
        wait(rules.after(&failure(1, "lost", false)));
        let Next::GiveUp(Some(why)) = rules.after(&invalid) else { panic!() };
        assert_eq!(why, "the run has failed again after 1 restart (resilience.restarts)");
    }

    #[test]
    fn a_step_that_is_not_finite_three_times_is_skipped_if_that_is_allowed() {
        let nan = Failure { non_finite: true, ..failure(7, "NaN", false) };
        let after_three = |skips| {
            let mut rules = Rules::new(100, skips);
            let nexts: Vec<Next> = (0..4).map(|_| rules.after(&nan)).collect();
            let skipped = |next: &Next| match next {
                Next::Restart { skip, .. } => Some(*skip),
                Next::GiveUp(_) => None,
            };
            nexts.iter().map(skipped).collect::<Vec<_>>()
        };
        assert_eq!(after_three(true), [Some(None), Some(None), Some(Some(7)), None], "once only");
        assert_eq!(after_three(false), [Some(None), Some(None), None, None]);
        // Another micro-batch may fit.
        let mut rules = Rules::new(100, false);
        let changed = Failure { changed: true, ..failure(7, "no memory", false) };
        assert!((0..9).all(|_| wait(rules.after(&changed)) > 0));
        // Smaller micro-batches before an allocation fails use up no restart.
        let mut rules = Rules::new(1, false);
        let planned = Failure { changed: true, planned: true, ..failure(7, "nearly full", true) };
        assert!((0..9).all(|_| matches!(rules.after(&planned), Next::Restart { number: None, .. })));
        assert!(matches!(rules.after(&failure(8, "lost", true)), Next::Restart { number: Some(1), .. }));
    }
}
