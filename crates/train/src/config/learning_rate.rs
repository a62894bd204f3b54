//! The learning rate schedules.

use crate::config::OptimConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the learning rate changes after its linear warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Half a cosine from `lr` down to `min_lr` (arXiv 1608.03983 without restarts, as in nanoGPT).
    Cosine,
    /// Linear from `lr` down to `min_lr`.
    Linear,
    /// Warm-up, stable, decay (arXiv 2404.06395): constant at `lr`, then linear down to `min_lr` over the last
    /// `decay_steps` (the paper's MiniCPM decays exponentially).
    Wsd,
    /// Constant at `lr`.
    Constant,
}

/// The learning rate of step `step` (from 0) of `steps`.
///
/// ```text
///     lr     _____________         warm-up   lr (step + 1) / (warmup_steps + 1)
///           /             \        stable    lr
/// min_lr   /               \_      decay     min_lr + (lr - min_lr) fall(progress)
///         0 warm-up    decay  steps
/// ```
///
/// `fall` is `(1 + cos(pi progress)) / 2`, or `1 - progress`. As in nanoGPT, `progress` is 0 in the first step of the
/// decay and would be 1 in step `steps`, the first that is not made.
pub(crate) fn learning_rate(optim: &OptimConfig, step: usize, steps: usize) -> f64 {
    let OptimConfig { lr, min_lr, warmup_steps, .. } = *optim;
    if step < warmup_steps {
        return lr * (step + 1) as f64 / (warmup_steps as f64 + 1.0);
    }
    let decay = optim.decay_length(steps);
    if step + decay <= steps {
        return lr;
    }
    let progress = (step + decay - steps) as f64 / decay as f64;
    let fall = match optim.schedule {
        LrSchedule::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
        LrSchedule::Linear | LrSchedule::Wsd | LrSchedule::Constant => 1.0 - progress,
    };
    min_lr + fall * (lr - min_lr)
}

impl OptimConfig {
    /// Number of steps at the end of `steps` over which the learning rate falls. A `wsd` without `decay_steps` uses a
    /// tenth of all steps, which MiniCPM found sufficient.
    pub(crate) fn decay_length(&self, steps: usize) -> usize {
        match self.schedule {
            LrSchedule::Cosine | LrSchedule::Linear => steps.saturating_sub(self.warmup_steps),
            LrSchedule::Wsd => self.decay_steps.unwrap_or(steps.div_ceil(10)),
            LrSchedule::Constant => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates of 109 steps from 1 to 0.1; the first 9 steps are warm-up.
    fn rates(schedule: LrSchedule, decay_steps: Option<usize>) -> Vec<f64> {
        let optim = OptimConfig { lr: 1.0, min_lr: 0.1, warmup_steps: 9, schedule, decay_steps, ..Default::default() };
        let rates: Vec<f64> = (0..109).map(|step| learning_rate(&optim, step, 109)).collect();
        assert_eq!((rates[0], rates[4], rates[8], rates[9]), (0.1, 0.5, 0.9, 1.0), "the warm-up of {schedule:?}");
        rates
    }

    #[track_caller]
    fn assert_close(rate: f64, expected: f64) {
        assert!((rate - expected).abs() < 1e-12, "{rate}, not {expected}");
    }

    #[test]
    fn cosine_falls_along_half_a_cosine() {
        let rates = rates(LrSchedule::Cosine, None);
        assert_close(rates[34], 0.55 + 0.45 * 0.5f64.sqrt()); // a quarter of the way: cos 45°
        assert_close(rates[59], 0.55);
        assert_close(rates[84], 0.55 - 0.45 * 0.5f64.sqrt());
        assert!(rates[9..].is_sorted_by(|a, b| a > b) && rates[108] - 0.1 < 1e-3);
    }

    #[test]
    fn linear_falls_by_the_same_at_every_step() {
        let rates = rates(LrSchedule::Linear, None);
        for (i, rate) in rates[9..].iter().enumerate() {
            assert_close(*rate, 1.0 - 0.009 * i as f64);
        }
    }

    #[test]
    fn wsd_stays_and_falls_linearly_over_the_last_steps() {
        let with_20 = rates(LrSchedule::Wsd, Some(20));
        assert!(with_20[9..=89].iter().all(|rate| *rate == 1.0));
        for (i, rate) in with_20[89..].iter().enumerate() {
            assert_close(*rate, 1.0 - 0.045 * i as f64);
        }
        // A tenth of 109 steps is 11.
        assert_eq!(rates(LrSchedule::Wsd, None), rates(LrSchedule::Wsd, Some(11)));
        // Without a stable phase it is linear.
        assert_eq!(rates(LrSchedule::Wsd, Some(100)), rates(LrSchedule::Linear, None));
    }

    #[test]
    fn constant_stays_at_lr() {
        assert!(rates(LrSchedule::Constant, None)[9..].iter().all(|rate| *rate == 1.0));
    }
}
