//! The operations as one extension of Burn's backends.
//!
//! Every operation is plain Rust on `flex`, and a CubeCL kernel on GPUs and on CubeCL's CPU runtime. The functions that
//! users call are in the modules named after the operations, with formula and layout. A backend that is not listed here
//! does not compile, or panics; nothing falls back silently to a composition.

mod autodiff;
#[cfg(feature = "cubecl")]
mod cube;
mod flex;
mod gradients;
#[cfg(feature = "cubecl")]
mod specs;

use crate::adamw::Rates;
use crate::attention::{AttentionRule, LatentRule};
use crate::clip::ClipRule;
use crate::cross_entropy::CrossEntropyRule;
use crate::dropout::DropoutRule;
use crate::linear::{self, Again};
use crate::norm::NormRule;
use crate::rope::RopeRule;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};

/// The operations. Floats are f32, bf16 or f16 and computed in f32; those called statistics are f32.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity, clippy::too_many_arguments)]
pub trait FusedOps: Backend {
    /// Maps `x` to `gelu(x)`.
    #[fusion(meta = specs::like1)]
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Maps `x` and the gradient of `gelu(x)` to that of `x`.
    #[fusion(meta = specs::like2)]
    fn fused_gelu_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Maps `gate` and `up` to `silu(gate) * up`.
    #[fusion(meta = specs::like2)]
    fn fused_silu_mul(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of `gate` and `up`.
    #[fusion(meta = specs::silu_mul_backward)]
    fn fused_silu_mul_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `x_nd`, `gain_d` and `bias_d` (empty for none) to `y_nd`.
    #[fusion(meta = specs::norm)]
    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of `x_nd` and `gain_d`, and the sum of `d_y` over rows, which is the gradient of `bias_d`.
    /// The last two are statistics.
    #[fusion(meta = specs::norm_backward)]
    fn fused_norm_backward(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Rotates rows of `x` by the statistics `cos_tp` and `sin_tp`, or the gradient of the result back.
    #[fusion(meta = specs::rope)]
    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self>;

    /// Applies dropout to `x`; also computes its gradient.
    #[fusion(meta = specs::dropout)]
    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self>;

    /// Maps `q_bhtd`, `k_bhsd` and `v_bhsv` to `y_bthv` and the statistic `l_bht`. Here and below, `starts_bt` holds
    /// the first key that each query sees; it is empty if that is key 0 for all.
    #[fusion(meta = specs::attention)]
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradients of `q_bhtd`, `k_bhsd` and `v_bhsv`.
    #[fusion(meta = specs::attention_backward)]
    fn fused_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `qkv`, `[b, t, 3 heads d]`, to `y`, `[b, t, heads d]`, and the statistic `l_bht`.
    #[fusion(meta = specs::self_attention)]
    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradient of `qkv`.
    #[fusion(meta = specs::self_attention_backward)]
    fn fused_self_attention_backward(
        qkv: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        starts: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> FloatTensor<Self>;

    /// Maps `q`, `[b, t, heads (nope + rope)]`, `kv`, `[b, t, heads (nope + v)]`, `k_rope_btr`, not rotated yet, and
    /// the statistics `cos_tp` and `sin_tp` to `y`, `[b, t, heads v]`, and the statistic `l_bht`.
    #[fusion(meta = specs::latent_attention)]
    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        starts: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradients of `q`, `kv` and `k_rope`.
    #[fusion(meta = specs::latent_attention_backward)]
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
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Computes `x W + b`: maps `x_np`, `weight_pq` (`weight_qp` if `transposed`) and `bias_q` (empty for none) to
    /// `y_nq`. The tape keeps `x`, or recomputes it with `again`.
    #[fusion(default)]
    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        again: Option<Again>,
    ) -> FloatTensor<Self> {
        let _ = again; // used by the tape
        linear::composed::<Self>(x, weight, bias, transposed)
    }

    /// Computes `gelu(x W + b)` and `x W + b`.
    #[fusion(default)]
    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        again: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _ = again;
        let pre = linear::composed::<Self>(x, weight, bias, false);
        (Self::fused_gelu(pre.clone()), pre)
    }

    /// Computes `a_mk b_kn` in f32 and rounds once.
    #[fusion(meta = specs::product)]
    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;

    /// [`fused_product`](Self::fused_product), on a device in the memory of `flat` from element `start` on.
    #[fusion(meta = specs::product_into)]
    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self>;

    /// `residual + x W + b`.
    #[fusion(default)]
    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::float_add(residual, linear::composed::<Self>(x, weight, bias, false))
    }

    /// Computes `h = residual + x W + b` and its norm: maps `x_np`, `weight_pq`, `bias_q` and `residual_nq` to `h_nq`,
    /// and that with `gain_q` and `norm_bias_q` to `y_nq`. Empty biases are none.
    #[fusion(meta = specs::linear_add_norm)]
    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradients of `x`, `weight` and `bias` that are `wanted`, and arbitrary tensors for the others.
    #[fusion(default)]
    fn fused_linear_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        transposed: bool,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        linear::composed_backward::<Self>(x, weight, d_y, transposed, wanted)
    }

    /// Maps `x_nd`, the head (`[vocab, d]` or `[d, vocab]`) and `targets_n` to the mean loss and z-loss, statistics of
    /// one element.
    #[fusion(meta = specs::cross_entropy)]
    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Computes the same, with the gradients of `x_nd` and, as a statistic, of the head for a cotangent of n.
    #[fusion(meta = specs::cross_entropy_with_gradients)]
    fn fused_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `weight_vd` and `tokens_n` to the tokens' rows, `y_nd`.
    #[fusion(meta = specs::embedding)]
    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradient of `weight_vd` with this many rows.
    #[fusion(meta = specs::embedding_backward)]
    fn fused_embedding_backward(tokens: IntTensor<Self>, d_y: FloatTensor<Self>, rows: usize) -> FloatTensor<Self>;

    /// Maps parameter, mean and square (statistics), the gradient and its factor to the first three after a step, and
    /// the copy that the rates ask for (empty for none). The factor is a statistic of one element, or empty for none;
    /// if it is negative, there is no step.
    #[fusion(meta = specs::adamw)]
    fn fused_adamw(
        parameter: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        square: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        rates: Rates,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns parts of the sum of squares of `x_n`, which the host adds in f64.
    #[fusion(meta = specs::sum_of_squares)]
    fn fused_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Adds `factor` times these parts to a sum. The sum is a statistic of two elements, of which the second holds the
    /// rounding error of the first.
    #[fusion(meta = specs::like_statistic)]
    fn fused_add_parts(sum: FloatTensor<Self>, parts: FloatTensor<Self>, factor: f64) -> FloatTensor<Self>;

    /// Maps statistics to the factor of gradients, one element.
    #[fusion(meta = specs::clip_factor)]
    fn fused_clip_factor(totals: FloatTensor<Self>, rule: ClipRule) -> FloatTensor<Self>;
}
