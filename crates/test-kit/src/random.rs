//! Pseudo-random numbers, the same in every run and on every machine (SplitMix64).

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns uniform numbers in [-1, 1) in steps of 2^-23, which f32 represents exactly.
pub fn random(seed: u64, len: usize) -> Vec<f64> {
    let seed = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let bits = |i: usize| mix(seed.wrapping_add(i as u64 + 1).wrapping_mul(GOLDEN));
    (0..len).map(|i| (bits(i) >> 40) as f64 / (1 << 23) as f64 - 1.0).collect()
}

/// Returns a number below `limit` for each `seed`.
pub fn noise(seed: u64, limit: u64) -> u64 {
    mix(seed.wrapping_add(1).wrapping_mul(GOLDEN)) % limit
}

/// Returns multiples of 1/8 between -1 and 1, which bf16 represents exactly.
pub fn eighths(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + seed * 11 + i / 7) % 17) as f32 / 8.0 - 1.0).collect()
}

/// A sequence of numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Draws a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// Draws numbers in -2..2, in steps of `1 / steps`.
    pub fn floats(&mut self, len: usize, steps: usize) -> Vec<f32> {
        (0..len).map(|_| self.below(4 * steps) as f32 / steps as f32 - 2.0).collect()
    }
}
