//! The kernels of [`silu_mul`](super): each unit takes vectors of elements in a grid-stride loop.
//!
//! Inputs are read once and outputs are written once, in the widest vectors that the device loads.

use super::{SiluMulBackwardOps, SiluMulOps};
use crate::cube::launch::{Elements, address_type, empty_like, over_items, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{rounded, sigmoid};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl SiluMulOps for CubeBackend {
    fn fused_silu_mul(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
        let (len, dtype) = (gate.shape().num_elements(), gate.dtype);
        let (gate, up) = (into_contiguous(gate), into_contiguous(up));
        let y = empty_like(&gate);
        if len > 0 {
            let vector = vector_size(&gate.client, len, dtype);
            let (count, dim) = over_items(&gate.client, len / vector);
            silu_mul_kernel::launch(
                &gate.client.clone(),
                count,
                dim,
                address_type([&gate]),
                vector,
                gate.elements(),
                up.elements(),
                y.clone().elements(),
                len / vector,
                dtype_to_elem_type(dtype),
            );
        }
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
        let (len, dtype) = (gate.shape().num_elements(), gate.dtype);
        let (gate, up, d_y) = (into_contiguous(gate), into_contiguous(up), into_contiguous(d_y));
        let (d_gate, d_up) = (empty_like(&gate), empty_like(&gate));
        if len > 0 {
            let vector = vector_size(&gate.client, len, dtype);
            let (count, dim) = over_items(&gate.client, len / vector);
            silu_mul_backward_kernel::launch(
                &gate.client.clone(),
                count,
                dim,
                address_type([&gate]),
                vector,
                gate.elements(),
                up.elements(),
                d_y.elements(),
                d_gate.clone().elements(),
                d_up.clone().elements(),
                len / vector,
                dtype_to_elem_type(dtype),
            );
        }
        (d_gate, d_up)
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
