use crate::config::OptimConfig;
use std::f64::consts::PI;

/// The learning rate of step `step` (from 0) of `steps`: linear from 0 to `lr` over the warm-up, then half a cosine down to `min_lr`,
/// as in nanoGPT.
pub(crate) fn learning_rate(optim: &OptimConfig, step: usize, steps: usize) -> f64 {
    let warmup = optim.warmup_steps;
    if step < warmup {
        return optim.lr * (step + 1) as f64 / (warmup as f64 + 1.0);
    }
    let progress = (step - warmup) as f64 / steps.saturating_sub(warmup).max(1) as f64;
    optim.min_lr + 0.5 * (1.0 + (PI * progress.min(1.0)).cos()) * (optim.lr - optim.min_lr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_linearly_and_falls_to_the_minimum_along_a_cosine() {
        let optim = OptimConfig { lr: 1.0, min_lr: 0.1, warmup_steps: 9, ..Default::default() };
        let rates: Vec<f64> = (0..109).map(|step| learning_rate(&optim, step, 109)).collect();
        assert_eq!((rates[0], rates[8], rates[9]), (0.1, 0.9, 1.0));
        assert!((rates[59] - 0.55).abs() < 1e-12, "half way down after half of the steps");
        assert!(rates[9..].is_sorted_by(|a, b| a > b) && rates[108] - 0.1 < 1e-3);
    }
}
