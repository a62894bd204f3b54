//! The gradients of operations: each keeps what its formula needs and calls the backend's backward.

use super::FusedOps;
use crate::attention::{AttentionRule, LatentRule};
use crate::dropout::DropoutRule;
use crate::linear::Again;
use crate::norm::NormRule;
use crate::rope::RopeRule;
use crate::step::Gradient;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::DType;

#[derive(Debug, Clone)]
pub(super) struct Gelu<B: FusedOps>(pub FloatTensor<B>);

impl<B: FusedOps> Gradient<B, 1> for Gelu<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_gelu_backward(self.0, d_y))]
    }
}

#[derive(Debug, Clone)]
pub(super) struct SiluMul<B: FusedOps> {
    pub gate: FloatTensor<B>,
    pub up: FloatTensor<B>,
}

impl<B: FusedOps> Gradient<B, 2> for SiluMul<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (d_gate, d_up) = B::fused_silu_mul_backward(self.gate, self.up, d_y);
        [Some(d_gate), Some(d_up)]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Norm<B: FusedOps> {
    pub x: FloatTensor<B>,
    pub gain: FloatTensor<B>,
    pub rule: NormRule,
}

impl<B: FusedOps> Gradient<B, 3> for Norm<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        <[_; 3]>::from(B::fused_norm_backward(self.x, self.gain, d_y, self.rule)).map(Some)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Rope<B: FusedOps> {
    pub cos: FloatTensor<B>,
    pub sin: FloatTensor<B>,
    pub rule: RopeRule,
}

impl<B: FusedOps> Gradient<B, 1> for Rope<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_rope(d_y, self.cos, self.sin, RopeRule { back: true, ..self.rule }))]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Dropout(pub DropoutRule);

impl<B: FusedOps> Gradient<B, 1> for Dropout {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_dropout(d_y, self.0))]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Attention<B: FusedOps> {
    pub inputs: [FloatTensor<B>; 3],
    pub outputs: [FloatTensor<B>; 2],
    pub starts: IntTensor<B>,
    pub rule: AttentionRule,
}

impl<B: FusedOps> Gradient<B, 3> for Attention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, k, v], [y, l]) = (self.inputs, self.outputs);
        let (d_q, d_k, d_v) = B::fused_attention_backward(q, k, v, y, l, d_y, self.starts, self.rule);
        [d_q, d_k, d_v].map(Some)
    }
}

#[derive(Debug, Clone)]
pub(super) struct SelfAttention<B: FusedOps> {
    pub qkv: FloatTensor<B>,
    pub outputs: [FloatTensor<B>; 2],
    pub starts: IntTensor<B>,
    pub heads: usize,
    pub rule: AttentionRule,
}

impl<B: FusedOps> Gradient<B, 1> for SelfAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        let [y, l] = self.outputs;
        [Some(B::fused_self_attention_backward(self.qkv, y, l, d_y, self.starts, self.heads, self.rule))]
    }
}

#[derive(Debug, Clone)]
pub(super) struct LatentAttention<B: FusedOps> {
    pub inputs: [FloatTensor<B>; 3],
    pub table: [FloatTensor<B>; 2],
    pub outputs: [FloatTensor<B>; 2],
    pub starts: IntTensor<B>,
    pub rule: LatentRule,
}

impl<B: FusedOps> Gradient<B, 3> for LatentAttention<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let ([q, kv, k_rope], [cos, sin], [y, l]) = (self.inputs, self.table, self.outputs);
        let gradients = B::fused_latent_attention_backward(q, kv, k_rope, cos, sin, y, l, d_y, self.starts, self.rule);
        <[_; 3]>::from(gradients).map(Some)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Linear<B: FusedOps> {
    pub x: Kept<B>,
    pub weight: FloatTensor<B>,
    pub transposed: bool,
}

/// The rows that the gradient of a matrix needs, kept or recomputed.
#[derive(Debug, Clone)]
pub(super) enum Kept<B: FusedOps> {
    Here(FloatTensor<B>),
    Again(Again),
}

impl<B: FusedOps> Gradient<B, 3> for Linear<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    const WEIGHT: Option<usize> = Some(1);

    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 3]) -> [Option<FloatTensor<B>>; 3] {
        let x = match self.x {
            Kept::Again(_) if !wanted[1] => B::float_empty([0, 0].into(), &d_y.device(), d_y.dtype().into()),
            x => x.rows(),
        };
        let (d_x, d_weight, d_bias) = B::fused_linear_backward(x, self.weight, d_y, self.transposed, wanted);
        let mut wanted = wanted.into_iter();
        [d_x, d_weight, d_bias].map(|gradient| wanted.next().expect("three of both").then_some(gradient))
    }

    /// `x^T dy` needs no weight, only that one exists.
    fn of_weight_alone(self) -> Self {
        let none = B::float_empty([0, 0].into(), &self.weight.device(), self.weight.dtype().into());
        Self { weight: none, ..self }
    }

    fn of_weight_into(self, d_y: FloatTensor<B>, flat: FloatTensor<B>, start: usize) -> FloatTensor<B> {
        let x = self.x.rows();
        let (a, b) = if self.transposed { (d_y, x) } else { (x, d_y) };
        B::fused_product_into(B::float_transpose(a), b, flat, start)
    }
}

impl<B: FusedOps> Kept<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn rows(self) -> FloatTensor<B> {
        match self {
            Self::Here(x) => x,
            Self::Again(again) => {
                again.rows().try_into_primitive::<B>().expect("the rows are on the gradient's backend")
            }
        }
    }
}

/// The gradient of a sum of two tensors.
#[derive(Debug, Clone)]
pub(super) struct Add;

impl<B: FusedOps> Gradient<B, 2> for Add {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        [Some(d_y.clone()), Some(d_y)]
    }
}

/// The gradients that the forward has computed, for a cotangent equal to the number of rows, which keeps them in the
/// range of f16.
#[derive(Debug, Clone)]
pub(super) struct CrossEntropy<B: FusedOps> {
    pub d_x: FloatTensor<B>,
    pub d_head: FloatTensor<B>,
}

impl<B: FusedOps> Gradient<B, 2> for CrossEntropy<B> {
    fn of(self, d_y: FloatTensor<B>, wanted: [bool; 2]) -> [Option<FloatTensor<B>>; 2] {
        let (rows, dtype) = (self.d_x.shape()[0], self.d_x.dtype());
        let by = B::float_div_scalar(B::float_reshape(d_y, [1, 1].into()), (rows as f32).into());
        // Multiplied in f32, because the cotangent may be a loss scale beyond the range of f16.
        let scaled = |gradient: FloatTensor<B>| {
            let wide =
                if gradient.dtype() == DType::F32 { gradient } else { B::float_cast(gradient, DType::F32.into()) };
            let scaled = B::float_mul(wide, by.clone());
            if dtype == DType::F32 { scaled } else { B::float_cast(scaled, dtype.into()) }
        };
        [wanted[0].then(|| scaled(self.d_x)), wanted[1].then(|| scaled(self.d_head))]
    }
}

#[derive(Debug, Clone)]
pub(super) struct Embedding<B: FusedOps> {
    pub tokens: IntTensor<B>,
    pub rows: usize,
}

impl<B: FusedOps> Gradient<B, 1> for Embedding<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_embedding_backward(self.tokens, d_y, self.rows))]
    }
}
