//! The tiles of the grouped product: the rows that each covers, and the expert of these rows.
//!
//! ```text
//! tile rows 4, offsets 0 6 6 10 of 13 rows       tiles      of expert   rows        starts at offsets[e] / 4 + e
//!                                                 0           0         0 .. 4      0
//!   e0   0 1 2 3 | 4 5                            1           0         4 .. 6
//!   e1   (none)                                   2           1         6 .. 6      2: no rows, its cubes exit at once
//!   e2   6 7 8 9                                  3           2         6 .. 10     3
//!   tail 10 11 12   y = 0                         4           2        10 .. 10     no rows
//! ```
//!
//! An expert's tiles start at `expert_offsets[e] / rows + e`. Its `length` rows fit there, because `ceil(length /
//! rows)` is at most `expert_offsets[e + 1] / rows - expert_offsets[e] / rows + 1`. So a tile finds its expert by a
//! binary search in the offsets, there are `r / rows + e` tiles for any offsets, and nothing has to be read back to the
//! host. Segments need no padding; whole tiles merely leave none half empty.
//!
//! [`grouped_gemm_prepare`] searches once and writes three numbers per tile. A search at the start of every cube would
//! cost log2(e) dependent loads, about a microsecond.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use burn::backend::cubecl::dtype_to_elem_type;
use fused::cube::launch::{Elements, address_type, empty, over_items, vector_size};

/// Numbers per tile in the table: expert, first row, end of the expert's rows.
pub(super) const ENTRY: usize = 3;

/// Writes the table, and sets the rows of `y` after the last segment to 0.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn grouped_gemm_prepare<F: Float, N: Size>(
    expert_offsets: &[i32],
    tiles: &mut [i32],
    y: &mut [Vector<F, N>],
    q: usize,
    #[comptime] rows: usize,
    #[define(F)] _dtype: ElemType,
) {
    let experts = expert_offsets.len() - 1;
    let all = y.len() * N::value() / q;
    let step = CUBE_COUNT * CUBE_DIM as usize;

    let mut tile = ABSOLUTE_POS;
    while tile < tiles.len() / ENTRY {
        // The last expert whose tiles start at or before this one.
        let mut low = 0usize.runtime();
        let mut high = experts - 1;
        while low < high {
            let middle = (low + high).div_ceil(2);
            if expert_offsets[middle] as usize / rows + middle <= tile {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let start = expert_offsets[low] as usize;
        tiles[tile * ENTRY] = low as i32;
        tiles[tile * ENTRY + 1] = (start + (tile - start / rows - low) * rows) as i32;
        // As an unsigned number, a negative border is also beyond the end.
        let end = expert_offsets[low + 1] as usize;
        tiles[tile * ENTRY + 2] = select(end < all, end, all) as i32;
        tile += step;
    }

    let mut i = expert_offsets[experts] as usize * q / N::value() + ABSOLUTE_POS;
    while i < y.len() {
        y[i] = Vector::new(F::from_int(0));
        i += step;
    }
}

/// A tile of the table.
#[derive(CubeType)]
pub(super) struct Tile {
    pub expert: usize,
    pub first: usize,
    /// The tile ends here or after its number of rows, whichever comes first.
    pub end: usize,
}

#[cube]
impl Tile {
    pub fn read(tiles: &[i32], tile: usize) -> Tile {
        Tile {
            expert: tiles[tile * ENTRY] as usize,
            first: tiles[tile * ENTRY + 1] as usize,
            end: tiles[tile * ENTRY + 2] as usize,
        }
    }
}

/// Number of tiles of `rows` rows that cover `r` rows of `experts` segments.
pub(super) fn count(r: usize, experts: usize, rows: usize) -> usize {
    r / rows + experts
}

/// Returns the table of tiles of `rows` rows, and sets the tail of `y_rq` to 0.
pub(super) fn launch(expert_offsets: &CubeTensor, y: &CubeTensor, rows: usize) -> CubeTensor {
    let [r, q] = y.meta.shape().dims();
    let tiles = count(r, expert_offsets.meta.shape()[0] - 1, rows);
    let table = empty(y, [tiles * ENTRY], expert_offsets.dtype);
    // A few writes per unit, because the tail is usually short.
    let (count, dim) = over_items(&y.client, tiles.max(r * q / 64));
    // SAFETY: units stop at the lengths of the table and of `y`; `expert_offsets` has one border more than there are
    // experts, and the search stays within it.
    unsafe {
        grouped_gemm_prepare::launch_unchecked(
            &y.client,
            count,
            dim,
            address_type([y]),
            vector_size(&y.client, q, y.dtype),
            expert_offsets.clone().elements(),
            table.clone().elements(),
            y.clone().elements(),
            q,
            rows,
            dtype_to_elem_type(y.dtype),
        );
    }
    table
}
