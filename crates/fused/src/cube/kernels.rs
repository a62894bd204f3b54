//! Every kernel of this crate with typical compile-time values, to compile without a GPU.

use super::offline::KernelCase;
use crate::{
    adamw, attention, clip, cross_entropy, dropout, embedding, flatten, gelu, linear_add_norm, norm, rope, silu_mul,
    sum_of_squares,
};

/// The kernels of all operations.
pub fn cases() -> Vec<KernelCase> {
    let modules = [
        gelu::cube::cases(),
        silu_mul::cube::cases(),
        norm::cube::cases(),
        linear_add_norm::cube::cases(),
        rope::cube::cases(),
        dropout::cube::cases(),
        attention::cube::cases(),
        cross_entropy::cube::cases(),
        embedding::cube::cases(),
        adamw::cube::cases(),
        sum_of_squares::cube::cases(),
        clip::cube::cases(),
        flatten::cube::cases(),
        super::unreadable::cases(),
    ];
    modules.into_iter().flatten().collect()
}

/// Kernels in this crate's sources that none of these cases covers.
pub fn unlisted(cases: &[KernelCase]) -> Vec<String> {
    super::sources::unlisted(env!("CARGO_MANIFEST_DIR"), "fused", cases)
}
