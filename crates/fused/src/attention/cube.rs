//! The kernels of [`attention`](super).

use super::{AttentionRule, LatentRule};
use burn_cubecl::tensor::CubeTensor;

pub(crate) fn attention(q: CubeTensor, k: CubeTensor, v: CubeTensor, rule: AttentionRule) -> (CubeTensor, CubeTensor) {
    todo!()
}

pub(crate) fn attention_backward(
    qkv: [CubeTensor; 3],
    outputs: [CubeTensor; 2],
    l: CubeTensor,
    rule: AttentionRule,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    todo!()
}

pub(crate) fn self_attention(qkv: CubeTensor, heads: usize, rule: AttentionRule) -> (CubeTensor, CubeTensor) {
    todo!()
}

pub(crate) fn self_attention_backward(
    qkv: CubeTensor,
    outputs: [CubeTensor; 2],
    l: CubeTensor,
    heads: usize,
    rule: AttentionRule,
) -> CubeTensor {
    todo!()
}

pub(crate) fn latent_attention(
    inputs: [CubeTensor; 3],
    table: [CubeTensor; 2],
    rule: LatentRule,
) -> (CubeTensor, CubeTensor) {
    todo!()
}

pub(crate) fn latent_attention_backward(
    inputs: [CubeTensor; 3],
    table: [CubeTensor; 2],
    outputs: [CubeTensor; 2],
    l: CubeTensor,
    rule: LatentRule,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    todo!()
}
