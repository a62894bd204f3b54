//! Drawing the next token from its logits.

use crate::ModelError;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How the next token is drawn: from `softmax(logits / temperature)`, restricted first by `top_k` and then by `top_p`,
/// as in transformers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps only tokens at least as likely as the `top_k`-th most likely one.
    pub top_k: Option<usize>,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least this value; at least one token.
    pub top_p: Option<f64>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// Samples from the model's unmodified probabilities.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, seed: 0 }
    }
}

impl Sampling {
    /// Rejects settings that make sampling impossible. The message names value and remedy.
    pub fn validate(&self) -> Result<(), ModelError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(format!("temperature is {}: give 0 or more", self.temperature).into());
        }
        if self.top_k == Some(0) {
            return Err("top_k is 0: give at least 1, or leave it out to draw from all tokens".into());
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => Err(format!("top_p is {p}: give a number above 0, up to 1").into()),
            _ => Ok(()),
        }
    }

    /// The random generator of one sequence.
    pub(crate) fn rng(&self, sequence: usize) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(sequence as u64);
        rng
    }

    pub(crate) fn draw(&self, logits: &[f32], rng: &mut ChaCha8Rng) -> u32 {
        if self.temperature == 0.0 {
            return most_likely(logits);
        }
        let weights = self.weights(logits);
        let total: f64 = weights.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            return most_likely(logits); // the logits are not finite: no draw is better than another
        }
        let mut rest = rng.random::<f64>() * total;
        let drawn = weights.iter().position(|weight| {
            rest -= weight;
            rest < 0.0
        });
        // Rounding may leave a remainder; the last token with a weight takes it.
        drawn.or_else(|| weights.iter().rposition(|weight| *weight > 0.0)).expect("a weight above 0") as u32
    }

    /// Each token's probability up to a common factor; 0 for excluded tokens.
    fn weights(&self, logits: &[f32]) -> Vec<f64> {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut weights: Vec<f64> =
            logits.iter().map(|logit| (f64::from(logit - highest) / self.temperature).exp()).collect();
        if self.top_k.is_none() && self.top_p.is_none() {
            return weights;
        }
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let mut kept = weights.len();
        if let Some(k) = self.top_k {
            let last = logits[order[k.min(kept) - 1]];
            kept = order.iter().position(|token| logits[*token] < last).unwrap_or(kept);
        }
        if let Some(p) = self.top_p {
            let total: f64 = order[..kept].iter().map(|token| weights[*token]).sum();
            // A token is excluded once the tokens above it have reached the probability.
            let mut above = 0.0;
            kept = order[..kept]
                .iter()
                .position(|token| {
                    let goes = above > 0.0 && above >= p * total;
                    above += weights[*token];
                    goes
                })
                .unwrap_or(kept);
        }
        order[kept..].iter().for_each(|token| weights[*token] = 0.0);
        weights
    }
}

/// The first of the most likely tokens.
pub(crate) fn most_likely(logits: &[f32]) -> u32 {
    let better = |best: usize, token: usize| if logits[token] > logits[best] { token } else { best };
    (1..logits.len()).fold(0, better) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits that give these probabilities at temperature 1.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    fn left(sampling: Sampling, probabilities: &[f32]) -> Vec<usize> {
        let weights = sampling.weights(&logits(probabilities));
        (0..weights.len()).filter(|token| weights[*token] > 0.0).collect()
    }

    #[test]
    fn top_k_keeps_the_k_most_likely_tokens_and_their_equals() {
        let k = |k| left(Sampling { top_k: Some(k), ..Sampling::default() }, &[0.1, 0.4, 0.2, 0.2, 0.1]);
        assert_eq!(k(1), [1]);
        assert_eq!(k(2), [1, 2, 3]);
        assert_eq!(k(3), [1, 2, 3]);
        assert_eq!(k(4), [0, 1, 2, 3, 4]);
        assert_eq!(k(9), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn top_p_keeps_the_fewest_most_likely_tokens_that_reach_p() {
        let p = |p| left(Sampling { top_p: Some(p), ..Sampling::default() }, &[0.125, 0.5, 0.25, 0.125]);
        assert_eq!(p(0.01), [1]);
        assert_eq!(p(0.499), [1]);
        assert_eq!(p(0.501), [1, 2]);
        assert_eq!(p(0.749), [1, 2]);
        assert_eq!(p(0.751), [0, 1, 2]);
        assert_eq!(p(1.0), [0, 1, 2, 3]);
    }

    /// With tokens of 0.4 and 0.3, the first has 0.57 of the mass that `top_k` leaves: enough for 0.5, although it has
    /// only 0.4 of the whole.
    #[test]
    fn top_p_counts_what_top_k_leaves() {
        let rule = |top_k| Sampling { top_k, top_p: Some(0.5), ..Sampling::default() };
        assert_eq!(left(rule(Some(2)), &[0.3, 0.4, 0.2, 0.1]), [1]);
        assert_eq!(left(rule(None), &[0.3, 0.4, 0.2, 0.1]), [0, 1]);
    }

    /// At temperature 0.5, probabilities 0.6 and 0.4 become 0.36 / 0.52 and 0.16 / 0.52, so the first alone reaches
    /// 0.65.
    #[test]
    fn the_temperature_comes_before_top_p() {
        let rule = |temperature| Sampling { temperature, top_p: Some(0.65), ..Sampling::default() };
        assert_eq!(left(rule(1.0), &[0.6, 0.4]), [0, 1]);
        assert_eq!(left(rule(0.5), &[0.6, 0.4]), [0]);
        let weights = rule(1.0).weights(&logits(&[0.6, 0.4]));
        assert!((weights[1] / weights[0] - 2.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn draws_have_the_probabilities_of_the_rule() {
        let sampling = Sampling { top_k: Some(2), seed: 4, ..Sampling::default() };
        let (logits, mut rng) = (logits(&[0.2, 0.45, 0.05, 0.3]), sampling.rng(0));
        let mut counts = [0; 4];
        (0..20_000).for_each(|_| counts[sampling.draw(&logits, &mut rng) as usize] += 1);
        assert!(counts[0] == 0 && counts[2] == 0);
        assert!((f64::from(counts[1]) / 20_000.0 - 0.6).abs() < 0.015, "{counts:?}"); // four deviations
    }

    #[test]
    fn sequences_have_streams_of_their_own_and_a_seed_repeats_them() {
        let draws = |seed, sequence| {
            let sampling = Sampling { seed, ..Sampling::default() };
            let mut rng = sampling.rng(sequence);
            (0..32).map(|_| sampling.draw(&[0.0; 64], &mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 2), draws(1, 2));
        assert_ne!(draws(1, 2), draws(1, 3));
        assert_ne!(draws(1, 2), draws(2, 2));
    }

    #[test]
    fn temperature_0_and_logits_that_are_not_finite_take_the_first_of_the_highest() {
        let (greedy, any) = (Sampling { temperature: 0.0, ..Sampling::default() }, Sampling::default());
        assert_eq!(greedy.draw(&[0.0, 3.0, 3.0, 1.0], &mut greedy.rng(0)), 1);
        assert_eq!(any.draw(&[0.0, f32::INFINITY, 1.0], &mut any.rng(0)), 1);
        assert!(any.draw(&[f32::NAN; 3], &mut any.rng(0)) < 3);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let error = |sampling: Sampling| sampling.validate().unwrap_err().to_string();
        assert!(error(Sampling { temperature: -1.0, ..Sampling::default() }).contains("temperature is -1"));
        assert!(error(Sampling { temperature: f64::NAN, ..Sampling::default() }).contains("temperature is NaN"));
        assert!(error(Sampling { top_k: Some(0), ..Sampling::default() }).contains("top_k is 0"));
        assert!(error(Sampling { top_p: Some(0.0), ..Sampling::default() }).contains("top_p is 0"));
        assert!(error(Sampling { top_p: Some(1.5), ..Sampling::default() }).contains("top_p is 1.5"));
    }
}
