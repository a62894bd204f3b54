//! The kernels with typical compile-time values, for GPUs that are not there; see [`fused::cube::offline`].

use super::{dispatch, grouped_gemm, permute, reroute, route};
use fused::cube::offline::KernelCase;

/// Every kernel of this crate.
pub fn cases() -> Vec<KernelCase> {
    let modules = [
        route::cube::cases(),
        reroute::cube::cases(),
        dispatch::cube::cases(),
        permute::cube::cases(),
        grouped_gemm::cube::cases(),
    ];
    modules.into_iter().flatten().collect()
}
