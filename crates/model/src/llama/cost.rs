//! What the calls of a Llama cost.
//!
//! With `H = heads head_dim` and `K = kv_heads head_dim`, per token (see [`cost::kept`](crate::cost::kept) and
//! [`cost::received`](crate::cost::received)):
//!
//! ```text
//! kept by a block      4 S + n (2 H + 2 K) + P, and its MLP's     x, norm, q, k, v, y, x + y, norm
//!                      n (H + K) more with norms of queries and keys
//! received by a block  R(d) read, R(d) summed, and its MLP's
//!                      keys and values of the rank's heads circulate, m = 2 K / tp
//! ```
//!
//! By the convention of [`Flops`], attention counts all tokens before a position, including those outside a window.

use crate::cost::received::RowBytes;
use crate::cost::{Flops, Workload, product_flops};
use crate::{Family, LlamaConfig};
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

/// The embedding, every block, and the calls after them.
pub(super) fn flops(family: &impl Family, shape: &LlamaConfig) -> Vec<Flops> {
    let mut calls = product_flops(family);
    let attention = 6.0 * (shape.num_attention_heads * 2 * shape.head_dim()) as f64;
    calls[1..=shape.num_hidden_layers].iter_mut().for_each(|call| call.attention = attention);
    calls
}

pub(super) fn memory(shape: &LlamaConfig, moe: Option<&MoeConfig>, work: &Workload) -> Vec<CallBytes> {
    let (d, heads) = (shape.hidden_size as f64, shape.num_attention_heads as f64);
    let [q, k] = widths(shape).map(|width| width as f64);
    let normed = if shape.qk_norm { q + k } else { 0.0 };
    let attention = work.kept(3.0 * d + 2.0 * q + 2.0 * k + normed) + work.wide(heads);
    let block = |layer: usize| {
        let (mlp, backward) = match shape.experts_of(layer, moe) {
            Some(moe) => (work.experts(d, moe), work.expert_rows(d, moe)),
            None => [work.kept(3.0 * shape.intermediate_size as f64); 2].into(),
        };
        let backward = (work.scores(heads) + work.ring(2.0 * k)).max(backward) + work.gathered(2.0 * d);
        work.call_bytes(d, attention + mlp, backward)
    };
    let mut calls = vec![CallBytes::default()];
    calls.extend((0..shape.num_hidden_layers).map(block));
    calls.extend(shape.tie_word_embeddings.then(|| work.call_bytes(d, 0.0, 0.0)));
    calls.push(work.head_bytes(d, shape.vocab_size as f64));
    calls
}

pub(super) fn traffic(shape: &LlamaConfig, moe: Option<&MoeConfig>, work: &Workload) -> Vec<CallTraffic> {
    let (d, [_, k]) = (shape.hidden_size, widths(shape));
    let row = work.row_bytes(d);
    let block = |layer: usize| {
        let moe = shape.experts_of(layer, moe);
        let mlp = if moe.is_none_or(|moe| moe.n_shared_experts > 0) { row } else { 0 };
        let mut call = work.call_traffic(d, RowBytes { read: row + mlp, kept: 0, summed: row + mlp });
        work.circulate(&mut call, 2 * k / work.tp);
        if let Some(moe) = moe {
            work.exchange(&mut call, d, moe);
        }
        call
    };
    let mut calls = vec![work.embedding_traffic(d, 1)];
    calls.extend((0..shape.num_hidden_layers).map(block));
    calls.extend(shape.tie_word_embeddings.then(|| work.call_traffic(d, RowBytes::default())));
    calls.push(work.head_traffic(d, 0));
    calls
}

/// Widths of all heads' queries, and of all heads' keys.
fn widths(shape: &LlamaConfig) -> [usize; 2] {
    [shape.num_attention_heads, shape.num_key_value_heads].map(|heads| heads * shape.head_dim())
}
