//! The kernel of [`adamw`](super): one launch per tensor, in which each unit takes vectors of elements in a grid-stride
//! loop.

use super::{AdamWOps, Rates};
use crate::cube::launch::{Elements, address_type, contiguous, empty, over_items, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer};
use crate::cube::rounded;
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
#[cfg(feature = "offline")]
use half::{bf16, f16};

impl AdamWOps for CubeBackend {
    /// Memory without another owner is updated in place.
    fn fused_adamw(
        parameter: CubeTensor,
        mean: CubeTensor,
        square: CubeTensor,
        gradient: CubeTensor,
        factor: CubeTensor,
        rates: Rates,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let (len, g, factor) =
            (gradient.shape().num_elements(), into_contiguous(gradient), contiguous(factor, DType::F32));
        let (dtype, has_factor) = (g.dtype, factor.shape().num_elements() > 0);
        let [p, m, v] = [parameter, mean, square].map(own);
        let copy = empty(&p, [if rates.copy.is_some() { len } else { 0 }], rates.copy.unwrap_or(DType::F32));
        if len > 0 {
            // Either all elements of a vector decay or none.
            let width = |len| vector_size(&p.client, len, DType::F32);
            let vector = width(len).min(width(rates.decayed.min(len)));
            let (count, dim) = over_items(&p.client, len / vector);
            adamw_kernel::launch(
                &p.client,
                count,
                dim,
                address_type([&p]),
                vector,
                p.clone().elements(),
                m.clone().elements(),
                v.clone().elements(),
                g.elements(),
                factor.elements(),
                copy.clone().elements(),
                len / vector,
                rates.decayed.min(len) / vector,
                RatesArgsLaunch::new(
                    rates.gradient_scale,
                    rates.beta1,
                    rates.beta2,
                    rates.epsilon,
                    rates.keep,
                    rates.lr,
                    rates.inverse_sqrt_correction2,
                ),
                has_factor,
                rates.copy.is_some(),
                dtype_to_elem_type(dtype),
                dtype_to_elem_type(copy.dtype),
            );
        }
        (p, m, v, copy)
    }
}

/// Makes the tensor contiguous, in memory without another owner.
fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor, DType::F32);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// [`Rates`] as kernel arguments.
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
fn adamw_kernel<V: Size, G: Float, C: Float>(
    parameter: &mut [Vector<f32, V>],
    mean: &mut [Vector<f32, V>],
    square: &mut [Vector<f32, V>],
    gradient: &[Vector<G, V>],
    factor: &[f32],
    copy: &mut [Vector<C, V>],
    vectors: usize,
    decayed: usize,
    rates: RatesArgs,
    #[comptime] has_factor: bool,
    #[comptime] copies: bool,
    #[define(G)] _gradient_type: ElemType,
    #[define(C)] _copy_type: ElemType,
) {
    let mut scale = rates.gradient_scale;
    let mut steps = true;
    if comptime!(has_factor) {
        scale *= factor[0];
        steps = factor[0] >= 0.0f32;
    }
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let mut p = parameter[i];
        if steps {
            let g = Vector::<f32, V>::cast_from(gradient[i]) * Vector::new(scale);
            let m = Vector::new(rates.beta1) * mean[i] + Vector::new(1.0f32 - rates.beta1) * g;
            let s = Vector::new(rates.beta2) * square[i] + Vector::new(1.0f32 - rates.beta2) * g * g;
            let denominator = s.sqrt() * Vector::new(rates.inverse_sqrt_correction2) + Vector::new(rates.epsilon);
            let keep = select(i < decayed, rates.keep, 1.0f32);
            p = p * Vector::new(keep) - Vector::new(rates.lr) * m / denominator;
            parameter[i] = p;
            mean[i] = m;
            square[i] = s;
        }
        if comptime!(copies) {
            copy[i] = rounded(p);
        }
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Lists the kernel with typical compile-time values.
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
    // The cases with a copy also have a 16-bit gradient and a factor on the device.
    let case = |vector, copy: Option<(&'static str, ElemType)>| {
        let name = copy.map_or(String::new(), |(name, _)| format!(" along a gradient in {name} and a copy in it"));
        KernelCase::new(format!("adamw vectors of {vector}{name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            let dtype = copy.map_or(f32::elem_type_native(), |(_, dtype)| dtype);
            AdamwKernel::new(
                s,
                d,
                t,
                b(),
                b(),
                b(),
                b(),
                b(),
                b(),
                (),
                (),
                rates(),
                vector,
                copy.is_some(),
                copy.is_some(),
                dtype,
                dtype,
            )
        })
    };
    let copies = [("bf16", bf16::elem_type_native()), ("f16", f16::elem_type_native())];
    let copied = copies.map(|copy| case(4, Some(copy)));
    [1, 4].map(|vector| case(vector, None)).into_iter().chain(copied).collect()
}
