//! The kernel of [`adamw`](super): one unit a vector of elements, vectors dealt out in strides; a launch a tensor.

use super::Rates;
use crate::cube::launch::{address_type, contiguous, over_items, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Parameter, mean and square after a step; memory that nobody else holds is written in place.
pub(crate) fn adamw(
    state: [CubeTensor; 3],
    gradient: CubeTensor,
    rates: Rates,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (len, g) = (gradient.shape().num_elements(), contiguous(gradient, DType::F32));
    let [p, m, v] = state.map(own);
    if len > 0 {
        let vector = vector_size(&p.client, len, DType::F32);
        let (count, dim) = over_items(&p.client, len / vector);
        adamw_kernel::launch(
            &p.client,
            count,
            dim,
            address_type([&p]),
            vector,
            p.clone().into_buffer_arg(),
            m.clone().into_buffer_arg(),
            v.clone().into_buffer_arg(),
            g.into_buffer_arg(),
            len / vector,
            RatesArgsLaunch::new(
                rates.gradient_scale,
                rates.beta1,
                rates.beta2,
                rates.epsilon,
                rates.keep,
                rates.lr,
                rates.inverse_sqrt_correction2,
            ),
        );
    }
    (p, m, v)
}

/// The tensor, contiguous, in memory that nobody else holds.
fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor, DType::F32);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// [`Rates`], as a kernel takes them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct RatesArgs {
    gradient_scale: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    keep: f32,
    lr: f32,
    inverse_sqrt_correction2: f32,
}

#[cube(launch, address_type = "dynamic")]
fn adamw_kernel<V: Size>(
    parameter: &mut [Vector<f32, V>],
    mean: &mut [Vector<f32, V>],
    square: &mut [Vector<f32, V>],
    gradient: &[Vector<f32, V>],
    vectors: usize,
    rates: RatesArgs,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let g = gradient[i] * Vector::new(rates.gradient_scale);
        let m = Vector::new(rates.beta1) * mean[i] + Vector::new(1.0f32 - rates.beta1) * g;
        let s = Vector::new(rates.beta2) * square[i] + Vector::new(1.0f32 - rates.beta2) * g * g;
        let denominator = s.sqrt() * Vector::new(rates.inverse_sqrt_correction2) + Vector::new(rates.epsilon);
        parameter[i] = parameter[i] * Vector::new(rates.keep) - Vector::new(rates.lr) * m / denominator;
        mean[i] = m;
        square[i] = s;
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use adamw_kernel::AdamwKernel;

    let rates = || RatesArgsCompilationArg {
        gradient_scale: (),
        beta1: (),
        beta2: (),
        epsilon: (),
        keep: (),
        lr: (),
        inverse_sqrt_correction2: (),
    };
    let case = |vector| {
        KernelCase::new(format!("adamw vectors of {vector}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            AdamwKernel::new(s, d, t, b(), b(), b(), b(), (), rates(), vector)
        })
    };
    [1, 4].map(case).into()
}
