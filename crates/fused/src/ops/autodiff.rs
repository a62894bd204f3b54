//! The operations' gradients. Each is one step of the tape that keeps what its formula needs and calls the backend's backward.

use super::FusedOps;
use crate::adamw::Rates;
use crate::attention::{AttentionRule, LatentRule};
use crate::cross_entropy::CrossEntropyRule;
use crate::dropout::DropoutRule;
use crate::norm::NormRule;
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{AutodiffBackend, TensorMetadata};

#[derive(Debug, Clone)]
struct Gelu<B: FusedOps>(FloatTensor<B>);

impl<B: FusedOps> Gradient<B, 1> for Gelu<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_gelu_backward(self.0, d_y))]
    }
}

#[derive(Debug, Clone)]
struct SiluMul<B: FusedOps> {
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
}

impl<B: FusedOps> Gradient<B, 2> for SiluMul<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_gate, d_up) = B::fused_silu_mul_backward(self.gate, self.up, d_y);
        [Some(d_gate), Some(d_up)]
    }
}

#[derive(Debug, Clone)]
struct Norm<B: FusedOps> {
    x: FloatTensor<B>,
    gain: FloatTensor<B>,
    rule: NormRule,
}

impl<B: FusedOps> Gradient<B, 3> for Norm<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        <[_; 3]>::from(B::fused_norm_backward(self.x, self.gain, d_y, self.rule)).map(Some)
    }
}

#[derive(Debug, Clone)]
struct Rope<B: FusedOps> {
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
}

impl<B: FusedOps> Gradient<B, 1> for Rope<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_rope(d_y, self.cos, self.sin, true))]
    }
}

#[derive(Debug, Clone)]
struct Dropout(DropoutRule);

impl<B: FusedOps> Gradient<B, 1> for Dropout {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_dropout(d_y, self.0))]
    }
}

#[derive(Debug, Clone)]
struct Attention<B: FusedOps> {
    inputs: [FloatTensor<B>; 3],
    outputs: [FloatTensor<B>; 2],
    rule: AttentionRule,
}

impl<B: FusedOps> Gradient<B, 3> for Attention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, k, v], [y, l]) = (self.inputs, self.outputs);
        let (d_q, d_k, d_v) = B::fused_attention_backward(q, k, v, y, l, d_y, self.rule);
        [d_q, d_k, d_v].map(Some)
    }
}

#[derive(Debug, Clone)]
struct SelfAttention<B: FusedOps> {
    qkv: FloatTensor<B>,
    outputs: [FloatTensor<B>; 2],
    heads: usize,
    rule: AttentionRule,
}

impl<B: FusedOps> Gradient<B, 1> for SelfAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        let [y, l] = self.outputs;
        [Some(B::fused_self_attention_backward(self.qkv, y, l, d_y, self.heads, self.rule))]
    }
}

#[derive(Debug, Clone)]
struct LatentAttention<B: FusedOps> {
    inputs: [FloatTensor<B>; 3],
    table: [FloatTensor<B>; 2],
    outputs: [FloatTensor<B>; 2],
    rule: LatentRule,
}

impl<B: FusedOps> Gradient<B, 3> for LatentAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, kv, k_rope], [cos, sin], [y, l]) = (self.inputs, self.table, self.outputs);
        let gradients = B::fused_latent_attention_backward(q, kv, k_rope, cos, sin, y, l, d_y, self.rule);
        <[_; 3]>::from(gradients).map(Some)
    }
}

#[derive(Debug, Clone)]
struct Linear<B: FusedOps> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    transposed: bool,
}

impl<B: FusedOps> Gradient<B, 3> for Linear<B> {
    const WEIGHT: Option<usize> = Some(1);

    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let (d_x, d_weight, d_bias) = B::fused_linear_backward(self.x, self.weight, d_y, self.transposed, wanted);
        let mut wanted = wanted.into_iter();
        [d_x, d_weight, d_bias].map(|gradient| wanted.next().expect("three of both").then_some(gradient))
    }

    /// `x^T dy`: of the weight only that it is there.
    fn of_weight_alone(self) -> Self {
        let none = B::float_empty([0, 0].into(), &self.weight.device(), self.weight.dtype().into());
        Self { weight: none, ..self }
    }
}

/// A sum of two.
#[derive(Debug, Clone)]
struct Add;

impl<B: FusedOps> Gradient<B, 2> for Add {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        [Some(d_y.clone()), Some(d_y)]
    }
}

/// The gradients that the forward has made, for a cotangent of 1.
#[derive(Debug, Clone)]
struct CrossEntropy<B: FusedOps> {
    d_x: FloatTensor<B>,
    d_head: FloatTensor<B>,
}

impl<B: FusedOps> Gradient<B, 2> for CrossEntropy<B> {
    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let scaled = |gradient: FloatTensor<B>| {
            let by = B::float_cast(B::float_reshape(d_y.clone(), [1, 1].into()), gradient.dtype().into());
            B::float_mul(gradient, by)
        };
        [wanted[0].then(|| scaled(self.d_x)), wanted[1].then(|| scaled(self.d_head))]
    }
}

#[derive(Debug, Clone)]
struct Embedding<B: FusedOps> {
    tokens: IntTensor<B>,
    rows: usize,
}

impl<B: FusedOps> Gradient<B, 1> for Embedding<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_embedding_backward(self.tokens, d_y, self.rows))]
    }
}

/// A tensor that carries no gradient.
fn constant<B: FusedOps, C: CheckpointStrategy>(tensor: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
    Autodiff::<B, C>::from_inner(tensor)
}

const NO_SECOND_ORDER: &str = "fused operations have first derivatives only";
const NO_GRADIENT: &str = "this operation is not differentiated: call it with tensors that are not tracked";

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
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
        back: bool,
    ) -> FloatTensor<Self> {
        assert!(!back, "{NO_SECOND_ORDER}");
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::fused_rope(x.primitive().clone(), cos.clone(), sin.clone(), false);
        step::<B, C, _, 1>([&x], y, || Rope::<B> { cos, sin })
    }

    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        step::<B, C, _, 1>([&x], B::fused_dropout(x.primitive().clone(), rule), || Dropout(rule))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tracked = [&q, &k, &v];
        let inputs = tracked.map(|input| input.primitive().clone());
        let [q, k, v] = inputs.clone();
        let (y, l) = B::fused_attention(q, k, v, rule);
        let outputs = [y.clone(), l.clone()];
        (step::<B, C, _, 3>(tracked, y, || Attention::<B> { inputs, outputs, rule }), constant::<B, C>(l))
    }

    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let plain = qkv.primitive().clone();
        let (y, l) = B::fused_self_attention(plain.clone(), heads, rule);
        let outputs = [y.clone(), l.clone()];
        let gradient = || SelfAttention::<B> { qkv: plain, outputs, heads, rule };
        (step::<B, C, _, 1>([&qkv], y, gradient), constant::<B, C>(l))
    }

    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let tracked = [&q, &kv, &k_rope];
        let inputs = tracked.map(|input| input.primitive().clone());
        let table = [cos.into_primitive(), sin.into_primitive()];
        let ([q, kv, k_rope], [cos, sin]) = (inputs.clone(), table.clone());
        let (y, l) = B::fused_latent_attention(q, kv, k_rope, cos, sin, rule);
        let outputs = [y.clone(), l.clone()];
        (step::<B, C, _, 3>(tracked, y, || LatentAttention::<B> { inputs, table, outputs, rule }), constant::<B, C>(l))
    }

    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        let (rows, matrix) = (x.primitive().clone(), weight.primitive().clone());
        let y = B::fused_linear(rows.clone(), matrix.clone(), bias.primitive().clone(), transposed);
        step::<B, C, _, 3>([&x, &weight, &bias], y, || Linear::<B> { x: rows, weight: matrix, transposed })
    }

    /// Computed at once, on the tape two steps.
    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (rows, matrix) = (x.primitive().clone(), weight.primitive().clone());
        let (y, pre) = B::fused_linear_gelu(rows.clone(), matrix.clone(), bias.primitive().clone());
        let linear = || Linear::<B> { x: rows, weight: matrix, transposed: false };
        let tracked = step::<B, C, _, 3>([&x, &weight, &bias], pre.clone(), linear);
        (step::<B, C, _, 1>([&tracked], y, || Gelu::<B>(pre)), tracked)
    }

    /// Computed at once, on the tape two steps, of which the first's value is not there.
    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (rows, matrix) = (x.primitive().clone(), weight.primitive().clone());
        let added = (bias.primitive().clone(), residual.primitive().clone());
        let y = B::fused_linear_add(rows.clone(), matrix.clone(), added.0, added.1);
        let linear = || Linear::<B> { x: rows, weight: matrix, transposed: false };
        let tracked = step::<B, C, _, 3>([&x, &weight, &bias], y.clone(), linear);
        step::<B, C, _, 2>([&tracked, &residual], y, || Add)
    }

    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> FloatTensor<Self> {
        let (rows, matrix) = (x.primitive().clone(), head.primitive().clone());
        if !x.is_tracked() && !head.is_tracked() {
            return constant::<B, C>(B::fused_cross_entropy(rows, matrix, targets, rule));
        }
        let (loss, d_x, d_head) = B::fused_cross_entropy_with_gradients(rows, matrix, targets, rule);
        step::<B, C, _, 2>([&x, &head], loss, || CrossEntropy::<B> { d_x, d_head })
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
        _: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_SECOND_ORDER}")
    }

    fn fused_self_attention_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
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
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
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
        _: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("{NO_GRADIENT}")
    }

    fn fused_sum_of_squares(_: FloatTensor<Self>) -> FloatTensor<Self> {
        unreachable!("{NO_GRADIENT}")
    }
}
