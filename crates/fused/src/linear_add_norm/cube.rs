//! The kernel of [`linear_add_norm`](super) that follows the product: one cube per row, in a grid-stride loop.

use super::LinearAddNormOps;
use crate::cube::launch::{Elements, address_type, contiguous, empty_like, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use crate::linear::ProductOps;
use crate::norm::NormRule;
use crate::norm::cube::{UNROLLED, statistics};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl LinearAddNormOps for CubeBackend {
    fn fused_linear_add_norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        residual: CubeTensor,
        gain: CubeTensor,
        norm_bias: CubeTensor,
        rule: NormRule,
    ) -> (CubeTensor, CubeTensor) {
        add_norm([Self::fused_product(x, weight), residual], bias, gain, norm_bias, rule)
    }
}

/// Computes `h = residual + x + bias` and `norm(h)`; an empty bias is none.
fn add_norm(
    [x, residual]: [CubeTensor; 2],
    bias: CubeTensor,
    gain: CubeTensor,
    norm_bias: CubeTensor,
    rule: NormRule,
) -> (CubeTensor, CubeTensor) {
    let ([n, d], dtype) = (x.shape().dims(), x.dtype);
    let (x, residual) = (into_contiguous(x), into_contiguous(residual));
    let (h, y) = (empty_like(&x), empty_like(&x));
    if n * d > 0 {
        let vector = vector_size(&x.client, d, dtype);
        let units = units(&x.client, d / vector);
        let (count, _) = over_rows(&x.client, n, d / vector);
        let given =
            |bias: CubeTensor, dtype| (bias.shape().num_elements() > 0).then(|| contiguous(bias, dtype).elements());
        add_norm_kernel::launch(
            &x.client.clone(),
            count,
            CubeDim::new_1d(units as u32),
            address_type([&x]),
            vector,
            x.elements(),
            given(bias, dtype).into(),
            residual.elements(),
            contiguous(gain, DType::F32).elements(),
            given(norm_bias, DType::F32).into(),
            h.clone().elements(),
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
    (h, y)
}

/// `width` is the width of a row in vectors, `items` the maximum number of vectors per unit. A unit reads only the
/// elements of `h` that it has written.
#[cube(launch, address_type = "dynamic")]
fn add_norm_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    bias: ComptimeOption<&[Vector<F, V>]>,
    residual: &[Vector<F, V>],
    gain: &[Vector<f32, V>],
    norm_bias: ComptimeOption<&[Vector<f32, V>]>,
    h: &mut [Vector<F, V>],
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
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = UNIT_POS as usize + item * units;
            if i < width {
                let mut sum = Vector::<f32, V>::cast_from(x[first + i]);
                #[comptime]
                match &bias {
                    ComptimeOption::Some(bias) => sum += Vector::cast_from(bias[i]),
                    ComptimeOption::None => {}
                }
                h[first + i] = rounded(sum + Vector::cast_from(residual[first + i]));
            }
        }
        let (mean, r) =
            statistics(&h[first..first + width], 0usize, width, epsilon, &mut shared, centred, units, items);
        #[unroll(items <= UNROLLED)]
        for item in 0..items {
            let i = UNIT_POS as usize + item * units;
            if i < width {
                let n = (Vector::<f32, V>::cast_from(h[first + i]) - Vector::new(mean)) * Vector::new(r);
                let mut value = n * gain[i];
                #[comptime]
                match &norm_bias {
                    ComptimeOption::Some(bias) => value += bias[i],
                    ComptimeOption::None => {}
                }
                y[first + i] = rounded(value);
            }
        }
        row += CUBE_COUNT;
    }
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use add_norm_kernel::AddNormKernel;

    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        // GPT-2's LayerNorm with both biases, and RMSNorm of the widest DeepSeek, in which a unit has several vectors.
        for (norm, centred, items) in [("layer_norm", true, 1), ("rms_norm", false, UNROLLED)] {
            cases.push(KernelCase::new(format!("linear_add_norm {norm} {name}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                let (bias, norm_bias) = match centred {
                    true => (ComptimeOptionCompilationArg::Some(b()), ComptimeOptionCompilationArg::Some(buffer())),
                    false => (ComptimeOptionCompilationArg::None, ComptimeOptionCompilationArg::None),
                };
                AddNormKernel::new(
                    s,
                    d,
                    t,
                    b(),
                    bias,
                    b(),
                    b(),
                    norm_bias,
                    b(),
                    b(),
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
