use crate::Layout;
use crate::shard::bytes;
use burn::tensor::Tensor;
use fused::{AdamW, AdamWState, adamw};
use std::ops::Range;

/// AdamW (arXiv 1711.05101) with the field's defaults for language models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled decay of matrices; vectors do not decay.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// The optimizer of one shard: its part with matrices, and its part with vectors.
pub(crate) struct ShardOptimizer {
    parts: Vec<Part>,
}

struct Part {
    range: Range<usize>,
    config: AdamW,
    state: Option<AdamWState>,
}

impl ShardOptimizer {
    /// For the shard that begins at `start` of its unit's buffer.
    pub fn new(config: &AdamWConfig, layout: &Layout, start: usize, len: usize) -> Self {
        let boundary = layout.matrices_end().saturating_sub(start).min(len);
        let AdamWConfig { beta1, beta2, epsilon, weight_decay } = *config;
        let part =
            |range, weight_decay| Part { range, config: AdamW { beta1, beta2, epsilon, weight_decay }, state: None };
        let mut parts = vec![part(0..boundary, weight_decay), part(boundary..len, 0.0)];
        parts.retain(|part| !part.range.is_empty());
        Self { parts }
    }

    /// One step from `shard` along `gradient * scale`, both of the shard's length.
    pub fn step(&mut self, lr: f64, shard: Tensor<1>, gradient: Tensor<1>, scale: f64) -> Tensor<1> {
        let mut updated = vec![];
        for part in &mut self.parts {
            let value = shard.clone().slice(part.range.clone());
            let gradient = gradient.clone().slice(part.range.clone());
            let state = part.state.get_or_insert_with(|| AdamWState::new(&value));
            updated.push(adamw(&part.config, lr, value, gradient, scale, state));
        }
        if updated.len() == 1 { updated.remove(0) } else { Tensor::cat(updated, 0) }
    }

    /// Bytes of the two moments.
    pub fn bytes(&self) -> usize {
        let moments = |state: &AdamWState| bytes(&state.mean) + bytes(&state.square);
        self.parts.iter().filter_map(|part| part.state.as_ref()).map(moments).sum()
    }
}
