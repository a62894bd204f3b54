//! `grouped_gemm` in CubeCL.

mod multi_level;
mod round;
mod simt;
mod tiles;
mod weight;
mod weight_cmma;

const TILE: usize = 128;

use crate::kernels::launch::empty;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// `y_rq`
pub(crate) fn grouped_gemm(x: CubeTensor, weight: CubeTensor, segments: CubeTensor, transposed: bool) -> CubeTensor {
    let (x, weight, segments) = (into_contiguous(x), into_contiguous(weight), into_contiguous(segments));
    let ([r, _], [_, rows, columns]) = (x.meta.shape().dims(), weight.meta.shape().dims());
    let q = if transposed { rows } else { columns };
    let y = empty(&x, [r, q], x.dtype);
    if r * q > 0 {
        if std::env::var("ML").is_ok() { multi_level::launch(&x, &weight, &segments, &y, transposed).unwrap(); } else {
        simt::launch(&x, &weight, &segments, &y, transposed); }
    }
    y
}

/// `dW_epq`
pub(crate) fn grouped_gemm_weight(x: CubeTensor, d_y: CubeTensor, segments: CubeTensor) -> CubeTensor {
    let (x, d_y, segments) = (into_contiguous(x), into_contiguous(d_y), into_contiguous(segments));
    let ([_, p], [_, q]) = (x.meta.shape().dims(), d_y.meta.shape().dims());
    let d_weight = empty(&x, [segments.meta.shape()[0] - 1, p, q], x.dtype);
    weight::launch_simt(&x, &d_y, &segments, &d_weight);
    d_weight
}

#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<crate::kernels::offline::KernelCase> {
    use crate::kernels::offline::{KernelCase, buffer};
    use cubecl::prelude::*;
    use half::bf16;
    let u = simt::Units::new(256);
    let one = |name: &str, transposed| {
        KernelCase::new(name, move |gpu| {
            simt::product::Product::new(
                gpu.unchecked(u.cube_dim()),
                gpu.device(),
                gpu.target(),
                buffer(),
                buffer(),
                buffer(),
                buffer(),
                (),
                (),
                4,
                transposed,
                u,
                bf16::elem_type_native(),
            )
        })
    };
    vec![
        one("grouped_gemm simt", false),
        one("grouped_gemm simt transposed", true),
        KernelCase::new("w", move |gpu| {
            weight::sum::Sum::new(
                gpu.unchecked(u.cube_dim()),
                gpu.device(),
                gpu.target(),
                buffer(),
                buffer(),
                buffer(),
                buffer(),
                (),
                (),
                4,
                u,
                bf16::elem_type_native(),
            )
        }),
    ]
}
