//! The permutations of 16-byte chunks by which rows in shared memory avoid bank conflicts.

/// Bits 4 and up of an address, exclusive-ored with its bits 7 and up. TMA and `wgmma` permute addresses, not offsets: a pattern starts
/// where the address is a multiple of 8 widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Addresses as they are.
    None,
    /// Chunks within 32 bytes: bit 4 by bit 7.
    B32,
    /// Chunks within 64 bytes: bits 4 and 5 by bits 7 and 8.
    B64,
    /// Chunks within 128 bytes: bits 4 to 6 by bits 7 to 9.
    B128,
}

impl Swizzle {
    /// Bytes within which chunks are permuted, 16 without a permutation.
    #[inline]
    pub fn width(self) -> usize {
        match self {
            Self::None => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// Where the byte of this address lies.
    #[inline]
    pub fn apply(self, address: u64) -> u64 {
        self.apply_from(address, 0)
    }

    /// Where the byte of this address lies if patterns start `base` times 128 bytes behind where they do by their addresses.
    #[inline]
    pub fn apply_from(self, address: u64, base: u64) -> u64 {
        let mask = self.width() as u64 / 16 - 1;
        address ^ ((address >> 7).wrapping_sub(base) & mask) << 4
    }
}
