//! Ring attention: KV blocks circulate between ranks (arXiv 2310.01889).
//!
//! ```text
//! step        rank 0                rank 1                rank 2
//! 0           q0 with message 0     q1 with message 1     q2 with message 2
//! 1           q0 with message 2     q1 with message 0     q2 with message 1
//! 2           q0 with message 1     q1 with message 2     q2 with message 0
//! backward    the same; each message's gradient follows it one step later, and returns home after the last step
//! ```
//!
//! A message moves to the next rank while this one computes with it.
//!
//! A message holds what keys and values are computed from: the keys and values themselves, or the latents and the
//! rotated key. Partial results over different keys are merged by log-sum-exp, even for queries that see none of a
//! message's keys. Parts `(y, l)` and `(y', l')` with `w = sigmoid(l' - l)` give `y + w (y' - y)` and
//! `log(exp l + exp l')`, in f32. The backward computes each part's probabilities from the final `l`. Causal attention
//! is balanced: every rank does the same amount of work; see [`ContextParallel`].

use burn::tensor::{DType, Int, Tensor, activation};
use comm::ContextParallel;
use comm::ops::{flat, with_gradients};
use fused::{AttentionPart, DropoutKey, linear, linear_transposed};
use std::ops::Range;

/// How keys and values are computed from a message, `[b, s, width]`.
#[derive(Clone)]
pub(crate) enum Keys {
    /// The message holds keys and values, heads side by side.
    Whole {
        /// Number of heads.
        heads: usize,
    },
    /// The message holds a latent and a rotated key that all heads share; detached from the graph.
    Latent {
        /// Expands the latent, `[rank, heads (nope + v)]`.
        weight: Tensor<2>,
        heads: usize,
        nope: usize,
        rope: usize,
    },
}

/// Attention over the ranks of a context-parallel group.
#[derive(Clone)]
pub(crate) struct Ring {
    pub cp: ContextParallel,
    pub keys: Keys,
    /// Scale of the scores.
    pub scale: f64,
    /// The first position of the whole sequence that each query sees, `[b, t]`; `None` means 0.
    pub first_keys: Option<Tensor<2, Int>>,
    /// Dropout of the probabilities: probability, key, index of the first local head, and sequence length without
    /// padding.
    pub dropout: Option<(f64, DropoutKey, usize, usize)>,
}

/// Output and log-sum-exp of a chunk of queries: `[b, c, heads, v]` and `[b, heads, c]`, f32.
type Sum = (Tensor<4>, Tensor<3>);

impl Ring {
    /// Maps `q_bthd` and `message_btw` of this rank's rows, and the matrix of [`Keys::Latent`], to `[b, t, heads v]`.
    pub fn forward(self, q: Tensor<4>, message: Tensor<3>, weight: Option<Tensor<2>>) -> Tensor<3> {
        // Slices of a joined product are copied here, and not again by each send.
        let (q_shape, m_shape, dtype) = (q.dims(), message.dims(), q.dtype());
        let (q, message) = (flat(q), flat(message));
        let q_inner = q.clone().inner().reshape(q_shape).swap_dims(1, 2);
        let m_inner = message.clone().inner().reshape(m_shape);
        let (y, l) = self.attend(&q_inner, &m_inner);
        let [b, t, heads, v] = y.dims();
        let y = y.cast(dtype);
        let kept = y.clone();
        let back = move |d_y: Tensor<1>| {
            let d_y = d_y.reshape([b, t, heads, v]);
            self.gradients([&q_inner, &kept, &d_y], &m_inner, &l)
        };
        let y = y.reshape([b, t, heads * v]);
        match weight {
            Some(weight) => with_gradients([q, message, flat(weight)], y, move |d_y| {
                let [d_q, d_m, d_w] = back(d_y);
                [d_q, d_m, d_w].map(|gradient| gradient.cast(dtype))
            }),
            None => with_gradients([q, message], y, move |d_y| {
                let [d_q, d_m, _] = back(d_y);
                [d_q, d_m].map(|gradient| gradient.cast(dtype))
            }),
        }
    }

    /// Returns the output, `[b, t, heads, v]`, and the log-sum-exps, `[b, heads, t]`, in f32.
    fn attend(&self, q: &Tensor<4>, message: &Tensor<3>) -> Sum {
        let (shape, n) = (message.dims(), self.cp.size());
        let mut sums: Vec<Option<Sum>> = vec![None; 2];
        let mut message = flat(message.clone());
        for step in 0..n {
            let here = message.clone().reshape(shape);
            let is_last = step + 1 == n;
            if !is_last {
                self.cp.send(message.clone());
            }
            let [k, v] = self.keys.of(here);
            for (chunks, part) in self.parts(step, shape[1]) {
                let sum = part.forward(chunk(q, [&k, &v], &chunks), self.first_keys(&chunks[0].1));
                sums[chunks[0].0] = Some(merged(sums[chunks[0].0].take(), sum));
            }
            if !is_last {
                message = self.cp.recv(&[&message]).remove(0);
            }
        }
        let (y, l): (Vec<_>, Vec<_>) = sums.into_iter().map(|sum| sum.expect("a query sees itself")).unzip();
        (Tensor::cat(y, 1), Tensor::cat(l, 2))
    }

    /// Returns the gradients of `q_bthd`, of the message and of the matrix, flat, in f32.
    fn gradients(&self, [q, y, d_y]: [&Tensor<4>; 3], own: &Tensor<3>, l: &Tensor<3>) -> [Tensor<1>; 3] {
        let (shape, n) = (own.dims(), self.cp.size());
        let mut d_q: Vec<Option<Tensor<4>>> = vec![None; 2];
        let mut d_weight = None::<Tensor<2>>;
        let mut message = flat(own.clone());
        let mut d_message = None::<Tensor<1>>;
        for step in 0..n {
            let is_last = step + 1 == n;
            if !is_last {
                self.cp.send(message.clone());
            }
            let here = message.clone().reshape(shape);
            let (of_message, of_weight) = {
                let [k, v] = self.keys.of(here.clone());
                let (mut d_k, mut d_v) = (vec![None::<Tensor<4>>; 2], vec![None::<Tensor<4>>; 2]);
                for (chunks, part) in self.parts(step, shape[1]) {
                    let [(i, queries), (j, _)] = chunks.clone();
                    let [y, d_y] = [y, d_y].map(|rows| rows.clone().slice_dim(1, queries.clone()));
                    let l = l.clone().slice_dim(2, queries.clone());
                    let first_keys = self.first_keys(&queries);
                    let gradients = part.backward(chunk(q, [&k, &v], &chunks), [y, d_y], l, first_keys);
                    // Kernels write gradients by position, `[b, s, heads, width]`.
                    let [of_q, of_k, of_v] = gradients.map(|gradient| gradient.swap_dims(1, 2).cast(DType::F32));
                    for (sum, gradient) in [(&mut d_q[i], of_q), (&mut d_k[j], of_k), (&mut d_v[j], of_v)] {
                        *sum = Some(sum.take().map_or(gradient.clone(), |sum| sum + gradient));
                    }
                }
                let whole = |halves: Vec<Option<Tensor<4>>>, like: &Tensor<4>| {
                    let [b, heads, s, width] = like.dims();
                    let none = || Tensor::zeros([b, s / 2, heads, width], (&like.device(), DType::F32));
                    Tensor::cat(halves.into_iter().map(|half| half.unwrap_or_else(none)).collect(), 1)
                };
                let gradients = [whole(d_k, &k), whole(d_v, &v)].map(|gradient| gradient.cast(k.dtype()));
                self.keys.back(here, gradients)
            };
            // The gradient of the current message, as accumulated by the previous ranks, and the next message.
            let likes = [d_message.as_ref(), (!is_last).then_some(&message)];
            let likes: Vec<&Tensor<1>> = likes.into_iter().flatten().collect();
            let mut came = self.cp.recv(&likes).into_iter();
            if let Some(of_weight) = of_weight {
                d_weight = Some(d_weight.map_or(of_weight.clone(), |sum| sum + of_weight));
            }
            let before = d_message.and_then(|_| came.next());
            let sum = before.map_or(flat(of_message.clone()), |before| before + flat(of_message));
            message = came.next().unwrap_or(message);
            self.cp.send(sum.clone());
            d_message = Some(sum);
        }
        let sum = d_message.expect("there is a step");
        let home = self.cp.recv(&[&sum]).remove(0);
        let d_q = Tensor::cat(d_q.into_iter().map(|half| half.expect("a query sees itself")).collect(), 1);
        let d_weight = d_weight.map_or_else(|| Tensor::zeros([0], &q.device()), flat);
        [flat(d_q), home, d_weight]
    }

    /// The first keys of these queries.
    fn first_keys(&self, queries: &Range<usize>) -> Option<Tensor<2, Int>> {
        self.first_keys.as_ref().map(|first_keys| first_keys.clone().slice_dim(1, queries.clone()))
    }

    /// The pairs of query chunk and key chunk of a step, each with its index and local rows, in which the queries see
    /// at least one key.
    fn parts(&self, step: usize, t: usize) -> impl Iterator<Item = ([(usize, Range<usize>); 2], AttentionPart)> {
        let (n, half) = (self.cp.size(), t / 2);
        let from = (self.cp.rank() + n - step) % n;
        let (queries, keys) = (self.cp.chunks(t * n), self.cp.chunks_of(from, t * n));
        let all = [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter();
        let (scale, dropout) = (self.scale, self.dropout);
        all.filter_map(move |(i, j)| {
            let first = [queries[i].start, keys[j].start];
            let rows = |chunk| (chunk, chunk * half..(chunk + 1) * half);
            (first[1] <= first[0]).then(|| ([rows(i), rows(j)], AttentionPart { first, scale, dropout }))
        })
    }
}

/// Selects these chunks of queries, keys and values.
fn chunk(q: &Tensor<4>, [k, v]: [&Tensor<4>; 2], [queries, keys]: &[(usize, Range<usize>); 2]) -> [Tensor<4>; 3] {
    [(q, queries), (k, keys), (v, keys)].map(|(x, (_, rows))| x.clone().slice_dim(2, rows.clone()))
}

fn merged(sum: Option<Sum>, (y, l): Sum) -> Sum {
    let y = y.cast(DType::F32);
    let Some((sum_y, sum_l)) = sum else { return (y, l) };
    let ahead = l.clone() - sum_l.clone();
    let weight_bch1 = activation::sigmoid(ahead.clone()).swap_dims(1, 2).unsqueeze_dim(3);
    (sum_y.clone() + (y - sum_y) * weight_bch1, sum_l.max_pair(l) + (-ahead.abs()).exp().log1p())
}

impl Keys {
    /// Computes `k_bhsd` and `v_bhsv` from a message.
    fn of(&self, message: Tensor<3>) -> [Tensor<4>; 2] {
        let [b, s, width] = message.dims();
        match self {
            Self::Whole { heads } => {
                let both = message.reshape([b, s, 2 * heads, width / (2 * heads)]).swap_dims(1, 2);
                [0..*heads, *heads..2 * heads].map(|half| both.clone().slice_dim(1, half))
            }
            Self::Latent { weight, heads, nope, rope } => {
                let ([rank, out], latent) = (weight.dims(), message.clone().slice_dim(2, 0..width - rope));
                let kv = linear(latent, weight.clone(), None).reshape([b, s, *heads, out / heads]).swap_dims(1, 2);
                let shared = message.slice_dim(2, rank..width).reshape([b, 1, s, *rope]).expand([b, *heads, s, *rope]);
                let k = Tensor::cat(vec![kv.clone().slice_dim(3, 0..*nope), shared], 3);
                [k, kv.slice_dim(3, *nope..out / heads)]
            }
        }
    }

    /// Maps the gradients of keys and values, `[b, s, heads, width]`, to those of the message and, if there is one, of
    /// the matrix, in f32.
    fn back(&self, message: Tensor<3>, [d_k, d_v]: [Tensor<4>; 2]) -> (Tensor<3>, Option<Tensor<2>>) {
        let [b, s, width] = message.dims();
        match self {
            Self::Whole { .. } => (Tensor::cat(vec![d_k, d_v], 2).reshape([b, s, width]).cast(DType::F32), None),
            Self::Latent { weight, nope, rope, .. } => {
                let [rank, out] = weight.dims();
                let latent = message.slice_dim(2, 0..rank).reshape([b * s, rank]);
                let d_shared = d_k.clone().slice_dim(3, *nope..nope + rope).cast(DType::F32).sum_dim(2);
                let d_kv = Tensor::cat(vec![d_k.slice_dim(3, 0..*nope), d_v], 3).reshape([b * s, out]);
                let d_weight = linear(latent.transpose(), d_kv.clone(), None).cast(DType::F32);
                let d_latent = linear_transposed(d_kv, weight.clone()).reshape([b, s, rank]).cast(DType::F32);
                (Tensor::cat(vec![d_latent, d_shared.reshape([b, s, *rope])], 2), Some(d_weight))
            }
        }
    }
}
