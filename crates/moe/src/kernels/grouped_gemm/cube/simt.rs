//! The product without tensor cores, for any device, dtype, width and segments.
//!
//! ```text
//!  grid x: tiles of rows              cube of 16 x 16 units               unit: 8 x 4 sums in registers
//!  grid y: tiles of columns
//!                                        b [16, 64] shared                    b: 4 numbers
//!        +----+----+--              +--+--+--+-- --+                         +-----+
//!   x    |    |    |        a       |u0|u1|  ...   |                    a:   |     |
//!  rows  +----+----+--   [16, 128]  +--+--+--      | 128 rows       8 numbers| 8x4 |  8 + 4 loads from shared
//!        |    |    |      shared    |  |           |                         |     |  memory for 32 multiply-adds
//!        +----+----+--              +--+--      ---+                         +-----+
//!        weight columns                64 columns
//! ```
//!
//! The sum over `p` runs in steps of 16. `a` is stored transposed, `[p, row]`, so a unit reads its 8 rows as two
//! vectors of 4; the 16 units of a row of the cube read the same ones. Rows of shared memory are padded by 4 numbers,
//! because units that write a column would otherwise all hit the same bank.
//!
//! Registers: 32 sums, 12 operands and addresses, about 80 in total, so 3 cubes of 256 units fit into the 65,536
//! registers of a multiprocessor. Indices into the sums are known at compile time, because an array indexed at run time
//! would live in memory. Shared memory: 16 (132 + 68) 4 = 12,800 bytes.
//!
//! With 1 or 2 units (CubeCL's CPU runtime) a cube's tile shrinks accordingly: 8 x 4 or 8 x 8.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::tiles::{self, ENTRY, Tile};
use burn::backend::cubecl::dtype_to_elem_type;
use fused::cube::launch::{self, Elements, UNITS, address_type};
use fused::cube::rounded;

/// Rows and columns of a unit's sums.
pub(super) const ROWS: usize = 8;
pub(super) const COLUMNS: usize = 4;
/// Steps of the sum per stage in shared memory.
pub(super) const DEPTH: usize = 16;
/// Padding of a row of shared memory, in numbers.
pub(super) const PAD: usize = 4;

/// Units of a cube along the rows and the columns of its tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Units {
    pub rows: usize,
    pub columns: usize,
}

impl Units {
    /// Makes the units as square as `count`, a power of two, allows.
    pub fn new(count: usize) -> Self {
        let rows = 1 << (count.ilog2() / 2);
        Self { rows, columns: count / rows }
    }

    pub fn count(self) -> usize {
        self.rows * self.columns
    }

    /// Rows of the cube's tile.
    pub fn tile_rows(self) -> usize {
        self.rows * ROWS
    }

    /// Columns of the cube's tile.
    pub fn tile_columns(self) -> usize {
        self.columns * COLUMNS
    }

    pub fn cube_dim(self) -> CubeDim {
        CubeDim::new_1d(self.count() as u32)
    }
}

/// A matrix in global memory, `[.., stride]`.
#[derive(CubeType)]
pub(super) struct Operand {
    /// Index at which the part to read starts.
    pub offset: usize,
    pub stride: usize,
    /// Number of rows and columns from there on.
    pub rows: usize,
    pub columns: usize,
}

/// Copies `[DEPTH, wide]` of the matrix from (`row`, `column`) on into shared memory, with zeros past its end.
#[cube]
pub(super) fn stage<F: Float, N: Size>(
    from: &[Vector<F, N>],
    source: &Operand,
    row: usize,
    column: usize,
    to: &mut [f32],
    #[comptime] wide: usize,
    #[comptime] units: usize,
) {
    let vector = N::value();
    let mut i = UNIT_POS as usize;
    while i < comptime!(DEPTH * wide / vector) {
        let k = i / comptime!(wide / vector);
        let m = i % comptime!(wide / vector) * vector;
        let mut values = Vector::<f32, N>::new(0.0f32);
        if row + k < source.rows && column + m < source.columns {
            values = Vector::cast_from(from[(source.offset + (row + k) * source.stride + column + m) / vector]);
        }
        #[unroll]
        for j in 0..vector {
            to[k * comptime!(wide + PAD) + m + j] = values.extract(j);
        }
        i += units;
    }
}

/// Like [`stage`], but transposes: `[wide, DEPTH]` of the matrix becomes `[DEPTH, wide]`.
#[cube]
pub(super) fn stage_turned<F: Float, N: Size>(
    from: &[Vector<F, N>],
    source: &Operand,
    row: usize,
    column: usize,
    to: &mut [f32],
    #[comptime] wide: usize,
    #[comptime] units: usize,
) {
    let vector = N::value();
    let mut i = UNIT_POS as usize;
    while i < comptime!(DEPTH * wide / vector) {
        let m = i / comptime!(DEPTH / vector);
        let k = i % comptime!(DEPTH / vector) * vector;
        let mut values = Vector::<f32, N>::new(0.0f32);
        if row + m < source.rows && column + k < source.columns {
            values = Vector::cast_from(from[(source.offset + (row + m) * source.stride + column + k) / vector]);
        }
        #[unroll]
        for j in 0..vector {
            to[(k + j) * comptime!(wide + PAD) + m] = values.extract(j);
        }
        i += units;
    }
}

/// A unit's sums, row by row.
pub(super) type Sums = Array<Vector<f32, Const<COLUMNS>>>;

#[cube]
pub(super) fn zero_sums() -> Sums {
    let mut sums = Sums::new(ROWS);
    #[unroll]
    for i in 0..ROWS {
        sums[i] = Vector::new(0.0f32);
    }
    sums
}

/// Adds the product of the staged matrices to the unit's sums.
#[cube]
pub(super) fn multiply(a: &[f32], b: &[f32], sums: &mut Sums, #[comptime] units: Units) {
    let row = UNIT_POS as usize / units.columns * ROWS;
    let column = UNIT_POS as usize % units.columns * COLUMNS;
    #[unroll]
    for k in 0..DEPTH {
        let mut right = Vector::<f32, Const<COLUMNS>>::empty();
        #[unroll]
        for j in 0..COLUMNS {
            right.insert(j, b[comptime!(k * (units.tile_columns() + PAD) + j) + column]);
        }
        #[unroll]
        for i in 0..ROWS {
            let left = Vector::new(a[comptime!(k * (units.tile_rows() + PAD) + i) + row]);
            sums[i] = fma(left, right, sums[i]);
        }
    }
}

/// Writes the unit's sums, rounded, where they are inside the matrix. (`row`, `column`) is the corner of the cube's
/// tile.
#[cube]
pub(super) fn write_sums<F: Float, N: Size>(
    sums: &Sums,
    target: &Operand,
    row: usize,
    column: usize,
    to: &mut [Vector<F, N>],
    #[comptime] units: Units,
) {
    let vector = N::value();
    let row = row + UNIT_POS as usize / units.columns * ROWS;
    let column = column + UNIT_POS as usize % units.columns * COLUMNS;
    #[unroll]
    for i in 0..ROWS {
        #[unroll]
        for part in 0..comptime!(COLUMNS / vector) {
            let mut values = Vector::<f32, N>::empty();
            #[unroll]
            for j in 0..vector {
                values.insert(j, sums[i].extract(comptime!(part * vector + j)));
            }
            let at = column + comptime!(part * vector);
            if row + i < target.rows && at < target.columns {
                to[(target.offset + (row + i) * target.stride + at) / vector] = rounded(values);
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn grouped_gemm_product<F: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<F, N>],
    tiles: &[i32],
    y: &mut [Vector<F, N>],
    p: usize,
    q: usize,
    #[comptime] transposed: bool,
    #[comptime] units: Units,
    #[define(F)] _dtype: ElemType,
) {
    // On some devices a dimension of the grid is limited to 65,535 cubes.
    let number = CUBE_POS_Z as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize;
    if number >= tiles.len() / ENTRY {
        terminate!();
    }
    let tile = Tile::read(tiles, number);
    if tile.first >= tile.end {
        terminate!();
    }
    let column = CUBE_POS_Y as usize * comptime!(units.tile_columns());
    let mut a = Shared::<[f32]>::new_aligned_slice(comptime!(DEPTH * (units.tile_rows() + PAD)), 16usize);
    let mut b = Shared::<[f32]>::new_aligned_slice(comptime!(DEPTH * (units.tile_columns() + PAD)), 16usize);
    let mut sums = zero_sums();
    let rows = Operand { offset: 0usize.runtime(), stride: p, rows: tile.end, columns: p };
    let offset = tile.expert * p * q;
    let mut k = 0usize.runtime();
    while k < p {
        stage_turned(x, &rows, tile.first, k, &mut a, comptime!(units.tile_rows()), comptime!(units.count()));
        if comptime!(transposed) {
            let matrix = Operand { offset, stride: p, rows: q, columns: p };
            stage_turned(weight, &matrix, column, k, &mut b, comptime!(units.tile_columns()), comptime!(units.count()));
        } else {
            let matrix = Operand { offset, stride: q, rows: p, columns: q };
            stage(weight, &matrix, k, column, &mut b, comptime!(units.tile_columns()), comptime!(units.count()));
        }
        sync_cube();
        multiply(&a, &b, &mut sums, units);
        sync_cube();
        k += DEPTH;
    }
    let target = Operand { offset: 0usize.runtime(), stride: q, rows: tile.end, columns: q };
    write_sums(&sums, &target, tile.first, column, y, units);
}

/// How many numbers are read at once from rows of these lengths.
pub(super) fn vector_size<const N: usize>(tensor: &CubeTensor, lengths: [usize; N]) -> usize {
    let sizes = lengths.map(|length| launch::vector_size(&tensor.client, length, tensor.dtype));
    sizes.into_iter().fold(COLUMNS, usize::min)
}

/// Computes `y_rq`; all tensors are contiguous.
pub(super) fn launch(
    x: &CubeTensor,
    weight: &CubeTensor,
    expert_offsets: &CubeTensor,
    y: &CubeTensor,
    transposed: bool,
) {
    let ([r, p], [_, q]) = (x.meta.shape().dims(), y.meta.shape().dims());
    let units = Units::new(launch::units(&y.client, UNITS));
    let table = tiles::launch(expert_offsets, y, units.tile_rows());
    let tiles = tiles::count(r, expert_offsets.meta.shape()[0] - 1, units.tile_rows());
    let across = tiles.min(y.client.properties().hardware.max_cube_count.0 as usize);
    let columns = q.div_ceil(units.tile_columns());
    let count = CubeCount::Static(across as u32, columns as u32, tiles.div_ceil(across) as u32);
    // SAFETY: a tile's end is at most the number of rows (`tiles`), and the loops check rows and columns against
    // theirs.
    unsafe {
        grouped_gemm_product::launch_unchecked(
            &y.client,
            count,
            units.cube_dim(),
            address_type([x, weight, y]),
            vector_size(y, [p, q]),
            x.clone().elements(),
            weight.clone().elements(),
            table.elements(),
            y.clone().elements(),
            p,
            q,
            transposed,
            units,
            dtype_to_elem_type(y.dtype),
        );
    }
}
