use crate::kernels::route::{GAMMA, mix};

/// What a layer's routing noise depends on, beside a token's position: nothing is drawn in order and nothing
/// remembered, so a forward that is run again routes alike, and so does another rank that gets the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseKey {
    /// Noises of different keys are independent.
    pub key: u32,
    /// The row of the global batch that the first sequence is.
    pub first_row: u32,
}

impl NoiseKey {
    /// The key of one layer at one step of the run of this `seed`, for a batch whose first sequence is row `first_row`
    /// of the step's.
    pub fn derive(seed: u64, step: u64, layer: u64, first_row: u64) -> Self {
        let halves = [seed, step, layer].into_iter().flat_map(|part| [part as u32, (part >> 32) as u32]);
        Self { key: halves.fold(0, |key, half| mix((key ^ half).wrapping_add(GAMMA))), first_row: first_row as u32 }
    }
}
