//! Rotary positions, interleaved, with YaRN's frequencies.

use crate::{DeepSeekConfig, YarnConfig};
use burn::tensor::Tensor;
use std::f64::consts::PI;

/// Rotates the pairs `(x0, x1), (x2, x3), ...` of a head by `position * frequency[pair]`.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Radians per position, one per pair.
    frequencies: Vec<f64>,
    /// Factor on cosine and sine; 1 without YaRN.
    amplitude: f64,
}

impl Rope {
    /// The frequencies `theta^(-2i/d)` for heads of width `d = qk_rope_head_dim`, changed by YaRN where it is configured.
    pub fn new(config: &DeepSeekConfig) -> Self {
        let d = config.qk_rope_head_dim;
        let plain = (0..d / 2).map(|pair| config.rope_theta.powf(-2.0 * pair as f64 / d as f64));
        match &config.rope_scaling {
            None => Self { frequencies: plain.collect(), amplitude: 1.0 },
            Some(yarn) => {
                let (low, high) = yarn_range(yarn, d, config.rope_theta);
                let interpolated = |pair: usize| ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let blend = |(pair, f)| f * (1.0 - interpolated(pair)) + f / yarn.factor * interpolated(pair);
                Self { frequencies: plain.enumerate().map(blend).collect(), amplitude: yarn_amplitude(yarn) }
            }
        }
    }

    /// Rotates `x: [b, heads, t, d]`, whose rows are positions `0..t`; the pairs come out apart, as [`fused::rope`] says.
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let positions: Vec<usize> = (0..x.dims()[2]).collect();
        self.rotate_at(x, &positions)
    }

    /// The same for rows at these positions, one a row of `t`.
    pub(crate) fn rotate_at(&self, x: Tensor<4>, positions: &[usize]) -> Tensor<4> {
        let angles = || positions.iter().flat_map(|position| self.frequencies.iter().map(|f| *position as f64 * f));
        let cos: Vec<f32> = angles().map(|angle| (angle.cos() * self.amplitude) as f32).collect();
        let sin: Vec<f32> = angles().map(|angle| (angle.sin() * self.amplitude) as f32).collect();
        fused::rope(x, &cos, &sin)
    }
}

/// The softmax scale of MLA: `1/sqrt(nope + rope)`, times `m^2` with YaRN, where `m = 0.1 * mscale_all_dim * ln(factor) + 1`.
pub fn softmax_scale(config: &DeepSeekConfig) -> f64 {
    let scale = ((config.qk_nope_head_dim + config.qk_rope_head_dim) as f64).powf(-0.5);
    match &config.rope_scaling {
        Some(yarn) if yarn.mscale_all_dim != 0.0 => scale * yarn_mscale(yarn.factor, yarn.mscale_all_dim).powi(2),
        _ => scale,
    }
}

/// `0.1 * mscale * ln(factor) + 1` (YaRN, arXiv 2309.00071, eq. 22).
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn yarn_amplitude(yarn: &YarnConfig) -> f64 {
    match (yarn.mscale, yarn.mscale_all_dim) {
        (m, all) if m != 0.0 && all != 0.0 => yarn_mscale(yarn.factor, m) / yarn_mscale(yarn.factor, all),
        _ => yarn_mscale(yarn.factor, 1.0),
    }
}

/// The pairs between which YaRN blends from kept to divided frequencies: those that turn `beta_fast` and `beta_slow` times over
/// the original context.
fn yarn_range(yarn: &YarnConfig, d: usize, theta: f64) -> (f64, f64) {
    let (d, context) = (d as f64, yarn.original_max_position_embeddings as f64);
    let pair_of = |turns: f64| d * (context / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let low = pair_of(yarn.beta_fast).floor().max(0.0);
    let high = pair_of(yarn.beta_slow).ceil().min(d - 1.0);
    (low, if low == high { high + 0.001 } else { high })
}
