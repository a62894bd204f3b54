//! Checks that every kernel in the sources is listed for the compilation without a GPU.
#![cfg(feature = "offline")]

use fused::cube::{kernels, sources};

#[test]
fn every_kernel_is_listed() {
    assert_eq!(kernels::unlisted(&kernels::cases()), [""; 0]);
    let all = sources::unlisted(env!("CARGO_MANIFEST_DIR"), "fused", &[]);
    for kernel in ["fused::gelu::cube::gelu_kernel", "fused::embedding::cube::sort::embedding_scan_blocks_kernel"] {
        assert!(all.iter().any(|found| found == kernel), "{kernel} is not among {all:?}");
    }
}
