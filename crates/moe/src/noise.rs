//! The key of routing noise.

use crate::kernels::route::{GAMMA, mix};

/// Determines a layer's routing noise, together with a token's position. There is no generator state, so a recomputed
/// forward routes tokens in the same way, and so does another rank with the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseKey {
    /// The noises of different keys are independent.
    pub key: u32,
    /// The index in the global batch of the first sequence.
    pub first_row: u32,
}

impl NoiseKey {
    /// Derives the key of one layer at one step of the run with this `seed`, for a batch whose first sequence is row
    /// `first_row` of the step's global batch.
    pub fn derive(seed: u64, step: u64, layer: u64, first_row: u64) -> Self {
        let halves = [seed, step, layer].into_iter().flat_map(|part| [part as u32, (part >> 32) as u32]);
        Self { key: halves.fold(0, |key, half| mix((key ^ half).wrapping_add(GAMMA))), first_row: first_row as u32 }
    }
}
