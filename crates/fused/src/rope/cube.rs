//! The kernel of [`rope`](super): each unit takes vectors of pairs in a grid-stride loop.
//!
//! ```text
//! interleaved  two vectors of V elements, V pairs
//! halves       a vector of V first elements, and a vector of V second elements `pairs` after it
//! ```

use super::RopeOps;
use crate::cube::launch::{Elements, address_type, contiguous, empty_like, over_items, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use crate::rope::RopeRule;
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl RopeOps for CubeBackend {
    /// Rotates rows of `x`.
    fn fused_rope(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, rule: RopeRule) -> CubeTensor {
        let (len, [t, pairs], dtype) = (x.meta.num_elements(), cos.shape().dims(), x.dtype);
        let (x, cos, sin) = (into_contiguous(x), contiguous(cos, DType::F32), contiguous(sin, DType::F32));
        let y = empty_like(&x);
        if len > 0 {
            let vector = vector_size(&x.client, pairs, dtype);
            let vectors = len / 2 / vector;
            let (count, dim) = over_items(&x.client, vectors);
            rope_kernel::launch(
                &x.client.clone(),
                count,
                dim,
                address_type([&x]),
                vector,
                x.elements(),
                cos.elements(),
                sin.elements(),
                y.clone().elements(),
                vectors,
                t,
                rule.repeat,
                pairs / vector,
                rule.halves,
                rule.back,
                dtype_to_elem_type(dtype),
            );
        }
        y
    }
}

/// `width` is the width of a row of the table in vectors. `repeat` consecutive rows have the same of `t` positions.
#[cube(launch, address_type = "dynamic")]
fn rope_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    cos: &[Vector<f32, V>],
    sin: &[Vector<f32, V>],
    y: &mut [Vector<F, V>],
    vectors: usize,
    t: usize,
    repeat: usize,
    width: usize,
    #[comptime] halves: bool,
    #[comptime] back: bool,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let (row, column) = (i / width, i % width);
        let angle = row / repeat % t * width + column;
        let (cos, sin) = (cos[angle], sin[angle]);
        let half = row * 2usize * width + column;
        if comptime!(halves) {
            let first = Vector::<f32, V>::cast_from(x[half]);
            let second = Vector::<f32, V>::cast_from(x[half + width]);
            let mut sin = sin;
            if comptime!(back) {
                sin = -sin;
            }
            y[half] = rounded(first * cos - second * sin);
            y[half + width] = rounded(second * cos + first * sin);
        } else if comptime!(back) {
            let first = Vector::<f32, V>::cast_from(x[half]);
            let second = Vector::<f32, V>::cast_from(x[half + width]);
            let (low, high) = interleave(first * cos + second * sin, second * cos - first * sin);
            y[2usize * i] = rounded(low);
            y[2usize * i + 1usize] = rounded(high);
        } else {
            let low = Vector::<f32, V>::cast_from(x[2usize * i]);
            let high = Vector::<f32, V>::cast_from(x[2usize * i + 1usize]);
            let (first, second) = deinterleave(low, high);
            y[half] = rounded(first * cos - second * sin);
            y[half + width] = rounded(second * cos + first * sin);
        }
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Splits two adjacent vectors into their even and odd elements.
#[cube]
fn deinterleave<V: Size>(low: Vector<f32, V>, high: Vector<f32, V>) -> (Vector<f32, V>, Vector<f32, V>) {
    let vector = V::value();
    let mut even = Vector::<f32, V>::new(0.0f32);
    let mut odd = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for pair in 0..vector {
        let at = comptime!(2 * pair);
        if comptime!(at < vector) {
            even.insert(pair, low.extract(at));
        } else {
            even.insert(pair, high.extract(comptime!(at - vector)));
        }
        if comptime!(at + 1 < vector) {
            odd.insert(pair, low.extract(comptime!(at + 1)));
        } else {
            odd.insert(pair, high.extract(comptime!(at + 1 - vector)));
        }
    }
    (even, odd)
}

/// The inverse of `deinterleave`.
#[cube]
fn interleave<V: Size>(even: Vector<f32, V>, odd: Vector<f32, V>) -> (Vector<f32, V>, Vector<f32, V>) {
    let vector = V::value();
    let mut low = Vector::<f32, V>::new(0.0f32);
    let mut high = Vector::<f32, V>::new(0.0f32);
    #[unroll]
    for pair in 0..vector {
        let at = comptime!(2 * pair);
        if comptime!(at < vector) {
            low.insert(at, even.extract(pair));
        } else {
            high.insert(comptime!(at - vector), even.extract(pair));
        }
        if comptime!(at + 1 < vector) {
            low.insert(comptime!(at + 1), odd.extract(pair));
        } else {
            high.insert(comptime!(at + 1 - vector), odd.extract(pair));
        }
    }
    (low, high)
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use rope_kernel::RopeKernel;

    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        for (halves, back) in [(false, false), (false, true), (true, false), (true, true)] {
            cases.push(KernelCase::new(format!("rope {name} halves={halves} back={back}"), move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                RopeKernel::new(s, d, t, b(), b(), b(), b(), (), (), (), (), vector, halves, back, dtype)
            }));
        }
    }
    cases
}
