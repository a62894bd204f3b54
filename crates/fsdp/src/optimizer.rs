use crate::Layout;
use burn::optim::{AdamW, AdamWConfig as BurnAdamWConfig, AdamWState, Optimizer};
use burn::tensor::Tensor;
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
    adamw: AdamW,
    state: Option<AdamWState<1>>,
}

impl ShardOptimizer {
    /// For the shard that begins at `start` of its unit's buffer.
    pub fn new(config: &AdamWConfig, layout: &Layout, start: usize, len: usize) -> Self {
        let boundary = layout.matrices_end().saturating_sub(start).min(len);
        let part = |range, weight_decay| {
            let adamw = BurnAdamWConfig::new()
                .with_beta_1(config.beta1 as f32)
                .with_beta_2(config.beta2 as f32)
                .with_epsilon(config.epsilon as f32)
                .with_weight_decay(weight_decay as f32)
                .build();
            Part { range, adamw, state: None }
        };
        let mut parts = vec![part(0..boundary, config.weight_decay), part(boundary..len, 0.0)];
        parts.retain(|part| !part.range.is_empty());
        Self { parts }
    }

    /// One step from `shard` along `gradient`, both of the shard's length.
    pub fn step(&mut self, lr: f64, shard: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
        let mut updated = vec![];
        for part in &mut self.parts {
            let slice = |tensor: &Tensor<1>| tensor.clone().slice([part.range.clone()]);
            let (value, state) = part.adamw.step(lr, slice(&shard), slice(&gradient), part.state.take());
            part.state = state;
            updated.push(value);
        }
        Tensor::cat(updated, 0)
    }

    /// Bytes of the two moments.
    pub fn bytes(&self) -> usize {
        let moments = |state: &AdamWState<1>| {
            crate::shard::bytes(&state.momentum.moment_1) + crate::shard::bytes(&state.momentum.moment_2)
        };
        self.parts.iter().filter_map(|part| part.state.as_ref()).map(moments).sum()
    }
}
