//! Attention of `flex` tensors, in place where their rows are contiguous.

use super::plain::{
    Latent, Lying, Mask, Sizes, attention_backward_cpu, attention_cpu, latent_attention_backward_cpu,
    latent_attention_cpu, self_attention_backward_cpu, self_attention_cpu,
};
use super::{AttentionBackwardOps, AttentionOps, AttentionRule, LatentRule};
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Element as TensorElement};
use cpu::Element;
use cpu::simd::multiplies_bf16;

/// Evaluates `$body` with `$T` as the Rust type of a float dtype, and with `$E` as the type of the factors of products.
macro_rules! with_factors {
    ($dtype:expr, $T:ident, $E:ident => $body:expr) => {
        match $dtype {
            DType::BF16 if multiplies_bf16() => {
                type $T = half::bf16;
                type $E = half::bf16;
                $body
            }
            dtype => with_float!(dtype, $T => {
                type $E = f32;
                $body
            }),
        }
    };
}

impl AttentionOps for Flex {
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let ([q, k, v], first_keys) = ([q, k, v].map(rows_together), contiguous(&first_keys));
        let sizes = sizes(&q, &v);
        with_factors!(q.dtype(), T, E => {
            let (y, l) = attention_cpu::<T, E>(sizes, [&q, &k, &v].map(lying), Mask { rule, first_keys: slice(&first_keys) });
            (float(y, [sizes.b, sizes.t, sizes.heads, sizes.dv]), float(l, [sizes.b, sizes.heads, sizes.t]))
        })
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (qkv, first_keys, sizes) = (contiguous(&qkv), contiguous(&first_keys), sizes_of_three(&qkv, heads));
        with_factors!(qkv.dtype(), T, E => {
            let (y, l) = self_attention_cpu::<T, E>(sizes, slice(&qkv), Mask { rule, first_keys: slice(&first_keys) });
            (float(y, [sizes.b, sizes.t, heads * sizes.d]), float(l, [sizes.b, heads, sizes.t]))
        })
    }

    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&q, &kv, &k_rope, &cos, &sin, &first_keys].map(contiguous);
        with_factors!(q.dtype(), T, E => {
            let latent = latent::<T>(&inputs, rule);
            let (y, l) = latent_attention_cpu::<T, E>(latent);
            (float(y, [latent.b, latent.t, rule.heads * rule.v]), float(l, [latent.b, rule.heads, latent.t]))
        })
    }
}

impl AttentionBackwardOps for Flex {
    fn fused_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ([q, k, v], l, first_keys) = ([q, k, v].map(rows_together), contiguous(&l), contiguous(&first_keys));
        let [y, d_y] = [y, d_y].map(|by_position| rows_together(by_position.permute(&[0, 2, 1, 3])));
        let sizes = sizes(&q, &v);
        with_factors!(q.dtype(), T, E => {
            let (inputs, outputs) = ([&q, &k, &v].map(lying), [&y, &d_y].map(lying));
            let mask = Mask { rule, first_keys: slice(&first_keys) };
            let [d_q, d_k, d_v] = attention_backward_cpu::<T, E>(sizes, inputs, outputs, slice(&l), mask);
            let Sizes { b, heads, kv_heads, t, s, d, dv } = sizes;
            let by_head = |values, [rows, heads, width]: [usize; 3]| {
                float(values, [b, rows, heads, width]).permute(&[0, 2, 1, 3])
            };
            (by_head(d_q, [t, heads, d]), by_head(d_k, [s, kv_heads, d]), by_head(d_v, [s, kv_heads, dv]))
        })
    }

    fn fused_self_attention_backward(
        qkv: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> FloatTensor<Self> {
        let [qkv, y, l, d_y, first_keys] = [&qkv, &y, &l, &d_y, &first_keys].map(contiguous);
        let sizes = sizes_of_three(&qkv, heads);
        with_factors!(qkv.dtype(), T, E => {
            let (outputs, mask) = ([slice(&y), slice(&d_y)], Mask { rule, first_keys: slice(&first_keys) });
            float(self_attention_backward_cpu::<T, E>(sizes, slice(&qkv), outputs, slice(&l), mask), qkv.shape())
        })
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
        first_keys: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&q, &kv, &k_rope, &cos, &sin, &first_keys].map(contiguous);
        let [y, l, d_y] = [&y, &l, &d_y].map(contiguous);
        with_factors!(q.dtype(), T, E => {
            let outputs = [slice(&y), slice(&d_y)];
            let [d_q, d_kv, d_k] = latent_attention_backward_cpu::<T, E>(latent(&inputs, rule), outputs, slice(&l));
            (float(d_q, q.shape()), float(d_kv, kv.shape()), float(d_k, k_rope.shape()))
        })
    }
}

/// Makes the elements of each row contiguous.
fn rows_together(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
    let strides = tensor.layout().strides();
    if strides[3] == 1 && strides.iter().all(|stride| *stride >= 0) { tensor } else { tensor.to_contiguous() }
}

/// The elements and strides of a `[b, heads, t, width]` tensor, in place.
fn lying<T: Element + TensorElement>(tensor: &FloatTensor<Flex>) -> Lying<'_, T> {
    let layout = tensor.layout();
    (&tensor.storage::<T>()[layout.start_offset()..], [0, 1, 2].map(|dim| layout.strides()[dim] as usize))
}

fn sizes(q: &FloatTensor<Flex>, v: &FloatTensor<Flex>) -> Sizes {
    let ([b, heads, t, d], [_, kv_heads, s, dv]) = (q.shape().dims(), v.shape().dims());
    Sizes { b, heads, kv_heads, t, s, d, dv }
}

fn sizes_of_three(qkv: &FloatTensor<Flex>, heads: usize) -> Sizes {
    let [b, t, width] = qkv.shape().dims();
    let d = width / 3 / heads;
    Sizes { b, heads, kv_heads: heads, t, s: t, d, dv: d }
}

fn latent<T: Element + TensorElement>(inputs: &[FloatTensor<Flex>; 6], rule: LatentRule) -> Latent<'_, T> {
    let ([q, kv, k_rope, cos, sin, first_keys], [b, t, _]) = (inputs, inputs[0].shape().dims());
    let table = [slice(cos), slice(sin)];
    Latent { b, t, q: slice(q), kv: slice(kv), k_rope: slice(k_rope), table, first_keys: slice(first_keys), rule }
}
