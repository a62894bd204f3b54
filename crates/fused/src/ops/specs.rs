//! Shapes and dtypes of the operations' outputs, which fusion needs before it runs anything.

use crate::adamw::Rates;
use crate::attention::{AttentionRule, LatentRule};
use crate::clip::ClipRule;
use crate::cross_entropy::CrossEntropyRule;
use crate::dropout::DropoutRule;
use crate::norm::NormRule;
use crate::rope::RopeRule;
use crate::sum_of_squares::parts;
use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::{DType, Shape};

/// The spec of an f32 tensor.
fn statistic<const D: usize>(shape: [usize; D]) -> TensorSpec {
    spec(shape, DType::F32)
}

fn spec<const D: usize>(shape: [usize; D], dtype: DType) -> TensorSpec {
    TensorSpec::new(Shape::from(shape), dtype)
}

pub(super) fn like1(x: &TensorSpec) -> TensorSpec {
    x.clone()
}

pub(super) fn like2(x: &TensorSpec, _: &TensorSpec) -> TensorSpec {
    x.clone()
}

pub(super) fn silu_mul_backward(gate: &TensorSpec, up: &TensorSpec, _: &TensorSpec) -> (TensorSpec, TensorSpec) {
    (gate.clone(), up.clone())
}

pub(super) fn norm(x: &TensorSpec, _: &TensorSpec, _: &TensorSpec, _: &NormRule) -> TensorSpec {
    x.clone()
}

pub(super) fn norm_backward(
    x: &TensorSpec,
    gain: &TensorSpec,
    _: &TensorSpec,
    _: &NormRule,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let d = gain.shape[0];
    (x.clone(), statistic([d]), statistic([d]))
}

pub(super) fn product(a: &TensorSpec, b: &TensorSpec) -> TensorSpec {
    spec([a.shape[0], b.shape[1]], a.dtype)
}

pub(super) fn product_into(a: &TensorSpec, b: &TensorSpec, _: &TensorSpec, _: &usize) -> TensorSpec {
    product(a, b)
}

pub(super) fn linear_add_norm(
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    residual: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &NormRule,
) -> (TensorSpec, TensorSpec) {
    (residual.clone(), residual.clone())
}

pub(super) fn rope(x: &TensorSpec, _: &TensorSpec, _: &TensorSpec, _: &RopeRule) -> TensorSpec {
    x.clone()
}

pub(super) fn dropout(x: &TensorSpec, _: &DropoutRule) -> TensorSpec {
    x.clone()
}

pub(super) fn attention(
    q: &TensorSpec,
    _: &TensorSpec,
    v: &TensorSpec,
    _: &TensorSpec,
    _: &AttentionRule,
) -> (TensorSpec, TensorSpec) {
    let [b, heads, t] = [0, 1, 2].map(|dim| q.shape[dim]);
    (spec([b, t, heads, v.shape[3]], q.dtype), statistic([b, heads, t]))
}

#[allow(clippy::too_many_arguments)]
pub(super) fn attention_backward(
    q: &TensorSpec,
    k: &TensorSpec,
    v: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &AttentionRule,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    (q.clone(), k.clone(), v.clone())
}

pub(super) fn self_attention(
    qkv: &TensorSpec,
    _: &TensorSpec,
    heads: &usize,
    _: &AttentionRule,
) -> (TensorSpec, TensorSpec) {
    let [b, t, width] = [0, 1, 2].map(|dim| qkv.shape[dim]);
    (spec([b, t, width / 3], qkv.dtype), statistic([b, *heads, t]))
}

pub(super) fn self_attention_backward(
    qkv: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &usize,
    _: &AttentionRule,
) -> TensorSpec {
    qkv.clone()
}

pub(super) fn latent_attention(
    q: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    rule: &LatentRule,
) -> (TensorSpec, TensorSpec) {
    let [b, t] = [0, 1].map(|dim| q.shape[dim]);
    (spec([b, t, rule.heads * rule.v], q.dtype), statistic([b, rule.heads, t]))
}

#[allow(clippy::too_many_arguments)]
pub(super) fn latent_attention_backward(
    q: &TensorSpec,
    kv: &TensorSpec,
    k_rope: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &LatentRule,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    (q.clone(), kv.clone(), k_rope.clone())
}

pub(super) fn cross_entropy(
    _: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    _: &CrossEntropyRule,
) -> (TensorSpec, TensorSpec) {
    (statistic([1]), statistic([1]))
}

pub(super) fn cross_entropy_with_gradients(
    x: &TensorSpec,
    head: &TensorSpec,
    _: &TensorSpec,
    _: &CrossEntropyRule,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    (statistic([1]), statistic([1]), x.clone(), TensorSpec::new(head.shape.clone(), DType::F32))
}

pub(super) fn embedding(weight: &TensorSpec, tokens: &TensorSpec) -> TensorSpec {
    spec([tokens.shape[0], weight.shape[1]], weight.dtype)
}

pub(super) fn embedding_backward(_: &TensorSpec, d_y: &TensorSpec, rows: &usize) -> TensorSpec {
    spec([*rows, d_y.shape[1]], d_y.dtype)
}

pub(super) fn adamw(
    parameter: &TensorSpec,
    mean: &TensorSpec,
    square: &TensorSpec,
    _: &TensorSpec,
    _: &TensorSpec,
    rates: &Rates,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let copied = if rates.copy.is_some() { parameter.shape[0] } else { 0 };
    let copy = spec([copied], rates.copy.unwrap_or(DType::F32));
    (parameter.clone(), mean.clone(), square.clone(), copy)
}

pub(super) fn sum_of_squares(x: &TensorSpec) -> TensorSpec {
    statistic([parts(x.shape[0])])
}

pub(super) fn like_statistic(sum: &TensorSpec, _: &TensorSpec, _: &f64) -> TensorSpec {
    sum.clone()
}

pub(super) fn clip_factor(_: &TensorSpec, _: &ClipRule) -> TensorSpec {
    statistic([1])
}
