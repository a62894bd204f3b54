//! The operations as CubeCL kernels, for GPUs and CubeCL's CPU runtime.

use super::FusedOps;
use crate::adamw::{self, Rates};
use crate::attention::{self, AttentionRule, LatentRule};
use crate::clip::{self, ClipRule};
use crate::cross_entropy::{self, CrossEntropyRule};
use crate::cube::launch::part_or_empty;
use crate::cube::{product, product_into};
use crate::dropout::{self, DropoutRule};
use crate::norm::{self, NormRule};
use crate::rope::{self, RopeRule};
use crate::{embedding, gelu, linear_add_norm, silu_mul, sum_of_squares};
use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

impl FusedOps for CubeBackend {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        gelu::cube::gelu(x)
    }

    fn fused_gelu_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        gelu::cube::gelu_backward(x, d_y)
    }

    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        silu_mul::cube::silu_mul(gate, up)
    }

    fn fused_silu_mul_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        silu_mul::cube::silu_mul_backward(gate, up, d_y)
    }

    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self> {
        norm::cube::norm(x, gain, bias, rule)
    }

    fn fused_norm_backward(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        norm::cube::norm_backward(x, gain, d_y, rule)
    }

    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self> {
        rope::cube::rope(x, cos, sin, rule)
    }

    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        dropout::cube::dropout(x, rule)
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        attention::cube::attention([q, k, v], starts, rule)
    }

    fn fused_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        attention::cube::attention_backward([q, k, v], [y, d_y], l, starts, rule)
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        attention::cube::self_attention(qkv, starts, heads, rule)
    }

    fn fused_self_attention_backward(
        qkv: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> FloatTensor<Self> {
        attention::cube::self_attention_backward(qkv, [y, d_y], l, starts, heads, rule)
    }

    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        attention::cube::latent_attention([q, kv, k_rope], [cos, sin], starts, rule)
    }

    fn fused_latent_attention_backward(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        attention::cube::latent_attention_backward([q, kv, k_rope], [cos, sin], [y, d_y], l, starts, rule)
    }

    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = a.dtype;
        product(a, b, dtype)
    }

    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self> {
        let ([rows, _], [_, columns]) = (a.shape().dims(), b.shape().dims());
        let out = part_or_empty(&flat, start, [rows, columns], a.dtype);
        product_into(a, b, out.clone());
        out
    }

    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        linear_add_norm::cube::add_norm([Self::fused_product(x, weight), residual], bias, gain, norm_bias, rule)
    }

    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy::cube::cross_entropy(x, head, targets, rule)
    }

    fn fused_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy::cube::cross_entropy_with_gradients(x, head, targets, rule)
    }

    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        embedding::cube::embedding(weight, tokens)
    }

    fn fused_embedding_backward(tokens: IntTensor<Self>, d_y: FloatTensor<Self>, rows: usize) -> FloatTensor<Self> {
        embedding::cube::embedding_backward(tokens, d_y, rows)
    }

    fn fused_adamw(
        parameter: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        square: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        rates: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        adamw::cube::adamw([parameter, mean, square], gradient, factor, rates)
    }

    fn fused_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
        sum_of_squares::cube::sum_of_squares(x)
    }

    fn fused_add_parts(sum: FloatTensor<Self>, parts: FloatTensor<Self>, factor: f64) -> FloatTensor<Self> {
        sum_of_squares::cube::add_parts(sum, parts, factor)
    }

    fn fused_clip_factor(totals: FloatTensor<Self>, rule: ClipRule) -> FloatTensor<Self> {
        clip::cube::clip_factor(totals, rule)
    }
}
