//! The order in which an epoch visits the windows of the training split or the rows of a bucket: a permutation that is
//! computed, not stored.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

const ROUNDS: usize = 8;

/// The order and the offset of one epoch.
///
/// A Feistel network permutes the numbers below a power of four. It splits a number's bits into halves and, round by
/// round, changes one half by a keyed function of the other, which is invertible whatever the function is. The smallest
/// such power that is at least the number of windows is at most four times too large. A result that is not a window is
/// permuted again until it is one ("cycle walking"), so the result is still a permutation.
#[derive(Debug, Clone)]
pub struct Epoch {
    windows: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
    /// Where the first window starts; below the requested `offsets`.
    pub offset: u64,
}

impl Epoch {
    /// Epoch number `epoch` of a run with `seed` over `windows` windows. The offset is below `offsets`.
    pub fn new(seed: u64, epoch: u64, windows: u64, offsets: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(epoch);
        let bits = u64::BITS - (windows - 1).leading_zeros();
        Self {
            windows,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.next_u64()),
            // The high half of the product is uniform up to one part in 2^64 / offsets.
            offset: ((u128::from(rng.next_u64()) * u128::from(offsets)) >> 64) as u64,
        }
    }

    /// The window that comes at position `index` of the epoch.
    pub fn window(&self, index: u64) -> u64 {
        debug_assert!(index < self.windows);
        let mut window = self.permute(index);
        while window >= self.windows {
            window = self.permute(window);
        }
        window
    }

    fn permute(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// An endless sequence of epochs, each in its own order.
#[derive(Debug, Clone)]
pub struct Epochs {
    seed: u64,
    windows: u64,
    offsets: u64,
    /// The epoch asked for last; the next request is usually for the same one.
    last: Option<(u64, Epoch)>,
}

impl Epochs {
    /// The epochs of a run with `seed`; see [`Epoch::new`].
    pub fn new(seed: u64, windows: u64, offsets: u64) -> Self {
        Self { seed, windows, offsets, last: None }
    }

    /// The window at position `index` since the start of the run, and the offset of its epoch.
    pub fn at(&mut self, index: u128) -> (u64, u64) {
        let (number, index) = ((index / u128::from(self.windows)) as u64, (index % u128::from(self.windows)) as u64);
        let (_, epoch) = match self.last.take() {
            Some((last, epoch)) if last == number => self.last.insert((last, epoch)),
            _ => self.last.insert((number, Epoch::new(self.seed, number, self.windows, self.offsets))),
        };
        (epoch.window(index), epoch.offset)
    }
}

/// Spreads each bit of `value` over all bits (the finalizer of SplitMix64).
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_epoch_visits_every_window_once(seed: u64, epoch: u64, windows in 1u64..3000, offsets in 1u64..2000) {
            let epoch = Epoch::new(seed, epoch, windows, offsets);
            let mut visited: Vec<u64> = (0..windows).map(|index| epoch.window(index)).collect();
            visited.sort_unstable();
            prop_assert!(visited.into_iter().eq(0..windows));
            prop_assert!(epoch.offset < offsets);
        }

        #[test]
        fn huge_epochs_are_permuted_too(seed: u64, windows in (1u64 << 40)..u64::MAX, index: u64) {
            prop_assert!(Epoch::new(seed, 0, windows, 1).window(index % windows) < windows);
        }
    }

    #[test]
    fn each_window_comes_at_each_place_about_equally_often() {
        let mut counts = [[0; 5]; 5];
        for epoch in 0..10_000 {
            let order = Epoch::new(7, epoch, 5, 1);
            (0..5).for_each(|index| counts[index][order.window(index as u64) as usize] += 1);
        }
        // 2000 each, plus or minus five standard deviations.
        assert!(counts.iter().flatten().all(|count| (1800..2200).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        let order = Epoch::new(1337, 2, 1000, 128);
        assert_eq!([0, 1, 2, 3].map(|index| order.window(index)), [96, 725, 81, 228]);
        assert_eq!(order.offset, 110);
    }
}
