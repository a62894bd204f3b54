//! The kernels of [`cross_entropy`](super): products are Burn's (cubek's, on tensor cores), and one cube a row of logits makes the loss and the gradient.
//!
//! ```text
//! a unit has some columns   largest, sum = sum of e^(x - largest), in one pass      l = largest + ln(sum) - x[target]
//! gradients, over logits    e^(x - largest) / sum, less 1 for the target
//! ```
//!
//! A chunk of rows is as many as have [`CHUNK_BYTES`] of logits, whole times [`ROWS`]: 2,560 rows of 50,304 in bf16, so that products fill a GPU. The head's gradient is
//! a product a chunk, in f32, added up in f32.

use super::{CrossEntropyRule, ROWS};
use crate::cube::launch::{address_type, empty, empty_like, on_cpu, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{Reduction, cube_reduce, cube_sum, product_into, rounded};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Most bytes of logits on a GPU.
const CHUNK_BYTES: usize = 256 << 20;

pub(crate) fn cross_entropy(
    x: CubeTensor,
    head: CubeTensor,
    targets: CubeTensor,
    rule: CrossEntropyRule,
) -> CubeTensor {
    let head_dv = if rule.transposed { transposed(&head) } else { head };
    let (x, targets) = (into_contiguous(x), into_contiguous(targets));
    let losses = empty(&x, [x.shape()[0]], DType::F32);
    for [first, len] in chunks(&x, &head_dv) {
        let logits = product(rows_of(&x, first, len), head_dv.clone(), x.dtype);
        over_logits(&logits, &targets, &losses, first, false);
    }
    mean(losses)
}

/// The loss, and the gradients of `x` and, in f32, of the head for a cotangent of n.
pub(crate) fn cross_entropy_with_gradients(
    x: CubeTensor,
    head: CubeTensor,
    targets: CubeTensor,
    rule: CrossEntropyRule,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let head_dv = if rule.transposed { transposed(&head) } else { head };
    let head_vd = transposed(&head_dv);
    let (dtype, x, targets) = (x.dtype, into_contiguous(x), into_contiguous(targets));
    let (losses, d_x) = (empty(&x, [x.shape()[0]], DType::F32), empty_like(&x));
    let mut d_head: Option<CubeTensor> = None;
    for [first, len] in chunks(&x, &head_dv) {
        let rows = rows_of(&x, first, len);
        let logits = product(rows.clone(), head_dv.clone(), dtype);
        over_logits(&logits, &targets, &losses, first, true);
        product_into(logits.clone(), head_vd.clone(), rows_of(&d_x, first, len));
        let (a, b) = match rule.transposed {
            false => (transposed(&rows), logits),
            true => (transposed(&logits), rows),
        };
        d_head = Some(match d_head {
            None => product(a, b, DType::F32),
            Some(sum) => CubeBackend::float_add(sum, product(a, b, DType::F32)),
        });
    }
    (mean(losses), d_x, d_head.expect("at least one row"))
}

/// First rows and numbers of rows.
fn chunks(x_nd: &CubeTensor, head_dv: &CubeTensor) -> impl Iterator<Item = [usize; 2]> {
    let ([n, _], [_, vocab]) = (x_nd.shape().dims(), head_dv.shape().dims());
    // CubeCL's CPU runtime is there for tests, and they want several chunks.
    let bytes = if on_cpu(&x_nd.client) { 0 } else { CHUNK_BYTES };
    let rows = (bytes / (vocab * x_nd.dtype.size()) / ROWS).max(1) * ROWS;
    (0..n).step_by(rows).map(move |first| [first, rows.min(n - first)])
}

/// Rows of a contiguous tensor, in its memory. 256 rows are a multiple of the 512 bytes at which tensors begin.
fn rows_of(tensor: &CubeTensor, first: usize, len: usize) -> CubeTensor {
    let [_, width] = tensor.shape().dims();
    let mut rows = tensor.clone();
    rows.handle = rows.handle.offset_start((first * width * tensor.dtype.size()) as u64);
    *rows.meta.shape_mut() = [len, width].into();
    rows
}

fn transposed(matrix: &CubeTensor) -> CubeTensor {
    CubeBackend::float_transpose(matrix.clone())
}

fn product(a: CubeTensor, b: CubeTensor, dtype: DType) -> CubeTensor {
    let ([rows, _], [_, columns]) = (a.shape().dims(), b.shape().dims());
    let out = empty(&a, [rows, columns], dtype);
    product_into(a, b, out.clone());
    out
}

/// Writes the losses of these rows, whose first is row `first` of `losses`, and, if wanted, the gradients over the logits.
fn over_logits(logits: &CubeTensor, targets: &CubeTensor, losses: &CubeTensor, first: usize, gradients: bool) {
    let [rows, vocab] = logits.shape().dims();
    let vector = vector_size(&logits.client, vocab, logits.dtype);
    let units = units(&logits.client, vocab / vector);
    let (count, _) = over_rows(&logits.client, rows, vocab / vector);
    loss_kernel::launch(
        &logits.client,
        count,
        CubeDim::new_1d(units as u32),
        address_type([logits]),
        vector,
        logits.clone().into_buffer_arg(),
        targets.clone().into_buffer_arg(),
        losses.clone().into_buffer_arg(),
        first,
        rows,
        vocab / vector,
        gradients,
        units,
        dtype_to_elem_type(logits.dtype),
        dtype_to_elem_type(targets.dtype),
    );
}

/// `width` is that of a row in vectors. A target beyond the vocabulary makes a loss that is not a number.
#[cube(launch, address_type = "dynamic")]
fn loss_kernel<F: Float, I: Int, V: Size>(
    logits: &mut [Vector<F, V>],
    targets: &[I],
    losses: &mut [f32],
    first: usize,
    rows: usize,
    width: usize,
    #[comptime] gradients: bool,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
    #[define(I)] _int: ElemType,
) {
    let unit = UNIT_POS as usize;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS;
    while row < rows {
        let start = row * width;
        // Each element of the vectors has a largest and a sum of its own, and so has each unit.
        let mut largest = Vector::<f32, V>::new(f32::MIN);
        let mut sum = Vector::<f32, V>::new(0.0f32);
        let mut i = unit;
        while i < width {
            let x = Vector::<f32, V>::cast_from(logits[start + i]);
            let next = max(largest, x);
            sum = sum * (largest - next).exp() + (x - next).exp();
            largest = next;
            i += units;
        }
        let mut of_unit = largest.extract(0usize);
        #[unroll]
        for lane in 1..V::value() {
            of_unit = max(of_unit, largest.extract(lane));
        }
        let of_row = cube_reduce(of_unit, &mut shared, units, Reduction::Max);
        let part = (sum * (largest - Vector::new(of_row)).exp()).vector_sum();
        let total = cube_sum(part, &mut shared, units);

        let target = u32::cast_from(targets[first + row]) as usize;
        let (target, lane) = (target / V::value(), target % V::value());
        if target >= width {
            if unit == 0usize {
                losses[first + row] = f32::NAN;
            }
        } else if unit == target % units {
            // Nobody else writes gradients there.
            let x = Vector::<f32, V>::cast_from(logits[start + target]);
            let mut of_target = x.extract(0usize);
            #[unroll]
            for j in 1..V::value() {
                of_target = select(lane == j, x.extract(j), of_target);
            }
            losses[first + row] = of_row + total.ln() - of_target;
        }
        if comptime!(gradients) {
            let factor = Vector::<f32, V>::new(1.0f32 / total);
            let mut i = unit;
            while i < width {
                let x = Vector::<f32, V>::cast_from(logits[start + i]);
                let mut gradient = (x - Vector::new(of_row)).exp() * factor;
                if i == target {
                    #[unroll]
                    for j in 0..V::value() {
                        let of_target = select(lane == j, 1.0f32, 0.0f32);
                        gradient.insert(j, gradient.extract(j) - of_target);
                    }
                }
                logits[start + i] = rounded(gradient);
                i += units;
            }
        }
        row += CUBE_COUNT;
    }
}

fn mean(losses: CubeTensor) -> CubeTensor {
    let ([n], mean) = (losses.shape().dims(), empty(&losses, [1], DType::F32));
    let units = units(&losses.client, n);
    mean_kernel::launch(
        &losses.client.clone(),
        CubeCount::new_single(),
        CubeDim::new_1d(units as u32),
        losses.into_buffer_arg(),
        mean.clone().into_buffer_arg(),
        n,
        units,
    );
    mean
}

#[cube(launch)]
fn mean_kernel(losses: &[f32], mean: &mut [f32], n: usize, #[comptime] units: usize) {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        sum += losses[i];
        i += units;
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let total = cube_sum(sum, &mut shared, units);
    if UNIT_POS == 0 {
        mean[0] = total / n as f32;
    }
}

/// The kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use loss_kernel::LossKernel;
    use mean_kernel::MeanKernel;

    let mut cases = vec![KernelCase::new("cross_entropy mean", |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        MeanKernel::new(s, d, t, b(), b(), (), 256)
    })];
    for (name, dtype, vector) in float_cases() {
        for gradients in [false, true] {
            cases.push(KernelCase::new(format!("cross_entropy {name} gradients={gradients}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                let int = i32::elem_type_native();
                LossKernel::new(s, d, t, b(), b(), b(), (), (), (), vector, gradients, 256, dtype, int)
            }));
        }
    }
    cases
}
