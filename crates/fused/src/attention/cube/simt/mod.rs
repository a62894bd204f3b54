//! Attention without tensor cores, for any device, dtype and width.
//!
//! ```text
//!  cube: a tile of queries (or keys), one head, one sequence   product of two tiles in shared memory, all in f32
//!
//!    shared        keys of a tile ->                              column  u, u + c, u + 2c, u + 3c
//!    q [64, d]   +-----------+                              row r       *      *       *       *
//!    k [64, d]   | s [64,64] |  scores of a tile,           r + 16      *      *       *       *    a unit's 16 sums:
//!    v [64, dv]  |           |  then probabilities          r + 32      *      *       *       *    8 loads for 16
//!    y [64, dv]  +-----------+                              r + 48      *      *       *       *    multiply-adds
//! ```
//!
//! Shared memory holds everything between two products, so no unit depends on another one's registers: units take work
//! in strides, and a cube may have any number of them. Adjacent units take adjacent columns. Rows have odd lengths
//! (scores: 4 more than a multiple of 32), so the units of a warp hit different banks along a row as well as along a
//! column. A load from shared memory costs a warp one cycle and a multiply-add a quarter of a cycle. So 16 sums take 8
//! cycles for loads and 4 for multiply-adds: half of the peak at best.
//!
//! Shared memory for tiles of 64 and `d` = `dv` = 64: 4 x 64 x 65 x 4 bytes for q, k, v and y, plus 64 x 68 x 4 for the
//! scores, 82 KiB. The gradients of keys and values take two more tiles and one more of scores, 132 KiB. Devices with
//! less shared memory use tiles of 32, 16, 8 or 4.

pub(super) mod dkv;
pub(super) mod dq;
pub(super) mod forward;

use super::rows::{Rule, Strides, Widths, first_key, probability};
use crate::cube::launch::UNITS;
use crate::cube::rounded;
use cubecl::prelude::*;

/// Units that share a row of scores outside products: each takes every fourth column.
const PARTS: usize = 4;
/// A unit computes `SIDE x SIDE` sums of a product at a time.
const SIDE: usize = 4;

/// The compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SimtShape {
    pub widths: Widths,
    /// Queries, and keys, per tile.
    pub tile: usize,
    pub dropout: bool,
    /// Whether documents are masked, so that a query may see only some of the keys before it.
    pub documents: bool,
}

impl SimtShape {
    /// Length of a row of scores in shared memory.
    fn scores(self) -> usize {
        self.tile + 4
    }

    /// Bytes of shared memory that `attention_dkv` takes, which needs the most.
    pub fn shared_memory(self) -> usize {
        let [qk, v] = self.tiles();
        4 * (3 * qk + 3 * v + 2 * self.tile * self.scores() + 2 * self.tile)
    }

    /// Number of units that the widest product keeps busy.
    pub fn units(self) -> usize {
        let widest = self.tile.max(self.widths.qk()).max(self.widths.v);
        UNITS.min((self.tile * widest / (SIDE * SIDE)).next_power_of_two())
    }

    /// Elements in shared memory of a tile of queries or keys, and of a tile of values.
    fn tiles(self) -> [usize; 2] {
        [self.widths.qk(), self.widths.v].map(|width| self.tile * pitch(width))
    }
}

/// Length in shared memory of a row of this width: odd, with room for a unit's last columns.
fn pitch(width: usize) -> usize {
    width.next_multiple_of(SIDE) | 1
}

/// Columns `column..column + width` of a tile of `rows` rows in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SimtColumns {
    rows: usize,
    width: usize,
    pitch: usize,
    column: usize,
}

impl SimtShape {
    /// A whole tile of rows of this width.
    fn whole(self, width: usize) -> SimtColumns {
        SimtColumns { rows: self.tile, width, pitch: pitch(width), column: 0 }
    }

    /// The unrotated part of a tile of queries or keys; [`rope`](Self::rope) is the rotated one.
    fn nope(self) -> SimtColumns {
        SimtColumns { width: self.widths.nope, ..self.whole(self.widths.qk()) }
    }

    fn rope(self) -> SimtColumns {
        SimtColumns { width: self.widths.rope, column: self.widths.nope, ..self.whole(self.widths.qk()) }
    }
}

/// Copies rows of a head from `row` on into shared memory, and zeros from row `end` on.
#[cube]
fn stage<F: Float, N: Size>(
    from: &[Vector<F, N>],
    strides: &Strides,
    head: usize,
    row: usize,
    end: usize,
    to: &mut [f32],
    #[comptime] part: SimtColumns,
) {
    let first = strides.of(head);
    let vector = N::value();
    let mut i = UNIT_POS as usize;
    while i < comptime!(part.rows * part.width / vector) {
        let (r, column) = (i / comptime!(part.width / vector), i % comptime!(part.width / vector) * vector);
        let mut values = Vector::<f32, N>::new(0.0f32);
        if row + r < end {
            values = Vector::cast_from(from[(first + (row + r) * strides.row + column) / vector]);
        }
        #[unroll]
        for j in 0..vector {
            to[r * part.pitch + part.column + column + j] = values.extract(j);
        }
        i += CUBE_DIM as usize;
    }
}

/// Copies rows of a head before `end` out of shared memory, rounded.
#[cube]
fn put<F: Float, N: Size>(
    from: &[f32],
    to: &mut [Vector<F, N>],
    strides: &Strides,
    head: usize,
    row: usize,
    end: usize,
    #[comptime] part: SimtColumns,
) {
    let first = strides.of(head);
    let vector = N::value();
    let mut i = UNIT_POS as usize;
    while i < comptime!(part.rows * part.width / vector) {
        let (r, column) = (i / comptime!(part.width / vector), i % comptime!(part.width / vector) * vector);
        if row + r < end {
            let mut values = Vector::<f32, N>::empty();
            #[unroll]
            for j in 0..vector {
                values.insert(j, from[r * part.pitch + part.column + column + j]);
            }
            to[(first + (row + r) * strides.row + column) / vector] = rounded(values);
        }
        i += CUBE_DIM as usize;
    }
}

/// Rotates each pair of the part by the angle of its position, or by the negative angle if `back`.
#[cube]
fn turn(
    rows: &mut [f32],
    cos: &[f32],
    sin: &[f32],
    row: usize,
    end: usize,
    #[comptime] part: SimtColumns,
    #[comptime] back: bool,
) {
    let pairs = comptime!(part.width / 2);
    let mut i = UNIT_POS as usize;
    while i < comptime!(part.rows * pairs) {
        let (r, pair) = (i / pairs, i % pairs);
        if row + r < end {
            let at = r * part.pitch + part.column + 2 * pair;
            let (a, b) = (rows[at], rows[at + 1]);
            let cos = cos[(row + r) * pairs + pair];
            let mut sin = sin[(row + r) * pairs + pair];
            if comptime!(back) {
                sin = -sin;
            }
            rows[at] = a * cos - b * sin;
            rows[at + 1] = b * cos + a * sin;
        }
        i += CUBE_DIM as usize;
    }
}

/// Sets the first `len` elements to 0.
#[cube]
fn clear(to: &mut [f32], #[comptime] len: usize) {
    let mut i = UNIT_POS as usize;
    while i < len {
        to[i] = 0.0f32;
        i += CUBE_DIM as usize;
    }
}

/// A product of tiles in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Product {
    rows: usize,
    columns: usize,
    depth: usize,
    /// Strides of the left matrix, from a row to the next and from a column to the next.
    left: [usize; 2],
    /// The same for the right matrix.
    right: [usize; 2],
    /// Stride of the result's rows.
    to: usize,
    sum: Sum,
}

/// What happens to the result's old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sum {
    Set,
    Add,
    /// Multiplies it by its row's factor, then adds.
    Scale,
}

impl SimtShape {
    /// `q k^T` or `dy v^T`, for rows of this width.
    fn scores_of(self, width: usize) -> Product {
        let (rows, pitch) = (self.tile, pitch(width));
        let (left, right) = ([pitch, 1], [1, pitch]);
        Product { rows, columns: rows, depth: width, left, right, to: self.scores(), sum: Sum::Set }
    }

    /// Scores times rows of this width; `turned` transposes the scores, for one row per key.
    fn times_scores(self, width: usize, turned: bool, sum: Sum) -> Product {
        let left = if turned { [1, self.scores()] } else { [self.scores(), 1] };
        let (rows, columns, pitch) = (self.tile, width.next_multiple_of(SIDE), pitch(width));
        Product { rows, columns, depth: rows, left, right: [pitch, 1], to: pitch, sum }
    }
}

#[cube]
fn multiply(left: &[f32], right: &[f32], to: &mut [f32], factors: &[f32], #[comptime] product: Product) {
    let (rows, columns) = comptime!((product.rows / SIDE, product.columns / SIDE));
    let mut block = UNIT_POS as usize;
    while block < comptime!(rows * columns) {
        let (row, column) = (block / columns, block % columns);
        let mut sums = Array::<f32>::new(comptime!(SIDE * SIDE));
        #[unroll]
        for i in 0..comptime!(SIDE * SIDE) {
            sums[i] = 0.0f32;
        }
        let (left_row, left_step) = comptime!((product.left[0], product.left[1]));
        let (right_step, right_column) = comptime!((product.right[0], product.right[1]));
        let mut left_at = row * left_row;
        let mut right_at = column * right_column;
        for _ in 0..product.depth {
            let mut of_right = Array::<f32>::new(SIDE);
            #[unroll]
            for j in 0..SIDE {
                of_right[j] = right[right_at + comptime!(j * columns * right_column)];
            }
            #[unroll]
            for i in 0..SIDE {
                let of_left = left[left_at + comptime!(i * rows * left_row)];
                #[unroll]
                for j in 0..SIDE {
                    sums[comptime!(i * SIDE + j)] = fma(of_left, of_right[j], sums[comptime!(i * SIDE + j)]);
                }
            }
            left_at += left_step;
            right_at += right_step;
        }
        #[unroll]
        for i in 0..SIDE {
            #[unroll]
            for j in 0..SIDE {
                let r = row + comptime!(i * rows);
                let at = r * product.to + column + comptime!(j * columns);
                let sum = sums[comptime!(i * SIDE + j)];
                match comptime!(product.sum) {
                    Sum::Set => to[at] = sum,
                    Sum::Add => to[at] += sum,
                    Sum::Scale => to[at] = fma(to[at], factors[r], sum),
                }
            }
        }
        block += CUBE_DIM as usize;
    }
}

/// The first query and the first key of a tile of scores.
#[derive(CubeType, Clone, Copy)]
struct Corner {
    query: usize,
    key: usize,
}

/// Turns scores into probabilities, and the gradients of probabilities into those of scores; see
/// [`head`](super::super::head).
#[cube]
fn probabilities(
    scores: &mut [f32],
    gradients: &mut [f32],
    statistics: &[f32],
    corner: Corner,
    first_keys: &[i32],
    rule: &Rule,
    start: u64,
    #[comptime] shape: SimtShape,
) {
    let tile = comptime!(shape.tile);
    let mut i = UNIT_POS as usize;
    while i < comptime!(tile * PARTS) {
        let (r, part) = (i / PARTS, i % PARTS);
        let first = first_key(first_keys, corner.query + r, rule, comptime!(shape.documents));
        let (first, behind) = rule.seen(corner.query + r, first, corner.key + part);
        let (l, delta) = (statistics[r], statistics[tile + r]);
        for step in 0..comptime!(tile / PARTS) {
            let c = step * PARTS + part;
            let at = r * comptime!(shape.scores()) + c;
            let (p, ds) = probability(
                scores[at],
                gradients[at],
                first <= step * PARTS && step * PARTS < behind,
                corner.query + r,
                corner.key + c,
                l,
                delta,
                rule,
                start,
                comptime!(shape.dropout),
            );
            scores[at] = p;
            gradients[at] = ds;
        }
        i += CUBE_DIM as usize;
    }
}
