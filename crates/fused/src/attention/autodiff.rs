//! The steps of the tape of attention.

use super::{AttentionBackwardOps, AttentionOps, AttentionRule, LatentRule};
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, Backend};

#[derive(Debug, Clone)]
struct Attention<B: Backend> {
    inputs: [FloatTensor<B>; 3],
    outputs: [FloatTensor<B>; 2],
    first_keys: IntTensor<B>,
    rule: AttentionRule,
}

impl<B: AttentionBackwardOps> Gradient<B, 3> for Attention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, k, v], [y, l]) = (self.inputs, self.outputs);
        let (d_q, d_k, d_v) = B::fused_attention_backward(q, k, v, y, l, d_y, self.first_keys, self.rule);
        [d_q, d_k, d_v].map(Some)
    }
}

#[derive(Debug, Clone)]
struct SelfAttention<B: Backend> {
    qkv: FloatTensor<B>,
    outputs: [FloatTensor<B>; 2],
    first_keys: IntTensor<B>,
    heads: usize,
    rule: AttentionRule,
}

impl<B: AttentionBackwardOps> Gradient<B, 1> for SelfAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        let [y, l] = self.outputs;
        [Some(B::fused_self_attention_backward(self.qkv, y, l, d_y, self.first_keys, self.heads, self.rule))]
    }
}

#[derive(Debug, Clone)]
struct LatentAttention<B: Backend> {
    inputs: [FloatTensor<B>; 3],
    table: [FloatTensor<B>; 2],
    outputs: [FloatTensor<B>; 2],
    first_keys: IntTensor<B>,
    rule: LatentRule,
}

impl<B: AttentionBackwardOps> Gradient<B, 3> for LatentAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, kv, k_rope], [cos, sin], [y, l]) = (self.inputs, self.table, self.outputs);
        let gradients =
            B::fused_latent_attention_backward(q, kv, k_rope, cos, sin, y, l, d_y, self.first_keys, self.rule);
        <[_; 3]>::from(gradients).map(Some)
    }
}

impl<B: AttentionOps + AttentionBackwardOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tracked = [&q, &k, &v];
        let inputs = tracked.map(|input| input.primitive().clone());
        let [q, k, v] = inputs.clone();
        let (y, l) = B::fused_attention(q, k, v, first_keys.clone(), rule);
        let outputs = [y.clone(), l.clone()];
        (step::<B, C, _, 3>(tracked, y, || Attention::<B> { inputs, outputs, first_keys, rule }), Self::from_inner(l))
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let plain = qkv.primitive().clone();
        let (y, l) = B::fused_self_attention(plain.clone(), first_keys.clone(), heads, rule);
        let outputs = [y.clone(), l.clone()];
        let gradient = || SelfAttention::<B> { qkv: plain, outputs, first_keys, heads, rule };
        (step::<B, C, _, 1>([&qkv], y, gradient), Self::from_inner(l))
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
        let tracked = [&q, &kv, &k_rope];
        let inputs = tracked.map(|input| input.primitive().clone());
        let table = [cos.into_primitive(), sin.into_primitive()];
        let ([q, kv, k_rope], [cos, sin]) = (inputs.clone(), table.clone());
        let (y, l) = B::fused_latent_attention(q, kv, k_rope, cos, sin, first_keys.clone(), rule);
        let outputs = [y.clone(), l.clone()];
        (
            step::<B, C, _, 3>(tracked, y, || LatentAttention::<B> { inputs, table, outputs, first_keys, rule }),
            Self::from_inner(l),
        )
    }
}
