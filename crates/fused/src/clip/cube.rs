//! The kernel of [`clip_factor`](super), which runs on a single unit.

use super::ClipOps;
use super::ClipRule;
use crate::cube::launch::{Elements, contiguous, empty};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl ClipOps for CubeBackend {
    fn fused_clip_factor(totals: CubeTensor, rule: ClipRule) -> CubeTensor {
        let totals = contiguous(totals, DType::F32);
        let factor = empty(&totals, [1], DType::F32);
        clip_factor_kernel::launch(
            &factor.client,
            CubeCount::new_single(),
            CubeDim::new_1d(1),
            totals.elements(),
            factor.clone().elements(),
            rule.count as f32,
            rule.limit.unwrap_or(0.0) as f32,
            rule.limit.is_some(),
        );
        factor
    }
}

#[cube(launch)]
fn clip_factor_kernel(totals: &[f32], factor: &mut [f32], count: f32, limit: f32, #[comptime] clips: bool) {
    let mut finite = true;
    let mut i = 0usize.runtime();
    while i < totals.len() {
        // A comparison with NaN is false.
        finite = finite && f32::abs(totals[i]) <= 3.4028234e38f32;
        i += 1usize;
    }
    let norm = f32::sqrt(totals[totals.len() - 2usize] + totals[totals.len() - 1usize]) / count;
    let mut result = 1.0f32;
    if comptime!(clips) {
        result = select(norm > limit, limit / (norm + 1e-6f32), 1.0f32);
    }
    if !finite {
        result = -1.0f32;
    }
    factor[0] = result;
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    vec![KernelCase::new("clip_factor", |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(1)), gpu.device(), gpu.target());
        clip_factor_kernel::ClipFactorKernel::new(s, d, t, b(), b(), (), (), true)
    })]
}
