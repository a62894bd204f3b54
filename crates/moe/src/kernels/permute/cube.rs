//! The kernels of [`permute`](super): one cube per row, in a grid-stride loop.
//!
//! The units of a cube read adjacent vectors of a row, and each looks up its index once. Every output is written once.
//! Only the gradient of a gate depends on other units: it sums one number per unit through shared memory.

use super::{PermuteBackwardOps, PermuteOps};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, address_type, contiguous, empty, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer, float_cases};
use fused::cube::rounded;

impl PermuteOps for CubeBackend {
    fn moe_permute(x: CubeTensor, assignment_of: CubeTensor, _row_of: CubeTensor) -> CubeTensor {
        let ([n, d], [r], dtype) = (x.shape().dims(), assignment_of.shape().dims(), x.dtype);
        if n == 0 {
            return zeros_client(x.client.clone(), x.device.clone(), [r, d].into(), dtype);
        }
        let (x, assignment_of) = (into_contiguous(x), contiguous(assignment_of, DType::I32));
        let rows = empty(&x, [r, d], dtype);
        if r * d > 0 {
            let vector = vector_size(&x.client, d, dtype);
            let (count, dim) = over_rows(&x.client, r, d / vector);
            permute_kernel::launch(
                &x.client.clone(),
                count,
                dim,
                address_type([&x, &rows]),
                vector,
                x.elements(),
                assignment_of.elements(),
                rows.clone().elements(),
                n,
                r,
                d / vector,
                dtype_to_elem_type(dtype),
            );
        }
        rows
    }

    fn moe_unpermute(y: CubeTensor, gates: CubeTensor, _assignment_of: CubeTensor, row_of: CubeTensor) -> CubeTensor {
        unpermute(y, Some(gates), row_of)
    }
}

/// `width` is the width of a row in vectors.
#[cube(launch, address_type = "dynamic")]
fn permute_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    assignment_of: &[i32],
    rows: &mut [Vector<F, V>],
    n: usize,
    r: usize,
    width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut row = CUBE_POS;
    while row < r {
        let p = assignment_of[row];
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut value = Vector::<F, V>::new(F::new(0.0f32));
            if p >= 0i32 {
                value = x[p as usize % n * width + i];
            }
            rows[row * width + i] = value;
            i += CUBE_DIM as usize;
        }
        row += CUBE_COUNT;
    }
}

/// Without gates, all of them are 1: this is the backward of [`permute`].
fn unpermute(y: CubeTensor, gates: Option<CubeTensor>, row_of: CubeTensor) -> CubeTensor {
    let ([r, d], [k, n], dtype) = (y.shape().dims(), row_of.shape().dims(), y.dtype);
    if r == 0 {
        return zeros_client(y.client.clone(), y.device.clone(), [n, d].into(), dtype);
    }
    let (y, row_of) = (into_contiguous(y), contiguous(row_of, DType::I32));
    let tokens = empty(&y, [n, d], dtype);
    if n * d > 0 {
        let vector = vector_size(&y.client, d, dtype);
        let (count, dim) = over_rows(&y.client, n, d / vector);
        let gates = gates.map(|gates| contiguous(gates, DType::F32).elements());
        unpermute_kernel::launch(
            &y.client.clone(),
            count,
            dim,
            address_type([&y, &tokens]),
            vector,
            y.elements(),
            gates.into(),
            row_of.elements(),
            tokens.clone().elements(),
            n,
            k,
            d / vector,
            dtype_to_elem_type(dtype),
        );
    }
    tokens
}

#[cube(launch, address_type = "dynamic")]
fn unpermute_kernel<F: Float, V: Size>(
    y: &[Vector<F, V>],
    gates: ComptimeOption<&[f32]>,
    row_of: &[i32],
    tokens: &mut [Vector<F, V>],
    n: usize,
    k: usize,
    width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut token = CUBE_POS;
    while token < n {
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut sum = Vector::<f32, V>::new(0.0f32);
            for j in 0..k {
                let row = row_of[j * n + token];
                if row >= 0i32 {
                    let value = Vector::<f32, V>::cast_from(y[row as usize * width + i]);
                    #[comptime]
                    match &gates {
                        ComptimeOption::Some(gates) => sum += Vector::new(gates[j * n + token]) * value,
                        ComptimeOption::None => sum += value,
                    }
                }
            }
            tokens[token * width + i] = rounded(sum);
            i += CUBE_DIM as usize;
        }
        token += CUBE_COUNT;
    }
}

impl PermuteBackwardOps for CubeBackend {
    fn moe_permute_backward(d_x: CubeTensor, row_of: CubeTensor) -> CubeTensor {
        unpermute(d_x, None, row_of)
    }

    /// The gradients of rows and gates, in one pass over the rows: `row_of` and `assignment_of` are inverses of each
    /// other.
    fn moe_unpermute_backward(
        y: CubeTensor,
        gates: CubeTensor,
        assignment_of: CubeTensor,
        row_of: CubeTensor,
        d_y: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let ([r, d], [k, n], dtype) = (y.shape().dims(), row_of.shape().dims(), y.dtype);
        if r * d * k * n == 0 {
            let zeros =
                |shape: [usize; 2], dtype| zeros_client(y.client.clone(), y.device.clone(), shape.into(), dtype);
            return (zeros([r, d], dtype), zeros([k, n], DType::F32));
        }
        let (y, d_y, gates) = (into_contiguous(y), into_contiguous(d_y), contiguous(gates, DType::F32));
        let (assignment_of, row_of) = (contiguous(assignment_of, DType::I32), contiguous(row_of, DType::I32));
        let (d_rows, d_gates) = (empty(&y, [r, d], dtype), empty(&y, [k, n], DType::F32));
        let vector = vector_size(&y.client, d, dtype);
        let units = units(&y.client, d / vector);
        let (count, _) = over_rows(&y.client, r, d / vector);
        unpermute_backward_kernel::launch(
            &y.client.clone(),
            count,
            CubeDim::new_1d(units as u32),
            address_type([&y, &d_y]),
            vector,
            y.elements(),
            gates.elements(),
            assignment_of.elements(),
            row_of.elements(),
            d_y.elements(),
            d_rows.clone().elements(),
            d_gates.clone().elements(),
            n,
            r,
            n * k,
            d / vector,
            units,
            dtype_to_elem_type(dtype),
        );
        (d_rows, d_gates)
    }
}

/// The cube of row `r` writes the gradients of the row and of the gate of its assignment. Gates of assignments without
/// a row belong to no cube; all units set them to 0.
#[cube(launch, address_type = "dynamic")]
fn unpermute_backward_kernel<F: Float, V: Size>(
    y: &[Vector<F, V>],
    gates: &[f32],
    assignment_of: &[i32],
    row_of: &[i32],
    d_y: &[Vector<F, V>],
    d_rows: &mut [Vector<F, V>],
    d_gates: &mut [f32],
    n: usize,
    r: usize,
    assignments: usize,
    width: usize,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let mut p = ABSOLUTE_POS;
    while p < assignments {
        let row = row_of[p];
        let has_row = row >= 0i32 && row < r as i32;
        if !has_row || assignment_of[select(has_row, row, 0i32) as usize] != p as i32 {
            d_gates[p] = 0.0f32;
        }
        p += CUBE_COUNT * units;
    }

    let mut partial = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS;
    while row < r {
        let p = assignment_of[row];
        let mut lanes = Vector::<f32, V>::new(0.0f32);
        let mut i = unit;
        while i < width {
            let mut value = Vector::<F, V>::new(F::new(0.0f32));
            if p >= 0i32 {
                let dy = Vector::<f32, V>::cast_from(d_y[p as usize % n * width + i]);
                lanes += dy * Vector::<f32, V>::cast_from(y[row * width + i]);
                value = rounded(Vector::new(gates[p as usize]) * dy);
            }
            d_rows[row * width + i] = value;
            i += units;
        }

        partial[unit] = lanes.vector_sum();
        // The lower half of the units adds the numbers of the upper half: the same tree in every run.
        #[unroll]
        for level in 0..comptime!(units.ilog2() as usize) {
            let half = comptime!(units >> (level + 1));
            sync_cube();
            if unit < half {
                partial[unit] += partial[unit + half];
            }
        }
        if unit == 0usize && p >= 0i32 {
            d_gates[p as usize] = partial[0];
        }
        // The next row's numbers must not overwrite this row's sum early.
        if comptime!(units > 1) {
            sync_cube();
        }
        row += CUBE_COUNT;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use permute_kernel::PermuteKernel;
    use unpermute_backward_kernel::UnpermuteBackwardKernel;
    use unpermute_kernel::UnpermuteKernel;

    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        cases.push(KernelCase::new(format!("permute {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            PermuteKernel::new(s, d, t, b(), b(), b(), (), (), (), vector, dtype)
        }));
        for gated in [false, true] {
            cases.push(KernelCase::new(format!("unpermute {name} gated={gated}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                let gates = match gated {
                    true => ComptimeOptionCompilationArg::Some(buffer()),
                    false => ComptimeOptionCompilationArg::None,
                };
                UnpermuteKernel::new(s, d, t, b(), gates, b(), b(), (), (), (), vector, dtype)
            }));
        }
        cases.push(KernelCase::new(format!("unpermute_backward {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            UnpermuteBackwardKernel::new(s, d, t, b(), b(), b(), b(), b(), b(), b(), (), (), (), (), vector, 256, dtype)
        }));
    }
    cases
}
