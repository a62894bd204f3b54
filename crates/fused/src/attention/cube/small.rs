//! The two small kernels of the backward, used with and without tensor cores.

use super::Problem;
use crate::cube::launch::{Elements, address_type, empty, over_items, units, vector_size};
use crate::cube::rounded;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Units that share a row of `y`.
const PARTS: usize = 8;
/// Rows per cube.
const ROWS: usize = 32;

/// Computes `delta`, `sum(dy y)` for each query, `[b, heads, t]`, from `[b, t, heads, v]`.
pub(super) fn delta(problem: &Problem, y: &CubeTensor, d_y: &CubeTensor) -> CubeTensor {
    let Problem { b, heads, t, .. } = *problem;
    let delta = empty(y, [b, heads, t], DType::F32);
    let vector = vector_size(&y.client, problem.widths.v, y.dtype);
    let units = units(&y.client, ROWS * PARTS);
    // SAFETY: the kernel neither reads nor writes rows and columns out of range.
    unsafe {
        attention_delta::launch_unchecked(
            &y.client,
            CubeCount::Static(t.div_ceil(ROWS) as u32, heads as u32, b as u32),
            CubeDim::new_1d(units as u32),
            address_type([y]),
            vector,
            y.clone().elements(),
            d_y.clone().elements(),
            delta.clone().elements(),
            t,
            problem.widths.v / vector,
            dtype_to_elem_type(y.dtype),
        );
    }
    delta
}

/// A cube takes rows of one head of one sequence. Adjacent units read adjacent vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_delta<F: Float, N: Size>(
    y: &[Vector<F, N>],
    d_y: &[Vector<F, N>],
    delta: &mut [f32],
    t: usize,
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut sums = Shared::<[f32]>::new_slice(comptime!(ROWS * PARTS));
    let (head, heads, sequence) = (CUBE_POS_Y as usize, CUBE_COUNT_Y as usize, CUBE_POS_Z as usize);
    let first = CUBE_POS_X as usize * ROWS;
    let mut i = UNIT_POS as usize;
    while i < comptime!(ROWS * PARTS) {
        let row = first + i / PARTS;
        let mut sum = 0.0f32;
        if row < t {
            let at = ((sequence * t + row) * heads + head) * vectors;
            let mut column = i % PARTS;
            while column < vectors {
                let products =
                    Vector::<f32, N>::cast_from(y[at + column]) * Vector::<f32, N>::cast_from(d_y[at + column]);
                #[unroll]
                for j in 0..N::value() {
                    sum += products.extract(j);
                }
                column += PARTS;
            }
        }
        sums[i] = sum;
        i += CUBE_DIM as usize;
    }
    sync_cube();
    let mut r = UNIT_POS as usize;
    while r < ROWS {
        if first + r < t {
            let mut sum = 0.0f32;
            #[unroll]
            for part in 0..PARTS {
                sum += sums[r * PARTS + part];
            }
            delta[(sequence * heads + head) * t + first + r] = sum;
        }
        r += CUBE_DIM as usize;
    }
}

/// Sums `[b, heads, t, rope]` over heads, rotates back and rounds: `[b, t, rope]`.
pub(super) fn sum_heads(problem: &Problem, of_heads: &CubeTensor, dtype: DType) -> CubeTensor {
    let Problem { b, heads, t, .. } = *problem;
    let (rope, [cos, sin]) = (problem.widths.rope, problem.table.clone());
    let sum = empty(of_heads, [b, t, rope], dtype);
    let (count, dim) = over_items(&sum.client, b * t * rope / 2);
    // SAFETY: a unit writes pairs of the result, and reads those at the same positions.
    unsafe {
        attention_sum_heads::launch_unchecked(
            &sum.client,
            count,
            dim,
            address_type([of_heads]),
            of_heads.clone().elements(),
            cos.elements(),
            sin.elements(),
            sum.clone().elements(),
            heads,
            t,
            rope / 2,
            dtype_to_elem_type(dtype),
        );
    }
    sum
}

/// Adds in the order of heads.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_sum_heads<F: Float>(
    of_heads: &[Vector<f32, Const<2>>],
    cos: &[f32],
    sin: &[f32],
    sum: &mut [Vector<F, Const<2>>],
    heads: usize,
    t: usize,
    pairs: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < sum.len() {
        let (position, pair) = (i / pairs, i % pairs);
        let (sequence, position) = (position / t, position % t);
        let mut total = Vector::<f32, Const<2>>::new(0.0f32);
        for head in 0..heads {
            total += of_heads[((sequence * heads + head) * t + position) * pairs + pair];
        }
        let (cos, sin) = (cos[position * pairs + pair], sin[position * pairs + pair]);
        let mut back = Vector::<f32, Const<2>>::empty();
        back.insert(0usize, total.extract(0usize) * cos + total.extract(1usize) * sin);
        back.insert(1usize, total.extract(1usize) * cos - total.extract(0usize) * sin);
        sum[i] = rounded(back);
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}
