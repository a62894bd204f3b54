//! Causal attention whose scores are never all in memory.
//!
//! ```text
//! y[i] = sum over j of p[i, j] v[j],   p[i, j] = exp(scale q[i] k[j] - l[i]),   l[i] = log(sum over j of exp(scale q[i] k[j])),   j <= i + offset
//! ```
//!
//! A task is one head of one sequence. It goes through the queries in tiles, each with the keys up to its last query:
//!
//! ```text
//!            keys ->
//! queries  | s .       |      forward   s = q k^T, p = softmax, y = p v                              one tile of s at a time
//!          | s s .     |      backward  s again, p = exp(s - l); dv += p^T dy, ds = p (dy v^T - sum(dy y)) scale,
//!          | s s s .   |                dq = ds k, dk += ds^T q
//! ```
//!
//! Kept for the backward are the inputs, the output and `l`, the log-sum-exp of each row (FlashAttention, arXiv
//! 2205.14135 and 2307.08691). A row's result depends on its own query and the keys up to it, whatever else is in the
//! batch, to the last bit.
//!
//! Where a row holds several documents, none of which sees another, `starts`, `[b, t]`, are the first keys that queries
//! see: `j >= starts[i]` is asked too. They never fall along a sequence; tiles of keys that come before those of all
//! queries of a tile are skipped, so that the work is the sum of the documents' squares; rows then have the same bits
//! where the same documents lie before them. A query that sees no key has the result 0, and an `l` of -1e30.
//!
//! ```text
//! starts     0 0 0 3 3 5 5 5         three documents in a row of 8
//! ```
//!
//! Dropout multiplies each `p` in `y` with its factor, a function of the score's place (see
//! [`dropout`](crate::dropout)), made where it is used. All is computed in f32, results are rounded once.
//!
//! Three ways to lay out what goes in, with one algorithm, none of them copied together:
//!
//! | | queries | keys | values |
//! |---|---|---|---|
//! | [`causal_attention`] | `q_bhtd` | `k_bhsd` | `v_bhsv` |
//! | [`causal_self_attention`] | | `[b, t, 3 heads d]`, one product | |
//! | [`latent_attention`] | `[b, t, heads (nope + rope)]` | `nope` of `[b, t, heads (nope + v)]`, and one rotated part for all heads, `[b, t, rope]` | `v` of it |

#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod head;
mod host;
mod part;
#[cfg(test)]
mod tests;
mod views;

use crate::check::Call;
use crate::dropout::{DropoutKey, DropoutRule};
use crate::ops::FusedOps;
use crate::rope::RopeTable;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Device, Int, Tensor};
pub(crate) use host::{
    Latent, Lying, Mask, Sizes, attention_backward_host, attention_host, latent_attention_backward_host,
    latent_attention_host, self_attention_backward_host, self_attention_host,
};
pub use part::AttentionPart;

/// `softmax(mask(q k^T * scale)) v`, each head on its own. Query `i` sees the keys up to `i + offset`.
///
/// # Shapes
/// `q`: `[b, heads, t, d]`; `k`: `[b, heads, s, d]`; `v`: `[b, heads, s, dv]`, with `s` at most `t + offset`; the
/// result: `[b, t, heads, dv]`. Nothing is copied whose last dimension lies together.
///
/// # Panics
/// If the arguments are not of these shapes and of one type, f32, bf16 or f16, a width is 0, a query would see no key,
/// or no query a key.
pub fn causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64, offset: usize) -> Tensor<4> {
    let call = Call("causal_attention");
    let ([b, t], s) = check(call, [&q, &k, &v]);
    let seen = s <= t.saturating_add(offset) && (s > 0) == (t > 0);
    call.that(seen, format_args!("{t} queries, {s} keys and an offset of {offset}: each is to see or be seen"));
    let rule = AttentionRule { scale: scale as f32, offset, dropout: None };
    let starts = checked(call, None, [b, t], &q.device());
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_attention(q, k, v, starts, rule).0)
}

/// Attention of queries, keys and values that are one product: in `qkv`, `[b, t, 3 heads d]`, the three lie side by
/// side, and in each the heads (GPT-2's `c_attn`). Returns `[b, t, heads d]`. A `dropout` has a probability and a key;
/// for `starts` see the module's page.
///
/// # Panics
/// If the arguments are not of these shapes and of one type, f32, bf16 or f16, a width or `heads` is 0, or the starts
/// not i32 or i64.
pub fn causal_self_attention(
    qkv: Tensor<3>,
    heads: usize,
    scale: f64,
    dropout: Option<(f64, DropoutKey)>,
    starts: Option<&Tensor<2, Int>>,
) -> Tensor<3> {
    let (call, [b, t, width]) = (Call("causal_self_attention"), qkv.dims());
    call.float("qkv", qkv.dtype());
    let whole = heads > 0 && width > 0 && width.is_multiple_of(3 * heads);
    call.that(whole, format_args!("qkv has shape {:?}, expected a width of 3 times {heads} heads", qkv.dims()));
    let dropout = dropout.map(|dropout| ScoreDropout::new(call, dropout, t));
    let rule = AttentionRule { scale: scale as f32, offset: 0, dropout };
    let starts = checked(call, starts, [b, t], &qkv.device());
    Tensor::from_dispatch(Dispatch::fused_self_attention(qkv.into_dispatch(), starts, heads, rule).0)
}

/// Multi-head latent attention's own (DeepSeek-V2, arXiv 2405.04434, section 2.1): a head's query and key have a part
/// without positions and a rotated one, and the rotated key is the same for all heads. The rotation,
/// [`rope`](crate::rope)'s by `table`, is part of the operation.
///
/// # Shapes
/// `q`: `[b, t, heads (nope + rope)]`, in each head the unrotated part first; `kv`: `[b, t, heads (nope + v)]`, in each
/// head the key first; `k_rope`: `[b, t, rope]`; the table: `[t, rope / 2]`; the result: `[b, t, heads v]`. For
/// `starts` see the module's page.
///
/// # Panics
/// If the arguments are not of these shapes and of one type, f32, bf16 or f16, a width or `heads` is 0, or the starts
/// not i32 or i64.
pub fn latent_attention(
    q: Tensor<3>,
    kv: Tensor<3>,
    k_rope: Tensor<3>,
    table: &RopeTable,
    heads: usize,
    scale: f64,
    starts: Option<&Tensor<2, Int>>,
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
    let attention = AttentionRule { scale: scale as f32, offset: 0, dropout: None };
    let rule = LatentRule { heads, nope, rope, v, attention };
    let starts = checked(call, starts, [b, t], &q.device());
    let ([cos, sin], q, kv) = (table.clone().into_dispatch(), q.into_dispatch(), kv.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_latent_attention(q, kv, k_rope.into_dispatch(), cos, sin, starts, rule).0)
}

/// The sequences and positions of queries and the number of keys, where `q_bhtd`, `k_bhsd` and `v_bhsv` are as they
/// should be.
fn check(call: Call, [q, k, v]: [&Tensor<4>; 3]) -> ([usize; 2], usize) {
    let ([b, heads, t, d], [_, _, s, dv]) = (q.dims(), v.dims());
    call.float("q", q.dtype());
    call.dtype("k", k.dtype(), q.dtype());
    call.dtype("v", v.dtype(), q.dtype());
    call.shape("k", k.dims(), [b, heads, s, d]);
    call.shape("v", v.dims(), [b, heads, s, dv]);
    call.that(d > 0 && dv > 0, format_args!("q and v have widths of {d} and {dv}, expected at least 1"));
    ([b, t], s)
}

/// The starts of all queries, or of no elements where there are none.
fn checked(call: Call, starts: Option<&Tensor<2, Int>>, [b, t]: [usize; 2], device: &Device) -> DispatchTensor {
    match starts {
        Some(starts) => {
            call.index("starts", starts.dtype());
            call.shape("starts", starts.dims(), [b, t]);
            starts.clone().cast(DType::I32).into_dispatch()
        }
        None => Tensor::<1, Int>::empty([0], (&device.clone().inner(), DType::I32)).into_dispatch(),
    }
}

/// The log-sum-exp of a query that sees no key: finite, so that it can be compared, and less than any other.
pub(crate) const NO_KEY: f32 = -1e30;

/// What attention is the same for all heads in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionRule {
    /// Of scores.
    pub scale: f32,
    /// Query `i` sees the keys up to `i + offset`.
    pub offset: usize,
    /// Of probabilities.
    pub dropout: Option<ScoreDropout>,
}

/// Dropout of the probabilities of some queries and keys of a sequence, each by its place in `[heads, t, s]` of all of
/// them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreDropout {
    /// Its key has the place of the first query's with the first key, in the first head that is here; its row's length
    /// is not asked for.
    pub rule: DropoutRule,
    /// Scores of a query, s: from a query to the next.
    pub of_query: usize,
    /// From a head to the next, t s.
    pub of_head: usize,
}

impl ScoreDropout {
    /// Of sequences of `t` rows.
    fn new(call: Call, (p, key): (f64, DropoutKey), t: usize) -> Self {
        Self { rule: DropoutRule::new(call, p, key, 1), of_query: t, of_head: t * t }
    }
}

/// Widths of a latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentRule {
    /// Heads.
    pub heads: usize,
    /// Of a query and a key without position.
    pub nope: usize,
    /// Of their rotated part.
    pub rope: usize,
    /// Of a value.
    pub v: usize,
    /// The rest.
    pub attention: AttentionRule,
}
