//! Matrix descriptors: where `wgmma` finds an operand in shared memory.
//!
//! ```text
//!   63 62       51 49      45       32      29       16      13        0
//! +-------+---+-------+---+-----------+---+-----------+---+-----------+
//! |swizzle|   | base  |   |  stride   |   |  leading  |   |   start   |      offsets and addresses / 16
//! +-------+---+-------+---+-----------+---+-----------+---+-----------+
//! ```
//!
//! Shared memory holds chunks of 16 bytes. In a **K-major** operand a chunk is part of a row of `a`, or of a column of `b`, and an
//! instruction takes two from each; in an **MN-major** one it is eight 16-bit elements of one `k`. With `w` chunks in a swizzle's width,
//! a chunk lies at `start` and
//!
//! ```text
//!                 not swizzled                                           swizzled
//! K-major         r % 8 * 16 + r / 8 * stride + j * leading              r % 8 * 16 w + r / 8 * stride + j * 16
//! MN-major        k % 8 * 16 + k / 8 * leading + c * stride              k % 8 * 16 w + k / 8 * stride + c % w * 16 + c / w * leading
//! ```
//!
//! where `r` is the row, `j` the chunk in it, and `c` the chunk of a `k`. Then bits of the address are swizzled, so a step along `k`
//! within a row is an addition to `start`.

use super::super::Swizzle;

/// A matrix descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Offset of the matrix in shared memory, in bytes.
    pub start: u64,
    /// Leading dimension byte offset.
    pub leading: u64,
    /// Stride dimension byte offset.
    pub stride: u64,
    /// By how many times 128 bytes a swizzle's pattern starts behind a multiple of its length.
    pub base: u64,
    /// Permutation of chunks.
    pub swizzle: Swizzle,
}

impl Descriptor {
    /// The descriptor that these bits are.
    pub fn decode(bits: u64) -> Self {
        let field = |from: u32, length: u32| bits >> from & ((1 << length) - 1);
        let swizzle = [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][field(62, 2) as usize];
        Self {
            start: field(0, 14) << 4,
            leading: field(16, 14) << 4,
            stride: field(32, 14) << 4,
            base: field(49, 3),
            swizzle,
        }
    }

    /// The bits of this descriptor.
    pub fn encode(&self) -> u64 {
        let swizzle = match self.swizzle {
            Swizzle::None => 0u64,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        let offset = |bytes: u64| (bytes & 0x3_ffff) >> 4;
        swizzle << 62 | self.base << 49 | offset(self.stride) << 32 | offset(self.leading) << 16 | offset(self.start)
    }

    /// Address of chunk `j` of row `row`.
    #[inline]
    pub(super) fn k_major(&self, row: usize, j: usize) -> u64 {
        let (row, j) = (row as u64, j as u64);
        let width = self.swizzle.width() as u64;
        let across = if self.swizzle == Swizzle::None { self.leading } else { 16 };
        self.place(row % 8 * width + row / 8 * self.stride + j * across)
    }

    /// Address of chunk `chunk` of the rows' (columns') elements of `k`.
    #[inline]
    pub(super) fn mn_major(&self, chunk: usize, k: usize) -> u64 {
        let (chunk, k) = (chunk as u64, k as u64);
        let width = self.swizzle.width() as u64;
        if self.swizzle == Swizzle::None {
            return self.place(k % 8 * 16 + k / 8 * self.leading + chunk * self.stride);
        }
        let chunks = width / 16;
        self.place(k % 8 * width + k / 8 * self.stride + chunk % chunks * 16 + chunk / chunks * self.leading)
    }

    #[inline]
    fn place(&self, offset: u64) -> u64 {
        self.swizzle.apply_from(self.start + offset, self.base)
    }
}
