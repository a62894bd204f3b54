//! The kernels of [`sum_of_squares`](super): one cube per part, then one cube for all parts.
//!
//! Each unit adds its share of the part with compensation (Kahan), in one sum per vector element. Then the units' sums
//! are reduced. So the rounding error is that of about ten additions, not of 65,536.

use super::SumOfSquaresOps;
use super::{PART, parts};
use crate::cube::cube_sum;
use crate::cube::launch::{Elements, address_type, contiguous, empty, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl SumOfSquaresOps for CubeBackend {
    fn fused_sum_of_squares(x: CubeTensor) -> CubeTensor {
        let (len, dtype, x) = (x.shape().num_elements(), x.dtype, into_contiguous(x));
        let sums = empty(&x, [parts(len)], DType::F32);
        if len > 0 {
            let vector = vector_size(&x.client, len, dtype);
            let units = units(&x.client, PART.min(len) / vector);
            let (count, dim) = over_rows(&x.client, parts(len), units);
            sum_of_squares_kernel::launch(
                &x.client.clone(),
                count,
                dim,
                address_type([&x]),
                vector,
                x.elements(),
                sums.clone().elements(),
                len / vector,
                units,
                dtype_to_elem_type(dtype),
            );
        }
        sums
    }

    /// Returns `sum`, with its rounding error, plus `factor` times the sum of `parts`.
    fn fused_add_parts(sum: CubeTensor, parts: CubeTensor, factor: f64) -> CubeTensor {
        let (sum, parts) = (contiguous(sum, DType::F32), contiguous(parts, DType::F32));
        let total = empty(&sum, [2], DType::F32);
        let units = units(&sum.client, parts.shape().num_elements());
        sum_of_squares_add_parts_kernel::launch(
            &sum.client.clone(),
            CubeCount::new_single(),
            CubeDim::new_1d(units as u32),
            sum.elements(),
            parts.elements(),
            total.clone().elements(),
            factor as f32,
            units,
        );
        total
    }
}

#[cube(launch, address_type = "dynamic")]
fn sum_of_squares_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    sums: &mut [f32],
    vectors: usize,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let part_vectors = comptime!(PART).runtime() / V::value();
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut part = CUBE_POS;
    while part < sums.len() {
        let end = min((part + 1usize) * part_vectors, vectors);
        let mut sum = Vector::<f32, V>::new(0.0f32);
        let mut lost = Vector::<f32, V>::new(0.0f32);
        let mut i = part * part_vectors + UNIT_POS as usize;
        while i < end {
            let x = Vector::<f32, V>::cast_from(x[i]);
            let term = x * x - lost;
            let next = sum + term;
            lost = (next - sum) - term;
            sum = next;
            i += units;
        }
        let total = cube_sum((sum - lost).vector_sum(), &mut shared, units);
        if UNIT_POS == 0 {
            sums[part] = total;
        }
        part += CUBE_COUNT;
    }
}

#[cube(launch)]
fn sum_of_squares_add_parts_kernel(
    sum: &[f32],
    parts: &[f32],
    total: &mut [f32],
    factor: f32,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut of_unit = 0.0f32;
    let mut lost = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < parts.len() {
        let term = parts[i] - lost;
        let next = of_unit + term;
        lost = (next - of_unit) - term;
        of_unit = next;
        i += units;
    }
    let of_parts = cube_sum(of_unit - lost, &mut shared, units) * factor;
    if UNIT_POS == 0 {
        // The exact rounding error of `next` (Knuth).
        let next = sum[0] + of_parts;
        let added = next - sum[0];
        let rest = (sum[0] - (next - added)) + (of_parts - added);
        total[0] = next;
        total[1] = sum[1] + rest;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use sum_of_squares_kernel::SumOfSquaresKernel;

    let case = |(name, dtype, vector)| {
        KernelCase::new(format!("sum_of_squares {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            SumOfSquaresKernel::new(s, d, t, b(), b(), (), vector, 256, dtype)
        })
    };
    let add_parts = KernelCase::new("sum_of_squares add_parts", |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        sum_of_squares_add_parts_kernel::SumOfSquaresAddPartsKernel::new(s, d, t, b(), b(), b(), (), 256)
    });
    float_cases().map(case).into_iter().chain([add_parts]).collect()
}
