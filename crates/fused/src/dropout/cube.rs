//! The kernel of [`dropout`](super): each unit takes vectors of elements in a grid-stride loop. A vector is within one
//! row; the start of the row's numbers is recomputed for each vector.

use super::DropoutOps;
use super::{DropoutRule, GAMMA};
use crate::cube::launch::elementwise;
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl DropoutOps for CubeBackend {
    fn fused_dropout(x: CubeTensor, rule: DropoutRule) -> CubeTensor {
        let [y] = elementwise([x], rule.row_len, |at, [x], [y]| {
            dropout_kernel::launch(
                &at.client,
                at.count,
                at.dim,
                at.address,
                at.vector,
                x,
                y,
                at.vectors,
                rule.row_len / at.vector,
                rule.key.key,
                rule.key.first_row,
                rule.key.first_index,
                rule.threshold,
                rule.scale,
                at.dtype,
            );
        });
        y
    }
}

/// `width` is the width of a row in vectors.
#[cube(launch, address_type = "dynamic")]
fn dropout_kernel<F: Float, V: Size>(
    x: &[Vector<F, V>],
    y: &mut [Vector<F, V>],
    vectors: usize,
    width: usize,
    key: u64,
    first_row: u64,
    first_index: u64,
    threshold: u32,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let mut i = ABSOLUTE_POS;
    while i < vectors {
        let (row, index) = (i / width, i % width * V::value());
        let mut number = mix(key ^ mix(first_row + row as u64 + GAMMA)) + (first_index + index as u64) * GAMMA;
        let values = Vector::<f32, V>::cast_from(x[i]) * Vector::new(scale);
        let mut kept = Vector::<f32, V>::new(0.0f32);
        #[unroll]
        for lane in 0..V::value() {
            number += GAMMA;
            let upper = (mix(number) >> 32u64) as u32;
            // Selected, not multiplied: dropped elements become 0 even if they are not finite.
            kept.insert(lane, select(upper < threshold, 0.0f32, values.extract(lane)));
        }
        y[i] = rounded(kept);
        i += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The same as the host's [`mix`](super::mix).
#[cube]
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30u64)) * 0xbf58_476d_1ce4_e5b9u64;
    let z = (z ^ (z >> 27u64)) * 0x94d0_49bb_1331_11ebu64;
    z ^ (z >> 31u64)
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use dropout_kernel::DropoutKernel;

    let case = |(name, dtype, vector)| {
        KernelCase::new(format!("dropout {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            DropoutKernel::new(s, d, t, b(), b(), (), (), (), (), (), (), (), vector, dtype)
        })
    };
    float_cases().map(case).into()
}
