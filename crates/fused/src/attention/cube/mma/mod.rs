//! Attention on tensor cores: bf16 or f16 in, sums in f32.
//!
//! ```text
//!  cube: 64 queries (or keys), 4 planes of 32 lanes          a lane's part of a sum of 16 x 8                 operands, 16 x 16
//!
//!            keys of a tile, [64, d + 8]                            columns
//!          +----+----+----+----+                            rows    2c 2c+1    r = lane / 4                   ldmatrix loads them from rows in shared
//!  plane 0 | 16 x 8 sums  ...  |                              r   |  0   1 |   c = lane % 4                   memory, as they lie or turned
//!  plane 1 |                   |                            r + 8 |  2   3 |
//!  plane 2 |                   |
//!  plane 3 |                   |                            two sums side by side are the left operand of the next product: scores become
//!          +----+----+----+----+                            probabilities in registers, and no unit but theirs sees them
//! ```
//!
//! The instruction is `mma.m16n8k16`, whose layouts PTX defines (PTX ISA, "Matrix Fragments for mma.m16n8k16"). A row
//! of scores is in the 4 lanes of a quad, which find its maximum and its sum by two shuffles. The kernel of keys makes
//! the scores turned, a row for each key, so that they too are left operands: of `p^T dy` and `ds^T q`.
//!
//! Rows in shared memory are 8 elements longer than a multiple of 16: the 8 rows that `ldmatrix` reads at once are 4
//! banks apart. Columns up to that multiple are 0. A rotated part is turned there and rounded, and probabilities and
//! their gradients are rounded where they become operands; sums are not, until they are written.
//!
//! Registers of sums: `d / 2` for `dk`, as many for `dq`, `dv / 2` for `dv` and for `y`; for scores half of their
//! columns at a time, 64 in the forward, and [`CHUNK`] of them and of their gradients in the backward. With `d` = 192
//! and `dv` = 128 the kernel of keys has 96 + 64 + 2 x 8, of 255. Shared memory: 4 tiles, for these widths 2 x 64 x
//! (200 + 136) x 2 = 86 KB.
//!
//! These kernels have been compiled and assembled for A100 and H100. They have not been run on one.

pub(super) mod forward;
pub(super) mod keys;
pub(super) mod queries;

use super::rows::Widths;
use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

/// Queries, or keys, of a cube, and of a tile in shared memory.
pub(super) const TILE: usize = 64;
/// Units of a cube: a plane has 16 rows.
pub(super) const UNITS: usize = 32 * TILE / SIDE;
/// Side of an operand.
const SIDE: usize = 16;
/// Scores of a row that the backward's kernels have at a time.
const CHUNK: usize = 16;
/// Registers of sums that leave room for the rest.
pub(super) const SUMS: usize = 160;
/// Elements that are loaded at once, 16 bytes.
pub(super) const VECTOR: usize = 8;

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub widths: Widths,
    pub dropout: bool,
    /// Whether queries do not see all keys before them.
    pub documents: bool,
}

impl Shape {
    /// Widths of queries and keys, and of values, in shared memory.
    fn padded(self) -> [usize; 2] {
        [self.widths.qk(), self.widths.v].map(|width| width.next_multiple_of(SIDE))
    }

    /// Vectors of their tiles.
    fn tiles(self) -> [usize; 2] {
        self.padded().map(|width| TILE * pitch(width))
    }

    /// Registers of sums of the kernel of keys, which has most.
    pub fn sums(self) -> usize {
        self.padded().iter().sum::<usize>() / 2
    }

    /// Bytes of shared memory that it takes.
    pub fn shared_memory(self) -> usize {
        2 * self.tiles().iter().sum::<usize>() * 2 * VECTOR + 2 * TILE * 4
    }

    /// The columns of a whole row of values, of one of queries, and of its two parts.
    fn values(self) -> Part {
        Part { column: 0, width: self.widths.v, padded: self.padded()[1], pitch: pitch(self.padded()[1]) }
    }

    fn whole(self) -> Part {
        Part { column: 0, width: self.widths.qk(), padded: self.padded()[0], pitch: pitch(self.padded()[0]) }
    }

    fn nope(self) -> Part {
        // What follows is the rotated part's to fill, if there is one.
        let padded = if self.widths.rope > 0 { self.widths.nope } else { self.padded()[0] };
        Part { width: self.widths.nope, padded, ..self.whole() }
    }

    fn rope(self) -> Part {
        let column = self.widths.nope;
        Part { column, width: self.widths.rope, padded: self.padded()[0] - column, ..self.whole() }
    }
}

/// Vectors of a row of this padded width in shared memory.
fn pitch(padded: usize) -> usize {
    padded / VECTOR + 1
}

/// Columns `column..column + width` of the rows of a tile, and up to `column + padded` those that are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    column: usize,
    width: usize,
    padded: usize,
    /// Vectors of a row.
    pitch: usize,
}

type Eight<F> = Vector<F, Const<VECTOR>>;
type Two<F> = Vector<F, Const<2>>;
/// A lane's part of an operand: of a left one of 16 x 16, or of two right ones of 16 x 8 side by side.
type Operand<F> = Array<Two<F>>;
/// A lane's part of sums of 16 x 8 side by side, each in two vectors.
type Sums = Array<Two<f32>>;

/// Copies rows `row..` into shared memory, 0 from row `end` on. Row `i` starts at `first + i * stride`.
#[cube]
fn stage<F: Float>(
    from: &[Eight<F>],
    first: usize,
    stride: usize,
    row: usize,
    end: usize,
    to: &mut [Eight<F>],
    #[comptime] part: Part,
) {
    let vectors = comptime!(part.padded / VECTOR);
    let mut i = UNIT_POS as usize;
    while i < comptime!(TILE * vectors) {
        let (r, column) = (i / vectors, i % vectors);
        let mut values = Vector::new(F::from_int(0));
        if row + r < end && column < comptime!(part.width / VECTOR) {
            values = from[(first + (row + r) * stride) / VECTOR + column];
        }
        to[r * comptime!(part.pitch) + comptime!(part.column / VECTOR) + column] = values;
        i += UNITS;
    }
}

/// Turns each pair of the part by its position's angle.
#[cube]
fn turn<F: Float>(rows: &mut [Eight<F>], cos: &[f32], sin: &[f32], row: usize, end: usize, #[comptime] part: Part) {
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

/// The left operand of these rows and columns.
#[cube]
fn left<F: Float>(tile: &[Eight<F>], row: usize, #[comptime] column: usize, #[comptime] pitch: usize) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // 8 x 8 matrices: rows 0 and 8 of the first columns, then of the last ones.
    let at = (row + lane % 16) * pitch + comptime!(column / VECTOR) + lane / 16;
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    mma.load_matrix::<Eight<F>, Const<2>>(&tile[at..at + 1], MatrixIdent::A, 4usize, false)
}

/// Two right operands: the transpose of these 16 rows and columns.
#[cube]
fn right_of_rows<F: Float>(
    tile: &[Eight<F>],
    row: usize,
    #[comptime] column: usize,
    #[comptime] pitch: usize,
) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // Both halves of the sum for rows 0, then for rows 8.
    let at = (row + lane / 16 * 8 + lane % 8) * pitch + comptime!(column / VECTOR) + lane / 8 % 2;
    let mma = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    mma.load_matrix::<Eight<F>, Const<2>>(&tile[at..at + 1], MatrixIdent::B, 4usize, false)
}

/// Two right operands: these 16 rows and columns.
#[cube]
fn right_of_columns<F: Float>(
    tile: &[Eight<F>],
    row: usize,
    #[comptime] column: usize,
    #[comptime] pitch: usize,
) -> Operand<F> {
    let lane = UNIT_POS_PLANE as usize;
    // Both halves of the sum for columns 0, then for columns 8.
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

/// Sums for 16 rows of this width, 0.
#[cube]
fn zeros(#[comptime] width: usize) -> Sums {
    let mut sums = Sums::new(comptime!(width / 4));
    #[unroll]
    for i in 0..comptime!(width / 4) {
        sums[i] = Vector::new(0.0f32);
    }
    sums
}

/// `a b^T` of 16 rows of one tile and `columns` rows of another.
#[cube]
fn scores<F: Float>(
    a: &[Eight<F>],
    a_row: usize,
    b: &[Eight<F>],
    b_row: usize,
    #[comptime] columns: usize,
    #[comptime] part: Part,
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

/// Adds `p b`, `p` being `columns` scores of 16 rows, in the order of their sums, and `b` so many rows of a tile.
#[cube]
fn add_product<F: Float>(
    p: &Operand<F>,
    b: &[Eight<F>],
    b_row: usize,
    sums: &mut Sums,
    #[comptime] columns: usize,
    #[comptime] part: Part,
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

/// The first row of this unit's plane in its cube's tile.
#[cube]
fn plane_row() -> usize {
    UNIT_POS as usize / 32 * SIDE
}

/// This lane's row and column in its plane's sums; the others are 8 rows below, one column on, and so every 8 columns.
#[cube]
fn lane_place() -> (usize, usize) {
    (UNIT_POS_PLANE as usize / 4, UNIT_POS_PLANE as usize % 4 * 2)
}
