//! The micro kernel: computes one tile of `C` in registers, over one block of `k`.
//!
//! `A` and `B` come in units of 32 bits: one `f32`, or a pair of `bf16` of two consecutive values of `k`. For every
//! unit of the block, the kernel loads one row of `B` (two vectors). For each of its rows of `A` it broadcasts one unit
//! and issues two fused multiply-adds. The tile is as large as the register file allows:
//!
//! | vectors  | registers | tile    | accumulators | row of `B` | broadcast |
//! |----------|-----------|---------|--------------|------------|-----------|
//! | AVX-512  | 32        | 14 × 32 | 28           | 2          | 2         |
//! | AVX2     | 16        | 6 × 16  | 12           | 2          | 2         |
//! | portable | 16 (SSE2) | 6 × 8   | 12           | 2          | 2         |
//!
//! AMX has tile registers instead, and a kernel of its own in `amx`.
//!
//! With AVX-512, a step has 28 multiply-adds and 16 loads. Two multiply-add units need 14 cycles and two load units 8,
//! so the multiply-adds are the limit, as intended.

/// The number of consecutive units along `k` that are summed before the sum is added to `C`. It is part of the order of
/// summation, and therefore the same on all machines. A panel of `A` then takes 14 · 256 · 4 B = 14 KiB. It stays in
/// the first-level cache (32 KiB or 48 KiB) while the panels of `B` (32 KiB each) stream past it from the second level.
pub const KC: usize = 256;

/// How many steps ahead the kernel prefetches rows of `B`: 8 · 14 cycles cover the latency of the second-level cache.
const AHEAD: usize = 8;
/// The same for an unpacked `B`, which comes from memory: 40 steps of 8 cycles or more.
const FAR_AHEAD: usize = 40;

/// The arguments of the kernel: a panel of `A`, a panel of `B` and the position of the tile in `C`.
pub struct Tile {
    /// The units of this block of `k`, at most `KC`. Up to the next multiple of `STEP`, units must be readable and 0.
    pub k: usize,
    /// Element `(i, p)` is at `i * a_stride + p`, or at `i + p * PITCH` if the panel is packed by columns. If `STEP` is
    /// not 1, `MR` rows must be readable, with any contents in those that are too many.
    pub a: *const f32,
    pub a_stride: usize,
    /// Element `(p, j)` is at `p * b_stride + j`; all `NR` columns must be readable.
    pub b: *const f32,
    pub b_stride: usize,
    pub c: *mut f32,
    pub c_stride: usize,
    /// The columns of `C` to write, at most `NR`.
    pub cols: usize,
    /// Whether to add to `C` (a later block of `k`) or to overwrite it (the first).
    pub add: bool,
}

/// A kernel for a fixed number of rows and a fixed layout of `A`.
pub type Kernel = unsafe fn(&Tile);

/// A vector of `f32`, or of units of the same size, with the operations that the kernel and the packing need.
///
/// # Safety
/// All functions need a processor with the vector's instructions, and pointers that are valid for what they describe.
pub unsafe trait Vector: Copy {
    const LANES: usize;

    unsafe fn zero() -> Self;
    /// Sets all lanes to the one unit at `from`.
    unsafe fn splat(from: *const f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// Hints that the cache line at this address, which need not be valid, will be loaded soon.
    unsafe fn prefetch(at: *const f32);
    /// Returns `self * b + c`.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Writes the first `count` lanes, after adding the old values if `add`; a `count` above `LANES` means all.
    unsafe fn store(self, to: *mut f32, count: usize, add: bool);
    /// Pairs `LANES` adjacent values of two rows of 16-bit values; only for units that are such pairs.
    unsafe fn interleave(_first: *const u16, _second: *const u16) -> Self {
        unreachable!("a unit is one value")
    }
    /// Reads a `[LANES, 4]` matrix with the given row stride and returns its four columns.
    unsafe fn columns(from: *const f32, stride: usize) -> [Self; 4];
}

/// The kernels for a set of instructions, and the panels that they read.
///
/// # Safety
/// The kernels must read and write only what [`Tile`] describes. `NR` must be a multiple of `Vector::LANES`, and so must
/// `MR` if there are no kernels for `A` packed by columns; `MR` must be at most `PITCH`. `KC` must be a multiple of `STEP`.
/// If `DEPTH` is 2, `Vector` must have `interleave`.
pub unsafe trait Panels {
    /// The vector that packing uses to move units.
    type Vector: Vector;
    /// The values of `k` in a unit.
    const DEPTH: usize = 1;
    /// The units of `k` that the kernel reads at a time. Panels are packed with zeros up to a multiple of it.
    const STEP: usize = 1;
    /// The rows of a full tile.
    const MR: usize;
    /// The columns of a full tile.
    const NR: usize = 2 * Self::Vector::LANES;
    /// The units between the columns of a panel of `A` packed by columns; no column spans two cache lines.
    const PITCH: usize = Self::MR.next_power_of_two();
    /// The kernels for 1, 2, .. `MR` rows: those for `A` packed by rows, then those for `A` packed by columns, if any.
    const KERNELS: [&'static [Kernel]; 2];
}

/// The kernel for `M` rows. Every element goes through the same additions for any `M`.
#[inline(always)]
pub unsafe fn tile<V: Vector + Panels<Vector = V>, const M: usize, const BY_COLUMNS: bool>(t: &Tile) {
    // SAFETY: the caller guarantees the panels that `Tile` describes.
    unsafe {
        let mut sums = [[V::zero(); 2]; M];
        t.prefetch_c::<V, M>();
        let ahead = t.ahead::<V, M>();
        for p in 0..t.k {
            let b = t.b.wrapping_add(p * t.b_stride);
            let later = b.wrapping_add(ahead.from(p));
            V::prefetch(later);
            V::prefetch(later.wrapping_add(V::LANES));
            t.add_step::<V, M, BY_COLUMNS>(p, &mut sums);
        }
        t.store(&sums);
    }
}

/// The distance from a row of `B` to the one that is prefetched with it.
pub struct Ahead {
    near: usize,
    /// The first step whose prefetched row is past the last row.
    wraps: usize,
    far: usize,
}

impl Ahead {
    /// The distance at step `p`, in units; as an address it may wrap around.
    #[inline(always)]
    pub fn from(&self, p: usize) -> usize {
        if p >= self.wraps { self.far } else { self.near }
    }
}

// The caller guarantees the instructions of `V` and the panels that `Tile` describes.
impl Tile {
    /// Prefetches the tile of `C`, so it arrives while the sums are computed.
    #[inline(always)]
    pub unsafe fn prefetch_c<V: Vector, const M: usize>(&self) {
        for i in 0..M {
            // SAFETY: these are hints.
            unsafe {
                V::prefetch(self.c.wrapping_add(i * self.c_stride));
                V::prefetch(self.c.wrapping_add(i * self.c_stride + self.cols - 1));
            }
        }
    }

    /// The prefetch distances. After the last row of an unpacked `B`, the first rows of the adjacent columns follow.
    /// (One row of `A` is so little work that the processor gets this far ahead by itself.)
    #[inline(always)]
    pub fn ahead<V: Panels, const M: usize>(&self) -> Ahead {
        let (ahead, jump) = match self.b_stride == V::NR || M == 1 {
            true => (AHEAD, 0),
            false => (FAR_AHEAD, (self.k * self.b_stride).wrapping_sub(V::NR)),
        };
        let near = ahead * self.b_stride;
        Ahead { near, wraps: self.k.saturating_sub(ahead), far: near.wrapping_sub(jump) }
    }

    /// Adds the products of step `p`.
    #[inline(always)]
    pub unsafe fn add_step<V: Vector + Panels<Vector = V>, const M: usize, const BY_COLUMNS: bool>(
        &self,
        p: usize,
        sums: &mut [[V; 2]; M],
    ) {
        let (row, step) = if BY_COLUMNS { (1, V::PITCH) } else { (self.a_stride, 1) };
        // SAFETY: the caller guarantees it.
        unsafe {
            if BY_COLUMNS {
                // Every step reads a new line of `A`. By rows, the processor's prefetcher follows the 14 slow streams.
                V::prefetch(self.a.wrapping_add((p + AHEAD) * step));
            }
            let b = self.b.add(p * self.b_stride);
            let b = [V::load(b), V::load(b.add(V::LANES))];
            for (i, sum) in sums.iter_mut().enumerate() {
                let a = V::splat(self.a.add(i * row + p * step));
                sum[0] = a.mul_add(b[0], sum[0]);
                sum[1] = a.mul_add(b[1], sum[1]);
            }
        }
    }

    /// Writes the sums, or adds them to the old values.
    #[inline(always)]
    pub unsafe fn store<V: Vector, const M: usize>(&self, sums: &[[V; 2]; M]) {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: the caller guarantees it.
            unsafe {
                let c = self.c.add(i * self.c_stride);
                sum[0].store(c, self.cols, self.add);
                if self.cols > V::LANES {
                    sum[1].store(c.add(V::LANES), self.cols - V::LANES, self.add);
                }
            }
        }
    }
}

/// The two rows of `KERNELS` for a vector: kernels compiled with the named target features, and optionally a
/// handwritten one for the largest number of rows.
macro_rules! kernels {
    ($vector:ty, $($feature:literal)?, $($rows:literal)* $(, $full:ident)?) => {{
        $(#[target_feature(enable = $feature)])?
        unsafe fn kernel<const M: usize, const BY_COLUMNS: bool>(t: &Tile) {
            // SAFETY: the caller guarantees it.
            unsafe { tile::<$vector, M, BY_COLUMNS>(t) }
        }
        [&[$(kernel::<$rows, false>,)* $($full::<false>)?], &[$(kernel::<$rows, true>,)* $($full::<true>)?]]
    }};
}
pub(super) use kernels;

// SAFETY: `tile` keeps to what `Tile` describes.
unsafe impl Panels for Portable {
    type Vector = Self;
    const MR: usize = 6;
    const KERNELS: [&'static [Kernel]; 2] = kernels!(Portable, , 1 2 3 4 5 6);
}

/// The vector of unknown machines: four lanes, with plain products and sums.
#[derive(Clone, Copy)]
pub struct Portable([f32; 4]);

// SAFETY: it needs no special instructions.
unsafe impl Vector for Portable {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 4])
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: the caller guarantees it.
        Self([unsafe { *from }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees it.
        Self(unsafe { from.cast::<[f32; 4]>().read() })
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * b.0[lane] + c.0[lane]))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, count: usize, add: bool) {
        for (lane, &value) in self.0.iter().enumerate().take(count) {
            // SAFETY: the caller guarantees it.
            unsafe { *to.add(lane) = if add { *to.add(lane) + value } else { value } }
        }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [Self; 4] {
        // SAFETY: the caller guarantees it.
        std::array::from_fn(|col| Self(std::array::from_fn(|row| unsafe { *from.add(row * stride + col) })))
    }
}
