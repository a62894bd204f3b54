//! The kernels of [`norm`](super): the forward takes one cube per row, in a grid-stride loop, the backward one cube per
//! piece of rows.
//!
//! ```text
//! norm_backward   a cube per piece of rows     dx, and sums[piece, 0, d] = sum of dy n, sums[piece, 1, d] = sum of dy
//! add_pieces      a cube for some columns      d_gain, d_bias = sums over the pieces, in order
//! ```
//!
//! Mean and variance take two passes over a row, which is then in the cache. A unit has the same columns in all rows of
//! its piece, so their sums stay in registers. There are at most [`PIECES`] pieces on every device: few enough to add,
//! and enough for 132 multiprocessors.

use super::NormRule;
use super::{NormBackwardOps, NormOps};
use crate::cube::launch::{Elements, address_type, contiguous, empty, empty_like, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{cube_sum, rounded};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Maximum number of pieces of rows.
const PIECES: usize = 512;
/// Columns that a cube sums, in adjacent units.
const COLUMNS: usize = 32;
/// Loops over a unit's vectors are unrolled up to this length, so that sums are registers. It covers a row of 8,192
/// bf16 elements with 256 units.
pub(crate) const UNROLLED: usize = 4;

impl NormOps for CubeBackend {
    fn fused_norm(x: CubeTensor, gain: CubeTensor, bias: CubeTensor, rule: NormRule) -> CubeTensor {
        let ([n, d], dtype, x) = (x.shape().dims(), x.dtype, into_contiguous(x));
        let y = empty_like(&x);
        if n * d > 0 {
            let vector = vector_size(&x.client, d, dtype);
            let units = units(&x.client, d / vector);
            let (count, _) = over_rows(&x.client, n, d / vector);
            let bias = (bias.shape().num_elements() > 0).then(|| contiguous(bias, DType::F32).elements());
            norm_kernel::launch(
                &x.client.clone(),
                count,
                CubeDim::new_1d(units as u32),
                address_type([&x]),
                vector,
                x.elements(),
                contiguous(gain, DType::F32).elements(),
                bias.into(),
                y.clone().elements(),
                n,
                d / vector,
                rule.epsilon,
                rule.centred,
                units,
                (d / vector).div_ceil(units),
                dtype_to_elem_type(dtype),
            );
        }
        y
    }
}

/// `width` is the width of a row in vectors, `items` the maximum number of vectors per unit.
#[cube(launch, address_type = "dynamic")]
fn norm_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    gain: &[Vector<f32, V>],
    bias: ComptimeOption<&[Vector<f32, V>]>,
    y: &mut [Vector<F, V>],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
    #[comptime] items: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS;
    while row < rows {
        let first = row * width;
        let (mean, r) = statistics(x, first, width, epsilon, &mut shared, centred, units, items);
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = UNIT_POS as usize + item * units;
            if i < width {
                let n = (Vector::<f32, V>::cast_from(x[first + i]) - Vector::new(mean)) * Vector::new(r);
                let mut value = n * gain[i];
                #[comptime]
                match &bias {
                    ComptimeOption::Some(bias) => value += bias[i],
                    ComptimeOption::None => {}
                }
                y[first + i] = rounded(value);
            }
        }
        row += CUBE_COUNT;
    }
}

/// Returns `m` and `r` of the row that begins at vector `first`, in all units.
#[cube]
pub(crate) fn statistics<F: Float, V: Size>(
    x: &[Vector<F, V>],
    first: usize,
    width: usize,
    epsilon: f32,
    shared: &mut [f32],
    #[comptime] centred: bool,
    #[comptime] units: usize,
    #[comptime] items: usize,
) -> (f32, f32) {
    let d = (width * V::value()) as f32;
    let mut mean = 0.0f32;
    if comptime!(centred) {
        let mut lanes = Vector::<f32, V>::new(0.0f32);
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = UNIT_POS as usize + item * units;
            if i < width {
                lanes += Vector::cast_from(x[first + i]);
            }
        }
        mean = cube_sum(lanes.vector_sum(), shared, units) / d;
    }
    let mut lanes = Vector::<f32, V>::new(0.0f32);
    #[unroll(items <= UNROLLED)]
    for item in 0..items {
        let i = UNIT_POS as usize + item * units;
        if i < width {
            let centred = Vector::<f32, V>::cast_from(x[first + i]) - Vector::new(mean);
            lanes += centred * centred;
        }
    }
    let variance = cube_sum(lanes.vector_sum(), shared, units) / d;
    (mean, 1.0f32 / (variance + epsilon).sqrt())
}

impl NormBackwardOps for CubeBackend {
    /// Returns the gradients of `x`, gain and bias.
    fn fused_norm_backward(
        x: CubeTensor,
        gain: CubeTensor,
        d_y: CubeTensor,
        rule: NormRule,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let ([n, d], dtype) = (x.shape().dims(), x.dtype);
        let (x, d_y, gain) = (into_contiguous(x), into_contiguous(d_y), contiguous(gain, DType::F32));
        let (client, d_x) = (x.client.clone(), empty_like(&x));
        if n * d == 0 {
            let zeros = || zeros_client(client.clone(), x.device.clone(), [d].into(), DType::F32);
            return (d_x, zeros(), zeros());
        }
        let rows_of_piece = n.div_ceil(PIECES);
        let pieces = n.div_ceil(rows_of_piece);
        let sums = empty(&x, [pieces, 2, d], DType::F32);
        let (d_gain, d_bias) = (empty(&x, [d], DType::F32), empty(&x, [d], DType::F32));

        let vector = vector_size(&client, d, dtype);
        let dx_units = units(&client, d / vector);
        // SAFETY: the kernel neither reads nor writes past the last row and column.
        unsafe {
            norm_backward_kernel::launch_unchecked(
                &client,
                CubeCount::Static(pieces as u32, 1, 1),
                CubeDim::new_1d(dx_units as u32),
                address_type([&x, &sums]),
                vector,
                x.elements(),
                gain.elements(),
                d_y.elements(),
                d_x.clone().elements(),
                sums.clone().elements(),
                n,
                rows_of_piece,
                d / vector,
                rule.epsilon,
                rule.centred,
                dx_units,
                (d / vector).div_ceil(dx_units),
                dtype_to_elem_type(dtype),
            );
        }
        let units = units(&client, COLUMNS * pieces);
        let columns = COLUMNS.min(units);
        norm_add_pieces_kernel::launch(
            &client,
            CubeCount::Static((2 * d).div_ceil(columns) as u32, 1, 1),
            CubeDim::new_1d(units as u32),
            sums.elements(),
            d_gain.clone().elements(),
            d_bias.clone().elements(),
            pieces,
            d,
            columns,
            units / columns,
        );
        (d_x, d_gain, d_bias)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_backward_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    gain: &[Vector<f32, V>],
    d_y: &[Vector<F, V>],
    d_x: &mut [Vector<F, V>],
    sums: &mut [Vector<f32, V>],
    rows: usize,
    rows_of_piece: usize,
    width: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
    #[comptime] items: usize,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let d = (width * V::value()) as f32;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut d_gain = Array::<Vector<f32, V>>::new(items);
    let mut d_bias = Array::<Vector<f32, V>>::new(items);
    #[unroll(items <= UNROLLED)]
    for item in 0..items {
        d_gain[item] = Vector::new(0.0f32);
        d_bias[item] = Vector::new(0.0f32);
    }
    for row in CUBE_POS * rows_of_piece..min((CUBE_POS + 1usize) * rows_of_piece, rows) {
        let first = row * width;
        let (mean, r) = statistics(x, first, width, epsilon, &mut shared, centred, units, items);
        let mut of_c = Vector::<f32, V>::new(0.0f32);
        let mut of_cn = Vector::<f32, V>::new(0.0f32);
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = unit + item * units;
            if i < width {
                let c = Vector::<f32, V>::cast_from(d_y[first + i]) * gain[i];
                of_c += c;
                of_cn += c * (Vector::<f32, V>::cast_from(x[first + i]) - Vector::new(mean));
            }
        }
        let mut mean_c = 0.0f32;
        if comptime!(centred) {
            mean_c = cube_sum(of_c.vector_sum(), &mut shared, units) / d;
        }
        let mean_cn = cube_sum(of_cn.vector_sum(), &mut shared, units) * r / d;
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = unit + item * units;
            if i < width {
                let dy = Vector::<f32, V>::cast_from(d_y[first + i]);
                let n = (Vector::<f32, V>::cast_from(x[first + i]) - Vector::new(mean)) * Vector::new(r);
                d_gain[item] += dy * n;
                d_bias[item] += dy;
                d_x[first + i] =
                    rounded(Vector::new(r) * (dy * gain[i] - Vector::new(mean_c) - n * Vector::new(mean_cn)));
            }
        }
    }
    #[unroll(items <= UNROLLED)]
    for item in 0..items {
        let i = unit + item * units;
        if i < width {
            sums[2usize * CUBE_POS * width + i] = d_gain[item];
            sums[(2usize * CUBE_POS + 1usize) * width + i] = d_bias[item];
        }
    }
}

/// Adds `columns` columns of `sums`, `[pieces, 2 d]`, per cube; each of `groups` groups of units takes a share of the
/// pieces.
#[cube(launch)]
fn norm_add_pieces_kernel(
    sums: &[f32],
    d_gain: &mut [f32],
    d_bias: &mut [f32],
    pieces: usize,
    d: usize,
    #[comptime] columns: usize,
    #[comptime] groups: usize,
) {
    let unit = UNIT_POS as usize;
    let (group, lane) = (unit / columns, unit % columns);
    let column = CUBE_POS * columns + lane;
    let share = pieces.div_ceil(groups);
    let mut sum = 0.0f32;
    if column < 2usize * d {
        for piece in group * share..min((group + 1usize) * share, pieces) {
            sum += sums[piece * 2usize * d + column];
        }
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(columns * groups));
    shared[unit] = sum;
    sync_cube();
    if group == 0usize && column < 2usize * d {
        for other in 1..groups {
            sum += shared[other * columns + lane];
        }
        if column < d {
            d_gain[column] = sum;
        } else {
            d_bias[column - d] = sum;
        }
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use norm_add_pieces_kernel::NormAddPiecesKernel;
    use norm_backward_kernel::NormBackwardKernel;
    use norm_kernel::NormKernel;

    let mut cases = vec![KernelCase::new("norm add_pieces", |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        NormAddPiecesKernel::new(s, d, t, b(), b(), b(), (), (), 32, 8)
    })];
    for (name, dtype, vector) in float_cases() {
        // LayerNorm of GPT-2, and RMSNorm of the widest DeepSeek, in which a unit has several vectors.
        for (norm, centred, items) in [("layer_norm", true, 1), ("rms_norm", false, UNROLLED)] {
            cases.push(KernelCase::new(format!("{norm} {name}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                let bias = match centred {
                    true => ComptimeOptionCompilationArg::Some(buffer()),
                    false => ComptimeOptionCompilationArg::None,
                };
                NormKernel::new(s, d, t, b(), b(), bias, b(), (), (), (), vector, centred, 256, items, dtype)
            }));
            cases.push(KernelCase::new(format!("{norm}_backward {name}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.unchecked(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                NormBackwardKernel::new(
                    s,
                    d,
                    t,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    (),
                    (),
                    vector,
                    centred,
                    256,
                    items,
                    dtype,
                )
            }));
        }
    }
    cases
}
