//! The kernels with typical compile-time values, to compile without a GPU.

use super::simt::Units;
use super::{TILE, multi_level, simt, tiles, weight, weight_cmma, wgmma};
use cubecl::prelude::*;
use fused::cube::offline::{KernelCase, Target, buffer};
use half::{bf16, f16};

pub(crate) fn cases() -> Vec<KernelCase> {
    let units = Units::new(256);
    let (single, brain, half) = (f32::elem_type_native(), bf16::elem_type_native(), f16::elem_type_native());
    let mut cases = vec![KernelCase::new("grouped_gemm tiles", move |gpu| {
        let settings = gpu.unchecked(CubeDim::new_1d(256));
        let (b, gpu, target) = (buffer, gpu.device(), gpu.target());
        tiles::grouped_gemm_prepare::GroupedGemmPrepare::new(settings, gpu, target, b(), b(), b(), (), 4, TILE, brain)
    })];
    for (name, element, vector) in [("f32", single, 4), ("bf16", brain, 4), ("bf16 odd widths", brain, 1)] {
        for transposed in [false, true] {
            let name = format!("grouped_gemm simt {name}{}", if transposed { " transposed" } else { "" });
            cases.push(KernelCase::new(name, move |gpu| {
                let settings = gpu.unchecked(units.cube_dim());
                let (b, gpu, target) = (buffer, gpu.device(), gpu.target());
                simt::grouped_gemm_product::GroupedGemmProduct::new(
                    settings,
                    gpu,
                    target,
                    b(),
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    vector,
                    transposed,
                    units,
                    element,
                )
            }));
        }
        cases.push(KernelCase::new(format!("grouped_gemm_weight simt {name}"), move |gpu| {
            let settings = gpu.unchecked(units.cube_dim());
            let (b, gpu, target) = (buffer, gpu.device(), gpu.target());
            weight::grouped_gemm_weight_sum::GroupedGemmWeightSum::new(
                settings,
                gpu,
                target,
                b(),
                b(),
                b(),
                b(),
                (),
                (),
                vector,
                units,
                element,
            )
        }));
    }
    for (name, element) in [("bf16", brain), ("f16", half)] {
        let case = KernelCase::new(format!("grouped_gemm_weight cmma {name}"), move |gpu| {
            let settings = gpu.unchecked(CubeDim::new_1d(weight_cmma::UNITS as u32));
            let (b, gpu, target) = (buffer, gpu.device(), gpu.target());
            weight_cmma::grouped_gemm_weight_sum::GroupedGemmWeightSum::new(
                settings,
                gpu,
                target,
                b(),
                b(),
                b(),
                b(),
                (),
                (),
                element,
            )
        });
        cases.push(case.instructions(&["HMMA"]));
    }
    cases.extend(multi_level::offline::cases());
    for (name, transposed) in [("grouped_gemm wgmma", false), ("grouped_gemm wgmma transposed", true)] {
        let hopper = KernelCase::new(name, move |gpu| {
            let settings = gpu.unchecked(CubeDim::new_1d(wgmma::UNITS as u32));
            let (b, gpu, target) = (buffer, gpu.device(), gpu.target());
            wgmma::grouped_gemm_product_wgmma::GroupedGemmProductWgmma::new(
                settings,
                gpu,
                target,
                (),
                (),
                b(),
                b(),
                (),
                (),
                transposed,
            )
        });
        cases.push(hopper.targets(Target::HOPPER).instructions(&["HGMMA", "UTMALDG"]));
    }
    cases
}
