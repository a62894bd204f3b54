//! The kernels of [`attention`](super): FlashAttention-2 (arXiv 2307.08691), shared by all three input layouts.
//!
//! ```text
//!                attention_forward               attention_dkv                   attention_dq
//!  a cube:       a tile of queries               a tile of keys                  a tile of queries
//!  loops over:   tiles of keys that they see     query heads of the group,       tiles of keys that they see
//!                                                tiles of queries that see it
//!  writes:       y, l                            dk, dv                          dq
//! ```
//!
//! A group of query heads shares a head of keys and values. Cubes of queries each read the keys of their own query
//! head's group; a cube of keys takes all query heads of the group, one after the other:
//!
//! ```text
//!  query heads      0 1 2 | 3 4 5      y of the grid in attention_forward and attention_dq
//!  heads of keys      0   |   1        y of the grid in attention_dkv
//! ```
//!
//! The backward launches `attention_delta`, `attention_dkv` and `attention_dq`, and for a rotated key
//! `attention_sum_heads`, the sum of its gradient over heads. A single cube computes each sum, so results are
//! reproducible bit for bit. Layouts differ only in the location of rows ([`rows`]). The rotated parts of latent
//! attention are rotated in shared memory after they are read; after that, the layouts do not differ.
//!
//! [`simt`] runs on any device, [`mma`] on tensor cores.

mod launch;
mod mma;
#[cfg(feature = "offline")]
mod offline;
mod rows;
mod simt;
mod small;

use super::{AttentionBackwardOps, AttentionOps, AttentionRule, LatentRule};
use crate::cube::launch::{contiguous, empty};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "offline")]
pub(crate) use offline::cases;
use rows::{HeadRows, Widths};

/// The inputs of an attention.
struct Problem {
    b: usize,
    heads: usize,
    /// Heads of keys and values; divides `heads`.
    kv_heads: usize,
    t: usize,
    s: usize,
    widths: Widths,
    rule: AttentionRule,
    q: HeadRows,
    k: HeadRows,
    v: HeadRows,
    /// Arbitrary rows and an arbitrary table if nothing is rotated.
    k_rope: HeadRows,
    table: [CubeTensor; 2],
    /// The first key that each query sees, `[b, t]`, i32. Empty if all queries see keys from the first on.
    first_keys: CubeTensor,
}

/// The further inputs of the backward, and the gradients that it sets.
struct Backward {
    d_y: HeadRows,
    l: CubeTensor,
    delta: CubeTensor,
    d_q: HeadRows,
    d_k: HeadRows,
    d_v: HeadRows,
    /// Per head, `[b, kv_heads, s, rope]`, in f32 and still rotated; arbitrary if nothing is rotated.
    d_k_rope: CubeTensor,
}

impl Problem {
    /// Whether documents are masked, so that a query may see only some of the keys before it.
    fn documents(&self) -> bool {
        self.first_keys.meta.num_elements() > 0
    }

    fn is_empty(&self) -> bool {
        self.b * self.heads * self.t == 0
    }

    /// Query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns `y`, `[b, t, heads, v]`, and `l_bht`.
    fn forward(&self) -> (CubeTensor, CubeTensor) {
        let Self { b, heads, t, .. } = *self;
        let y = empty(&self.q.tensor, [b, t, heads, self.widths.v], self.q.tensor.dtype);
        let l = empty(&y, [b, heads, t], DType::F32);
        if !self.is_empty() {
            launch::forward(self, &self.output(&y), &l);
        }
        (y, l)
    }

    /// Sets the gradients. Returns the rotated key's gradient of each head.
    fn backward(&self, [y, d_y]: [CubeTensor; 2], l: CubeTensor, [d_q, d_k, d_v]: [HeadRows; 3]) -> CubeTensor {
        let (y, d_y) = (into_contiguous(y), into_contiguous(d_y));
        let l = contiguous(l, DType::F32);
        let d_k_rope = empty(&y, [self.b, self.kv_heads, self.s, self.widths.rope.max(1)], DType::F32);
        if !self.is_empty() {
            let delta = small::delta(self, &y, &d_y);
            let given = Backward { d_y: self.output(&d_y), l, delta, d_q, d_k, d_v, d_k_rope: d_k_rope.clone() };
            launch::backward(self, &given);
        }
        d_k_rope
    }

    /// The rows of `[b, t, heads, v]`.
    fn output(&self, y: &CubeTensor) -> HeadRows {
        HeadRows::by_position(y, [self.t, self.heads, self.widths.v], 0)
    }
}

impl AttentionOps for CubeBackend {
    fn fused_attention(
        q: CubeTensor,
        k: CubeTensor,
        v: CubeTensor,
        first_keys: CubeTensor,
        rule: AttentionRule,
    ) -> (CubeTensor, CubeTensor) {
        separate([q, k, v], first_keys, rule).forward()
    }

    fn fused_self_attention(
        qkv: CubeTensor,
        first_keys: CubeTensor,
        heads: usize,
        rule: AttentionRule,
    ) -> (CubeTensor, CubeTensor) {
        let [b, t, width] = qkv.shape().dims();
        let (y, l) = of_one_product(qkv, first_keys, heads, rule).forward();
        (reshaped(y, [b, t, width / 3]), l)
    }

    fn fused_latent_attention(
        q: CubeTensor,
        kv: CubeTensor,
        k_rope: CubeTensor,
        cos: CubeTensor,
        sin: CubeTensor,
        first_keys: CubeTensor,
        rule: LatentRule,
    ) -> (CubeTensor, CubeTensor) {
        let [b, t, _] = q.shape().dims();
        let (y, l) = latent([q, kv, k_rope], [cos, sin], first_keys, rule).forward();
        (reshaped(y, [b, t, rule.heads * rule.v]), l)
    }
}

impl AttentionBackwardOps for CubeBackend {
    /// The gradients are laid out by position, as expected by the projections that made queries, keys and values.
    fn fused_attention_backward(
        q: CubeTensor,
        k: CubeTensor,
        v: CubeTensor,
        y: CubeTensor,
        l: CubeTensor,
        d_y: CubeTensor,
        first_keys: CubeTensor,
        rule: AttentionRule,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let problem = separate([q, k, v], first_keys, rule);
        let Problem { b, heads, kv_heads, t, s, widths, .. } = problem;
        let sizes = [(t, heads, widths.nope), (s, kv_heads, widths.nope), (s, kv_heads, widths.v)];
        let gradients = sizes.map(|(rows, heads, width)| {
            let (like, shape) = (&problem.q.tensor, [b, rows, heads, width]);
            // Keys that no query sees have gradients of 0, which no kernel writes.
            let gradient = match t {
                0 => zeros_client(like.client.clone(), like.device.clone(), shape.into(), like.dtype),
                _ => empty(like, shape, like.dtype),
            };
            HeadRows::by_position(&gradient, [rows, heads, width], 0)
        });
        problem.backward([y, d_y], l, gradients.clone());
        let [d_q, d_k, d_v] = gradients.map(|gradient| permute(gradient.tensor, &[0, 2, 1, 3]));
        (d_q, d_k, d_v)
    }

    fn fused_self_attention_backward(
        qkv: CubeTensor,
        y: CubeTensor,
        l: CubeTensor,
        d_y: CubeTensor,
        first_keys: CubeTensor,
        heads: usize,
        rule: AttentionRule,
    ) -> CubeTensor {
        let gradient = empty::<3>(&qkv, qkv.shape().dims(), qkv.dtype);
        of_one_product(qkv, first_keys, heads, rule).backward([y, d_y], l, three(&gradient, heads));
        gradient
    }

    fn fused_latent_attention_backward(
        q: CubeTensor,
        kv: CubeTensor,
        k_rope: CubeTensor,
        cos: CubeTensor,
        sin: CubeTensor,
        y: CubeTensor,
        l: CubeTensor,
        d_y: CubeTensor,
        first_keys: CubeTensor,
        rule: LatentRule,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [d_q, d_kv] = [&q, &kv].map(|x| empty::<3>(x, x.shape().dims(), x.dtype));
        let problem = latent([q, kv, k_rope], [cos, sin], first_keys, rule);
        let [d_k, d_v] = two(&d_kv, problem.t, rule);
        let to_q = HeadRows::by_position(&d_q, [problem.t, rule.heads, rule.nope + rule.rope], 0);
        let of_heads = problem.backward([y, d_y], l, [to_q, d_k, d_v]);
        let d_k_rope = small::sum_heads(&problem, &of_heads, d_q.dtype);
        (d_q, d_kv, d_k_rope)
    }
}

/// Makes first keys contiguous: kernels index them across all sequences, and a device may leave gaps between rows.
fn lying_together(first_keys: CubeTensor) -> CubeTensor {
    if first_keys.meta.num_elements() == 0 { first_keys } else { contiguous(first_keys, DType::I32) }
}

/// The problem of queries, keys and values of these widths without a rotated part.
fn unrotated(
    [b, heads, kv_heads, t, s]: [usize; 5],
    [nope, width]: [usize; 2],
    [q, k, v]: [HeadRows; 3],
    first_keys: CubeTensor,
    rule: AttentionRule,
) -> Problem {
    let none = empty(&q.tensor, [1], DType::F32);
    let (k_rope, table) = (k.clone(), [none.clone(), none]);
    Problem {
        b,
        heads,
        kv_heads,
        t,
        s,
        widths: Widths { nope, rope: 0, v: width },
        rule,
        q,
        k,
        v,
        k_rope,
        table,
        first_keys: lying_together(first_keys),
    }
}

/// The problem of separate queries, keys and values, used in place if the elements of each row are contiguous.
fn separate([q, k, v]: [CubeTensor; 3], first_keys: CubeTensor, rule: AttentionRule) -> Problem {
    let ([b, heads, t, nope], [_, kv_heads, s, width]) = (q.shape().dims(), v.shape().dims());
    let [q, k, v] = [q, k, v].map(|x| {
        let x = if x.meta.strides()[3] == 1 { x } else { into_contiguous(x) };
        HeadRows::by_head(x)
    });
    unrotated([b, heads, kv_heads, t, s], [nope, width], [q, k, v], first_keys, rule)
}

/// Queries, keys and values in a contiguous `[b, t, 3, heads, d]`.
fn three(qkv: &CubeTensor, heads: usize) -> [HeadRows; 3] {
    let [_, t, width] = qkv.shape().dims();
    let d = width / 3 / heads;
    [0, 1, 2].map(|i| HeadRows { tensor: qkv.clone(), first: i * heads * d, strides: [t * width, d, width] })
}

fn of_one_product(qkv: CubeTensor, first_keys: CubeTensor, heads: usize, rule: AttentionRule) -> Problem {
    let [b, t, width] = qkv.shape().dims();
    let d = width / 3 / heads;
    unrotated([b, heads, heads, t, t], [d, d], three(&into_contiguous(qkv), heads), first_keys, rule)
}

/// Keys and values, or their gradients, in a contiguous `[b, t, heads (nope + v)]`.
fn two(kv: &CubeTensor, t: usize, rule: LatentRule) -> [HeadRows; 2] {
    [0, rule.nope].map(|column| HeadRows::by_position(kv, [t, rule.heads, rule.nope + rule.v], column))
}

fn latent(
    [q, kv, k_rope]: [CubeTensor; 3],
    table: [CubeTensor; 2],
    first_keys: CubeTensor,
    rule: LatentRule,
) -> Problem {
    let [b, t, _] = q.shape().dims();
    let [q, kv, k_rope] = [q, kv, k_rope].map(into_contiguous);
    let LatentRule { heads, nope, rope, v: width, attention } = rule;
    let [k, v] = two(&kv, t, rule);
    let q = HeadRows::by_position(&q, [t, heads, nope + rope], 0);
    let k_rope = HeadRows { tensor: k_rope, first: 0, strides: [t * rope, 0, rope] };
    let table = table.map(|table| contiguous(table, DType::F32));
    let widths = Widths { nope, rope, v: width };
    let first_keys = lying_together(first_keys);
    Problem { b, heads, kv_heads: heads, t, s: t, widths, rule: attention, q, k, v, k_rope, table, first_keys }
}

/// Gives a contiguous tensor another shape.
fn reshaped<const D: usize>(tensor: CubeTensor, shape: [usize; D]) -> CubeTensor {
    CubeTensor::new_contiguous(tensor.client, tensor.device, shape.into(), tensor.handle, tensor.dtype)
}
