//! Scaled rotary frequencies for contexts longer than those of pretraining.

use super::{Rope, YarnConfig};
use crate::ModelError;
use crate::limits::{number, sizes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How rotary frequencies are scaled; the names are those of `rope_scaling` in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RopeType {
    /// All frequencies are divided by `factor` (position interpolation, arXiv 2306.15595).
    Linear,
    /// Slow frequencies are divided by `factor` (Llama 3.1, arXiv 2407.21783).
    Llama3,
    /// YaRN (arXiv 2309.00071).
    Yarn,
}

/// Context extension of rotary positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RopeScaling {
    /// The formula.
    pub rope_type: RopeType,
    /// Factor by which the original context is extended.
    pub factor: f64,
    /// Context length of pretraining, for `llama3` and `yarn`.
    pub original_max_position_embeddings: usize,
    /// For `llama3`: frequencies with fewer rotations than this over the original context are divided by `factor`.
    pub low_freq_factor: f64,
    /// For `llama3`: frequencies with more rotations than this over the original context are kept.
    pub high_freq_factor: f64,
    /// For `yarn`: frequencies with more rotations than this over the original context are kept.
    pub beta_fast: f64,
    /// For `yarn`: frequencies with fewer rotations than this over the original context are divided by `factor`.
    pub beta_slow: f64,
}

impl Default for RopeScaling {
    fn default() -> Self {
        Self {
            rope_type: RopeType::Llama3,
            factor: 8.0,
            original_max_position_embeddings: 8192,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }
    }
}

impl RopeScaling {
    /// Rejects values that no model can be built from.
    pub(crate) fn validate(&self) -> Result<(), ModelError> {
        sizes(&[("rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings, usize::MAX)])?;
        number("rope_scaling.factor", self.factor, self.factor >= 1.0, "a number from 1")?;
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        number("rope_scaling.low_freq_factor", low, low > 0.0, "a number above 0")?;
        number("rope_scaling.high_freq_factor", high, high > low, "a number above low_freq_factor")?;
        self.yarn().validate()
    }

    /// The rotations of heads of width `d`.
    pub(crate) fn rope(&self, d: usize, theta: f64) -> Rope {
        let plain = Rope::frequencies(d, theta);
        match self.rope_type {
            RopeType::Linear => Rope::new(plain.map(|f| f / self.factor).collect(), 1.0),
            RopeType::Llama3 => Rope::new(plain.map(|f| self.llama3(f)).collect(), 1.0),
            RopeType::Yarn => self.yarn().rope(d, theta),
        }
    }

    /// Between `low_freq_factor` and `high_freq_factor` rotations over the original context, a frequency is a blend.
    fn llama3(&self, f: f64) -> f64 {
        let rotations = self.original_max_position_embeddings as f64 * f / (2.0 * PI);
        let kept = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let kept = kept.clamp(0.0, 1.0);
        kept * f + (1.0 - kept) * f / self.factor
    }

    /// YaRN as in transformers' Llama: cosine and sine are multiplied by `0.1 ln(factor) + 1`, and the softmax scale
    /// stays.
    fn yarn(&self) -> YarnConfig {
        YarnConfig {
            factor: self.factor,
            original_max_position_embeddings: self.original_max_position_embeddings,
            beta_fast: self.beta_fast,
            beta_slow: self.beta_slow,
            mscale: 0.0,
            mscale_all_dim: 0.0,
        }
    }
}
