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
        self.hold();
        if updated.len() == 1 { updated.remove(0) } else { Tensor::cat(updated, 0) }
    }

    /// The moments of one parameter's part, a range of the shard; none before the first step.
    pub fn moments(&self, range: Range<usize>) -> Option<[Tensor<1>; 2]> {
        let part = self.parts.iter().find(|part| part.range.contains(&range.start))?;
        let (state, start) = (part.state.as_ref()?, part.range.start);
        Some([&state.mean, &state.square].map(|all| all.clone().slice(range.start - start..range.end - start)))
    }

    /// The moments of all parts.
    pub fn all_moments(&self) -> impl Iterator<Item = Tensor<1>> {
        self.parts
            .iter()
            .filter_map(|part| part.state.as_ref())
            .flat_map(|state| [state.mean.clone(), state.square.clone()])
    }

    /// Goes on from these moments of the whole shard after so many steps; none: from the beginning.
    pub fn load(&mut self, moments: Option<[Tensor<1>; 2]>, steps: u64) {
        for part in &mut self.parts {
            part.state = moments.as_ref().map(|[mean, square]| AdamWState {
                mean: mean.clone().slice(part.range.clone()),
                square: square.clone().slice(part.range.clone()),
                steps: i32::try_from(steps).unwrap_or(i32::MAX),
            });
        }
        self.hold();
    }

    /// Steps made.
    pub fn steps(&self) -> u64 {
        self.parts.iter().find_map(|part| part.state.as_ref()).map_or(0, |state| state.steps as u64)
    }

    /// Counts the moments' bytes, once there are moments.
    fn hold(&mut self) {
        let moments = |state: &AdamWState| bytes(&state.mean) + bytes(&state.square);
        let states: Vec<_> = self.parts.iter().filter_map(|part| part.state.as_ref()).collect();
        if !states.is_empty() {
            let held = states.into_iter().map(moments).sum();
            self.held.get_or_insert_with(|| self.ledger.hold(Category::Optimizer, held));
        }
    }
}
