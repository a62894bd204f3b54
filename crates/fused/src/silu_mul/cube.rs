//! The kernels of [`silu_mul`](super): each unit takes vectors of elements in a grid-stride loop.
//!
//! Inputs are read once and outputs are written once, in the widest vectors that the device loads.

use super::{SiluMulBackwardOps, SiluMulOps};
use crate::cube::launch::elementwise;
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{rounded, sigmoid};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl SiluMulOps for CubeBackend {
    fn fused_silu_mul(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
        let len = gate.meta.num_elements();
        let [y] = elementwise([gate, up], len, |at, [gate, up], [y]| {
            let (count, dim, address) = (at.count, at.dim, at.address);
            silu_mul_kernel::launch(&at.client, count, dim, address, at.vector, gate, up, y, at.vectors, at.dtype);
        });
        y
    }
}

#[cube(launch, address_type = "dynamic")]
fn silu_mul_kernel<F: Float, V: Size>(
    gate: &[Vector<F, V>],
    up: &[Vector<F, V>],
    y: &mut [Vector<F, V>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let g = Vector::<f32, V>::cast_from(gate[i]);
        y[i] = rounded(g * sigmoid(g) * Vector::<f32, V>::cast_from(up[i]));
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

impl SiluMulBackwardOps for CubeBackend {
    fn fused_silu_mul_backward(gate: CubeTensor, up: CubeTensor, d_y: CubeTensor) -> (CubeTensor, CubeTensor) {
        let len = gate.meta.num_elements();
        elementwise([gate, up, d_y], len, |at, [gate, up, d_y], [d_gate, d_up]| {
            silu_mul_backward_kernel::launch(
                &at.client, at.count, at.dim, at.address, at.vector, gate, up, d_y, d_gate, d_up, at.vectors, at.dtype,
            );
        })
        .into()
    }
}

#[cube(launch, address_type = "dynamic")]
fn silu_mul_backward_kernel<F: Float, V: Size>(
    gate: &[Vector<F, V>],
    up: &[Vector<F, V>],
    d_y: &[Vector<F, V>],
    d_gate: &mut [Vector<F, V>],
    d_up: &mut [Vector<F, V>],
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let g = Vector::<f32, V>::cast_from(gate[i]);
        let dy = Vector::<f32, V>::cast_from(d_y[i]);
        let s = sigmoid(g);
        let slope = s + g * s * (Vector::<f32, V>::new(1.0f32) - s);
        d_gate[i] = rounded(dy * Vector::<f32, V>::cast_from(up[i]) * slope);
        d_up[i] = rounded(dy * g * s);
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use silu_mul_backward_kernel::SiluMulBackwardKernel;
    use silu_mul_kernel::SiluMulKernel;

    let mut cases = vec![];
    for (name, dtype, vector) in float_cases() {
        cases.push(KernelCase::new(format!("silu_mul {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            SiluMulKernel::new(s, d, t, b(), b(), b(), (), vector, dtype)
        }));
        cases.push(KernelCase::new(format!("silu_mul_backward {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            SiluMulBackwardKernel::new(s, d, t, b(), b(), b(), b(), b(), (), vector, dtype)
        }));
    }
    cases
}
