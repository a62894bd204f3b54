//! YaRN's extension of the context: configuration and formulas.

use super::Rope;
use crate::ModelError;
use crate::limits::{number, sizes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// YaRN context extension (arXiv 2309.00071); names follow `rope_scaling` in DeepSeek's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct YarnConfig {
    /// Factor by which the original context is extended.
    pub factor: f64,
    /// Context length of pretraining.
    pub original_max_position_embeddings: usize,
    /// Dimensions with more rotations than this over the original context keep their frequency.
    pub beta_fast: f64,
    /// Dimensions with fewer rotations than this over the original context have their frequency divided by `factor`.
    pub beta_slow: f64,
    /// Gives the numerator of the factor on cosine and sine, `0.1 * mscale * ln(factor) + 1`; 0 means unset.
    pub mscale: f64,
    /// Gives the denominator of that factor in the same way; the denominator's square also multiplies the softmax
    /// scale. 0 means unset.
    pub mscale_all_dim: f64,
}

impl Default for YarnConfig {
    fn default() -> Self {
        Self {
            factor: 40.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 1.0,
        }
    }
}

impl YarnConfig {
    /// Rejects values that no model can be built from.
    pub(crate) fn validate(&self) -> Result<(), ModelError> {
        let Self { factor, original_max_position_embeddings, beta_fast, beta_slow, mscale, mscale_all_dim } = *self;
        sizes(&[("rope_scaling.original_max_position_embeddings", original_max_position_embeddings, usize::MAX)])?;
        number("rope_scaling.factor", factor, factor >= 1.0, "a number from 1")?;
        number("rope_scaling.beta_slow", beta_slow, beta_slow > 0.0, "a number above 0")?;
        number("rope_scaling.beta_fast", beta_fast, beta_fast > beta_slow, "a number above beta_slow")?;
        number("rope_scaling.mscale", mscale, mscale >= 0.0, "0 or more")?;
        number("rope_scaling.mscale_all_dim", mscale_all_dim, mscale_all_dim >= 0.0, "0 or more")
    }

    /// The rotations of heads of width `d`.
    pub(crate) fn rope(&self, d: usize, theta: f64) -> Rope {
        Rope::new(self.frequencies(d, theta), self.amplitude())
    }

    /// Factor on cosine and sine.
    fn amplitude(&self) -> f64 {
        match (self.mscale, self.mscale_all_dim) {
            (m, all) if m != 0.0 && all != 0.0 => self.scale(m) / self.scale(all),
            _ => self.scale(1.0),
        }
    }

    /// Factor on the softmax scale.
    pub(crate) fn softmax_factor(&self) -> f64 {
        if self.mscale_all_dim == 0.0 { 1.0 } else { self.scale(self.mscale_all_dim).powi(2) }
    }

    /// `0.1 * mscale * ln(factor) + 1` (arXiv 2309.00071, eq. 22).
    fn scale(&self, mscale: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * mscale * self.factor.ln() + 1.0 }
    }

    /// The frequencies of the pairs of a head of width `d`: blended from kept to divided ones between the pairs that
    /// complete `beta_fast` and `beta_slow` rotations over the original context.
    fn frequencies(&self, d: usize, theta: f64) -> Vec<f64> {
        let (width, context) = (d as f64, self.original_max_position_embeddings as f64);
        let pair_of = |turns: f64| width * (context / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let low = pair_of(self.beta_fast).floor().max(0.0);
        let high = pair_of(self.beta_slow).ceil().min(width - 1.0);
        let high = if low == high { high + 0.001 } else { high };
        let interpolated = |pair: usize| ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let blend = |(pair, f)| f * (1.0 - interpolated(pair)) + f / self.factor * interpolated(pair);
        Rope::frequencies(d, theta).enumerate().map(blend).collect()
    }
}
