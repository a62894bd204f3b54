//! The kernels of [`gelu`](super): each unit takes vectors of elements in a grid-stride loop.

use super::{GeluBackwardOps, GeluOps};
use crate::cube::launch::elementwise;
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{rounded, sigmoid};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cpu::math::{GELU_CUBIC, GELU_FACTOR};
use cubecl::prelude::*;

impl GeluOps for CubeBackend {
    fn fused_gelu(x: CubeTensor) -> CubeTensor {
        let len = x.meta.num_elements();
        let [y] = elementwise([x], len, |at, [x], [y]| {
            gelu_kernel::launch(&at.client, at.count, at.dim, at.address, at.vector, x, y, at.vectors, at.dtype);
        });
        y
    }
}

#[cube(launch, address_type = "dynamic")]
fn gelu_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    y: &mut [Vector<F, V>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let x = Vector::<f32, V>::cast_from(x[i]);
        y[i] = rounded(x * gate(x));
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// `sigmoid(2u)`
#[cube]
fn gate<V: Size>(x: Vector<f32, V>) -> Vector<f32, V> {
    sigmoid(Vector::new(GELU_FACTOR) * (x + Vector::new(GELU_CUBIC) * x * x * x))
}

impl GeluBackwardOps for CubeBackend {
    fn fused_gelu_backward(x: CubeTensor, d_y: CubeTensor) -> CubeTensor {
        let len = x.meta.num_elements();
        let [d_x] = elementwise([x, d_y], len, |at, [x, d_y], [d_x]| {
            let (count, dim, address) = (at.count, at.dim, at.address);
            gelu_backward_kernel::launch(&at.client, count, dim, address, at.vector, x, d_y, d_x, at.vectors, at.dtype);
        });
        d_x
    }
}

#[cube(launch, address_type = "dynamic")]
fn gelu_backward_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    d_y: &[Vector<F, V>],
    d_x: &mut [Vector<F, V>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let one = Vector::<f32, V>::new(1.0f32);
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let x = Vector::<f32, V>::cast_from(x[i]);
        let s = gate(x);
        let slope = Vector::new(GELU_FACTOR) * (one + Vector::new(comptime!(3.0 * GELU_CUBIC)) * x * x);
        d_x[i] = rounded(Vector::<f32, V>::cast_from(d_y[i]) * (s + x * s * (one - s) * slope));
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use gelu_backward_kernel::GeluBackwardKernel;
    use gelu_kernel::GeluKernel;

    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        cases.push(KernelCase::new(format!("gelu {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            GeluKernel::new(s, d, t, b(), b(), (), vector, dtype)
        }));
        cases.push(KernelCase::new(format!("gelu_backward {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            GeluBackwardKernel::new(s, d, t, b(), b(), b(), (), vector, dtype)
        }));
    }
    cases
}
