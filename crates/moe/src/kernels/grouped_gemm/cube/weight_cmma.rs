//! The gradient of the matrices on tensor cores: the sums of [`weight`](super::weight), from bf16 or f16, in f32.
//!
//! ```text
//!  cube: 128 x 128 of dW[e]                 plane (warp): 32 x 64        one step: 32 rows of x and dy
//!
//!        q                                  +----+----+----+----+        a [32, 128 + 8]   x in place: column-major
//!     +-------+-------+                     | 16 x 16 |    |    |                          for the tensor cores
//!   p | warp0 | warp1 |                     +----+----+----+----+        b [32, 128 + 8]   dy in place
//!     +-------+-------+                     |    |    |    |    |
//!     | warp2 | warp3 |   4 x 2 warps       +----+----+----+----+        0 past the segment's end, p and q
//!     |  ..   |  ..   |                     8 sums of 16 x 16
//!     +-------+-------+
//! ```
//!
//! Shared memory holds two steps. While the cores multiply one, the rows of the next are in flight from global memory
//! to registers, from which they go into the other, with one barrier per step. In the machine code that LLVM makes for
//! sm_80, the loads precede the products. For sm_90, and from CUDA C++, the assembler moves most of them after the
//! products, and only the second barrier is saved.
//!
//! Registers: 8 sums of 16 x 16 in f32 over 32 lanes are 64 per lane, and operands and addresses take as many again: at
//! most 128, which allows two cubes per multiprocessor. Shared memory: 2 x 2 x 32 x 136 x 2 = 34,816 bytes. 8 numbers
//! at the end of a row shift it by 4 banks, so 8 rows loaded together do not collide. Another 8 x 1024 bytes pass the
//! sums out: it is unspecified which lane holds which number of a sum, but edges and rounding need to know.

use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::cmma::{self, MatrixIdent, MatrixLayout};
use cubecl::features::MmaConfig;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, address_type};
use fused::cube::rounded;

/// Rows and columns of a cube's tile.
const TILE: usize = 128;
/// Rows of `x` and `dy` in a step.
const DEPTH: usize = 32;
/// Length of a row in shared memory.
const PITCH: usize = TILE + 8;
/// Side of the matrices that tensor cores multiply.
const SIDE: usize = 16;
/// Numbers per load: 16 bytes.
const VECTOR: usize = 8;
/// A plane computes `FRAGMENTS.0 x FRAGMENTS.1` sums.
const FRAGMENTS: (usize, usize) = (2, 4);
const PLANES_ACROSS: usize = TILE / (FRAGMENTS.1 * SIDE);
pub(super) const UNITS: usize = 32 * TILE / (FRAGMENTS.0 * SIDE) * PLANES_ACROSS;

/// Loads per unit for `DEPTH` rows and `TILE` columns.
const LOADS: usize = DEPTH * TILE / VECTOR / UNITS;
/// Vectors per step in shared memory.
const STEP: usize = DEPTH * PITCH / VECTOR;

/// `DEPTH` rows from `row` on and `TILE` columns from `column` on of `[.., stride]`, with zeros from `end` and `stride`
/// on.
#[derive(CubeType, Clone, Copy)]
struct DepthStep {
    row: usize,
    end: usize,
    column: usize,
    stride: usize,
}

#[cube]
impl DepthStep {
    /// Row and vector of a load of this unit.
    fn place(&self, #[comptime] load: usize) -> (usize, usize) {
        let i = comptime!(load * UNITS) + UNIT_POS as usize;
        (i / comptime!(TILE / VECTOR), i % comptime!(TILE / VECTOR))
    }

    fn is_inside(&self, k: usize, m: usize) -> bool {
        self.row + k < self.end && self.column + m * VECTOR < self.stride
    }

    /// Loads this unit's part. There is no branch around a load, and only [`share`](Self::share) uses its result, so
    /// the load can be in flight while the cores multiply.
    fn fetch<F: Float>(&self, from: &[Vector<F, Const<VECTOR>>], to: &mut Array<Vector<F, Const<VECTOR>>>) {
        #[unroll]
        for load in 0..LOADS {
            let (k, m) = self.place(load);
            let at = ((self.row + k) * self.stride + self.column) / VECTOR + m;
            to[load] = from[select(self.is_inside(k, m), at, 0usize)];
        }
    }

    /// Stores this unit's part in shared memory from `start` on.
    fn share<F: Float>(
        &self,
        part: &Array<Vector<F, Const<VECTOR>>>,
        start: usize,
        to: &mut [Vector<F, Const<VECTOR>>],
    ) {
        #[unroll]
        for load in 0..LOADS {
            let (k, m) = self.place(load);
            let zero = Vector::new(F::from_int(0));
            to[start + k * comptime!(PITCH / VECTOR) + m] = select(self.is_inside(k, m), part[load], zero);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn grouped_gemm_weight_sum<F: Float>(
    x: &[Vector<F, Const<VECTOR>>],
    d_y: &[Vector<F, Const<VECTOR>>],
    expert_offsets: &[i32],
    d_weight: &mut [Vector<F, Const<VECTOR>>],
    p: usize,
    q: usize,
    #[define(F)] _dtype: ElemType,
) {
    let expert = CUBE_POS_Z as usize;
    let (row, column) = (CUBE_POS_X as usize * TILE, CUBE_POS_Y as usize * TILE);
    let plane = UNIT_POS as usize / 32;
    let plane_row = plane / PLANES_ACROSS * comptime!(FRAGMENTS.0 * SIDE);
    let plane_column = plane % PLANES_ACROSS * comptime!(FRAGMENTS.1 * SIDE);

    let mut a = Shared::<[Vector<F, Const<VECTOR>>]>::new_aligned_slice(comptime!(2 * STEP), 16usize);
    let mut b = Shared::<[Vector<F, Const<VECTOR>>]>::new_aligned_slice(comptime!(2 * STEP), 16usize);
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(FRAGMENTS.0 * FRAGMENTS.1) {
        sums.push(cmma::Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            SIDE,
            SIDE,
            SIDE,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }

    let (end, all) = (expert_offsets[expert + 1] as usize, x.len() * VECTOR / p);
    let end = select(end < all, end, all);
    let mut left = DepthStep { row: expert_offsets[expert] as usize, end, column: row, stride: p };
    let mut right = DepthStep { row: expert_offsets[expert] as usize, end, column, stride: q };
    let mut next_a = Array::<Vector<F, Const<VECTOR>>>::new(LOADS);
    let mut next_b = Array::<Vector<F, Const<VECTOR>>>::new(LOADS);
    let mut start = 0usize;
    // Without rows there may be nothing to load.
    if left.row < end {
        left.fetch(x, &mut next_a);
        right.fetch(d_y, &mut next_b);
        left.share(&next_a, start, &mut a);
        right.share(&next_b, start, &mut b);
    }
    sync_cube();
    while left.row < end {
        left.row += DEPTH;
        right.row += DEPTH;
        left.fetch(x, &mut next_a);
        right.fetch(d_y, &mut next_b);
        #[unroll]
        for step in 0..comptime!(DEPTH / SIDE) {
            let mut tops = Sequence::<cmma::Matrix<F>>::new();
            #[unroll]
            for i in 0..FRAGMENTS.0 {
                let at = start + (plane_row + comptime!(step * SIDE * PITCH + i * SIDE)) / VECTOR;
                let mut matrix = unsafe {
                    cmma::Matrix::<F>::uninitialized(MatrixIdent::A, SIDE, SIDE, SIDE, MatrixLayout::ColMajor)
                };
                cmma::load(&mut matrix, &a[at..at + 1], PITCH as u32);
                tops.push(matrix);
            }
            // One at a time takes fewer registers than the opposite nesting.
            #[unroll]
            for j in 0..FRAGMENTS.1 {
                let at = start + (plane_column + comptime!(step * SIDE * PITCH + j * SIDE)) / VECTOR;
                let mut side = unsafe {
                    cmma::Matrix::<F>::uninitialized(MatrixIdent::B, SIDE, SIDE, SIDE, MatrixLayout::RowMajor)
                };
                cmma::load(&mut side, &b[at..at + 1], PITCH as u32);
                #[unroll]
                for i in 0..FRAGMENTS.0 {
                    let sum = &sums[comptime!(i * FRAGMENTS.1 + j)];
                    cmma::execute(&tops[i], &side, sum, sum);
                }
            }
        }
        // The other step was read before the last barrier, and is read again after the next one.
        start = STEP - start;
        left.share(&next_a, start, &mut a);
        right.share(&next_b, start, &mut b);
        sync_cube();
    }

    let mut out = Shared::<[f32]>::new_aligned_slice(comptime!(UNITS / 32 * SIDE * SIDE), 16usize);
    let lane = UNIT_POS as usize % 32;
    let (lane_row, lane_column) = (lane / 2, lane % 2 * VECTOR);
    let corner = plane * comptime!(SIDE * SIDE);
    #[unroll]
    for i in 0..FRAGMENTS.0 {
        #[unroll]
        for j in 0..FRAGMENTS.1 {
            cmma::store(
                &mut out[corner..corner + 1],
                &sums[comptime!(i * FRAGMENTS.1 + j)],
                SIDE as u32,
                MatrixLayout::RowMajor,
            );
            sync_plane();
            let mut values = Vector::<f32, Const<VECTOR>>::empty();
            #[unroll]
            for v in 0..VECTOR {
                values.insert(v, out[corner + lane_row * SIDE + lane_column + v]);
            }
            let to_row = row + plane_row + comptime!(i * SIDE) + lane_row;
            let to_column = column + plane_column + comptime!(j * SIDE) + lane_column;
            if to_row < p && to_column < q {
                d_weight[((expert * p + to_row) * q + to_column) / VECTOR] = rounded(values);
            }
            sync_plane();
        }
    }
}

/// Whether there are tensor cores for matrices like these.
pub(super) fn supports(x: &CubeTensor, p: usize, q: usize) -> bool {
    x.dtype.size() == 2 && p.is_multiple_of(VECTOR) && q.is_multiple_of(VECTOR) && has_tensor_cores(x)
}

/// Whether the device multiplies 16 x 16 matrices of the dtype of `x` in planes of 32 units.
pub(super) fn has_tensor_cores(x: &CubeTensor) -> bool {
    let element = dtype_to_elem_type(x.dtype);
    let (m, n, k) = (SIDE as u32, SIDE as u32, SIDE as u32);
    let wanted = MmaConfig { a_type: element, b_type: element, cd_type: f32::elem_type_native(), m, n, k };
    let properties = x.client.properties();
    [properties.hardware.plane_size_min, properties.hardware.plane_size_max] == [32, 32]
        && properties.features.matmul.cmma.contains(&wanted)
}

/// Computes `dW_epq`; all tensors are contiguous and [supported](supports).
pub(super) fn launch(x: &CubeTensor, d_y: &CubeTensor, expert_offsets: &CubeTensor, d_weight: &CubeTensor) {
    let [e, p, q] = d_weight.meta.shape().dims();
    // SAFETY: both borders of a segment are clamped to the number of rows; rows and columns of `dW` are checked against
    // its size.
    unsafe {
        grouped_gemm_weight_sum::launch_unchecked(
            &x.client,
            CubeCount::Static(p.div_ceil(TILE) as u32, q.div_ceil(TILE) as u32, e as u32),
            CubeDim::new_1d(UNITS as u32),
            address_type([x, d_y, d_weight]),
            x.clone().elements(),
            d_y.clone().elements(),
            expert_offsets.clone().elements(),
            d_weight.clone().elements(),
            p,
            q,
            dtype_to_elem_type(x.dtype),
        );
    }
}
