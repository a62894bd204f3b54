//! The gradient of the matrices: `dW[e] = x[rows of e]^T dy[rows of e]`, a sum over a number of rows that differs
//! between experts.
//!
//! ```text
//!  grid z: experts                  rows k of x            rows k of dy
//!  grid x, y: tiles of dW[e]       +--------------+       +--------------+
//!                                  |    |####|    |       | |####|       |  expert_offsets[e]
//!       dW[e]   q                  |    |####|    |   x   | |####|       |  in steps of DEPTH
//!      +---------------+           |    |####|    |       | |####|       |  expert_offsets[e + 1]
//!    p |    |####|     |           +--------------+       +--------------+
//!      +---------------+                 p                      q
//! ```
//!
//! Both inputs are read in place, a step of rows at a time, and rows past the segment's end count as 0. An expert
//! without rows takes no step and writes zeros. One cube computes the whole sum of its tile and nothing is added
//! between cubes, so the result is reproducible.
//!
//! This kernel runs on every device; its tile and registers are those of the [product](super::simt).

use super::simt::{DEPTH, PAD};
use super::simt::{Operand, Units, multiply, stage, vector_size, write_sums, zero_sums};
use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, UNITS, address_type, units};

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn grouped_gemm_weight_sum<F: Float, N: Size>(
    x: &[Vector<F, N>],
    d_y: &[Vector<F, N>],
    expert_offsets: &[i32],
    d_weight: &mut [Vector<F, N>],
    p: usize,
    q: usize,
    #[comptime] units: Units,
    #[define(F)] _dtype: ElemType,
) {
    let expert = CUBE_POS_Z as usize;
    let (row, column) = (CUBE_POS_X as usize * units.tile_rows(), CUBE_POS_Y as usize * units.tile_columns());
    let mut a = Shared::<[f32]>::new_aligned_slice(comptime!(DEPTH * (units.tile_rows() + PAD)), 16usize);
    let mut b = Shared::<[f32]>::new_aligned_slice(comptime!(DEPTH * (units.tile_columns() + PAD)), 16usize);
    let mut sums = zero_sums();
    let (end, all) = (expert_offsets[expert + 1] as usize, x.len() * N::value() / p);
    let end = select(end < all, end, all);
    let left = Operand { offset: 0usize.runtime(), stride: p, rows: end, columns: p };
    let right = Operand { offset: 0usize.runtime(), stride: q, rows: end, columns: q };
    let mut k = expert_offsets[expert] as usize;
    while k < end {
        stage(x, &left, k, row, &mut a, comptime!(units.tile_rows()), comptime!(units.count()));
        stage(d_y, &right, k, column, &mut b, comptime!(units.tile_columns()), comptime!(units.count()));
        sync_cube();
        multiply(&a, &b, &mut sums, units);
        sync_cube();
        k += DEPTH;
    }
    let target = Operand { offset: expert * p * q, stride: q, rows: p, columns: q };
    write_sums(&sums, &target, row, column, d_weight, units);
}

/// Computes `dW_epq` on any device; all tensors are contiguous.
pub(super) fn launch(x: &CubeTensor, d_y: &CubeTensor, expert_offsets: &CubeTensor, d_weight: &CubeTensor) {
    let [e, p, q] = d_weight.meta.shape().dims();
    let units = Units::new(units(&x.client, UNITS));
    let tiles = |length: usize, tile: usize| length.div_ceil(tile) as u32;
    // SAFETY: both borders of a segment are clamped to the number of rows; rows and columns of `dW` are checked against
    // its size.
    unsafe {
        grouped_gemm_weight_sum::launch_unchecked(
            &x.client,
            CubeCount::Static(tiles(p, units.tile_rows()), tiles(q, units.tile_columns()), e as u32),
            units.cube_dim(),
            address_type([x, d_y, d_weight]),
            vector_size(x, [p, q]),
            x.clone().elements(),
            d_y.clone().elements(),
            expert_offsets.clone().elements(),
            d_weight.clone().elements(),
            p,
            q,
            units,
            dtype_to_elem_type(x.dtype),
        );
    }
}
