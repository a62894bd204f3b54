//! Causal attention that never holds all scores in memory.
//!
//! ```text
//! y[i] = sum over j of p[i, j] v[j]        j <= i + offset
//! p[i, j] = exp(scale q[i] k[j] - l[i])    l[i] = log(sum over j of exp(scale q[i] k[j]))
//! ```
//!
//! A task is one head of one sequence. It loops over tiles of queries, each with the keys up to its last query:
//!
//! ```text
//!            keys ->
//! queries  | s .       |      forward   s = q k^T, p = softmax, y = p v, one tile of s at a time
//!          | s s .     |      backward  s again, p = exp(s - l), delta = sum(dy y); ds = p (dy v^T - delta) scale,
//!          | s s s .   |                dv += p^T dy, dq = ds k, dk += ds^T q
//! ```
//!
//! Query heads may share keys and values in groups of `n` (grouped-query attention, arXiv 2305.13245): query head `h`
//! reads head `h / n`. In the backward, a task is one head of keys and values. It takes the query heads of the group
//! one after the other and adds to the same `dk` and `dv`, always in this order.
//!
//! ```text
//! query heads        0 1 2 | 3 4 5         a group of 3 for each of 2 heads of keys and values
//! keys and values      0   |   1
//! ```
//!
//! The backward keeps the inputs, the output and `l`, the log-sum-exp of each row (FlashAttention, arXiv 2205.14135 and
//! 2307.08691). The result of a row depends only on its query and on the keys up to it, and is bitwise the same in any
//! batch.
//!
//! For document masking and sliding windows, `first_keys`, `[b, t]`, holds the first key that each query sees, which
//! adds the condition `j >= first_keys[i]`. They never decrease along a sequence. Tiles of keys that no query of a tile
//! sees are skipped, so the work is the sum of the squared document lengths, or about w per query with a window of w
//! keys. Without an offset, rows are then bitwise the same if the same documents precede them. A query that sees no key
//! has the result 0 and an `l` of -1e30.
//!
//! ```text
//! first_keys 0 0 0 3 3 5 5 5         three documents in a row of 8
//! ```
//!
//! Dropout multiplies each `p` in `y` by its factor, a function of the score's position (see
//! [`dropout`](crate::dropout)) that is computed where it is used.
//!
//! Sums, softmax and gradients of scores are computed in f32, and results are rounded once. The factors of products are
//! f32 too, except on tensor cores (bf16 and f16) and on a CPU that multiplies bf16 (AVX512-BF16, AMX): there `p`, `ds`,
//! and rotated queries and keys are rounded to the tensors' type before a product, as in FlashAttention.
//!
//! There are three input layouts for one algorithm, none of which needs a copy:
//!
//! | | queries | keys | values |
//! |---|---|---|---|
//! | [`causal_attention`] | `q_bhtd` | `k_bgsd`, of g heads | `v_bgsv` |
//! | [`causal_self_attention`] | | `[b, t, 3 heads d]`, one product | |
//! | [`latent_attention`] | `[b, t, heads (nope + rope)]` | `nope` of `kv`; `[b, t, rope]` for all heads | `v` of `kv` |
//!
//! Here `kv` is `[b, t, heads (nope + v)]`.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod drop_in;
mod flex;
mod head;
mod part;
mod plain;
#[cfg(test)]
mod tests;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::{spec, statistic};
use crate::dropout::{DropoutKey, DropoutRule};
use crate::rope::RopeTable;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, DispatchTensor, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor};
pub use drop_in::attention;
pub use part::AttentionPart;

/// Computes `softmax(mask(q k^T * scale)) v` for each head. Query `i` sees the keys up to `i + offset`.
///
/// Several query heads may share a head of keys and values (grouped-query attention, arXiv 2305.13245): with `n` query
/// heads for each, head `h` reads head `h / n`.
///
/// Sums and softmax are in f32. On tensor cores, and on a CPU that multiplies bf16, probabilities and gradients of scores
/// are rounded to the type of the inputs before a product, as in FlashAttention.
///
/// # Shapes
/// `q`: `[b, heads, t, d]`; `k`: `[b, kv_heads, s, d]`; `v`: `[b, kv_heads, s, dv]`, with `s` at most `t + offset` and
/// `heads` a multiple of `kv_heads`; the result: `[b, t, heads, dv]`. Inputs whose last dimension is contiguous are not
/// copied. `first_keys`, `[b, t]`, masks documents or limits a window: the first key that each query sees, at least 0 and
/// never less than the one of the query before. Their values are not checked: others give wrong results.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), if a width is 0, if `scale` is not a
/// positive number, if a query would see no key without first keys, if no query would see a key, or if first keys are not
/// i32 or i64.
pub fn causal_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scale: f64,
    offset: usize,
    first_keys: Option<&Tensor<2, Int>>,
) -> Tensor<4> {
    let call = Call("causal_attention");
    let ([b, t], s) = check(call, [&q, &k, &v]);
    let seen = s <= t.saturating_add(offset) && (s > 0) == (t > 0);
    call.that(seen, format_args!("{t} queries, {s} keys and an offset of {offset}: each is to see or be seen"));
    let rule = AttentionRule { scale: positive(call, scale), offset, dropout: None };
    let first_keys = checked(call, first_keys, [b, t], &q.device());
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_attention(q, k, v, first_keys, rule).0)
}

/// Computes causal attention of queries, keys and values from a single product (GPT-2's `c_attn`).
///
/// `qkv` is `[b, t, 3 heads d]`: the three are side by side, each divided into heads. The result is `[b, t, heads d]`.
/// `dropout` is a probability and a key. `first_keys`, `[b, t]`, masks documents as in [`causal_attention`].
///
/// # Panics
/// If the arguments do not have these shapes and a type of f32, bf16 or f16, if a width or `heads` is 0, if `scale` is not
/// a positive number, or if first keys are not i32 or i64.
pub fn causal_self_attention(
    qkv: Tensor<3>,
    heads: usize,
    scale: f64,
    dropout: Option<(f64, DropoutKey)>,
    first_keys: Option<&Tensor<2, Int>>,
) -> Tensor<3> {
    let (call, [b, t, width]) = (Call("causal_self_attention"), qkv.dims());
    call.float("qkv", qkv.dtype());
    let whole = heads > 0 && width > 0 && width.is_multiple_of(3 * heads);
    call.that(whole, format_args!("qkv has shape {:?}, expected a width of 3 times {heads} heads", qkv.dims()));
    let dropout = dropout.map(|dropout| ScoreDropout::new(call, dropout, t));
    let rule = AttentionRule { scale: positive(call, scale), offset: 0, dropout };
    let first_keys = checked(call, first_keys, [b, t], &qkv.device());
    Tensor::from_dispatch(Dispatch::fused_self_attention(qkv.into_dispatch(), first_keys, heads, rule).0)
}

/// Computes multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// Queries and keys of a head have a part without positions and a rotated part; all heads share the rotated key. The
/// operation includes the rotation by `table`, that of [`rope`](crate::rope).
///
/// # Shapes
/// `q`: `[b, t, heads (nope + rope)]`, in each head the unrotated part first; `kv`: `[b, t, heads (nope + v)]`, in each
/// head the key first; `k_rope`: `[b, t, rope]`; the table: `[t, rope / 2]`; the result: `[b, t, heads v]`.
/// `first_keys`, `[b, t]`, masks documents as in [`causal_attention`].
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), if a width or `heads` is 0, if `scale` is
/// not a positive number, or if first keys are not i32 or i64.
pub fn latent_attention(
    q: Tensor<3>,
    kv: Tensor<3>,
    k_rope: Tensor<3>,
    table: &RopeTable,
    heads: usize,
    scale: f64,
    first_keys: Option<&Tensor<2, Int>>,
) -> Tensor<3> {
    let call = Call("latent_attention");
    let ([b, t, q_width], [_, _, kv_width], [_, _, rope]) = (q.dims(), kv.dims(), k_rope.dims());
    call.float("q", q.dtype());
    call.dtype("kv", kv.dtype(), q.dtype());
    call.dtype("k_rope", k_rope.dtype(), q.dtype());
    call.that(heads > 0, "heads is 0, expected at least 1");
    call.that(
        rope > 0 && rope % 2 == 0,
        format_args!("k_rope has shape {:?}, expected a width of pairs", k_rope.dims()),
    );
    let (nope, keys) = ((q_width / heads).saturating_sub(rope), kv_width / heads);
    let v = keys.saturating_sub(nope);
    call.that(
        nope > 0 && v > 0,
        format_args!(
            "q and kv have widths of {q_width} and {kv_width}, expected \
        {heads} heads of nope + {rope} and of nope + v"
        ),
    );
    call.shape("q", q.dims(), [b, t, heads * (nope + rope)]);
    call.shape("kv", kv.dims(), [b, t, heads * (nope + v)]);
    call.shape("k_rope", k_rope.dims(), [b, t, rope]);
    call.shape("table", table.shape(), [t, rope / 2]);
    let attention = AttentionRule { scale: positive(call, scale), offset: 0, dropout: None };
    let rule = LatentRule { heads, nope, rope, v, attention };
    let first_keys = checked(call, first_keys, [b, t], &q.device());
    let ([cos, sin], q, kv) = (table.clone().into_dispatch(), q.into_dispatch(), kv.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_latent_attention(q, kv, k_rope.into_dispatch(), cos, sin, first_keys, rule).0)
}

/// The operation in its three layouts, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait AttentionOps: Backend {
    /// Maps `q_bhtd`, `k_bhsd` and `v_bhsv` to `y_bthv` and the statistic `l_bht`. Here and below, `first_keys_bt`
    /// holds the first key that each query sees; it is empty if that is key 0 for all.
    #[fusion(meta = |q, _, v, _, _| {
        let [b, heads, t] = [0, 1, 2].map(|dim| q.shape[dim]);
        (spec([b, t, heads, v.shape[3]], q.dtype), statistic([b, heads, t]))
    })]
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `qkv`, `[b, t, 3 heads d]`, to `y`, `[b, t, heads d]`, and the statistic `l_bht`.
    #[fusion(meta = |qkv, _, heads, _| {
        let [b, t, width] = [0, 1, 2].map(|dim| qkv.shape[dim]);
        (spec([b, t, width / 3], qkv.dtype), statistic([b, *heads, t]))
    })]
    fn fused_self_attention(
        qkv: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Maps `q`, `[b, t, heads (nope + rope)]`, `kv`, `[b, t, heads (nope + v)]`, `k_rope_btr`, not rotated yet, and
    /// the statistics `cos_tp` and `sin_tp` to `y`, `[b, t, heads v]`, and the statistic `l_bht`.
    #[fusion(meta = |q, _, _, _, _, _, rule| {
        let [b, t] = [0, 1].map(|dim| q.shape[dim]);
        (spec([b, t, rule.heads * rule.v], q.dtype), statistic([b, rule.heads, t]))
    })]
    fn fused_latent_attention(
        q: FloatTensor<Self>,
        kv: FloatTensor<Self>,
        k_rope: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: LatentRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Its gradients.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity, clippy::too_many_arguments)]
pub(crate) trait AttentionBackwardOps: Backend {
    /// Returns the gradients of `q_bhtd`, `k_bhsd` and `v_bhsv`.
    #[fusion(meta = |q, k, v, _, _, _, _, _| (q.clone(), k.clone(), v.clone()))]
    fn fused_attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        rule: AttentionRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Returns the gradient of `qkv`.
    #[fusion(meta = |qkv, _, _, _, _, _, _| qkv.clone())]
    fn fused_self_attention_backward(
        qkv: FloatTensor<Self>,
        y: FloatTensor<Self>,
        l: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        first_keys: IntTensor<Self>,
        heads: usize,
        rule: AttentionRule,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of `q`, `kv` and `k_rope`.
    #[fusion(meta = |q, kv, k_rope, _, _, _, _, _, _, _| (q.clone(), kv.clone(), k_rope.clone()))]
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
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Checks `q_bhtd`, `k_bgsd` and `v_bgsv` with `g` heads of keys and values; returns the numbers of sequences and
/// queries, and of keys.
fn check(call: Call, [q, k, v]: [&Tensor<4>; 3]) -> ([usize; 2], usize) {
    let ([b, heads, t, d], [_, kv_heads, s, dv]) = (q.dims(), v.dims());
    call.float("q", q.dtype());
    call.dtype("k", k.dtype(), q.dtype());
    call.dtype("v", v.dtype(), q.dtype());
    call.shape("k", k.dims(), [b, kv_heads, s, d]);
    call.shape("v", v.dims(), [b, kv_heads, s, dv]);
    let grouped = heads == kv_heads || heads > 0 && heads.is_multiple_of(kv_heads);
    call.that(grouped, format_args!("q has {heads} heads, expected a multiple of the {kv_heads} of k and v"));
    call.that(d > 0 && dv > 0, format_args!("q and v have widths of {d} and {dv}, expected at least 1"));
    ([b, t], s)
}

/// Checks a scale: the kernels take the largest score for that of the largest product.
fn positive(call: Call, scale: f64) -> f32 {
    let scale = scale as f32;
    call.that(scale > 0.0 && scale.is_finite(), format_args!("scale is {scale}, expected a number above 0"));
    scale
}

/// The first keys of all queries, or an empty tensor if there are none.
fn checked(call: Call, first_keys: Option<&Tensor<2, Int>>, [b, t]: [usize; 2], device: &Device) -> DispatchTensor {
    match first_keys {
        Some(first_keys) => {
            call.index("first_keys", first_keys.dtype());
            call.shape("first_keys", first_keys.dims(), [b, t]);
            first_keys.clone().cast(DType::I32).into_dispatch()
        }
        None => Tensor::<1, Int>::empty([0], (&device.clone().inner(), DType::I32)).into_dispatch(),
    }
}

/// The log-sum-exp of a query that sees no key: finite, so that it can be compared, and below any other.
pub(crate) const NO_KEY: f32 = -1e30;

/// The parameters of attention that all heads share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionRule {
    /// Scale of scores.
    pub scale: f32,
    /// Query `i` sees the keys up to `i + offset`.
    pub offset: usize,
    /// Dropout of probabilities.
    pub dropout: Option<ScoreDropout>,
}

/// Dropout of the probabilities of some queries and keys of a sequence, each by its index in `[heads, t, s]` of the
/// whole sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreDropout {
    /// Its key has the index of the first query with the first key in the first head present. Its row length is not
    /// used.
    pub rule: DropoutRule,
    /// Stride from a query to the next: its s scores.
    pub of_query: usize,
    /// Stride from a head to the next: t s.
    pub of_head: usize,
}

impl ScoreDropout {
    /// Dropout for sequences of `t` rows.
    fn new(call: Call, (p, key): (f64, DropoutKey), t: usize) -> Self {
        Self { rule: DropoutRule::new(call, p, key, 1), of_query: t, of_head: t * t }
    }
}

/// Widths and parameters of a latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentRule {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query's or key's part without position.
    pub nope: usize,
    /// Width of their rotated part.
    pub rope: usize,
    /// Width of a value.
    pub v: usize,
    /// The shared parameters.
    pub attention: AttentionRule,
}
