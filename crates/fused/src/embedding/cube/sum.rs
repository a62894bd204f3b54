//! Sums `dy` over the places of each row; the places of frequent tokens are split into parts, one cube each.
//!
//! ```text
//! row v, 200 places      | 64 | 64 | 64 | 8 |      dW[v] = ((part 0 + part 1) + part 2) + 8 places, one by one
//!                           |    |    |
//! parts                 ..  s   s + 1 s + 2 ..     s = places before v / 64, rounded up
//! ```
//!
//! Parts of consecutive rows never share an index: with `a` places before row `v` and `b` places in it,
//! `ceil((a + b) / 64) >= ceil(a / 64) + floor(b / 64)`. If part `s` belongs to a row, place `64 s` belongs to the same
//! row, so a part finds its row through that place's token. What a row adds, and in which order, depends only on its
//! places, and no atomic adds floats: the bits are the same in every run.
//!
//! A place costs the load of its index and then of its row, about 1 microsecond. In 12,288 bytes of text, 2,000 or more
//! are spaces, which would take 2 ms one by one. Here 4 places are loaded at a time, so a part waits 16 times. The row
//! then waits for 2,000 / 64 = 31 parts and for fewer than 64 places: 8 + 16 times. That makes 40 microseconds instead
//! of 2 ms. The cost is memory traffic: the parts for 64 rows of `dy` in bf16 are 1/32 of their size, written and read.
//!
//! More places at a time would take more than 32 registers, so fewer cubes would fit on a multiprocessor. Most of
//! 50,304 rows have nothing to add and wait only for their starts.

use super::sort::Sorted;
use crate::cube::launch::{Elements, address_type, empty, over_rows, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Places per part.
const PART: usize = 64;
/// Places that are loaded before the first of them is added.
const AT_ONCE: usize = 4;

/// Returns `dW` of `rows` rows; `tokens` are those that were sorted.
pub(super) fn sum(tokens: CubeTensor, d_y: CubeTensor, sorted: Sorted, rows: usize) -> CubeTensor {
    let ([n, d], dtype, client) = (d_y.shape().dims(), d_y.dtype, d_y.client.clone());
    let (parts, d_weight) = (empty(&d_y, [n.div_ceil(PART), d], DType::F32), empty(&d_y, [rows, d], dtype));
    let vector = vector_size(&client, d, dtype);
    let (address, element) = (address_type([&d_y, &d_weight]), dtype_to_elem_type(dtype));

    let (count, dim) = over_rows(&client, n.div_ceil(PART), d / vector);
    // SAFETY: tokens below `rows` have places, which are below `n`, and there is one more start than there are rows.
    unsafe {
        embedding_parts_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address,
            vector,
            d_y.clone().elements(),
            tokens.clone().elements(),
            sorted.places.clone().elements(),
            sorted.starts.clone().elements(),
            sorted.blocks.clone().elements(),
            parts.clone().elements(),
            n.div_ceil(PART),
            rows,
            d / vector,
            sorted.block,
            element,
            dtype_to_elem_type(tokens.dtype),
        );
    }
    let (count, dim) = over_rows(&client, rows, d / vector);
    // SAFETY: as above.
    unsafe {
        embedding_sum_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address,
            vector,
            d_y.elements(),
            parts.elements(),
            sorted.places.elements(),
            sorted.starts.elements(),
            sorted.blocks.elements(),
            d_weight.clone().elements(),
            rows,
            d / vector,
            sorted.block,
            element,
        );
    }
    d_weight
}

/// Number of places before those of `row`.
#[cube]
fn start(starts: &[i32], blocks: &[i32], row: usize, #[comptime] block: usize) -> usize {
    (blocks[row / block] + starts[row]) as usize
}

/// Adds vectors `i` of rows `first..end` to `sum`, in order. If `sorted`, the rows are those that `places` lists there.
#[cube]
fn add<F: Float, V: Size>(
    sum: Vector<f32, V>,
    from: &[Vector<F, V>],
    places: &[i32],
    first: usize,
    end: usize,
    i: usize,
    width: usize,
    #[comptime] sorted: bool,
) -> Vector<f32, V> {
    let mut sum = sum;
    let mut at = first;
    while at < end {
        let mut terms = Array::<Vector<F, V>>::new(AT_ONCE);
        #[unroll]
        for j in 0..AT_ONCE {
            // Past the end, loads the last row again, which exists and is not added. This avoids a branch around a
            // load.
            let mut row = min(at + j, end - 1usize);
            if comptime!(sorted) {
                row = places[row] as usize;
            }
            terms[j] = from[row * width + i];
        }
        #[unroll]
        for j in 0..AT_ONCE {
            sum = select(at + j < end, sum + Vector::cast_from(terms[j]), sum);
        }
        at += AT_ONCE;
    }
    sum
}

/// `width` is the width of a row in vectors, `block` the number of rows per entry of `blocks`, `len` the largest number
/// of parts.
#[cube(launch_unchecked, address_type = "dynamic")]
fn embedding_parts_kernel<F: Float, I: Int, V: Size>(
    d_y: &[Vector<F, V>],
    tokens: &[I],
    places: &[i32],
    starts: &[i32],
    blocks: &[i32],
    parts: &mut [Vector<f32, V>],
    len: usize,
    rows: usize,
    width: usize,
    #[comptime] block: usize,
    #[define(F)] _dtype: ElemType,
    #[define(I)] _int: ElemType,
) {
    let all = start(starts, blocks, rows, block);
    let mut part = CUBE_POS;
    while part < len {
        let place = part * PART;
        if place < all {
            let row = u32::cast_from(tokens[places[place] as usize]) as usize;
            let row_first = start(starts, blocks, row, block);
            let first = row_first + (part - row_first.div_ceil(PART)) * PART;
            if first + PART <= start(starts, blocks, row + 1usize, block) {
                let mut i = UNIT_POS as usize;
                while i < width {
                    let zero = Vector::<f32, V>::new(0.0f32);
                    parts[part * width + i] = add(zero, d_y, places, first, first + PART, i, width, true);
                    i += CUBE_DIM as usize;
                }
            }
        }
        part += CUBE_COUNT;
    }
}

/// Takes its arguments like [`embedding_parts_kernel`].
#[cube(launch_unchecked, address_type = "dynamic")]
fn embedding_sum_kernel<F: Float, V: Size>(
    d_y: &[Vector<F, V>],
    parts: &[Vector<f32, V>],
    places: &[i32],
    starts: &[i32],
    blocks: &[i32],
    d_weight: &mut [Vector<F, V>],
    rows: usize,
    width: usize,
    #[comptime] block: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut row = CUBE_POS;
    while row < rows {
        let first = start(starts, blocks, row, block);
        let end = start(starts, blocks, row + 1usize, block);
        let whole = (end - first) / PART;
        let part = first.div_ceil(PART);
        let mut i = UNIT_POS as usize;
        while i < width {
            let zero = Vector::<f32, V>::new(0.0f32);
            let of_parts = add(zero, parts, places, part, part + whole, i, width, false);
            let sum = add(of_parts, d_y, places, first + whole * PART, end, i, width, true);
            d_weight[row * width + i] = rounded(sum);
            i += CUBE_DIM as usize;
        }
        row += CUBE_COUNT;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    use embedding_parts_kernel::EmbeddingPartsKernel;
    use embedding_sum_kernel::EmbeddingSumKernel;

    let (dim, int) = (|| CubeDim::new_1d(256), i32::elem_type_native());
    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        cases.push(KernelCase::new(format!("embedding parts {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.unchecked(dim()), gpu.device(), gpu.target());
            EmbeddingPartsKernel::new(s, d, t, b(), b(), b(), b(), b(), b(), (), (), (), vector, 256, dtype, int)
        }));
        cases.push(KernelCase::new(format!("embedding sum {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.unchecked(dim()), gpu.device(), gpu.target());
            EmbeddingSumKernel::new(s, d, t, b(), b(), b(), b(), b(), b(), (), (), vector, 256, dtype)
        }));
    }
    cases
}
