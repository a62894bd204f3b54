//! Attention of some queries to some keys, to be merged with the attention of the same queries to other keys.
//!
//! ```text
//! forward    (y_1, l_1) of keys 1, (y_2, l_2) of keys 2:   l = log(exp(l_1) + exp(l_2)),
//!                                                          y = exp(l_1 - l) y_1 + exp(l_2 - l) y_2
//! backward   of each part, with the y and l of all keys:   p = exp(scale q k - l), a probability among all of them
//! ```

use super::{AttentionBackwardOps, AttentionOps, AttentionRule, ScoreDropout, check, checked};
use crate::check::Call;
use crate::dropout::DropoutKey;
use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Int, Tensor};

/// Attention of queries and keys at some positions of a sequence, outside any graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionPart {
    /// Positions in the sequence of the first query and the first key. If they are equal, queries and keys share their
    /// positions and each query sees the keys up to its own position. Otherwise every query sees every key.
    pub first: [usize; 2],
    /// Scale of scores.
    pub scale: f64,
    /// Dropout of probabilities: the probability, the key, the first head present and the length of the whole sequence.
    pub dropout: Option<(f64, DropoutKey, usize, usize)>,
}

impl AttentionPart {
    fn rule(&self, call: Call, keys: usize) -> AttentionRule {
        let [query, key] = self.first;
        let dropout = self
            .dropout
            .map(|(p, of, head, t)| ScoreDropout::new(call, (p, of.at_index((head * t + query) * t + key)), t));
        AttentionRule { scale: self.scale as f32, offset: if query == key { 0 } else { keys }, dropout }
    }

    /// Maps `q_bhtd`, `k_bgsd` and `v_bgsv` to `y_bthv` and to the log-sum-exp of scores, `l_bht`, in f32. As in
    /// [`causal_attention`](crate::causal_attention), g divides h.
    ///
    /// `l` is -1e30 if a query sees no key. `first_keys_bt` holds the position in the sequence of the first key that
    /// each query sees, as in [`causal_self_attention`](crate::causal_self_attention).
    ///
    /// # Panics
    /// If the arguments do not have these shapes and one type (f32, bf16 or f16), if a width is 0, if first keys are
    /// not i32 or i64, or if queries and keys at the same positions differ in number.
    pub fn forward(&self, [q, k, v]: [Tensor<4>; 3], first_keys_bt: Option<Tensor<2, Int>>) -> (Tensor<4>, Tensor<3>) {
        let call = Call("AttentionPart::forward");
        let rule = self.rule(call, self.check(call, [&q, &k, &v]));
        let first_keys = self.first_keys(call, &q, first_keys_bt);
        let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
        let (y, l) = Dispatch::fused_attention(q, k, v, first_keys, rule);
        (Tensor::from_dispatch(y), Tensor::from_dispatch(l))
    }

    /// Returns the gradients of `q_bhtd`, `k_bgsd` and `v_bgsv`, given `y_bthv` and `l_bht` of all keys and the
    /// gradient of `y`.
    ///
    /// # Panics
    /// Like [`forward`](Self::forward).
    pub fn backward(
        &self,
        [q, k, v]: [Tensor<4>; 3],
        [y, d_y]: [Tensor<4>; 2],
        l: Tensor<3>,
        first_keys_bt: Option<Tensor<2, Int>>,
    ) -> [Tensor<4>; 3] {
        let call = Call("AttentionPart::backward");
        let rule = self.rule(call, self.check(call, [&q, &k, &v]));
        let first_keys = self.first_keys(call, &q, first_keys_bt);
        let ([b, heads, t, _], [_, _, _, dv]) = (q.dims(), v.dims());
        for (name, rows) in [("y", &y), ("d_y", &d_y)] {
            call.dtype(name, rows.dtype(), q.dtype());
            call.shape(name, rows.dims(), [b, t, heads, dv]);
        }
        call.dtype("l", l.dtype(), DType::F32);
        call.shape("l", l.dims(), [b, heads, t]);
        let [q, k, v, y, d_y] = [q, k, v, y, d_y].map(Tensor::into_dispatch);
        let (d_q, d_k, d_v) = Dispatch::fused_attention_backward(q, k, v, y, l.into_dispatch(), d_y, first_keys, rule);
        [d_q, d_k, d_v].map(Tensor::from_dispatch)
    }

    /// The first keys of these queries, relative to the first key of this part.
    fn first_keys(&self, call: Call, q: &Tensor<4>, first_keys_bt: Option<Tensor<2, Int>>) -> DispatchTensor {
        let [b, _, t, _] = q.dims();
        let here = first_keys_bt.map(|first_keys| (first_keys - self.first[1] as i64).clamp_min(0));
        checked(call, here.as_ref(), [b, t], &q.device())
    }

    /// Checks the arguments; returns the number of keys.
    fn check(&self, call: Call, qkv: [&Tensor<4>; 3]) -> usize {
        let ([_, t], s) = check(call, qkv);
        let fits = self.first[0] != self.first[1] || s == t;
        call.that(fits, format_args!("{t} queries and {s} keys from one position on, expected as many of both"));
        s
    }
}
