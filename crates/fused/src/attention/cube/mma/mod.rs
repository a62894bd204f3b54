//! Attention on tensor cores: inputs in bf16 or f16, sums in f32.
//!
//! ```text
//!  cube: 64 queries (or keys), 4 planes of 32 lanes         a lane's part of a 16 x 8 sum
//!
//!            keys of a tile, [64, d + 8]                            columns
//!          +----+----+----+----+                            rows    2c 2c+1    r = lane / 4
//!  plane 0 | 16 x 8 sums  ...  |                              r   |  0   1 |   c = lane % 4
//!  plane 1 |                   |                            r + 8 |  2   3 |
//!  plane 2 |                   |
//!  plane 3 |                   |                            operands, 16 x 16: ldmatrix loads them from rows in
//!          +----+----+----+----+                            shared memory, plain or transposed
//! ```
//!
//! The instruction is `mma.m16n8k16`; PTX defines its layouts (PTX ISA, "Matrix Fragments for mma.m16n8k16"). The 4
//! lanes of a quad hold a row of scores, and find its maximum and sum with two shuffles. Two adjacent sums form the
//! left operand of the next product, so scores become probabilities in registers and no other unit sees them. `dkv`
//! computes the scores transposed, one row per key, so they are also left operands, namely of `p^T dy` and `ds^T q`.
//!
//! Rows in shared memory are 8 elements longer than a multiple of 16, which puts the 8 rows that `ldmatrix` reads at
//! once 4 banks apart. Columns up to that multiple are 0. A rotated part is rotated and rounded in shared memory.
//! Probabilities and their gradients are rounded when they become operands; sums are rounded only when they are
//! written.
//!
//! Registers per lane: `d / 2` for the sums of `dk`, the same for `dq`, `dv / 2` each for `dv` and `y`. Scores take
//! half as many registers as they have columns: 64 columns at a time in the forward, [`CHUNK`] each of scores and of
//! their gradients in the backward. With `d` = 192 and `dv` = 128, `dkv` takes 96 + 64 + 2 x 8 of 255
//! registers. Shared memory holds 4 tiles: for these widths 2 x 64 x (200 + 136) x 2 = 86 KB.
//!
//! These kernels are compiled and assembled for A100 and H100. They have run on emulated cards only.

pub(super) mod dkv;
pub(super) mod dq;
pub(super) mod forward;

use super::rows::{Strides, Widths};
use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

/// Queries or keys per cube, and per tile in shared memory.
pub(super) const TILE: usize = 64;
/// Units of a cube; each plane takes 16 rows.
pub(super) const UNITS: usize = 32 * TILE / SIDE;
/// Side of an operand.
const SIDE: usize = 16;
/// Scores per row that the backward kernels compute at a time.
const CHUNK: usize = 16;
/// Maximum number of registers for sums; the rest of the kernel needs the others.
pub(super) const SUMS: usize = 160;
/// Elements per load: 16 bytes.
pub(super) const VECTOR: usize = 8;

/// The compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MmaShape {
    pub widths: Widths,
    pub dropout: bool,
    /// Whether documents are masked, so that a query may see only some of the keys before it.
    pub documents: bool,
}

impl MmaShape {
    /// Widths in shared memory of queries and keys, and of values.
    fn padded(self) -> [usize; 2] {
        [self.widths.qk(), self.widths.v].map(|width| width.next_multiple_of(SIDE))
    }

    /// Vectors of a tile of queries or keys, and of a tile of values.
    fn tiles(self) -> [usize; 2] {
        self.padded().map(|width| TILE * pitch(width))
    }

    /// Registers for sums in `attention_dkv`, which needs the most.
    pub fn sums(self) -> usize {
        self.padded().iter().sum::<usize>() / 2
    }

    /// Bytes of shared memory that it takes.
    pub fn shared_memory(self) -> usize {
        2 * self.tiles().iter().sum::<usize>() * 2 * VECTOR + 2 * TILE * 4
    }

    /// The columns of a whole row of values; the methods below return those of a query or key, and of its two parts.
    fn values(self) -> MmaColumns {
        MmaColumns { column: 0, width: self.widths.v, padded: self.padded()[1], pitch: pitch(self.padded()[1]) }
    }

    fn whole(self) -> MmaColumns {
        MmaColumns { column: 0, width: self.widths.qk(), padded: self.padded()[0], pitch: pitch(self.padded()[0]) }
    }

    fn nope(self) -> MmaColumns {
        // A rotated part, if there is one, fills the columns that follow.
        let padded = if self.widths.rope > 0 { self.widths.nope } else { self.padded()[0] };
        MmaColumns { width: self.widths.nope, padded, ..self.whole() }
    }

    fn rope(self) -> MmaColumns {
        let column = self.widths.nope;
        MmaColumns { column, width: self.widths.rope, padded: self.padded()[0] - column, ..self.whole() }
    }
}

/// Vectors from a row of this padded width to the next in shared memory.
fn pitch(padded: usize) -> usize {
    padded / VECTOR + 1
}

/// Columns `column..column + width` of the rows of a tile; the columns from there to `column + padded` are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MmaColumns {
    column: usize,
    width: usize,
    padded: usize,
    /// Vectors from a row to the next.
    pitch: usize,
}

type Eight<F> = Vector<F, Const<VECTOR>>;
type Two<F> = Vector<F, Const<2>>;
/// A lane's part of one 16 x 16 left operand, or of two adjacent 16 x 8 right operands.
type Operand<F> = Array<Two<F>>;
/// A lane's part of adjacent 16 x 8 sums, two vectors for each.
type Sums = Array<Two<f32>>;

/// Copies rows of a head from `row` on into shared memory, and zeros from row `end` on.
#[cube]
fn stage<F: Float>(
    from: &[Eight<F>],
    strides: &Strides,
    head: usize,
    row: usize,
    end: usize,
    to: &mut [Eight<F>],
    #[comptime] part: MmaColumns,
) {
    let first = strides.of(head);
    let vectors = comptime!(part.padded / VECTOR);
    let mut i = UNIT_POS as usize;
    while i < comptime!(TILE * vectors) {
        let (r, column) = (i / vectors, i % vectors);
        let mut values = Vector::new(F::from_int(0));
        if row + r < end && column < comptime!(part.width / VECTOR) {
            values = from[(first + (row + r) * strides.row) / VECTOR + column];
        }
        to[r * comptime!(part.pitch) + comptime!(part.column / VECTOR) + column] = values;
        i += UNITS;
    }
}

/// Rotates each pair of the part by the angle of its position.
#[cube]
fn turn<F: Float>(
    rows: &mut [Eight<F>],
    cos: &[f32],
    sin: &[f32],
    row: usize,
    end: usize,
    #[comptime] part: MmaColumns,
) {
    let (vectors, pairs) = comptime!((part.width / VECTOR, part.width / 2));
    let mut i = UNIT_POS as usize;
    while i < comptime!(TILE * vectors) {
        let (r, column) = (i / vectors, i % vectors);
        if row + r < end {
            let at = r * comptime!(part.pitch) + comptime!(part.column / VECTOR) + column;
            let values = Vector::<f32, Const<VECTOR>>::cast_from(rows[at]);
            let mut turned = Vector::<f32, Const<VECTOR>>::empty();
            #[unroll]
            for pair in 0..comptime!(VECTOR / 2) {
                let angle = (row + r) * pairs + column * comptime!(VECTOR / 2) + pair;
                let (cos, sin) = (cos[angle], sin[angle]);
                let (a, b) = (values.extract(comptime!(2 * pair)), values.extract(comptime!(2 * pair + 1)));
                turned.insert(comptime!(2 * pair), a * cos - b * sin);
                turned.insert(comptime!(2 * pair + 1), b * cos + a * sin);
            }
            rows[at] = Vector::cast_from(turned);
        }
        i += UNITS;
    }
}

/// Loads the left operand at this row and column.
#[cube]
fn left<F: Float>(tile: &[Eight<F>], row: usize, #[comptime] column: usize, #[comptime] pitch: usize) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // The 8 x 8 matrices: rows 0 and 8 of the first columns, then of the last columns.
    let at = (row + lane % 16) * pitch + comptime!(column / VECTOR) + lane / 16;
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    mma.load_matrix::<Eight<F>, Const<2>>(&tile[at..at + 1], MatrixIdent::A, 4usize, false)
}

/// Loads two right operands: the transpose of the 16 rows and columns here.
#[cube]
fn right_of_rows<F: Float>(
    tile: &[Eight<F>],
    row: usize,
    #[comptime] column: usize,
    #[comptime] pitch: usize,
) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // Both halves of k for rows 0 to 7, then for rows 8 to 15.
    let at = (row + lane / 16 * 8 + lane % 8) * pitch + comptime!(column / VECTOR) + lane / 8 % 2;
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    mma.load_matrix::<Eight<F>, Const<2>>(&tile[at..at + 1], MatrixIdent::B, 4usize, false)
}

/// Loads two right operands: the 16 rows and columns here.
#[cube]
fn right_of_columns<F: Float>(
    tile: &[Eight<F>],
    row: usize,
    #[comptime] column: usize,
    #[comptime] pitch: usize,
) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // Both halves of k for columns 0 to 7, then for columns 8 to 15.
    let at = (row + lane % 16) * pitch + comptime!(column / VECTOR) + lane / 16;
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    mma.load_matrix::<Eight<F>, Const<2>>(&tile[at..at + 1], MatrixIdent::B, 4usize, true)
}

/// Adds a left operand times two right ones to the sums `first` and `first + 1`.
#[cube]
fn multiply<F: Float>(left: &Operand<F>, right: &Operand<F>, sums: &mut Sums, #[comptime] first: usize) {
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    #[unroll]
    for half in 0..2usize {
        let mut of_right = Operand::<F>::new(2usize);
        let mut sum = Sums::new(2usize);
        #[unroll]
        for i in 0..2usize {
            of_right[i] = right[comptime!(2 * half + i)];
            sum[i] = sums[comptime!(2 * (first + half) + i)];
        }
        let next = mma.execute(left, &of_right, &sum);
        #[unroll]
        for i in 0..2usize {
            sums[comptime!(2 * (first + half) + i)] = next[i];
        }
    }
}

/// Sums of 0 for 16 rows of this width.
#[cube]
fn zeros(#[comptime] width: usize) -> Sums {
    let mut sums = Sums::new(comptime!(width / 4));
    #[unroll]
    for i in 0..comptime!(width / 4) {
        sums[i] = Vector::new(0.0f32);
    }
    sums
}

/// Computes `a b^T` for 16 rows of one tile and `columns` rows of another.
#[cube]
fn scores<F: Float>(
    a: &[Eight<F>],
    a_row: usize,
    b: &[Eight<F>],
    b_row: usize,
    #[comptime] columns: usize,
    #[comptime] part: MmaColumns,
) -> Sums {
    let mut sums = zeros(columns);
    #[unroll]
    for k in 0..comptime!(part.padded / SIDE) {
        let of_a = left(a, a_row, comptime!(k * SIDE), comptime!(part.pitch));
        #[unroll]
        for n in 0..comptime!(columns / SIDE) {
            let of_b = right_of_rows(b, b_row + comptime!(n * SIDE), comptime!(k * SIDE), comptime!(part.pitch));
            multiply(&of_a, &of_b, &mut sums, comptime!(2 * n));
        }
    }
    sums
}

/// Adds `p b`, where `p` holds `columns` scores of 16 rows in the order of their sums, and `b` is `columns` rows of a
/// tile.
#[cube]
fn add_product<F: Float>(
    p: &Operand<F>,
    b: &[Eight<F>],
    b_row: usize,
    sums: &mut Sums,
    #[comptime] columns: usize,
    #[comptime] part: MmaColumns,
) {
    #[unroll]
    for k in 0..comptime!(columns / SIDE) {
        let mut of_p = Operand::<F>::new(4usize);
        #[unroll]
        for i in 0..4usize {
            of_p[i] = p[comptime!(4 * k + i)];
        }
        #[unroll]
        for n in 0..comptime!(part.padded / SIDE) {
            let of_b = right_of_columns(b, b_row + comptime!(k * SIDE), comptime!(n * SIDE), comptime!(part.pitch));
            multiply(&of_p, &of_b, sums, comptime!(2 * n));
        }
    }
}

/// The first row of this unit's plane in the cube's tile.
#[cube]
fn plane_row() -> usize {
    UNIT_POS as usize / 32 * SIDE
}

/// The row and column of this lane's first element in its plane's sums. Its others are 8 rows below and one column to
/// the right, and so on every 8 columns.
#[cube]
fn lane_place() -> (usize, usize) {
    (UNIT_POS_PLANE as usize / 4, UNIT_POS_PLANE as usize % 4 * 2)
}
