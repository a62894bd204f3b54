//! The operations under autodiff: each is one or more steps of the tape, with a gradient of
//! [`gradients`](super::gradients).

use super::FusedOps;
use super::gradients::{
    Add, Attention, CrossEntropy, Dropout, Embedding, Gelu, Kept, LatentAttention, Linear, Norm, Rope, SelfAttention,
    SiluMul,
};
use crate::adamw::Rates;
use crate::attention::{AttentionRule, LatentRule};
use crate::clip::ClipRule;
use crate::cross_entropy::CrossEntropyRule;
use crate::dropout::DropoutRule;
use crate::linear::Again;
use crate::norm::NormRule;
use crate::rope::RopeRule;
use crate::step::step;
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, DispatchKindConversion, DispatchTensor, TensorMetadata};

/// Records the product `y` of `x` and `weight`, plus a bias, on the tape.
fn linear_step<B: FusedOps, C: CheckpointStrategy>(
    inputs: [&FloatTensor<Autodiff<B, C>>; 3],
    y: FloatTensor<B>,
    transposed: bool,
    again: Option<Again>,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let [x, weight, _] = inputs;
    step::<B, C, _, 3>(inputs, y, || Linear::<B> {
        x: again.map_or_else(|| Kept::Here(x.primitive().clone()), Kept::Again),
        weight: weight.primitive().clone(),
        transposed,
    })
}

/// A tensor without a gradient.
fn constant<B: FusedOps, C: CheckpointStrategy>(tensor: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
    Autodiff::<B, C>::from_inner(tensor)
}

const NO_SECOND_ORDER: &str = "fused operations have first derivatives only";
const NO_GRADIENT: &str = "this operation is not differentiated: call it with tensors that are not tracked";

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let plain = x.primitive().clone();
        step::<B, C, _, 1>([&x], B::fused_gelu(plain.clone()), || Gelu::<B>(plain))
    }

    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (plain_gate, plain_up) = (gate.primitive().clone(), up.primitive().clone());
        let y = B::fused_silu_mul(plain_gate.clone(), plain_up.clone());
        step::<B, C, _, 2>([&gate, &up], y, || SiluMul::<B> { gate: plain_gate, up: plain_up })
    }

    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self> {
        let (rows, factors) = (x.primitive().clone(), gain.primitive().clone());
        let y = B::fused_norm(rows.clone(), factors.clone(), bias.primitive().clone(), rule);
        step::<B, C, _, 3>([&x, &gain, &bias], y, || Norm::<B> { x: rows, gain: factors, rule })
    }

    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self> {
        assert!(!rule.back, "{NO_SECOND_ORDER}");
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::fused_rope(x.primitive().clone(), cos.clone(), sin.clone(), rule);
        step::<B, C, _, 1>([&x], y, || Rope::<B> { cos, sin, rule })
    }

    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        step::<B, C, _, 1>([&x], B::fused_dropout(x.primitive().clone(), rule), || Dropout(rule))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tracked = [&q, &k, &v];
        let inputs = tracked.map(|input| input.primitive().clone());
        let [q, k, v] = inputs.clone();
        let (y, l) = B::fused_attention(q, k, v, starts.clone(), rule);
        let outputs = [y.clone(), l.clone()];
        (step::<B, C, _, 3>(tracked, y, || Attention::<B> { inputs, outputs, starts, rule }), constant::<B, C>(l))
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let plain = qkv.primitive().clone();
        let (y, l) = B::fused_self_attention(plain.clone(), starts.clone(), heads, rule);
        let outputs = [y.clone(), l.clone()];
        let gradient = || SelfAttention::<B> { qkv: plain, outputs, starts, heads, rule };
        (step::<B, C, _, 1>([&qkv], y, gradient), constant::<B, C>(l))
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
        let tracked = [&q, &kv, &k_rope];
        let inputs = tracked.map(|input| input.primitive().clone());
        let table = [cos.into_primitive(), sin.into_primitive()];
        let ([q, kv, k_rope], [cos, sin]) = (inputs.clone(), table.clone());
        let (y, l) = B::fused_latent_attention(q, kv, k_rope, cos, sin, starts.clone(), rule);
        let outputs = [y.clone(), l.clone()];
        (
            step::<B, C, _, 3>(tracked, y, || LatentAttention::<B> { inputs, table, outputs, starts, rule }),
            constant::<B, C>(l),
        )
    }

    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        again: Option<Again>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        linear_step::<B, C>(inputs, B::fused_linear(rows, matrix, added, transposed, None), transposed, again)
    }

    /// Computes everything at once; the tape records two steps.
    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        again: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        let (y, pre) = B::fused_linear_gelu(rows, matrix, added, None);
        let tracked = linear_step::<B, C>(inputs, pre.clone(), false, again);
        (step::<B, C, _, 1>([&tracked], y, || Gelu::<B>(pre)), tracked)
    }

    /// Computes everything at once; the tape records two steps, the first of which has no value.
    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias];
        let [rows, matrix, added] = inputs.map(|input| input.primitive().clone());
        let y = B::fused_linear_add(rows, matrix, added, residual.primitive().clone());
        let tracked = linear_step::<B, C>(inputs, y.clone(), false, None);
        step::<B, C, _, 2>([&tracked, &residual], y, || Add)
    }

    /// Computes everything at once; the tape records three steps: the product, which has no value, the sum and the
    /// norm.
    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [rows, matrix, added] = [&x, &weight, &bias].map(|input| input.primitive().clone());
        let [stream, factors, terms] = [&residual, &gain, &norm_bias].map(|input| input.primitive().clone());
        let (h, y) = B::fused_linear_add_norm(rows, matrix, added, stream, factors.clone(), terms, rule);
        let product = linear_step::<B, C>([&x, &weight, &bias], h.clone(), false, None);
        let sum = step::<B, C, _, 2>([&product, &residual], h.clone(), || Add);
        let y = step::<B, C, _, 3>([&sum, &gain, &norm_bias], y, || Norm::<B> { x: h, gain: factors, rule });
        (sum, y)
    }

    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (rows, matrix) = (x.primitive().clone(), head.primitive().clone());
        if !x.is_tracked() && !head.is_tracked() {
            let (cross_entropy, z_loss) = B::fused_cross_entropy(rows, matrix, targets, rule);
            return (constant::<B, C>(cross_entropy), constant::<B, C>(z_loss));
        }
        let (cross_entropy, z_loss, d_x, d_head) = B::fused_cross_entropy_with_gradients(rows, matrix, targets, rule);
        let tracked = step::<B, C, _, 2>([&x, &head], cross_entropy, || CrossEntropy::<B> { d_x, d_head });
        (tracked, constant::<B, C>(z_loss))
    }

    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let (table, rows) = (weight.primitive().clone(), weight.primitive().shape()[0]);
        let y = B::fused_embedding(table, tokens.clone());
        step::<B, C, _, 1>([&weight], y, || Embedding::<B> { tokens, rows })
    }

    fn fused_gelu_backward(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_silu_mul_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_norm_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_attention_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_self_attention_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: usize,
        _: AttentionRule,
    ) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_latent_attention_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_linear_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: bool,
        _: [bool; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_cross_entropy_with_gradients(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_embedding_backward(_: IntTensor<Self>, _: FloatTensor<Self>, _: usize) -> FloatTensor<Self> {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_adamw(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_product(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_product_into(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_sum_of_squares(_: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_add_parts(_: FloatTensor<Self>, _: FloatTensor<Self>, _: f64) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_clip_factor(_: FloatTensor<Self>, _: ClipRule) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }
}
