//! The kernels with typical compile-time values, for GPUs that are not there; see [`fused::cube::offline`].

use super::{dispatch, grouped_gemm, permute, reroute, route};
use fused::cube::offline::KernelCase;
use fused::cube::sources;

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

/// Kernels of this crate's sources of which none of these cases is.
pub fn unlisted(cases: &[KernelCase]) -> Vec<String> {
    sources::unlisted(env!("CARGO_MANIFEST_DIR"), "moe", cases)
}
