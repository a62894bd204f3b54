use crate::Layout;
use crate::memory::{Category, Held, Ledger, bytes};
use burn::tensor::Tensor;
use fused::{AdamW, AdamWState, adamw};
use std::ops::Range;

/// The optimizer of one shard: its part with matrices, and its part with vectors.
pub(crate) struct ShardOptimizer {
    parts: Vec<Part>,
    ledger: Ledger,
    /// The moments' bytes; none before the first step.
    held: Option<Held>,
}

struct Part {
    range: Range<usize>,
    config: AdamW,
    state: Option<AdamWState>,
}

impl ShardOptimizer {
    /// For the shard that begins at `start` of its unit's buffer.
    pub fn new(config: &AdamW, layout: &Layout, start: usize, len: usize, ledger: Ledger) -> Self {
        let boundary = layout.matrices_end().saturating_sub(start).min(len);
        let part = |range, weight_decay| Part { range, config: AdamW { weight_decay, ..*config }, state: None };
        let mut parts = vec![part(0..boundary, config.weight_decay), part(boundary..len, 0.0)];
        parts.retain(|part| !part.range.is_empty());
        Self { parts, ledger, held: None }
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
        let moments = |state: &AdamWState| bytes(&state.mean) + bytes(&state.square);
        let states = self.parts.iter().filter_map(|part| part.state.as_ref());
        self.held.get_or_insert_with(|| self.ledger.hold(Category::Optimizer, states.map(moments).sum()));
        if updated.len() == 1 { updated.remove(0) } else { Tensor::cat(updated, 0) }
    }
}
