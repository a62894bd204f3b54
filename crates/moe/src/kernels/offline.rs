//! The kernels with typical compile-time values, to compile without a GPU; see [`fused::cube::offline`].

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

/// Kernels in this crate's sources that none of these cases covers.
pub fn unlisted(cases: &[KernelCase]) -> Vec<String> {
    sources::unlisted(env!("CARGO_MANIFEST_DIR"), "moe", cases)
}
