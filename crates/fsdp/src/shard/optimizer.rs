//! AdamW on one shard.

use crate::Layout;
use crate::shard::memory::{Category, Ledger, MemoryGuard, bytes};
use burn::tensor::{DType, Tensor};
use fused::{AdamW, AdamWState, AdamWStep, adamw};
use std::ops::Range;

/// The factor of gradients before a step.
#[derive(Clone)]
pub(crate) struct GradientScale {
    /// The part that the host knows.
    pub known: f64,
    /// The part that only the device knows so far, if gradients are on a device: [`fused::clip_factor`].
    pub factor: Option<Tensor<1>>,
}

/// The optimizer of one shard, which starts with its part of the matrices; only these decay.
pub(crate) struct ShardOptimizer {
    config: AdamW,
    /// Number of the shard's elements that belong to matrices.
    decayed: usize,
    state: Option<AdamWState>,
    ledger: Ledger,
    /// The moments' bytes; `None` before the first step.
    held: Option<MemoryGuard>,
}

impl ShardOptimizer {
    /// Creates the optimizer of the shard that starts at `start` of its unit's buffer.
    pub fn new(config: &AdamW, layout: &Layout, start: usize, len: usize, ledger: Ledger) -> Self {
        let decayed = layout.matrices_end().saturating_sub(start).min(len);
        Self { config: *config, decayed, state: None, ledger, held: None }
    }

    /// Steps from `shard` along its gradient; returns the new shard, and its copy in the type `copy` if one is given.
    pub fn step(
        &mut self,
        lr: f64,
        scale: &GradientScale,
        [shard, gradient]: [Tensor<1>; 2],
        copy: Option<DType>,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        let state = self.state.get_or_insert_with(|| AdamWState::new(&shard));
        let GradientScale { known: gradient_scale, factor } = scale.clone();
        let step = AdamWStep { lr, decayed: self.decayed, gradient_scale, factor, copy };
        let stepped = adamw(&self.config, &step, shard, gradient, state);
        self.hold();
        stepped
    }

    /// Takes back the last step, which had no effect because its gradient's factor turned out to be below 0.
    pub fn take_back(&mut self) {
        match &mut self.state {
            Some(state) if state.steps > 1 => state.steps -= 1,
            _ => (self.state, self.held) = (None, None),
        }
    }

    /// Returns the moments of a parameter's part, a range of the shard; `None` before the first step.
    pub fn moments(&self, range: Range<usize>) -> Option<[Tensor<1>; 2]> {
        self.all_moments().map(|moments| moments.map(|all| all.slice(range.clone())))
    }

    /// Returns the moments of the whole shard; `None` before the first step.
    pub fn all_moments(&self) -> Option<[Tensor<1>; 2]> {
        self.state.as_ref().map(|state| [state.mean.clone(), state.square.clone()])
    }

    /// Resumes with these moments of the whole shard after `steps` steps; `None` starts from the beginning.
    pub fn load(&mut self, moments: Option<[Tensor<1>; 2]>, steps: u64) {
        let steps = i32::try_from(steps).unwrap_or(i32::MAX);
        self.state = moments.map(|[mean, square]| AdamWState { mean, square, steps });
        self.hold();
    }

    /// Returns the number of steps made.
    pub fn steps(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.steps as u64)
    }

    /// Counts the moments' bytes once moments exist.
    fn hold(&mut self) {
        if let Some(state) = &self.state {
            let held = bytes(&state.mean) + bytes(&state.square);
            self.held.get_or_insert_with(|| self.ledger.hold(Category::Optimizer, held));
        }
    }
}
