//! `wgmma.mma_async`: the product of a warpgroup, four warps, with operands in shared memory.
//!
//! A warp has 16 of the 64 rows of `a` and `d`, in the fragments of `mma.sync`, and needs all of `b`. So the product is one call for each
//! warp, and `b` can be loaded once for all four. When an asynchronous instruction reads shared memory is the caller's choice.

mod descriptor;

pub use descriptor::Descriptor;

use super::fragment::{finish, gather_a, words};
use super::modifiers::{Modifiers, Refused};
use super::product::tile;
use super::vector::vectorised;
use super::{Space, Type, Words, convert};

/// `wgmma.mma_async.sync.aligned.m64n{n}k{k}`: `d = a b + d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wgmma {
    /// Columns of `b` and `d`.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// Elements of `a`.
    pub a: Type,
    /// Elements of `b`.
    pub b: Type,
    /// Elements of `d`.
    pub d: Type,
    /// Whether integer sums stop at the ends of their range.
    pub saturate: bool,
}

/// 16 rows of `a`, for one warp.
#[derive(Debug, Clone)]
pub struct Left {
    rows: [f32; 16 * 32],
}

/// All of `b`.
#[derive(Debug, Clone)]
pub struct Right {
    /// `k` rows of 8 columns, for each 8 columns.
    tiles: Vec<[f32; 8]>,
}

/// The operands `scale-d`, `imm-scale-a` and `imm-scale-b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scale {
    /// Whether the product is added to `d` and not just written to it.
    pub d: bool,
    /// Whether `a` is negated: the operand is -1, not 1.
    pub negate_a: bool,
    /// Whether `b` is negated.
    pub negate_b: bool,
}

impl Wgmma {
    /// Parses the words behind `wgmma`, from `mma_async` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let modifiers = Modifiers::sort("wgmma", words, &["mma_async", "sync", "aligned", "satfinite"])?;
        modifiers.require(&["mma_async", "sync", "aligned"])?;
        let (m, n, k) = modifiers.shape()?;
        let &[d, a, b] = modifiers.types.as_slice() else {
            return Err(modifiers.refuse("three types are expected, of d, a and b"));
        };
        let wgmma = Self { n, k, a, b, d, saturate: modifiers.has("satfinite") };
        if m != 64 || !wgmma.is_known() {
            return Err(modifiers.refuse("these types do not go with this shape, or are not known here"));
        }
        if wgmma.saturate && d != Type::S32 {
            return Err(modifiers.refuse("\".satfinite\" is for integers"));
        }
        Ok(wgmma)
    }

    fn is_known(&self) -> bool {
        use Type::{Bf16, F16, F32, S32, Tf32};
        let Self { n, k, a, b, d, .. } = *self;
        if n == 0 || n % 8 != 0 || n > 256 {
            return false;
        }
        match (a, b, d) {
            (F16, F16, F16 | F32) | (Bf16, Bf16, F32) => k == 16,
            (Tf32, Tf32, F32) => k == 8,
            (_, _, F16 | F32) if a.is_fp8() && b.is_fp8() => k == 32,
            (_, _, S32) if a.is_int8() && b.is_int8() => k == 32 && (n <= 32 || n % 16 == 0),
            _ => false,
        }
    }

    /// Whether operands can lie MN-major, and the instruction has `imm-trans-a` and `imm-trans-b`.
    pub fn has_transposes(&self) -> bool {
        self.a.bits() == 16
    }

    /// Whether the instruction has `imm-scale-a` and `imm-scale-b`.
    pub fn has_scales(&self) -> bool {
        self.d != Type::S32
    }

    /// 32-bit words a lane of `a`, if it is in registers, and of `d`.
    pub fn words(&self) -> [usize; 2] {
        [words(self.a, 16 * self.k), words(self.d, 16 * self.n)]
    }

    /// Multiplications and additions of the four warps.
    pub fn flops(&self) -> u64 {
        2 * (64 * self.n * self.k) as u64
    }

    /// The 16 rows of `a` in a warp's registers.
    pub fn left_in_registers(&self, a: &[Words]) -> Left {
        let mut left = Left { rows: [0.0; 16 * 32] };
        gather_a(self.a, 16, self.k, a, &mut left.rows);
        left
    }

    /// The 16 rows of `a` in shared memory of warp `warp`, 0 to 3, of the warpgroup; MN-major if `transposed`.
    pub fn left_in_shared<M: Space>(
        &self,
        descriptor: Descriptor,
        transposed: bool,
        warp: usize,
        memory: &mut M,
    ) -> Result<Left, M::Error> {
        let mut left = Left { rows: [0.0; 16 * 32] };
        let rows = &mut left.rows[..16 * self.k];
        let chunks = self.load(descriptor, transposed, 16 * warp, 16, memory)?;
        if transposed {
            let mut tiles = [[0f32; 8]; 2 * 32];
            let tiles = &mut tiles[..2 * self.k];
            convert::chunks(self.a, &chunks, tiles.as_flattened_mut());
            to_rows(tiles, self.k, rows);
        } else {
            convert::chunks(self.a, &chunks, rows);
        }
        Ok(left)
    }

    /// `b` in shared memory; MN-major if `transposed`.
    pub fn right<M: Space>(&self, descriptor: Descriptor, transposed: bool, memory: &mut M) -> Result<Right, M::Error> {
        let mut tiles = vec![[0f32; 8]; self.n / 8 * self.k];
        let chunks = self.load(descriptor, transposed, 0, self.n, memory)?;
        if transposed {
            convert::chunks(self.b, &chunks, tiles.as_flattened_mut());
        } else {
            let mut columns = vec![0f32; self.n * self.k];
            convert::chunks(self.b, &chunks, &mut columns);
            to_tiles(&columns, self.k, &mut tiles);
        }
        Ok(Right { tiles })
    }

    /// The chunks of `rows` rows of an operand, counted from `first`: two of each row, or, MN-major, one of each `k` for each 8 rows.
    fn load<M: Space>(
        &self,
        descriptor: Descriptor,
        transposed: bool,
        first: usize,
        rows: usize,
        memory: &mut M,
    ) -> Result<Vec<[u8; 16]>, M::Error> {
        let (lines, each) = if transposed { (rows / 8, self.k) } else { (rows, 2) };
        let first = if transposed { first / 8 } else { first };
        let mut addresses = vec![0; lines * each];
        for (line, addresses) in addresses.chunks_exact_mut(each).enumerate() {
            for (at, address) in addresses.iter_mut().enumerate() {
                *address = if transposed {
                    descriptor.mn_major(first + line, at)
                } else {
                    descriptor.k_major(first + line, at)
                };
            }
        }
        let mut chunks = vec![[0u8; 16]; addresses.len()];
        memory.read_chunks(&addresses, &mut chunks)?;
        Ok(chunks)
    }

    /// `d = a b + d` of one warp's 16 rows; `d` has as many entries as [`words`](Self::words) says.
    pub fn multiply(&self, left: &Left, right: &Right, scale: Scale, d: &mut [Words]) {
        let left = &left.rows[..16 * self.k];
        let negate = scale.negate_a != scale.negate_b;
        let each = words(self.d, 16 * 8);
        let mut sums = [[0f32; 8]; 16];
        for (right, d) in right.tiles.chunks_exact(self.k).zip(d.chunks_exact_mut(each)) {
            tile(left, right, 16, &mut sums);
            if negate {
                // Not `-sum`: the sum of negated products that are 0 is 0 and not -0.
                sums.as_flattened_mut().iter_mut().for_each(|sum| *sum = 0.0 - *sum);
            }
            let mut before = [[0u32; 32]; 4];
            let before = &mut before[..each];
            before.copy_from_slice(d);
            finish(scale.d.then_some((self.d, &*before)), self.saturate, &sums, self.d, d);
        }
    }
}

vectorised! {
    /// Rows of `k` of each 8 columns, out of columns of `k`.
    fn to_tiles(columns: &[f32], k: usize, tiles: &mut [[f32; 8]]) {
        for (columns, tiles) in columns.chunks_exact(8 * k).zip(tiles.chunks_exact_mut(k)) {
            for (column, values) in columns.chunks_exact(k).enumerate() {
                tiles.iter_mut().zip(values).for_each(|(row, value)| row[column] = *value);
            }
        }
    }

    /// Rows of `k`, out of columns of 8 of each 8 rows.
    fn to_rows(tiles: &[[f32; 8]], k: usize, rows: &mut [f32]) {
        for (tiles, rows) in tiles.chunks_exact(k).zip(rows.chunks_exact_mut(8 * k)) {
            for (i, row) in rows.chunks_exact_mut(k).enumerate() {
                row.iter_mut().zip(tiles).for_each(|(value, tile)| *value = tile[i]);
            }
        }
    }
}
