//! What the calls of a GPT-2 cost.
//!
//! ```text
//! kept by a block (see `cost::kept`)        8 S + 2 n inner + P       x, norm, q, k, v, y, x + y, norm; the MLP before and after its GELU
//! received by a block (`cost::received`)    2 R(d) read, 2 R(d) summed; keys and values of the rank's heads circulate, m = 2 d / tp
//! ```

use crate::cost::received::RowBytes;
use crate::cost::{Flops, Workload, product_flops};
use crate::{Family, Gpt2Config};
use fsdp::{CallBytes, CallTraffic};

/// The embedding, every block, the head. A block's query and value are as wide as the model.
pub(super) fn flops(family: &impl Family, shape: &Gpt2Config) -> Vec<Flops> {
    let mut calls = product_flops(family);
    calls[1..=shape.n_layer].iter_mut().for_each(|call| call.attention = 6.0 * (2 * shape.n_embd) as f64);
    calls
}

pub(super) fn memory(shape: &Gpt2Config, work: &Workload) -> Vec<CallBytes> {
    let (d, heads) = (shape.n_embd as f64, shape.n_head as f64);
    let inner = shape.n_inner.map_or(4.0 * d, |inner| inner as f64);
    let kept = work.kept(7.0 * d + 2.0 * inner) + work.wide(heads);
    let backward = (work.scores(heads) + work.ring(2.0 * d)).max(work.kept(2.0 * inner)) + work.gathered(2.0 * d);
    let mut calls = vec![CallBytes::default()];
    calls.extend(vec![work.call_bytes(d, kept, backward); shape.n_layer]);
    calls.push(work.head_bytes(d, shape.vocab_size as f64));
    calls
}

pub(super) fn traffic(shape: &Gpt2Config, work: &Workload) -> Vec<CallTraffic> {
    let (d, rows) = (shape.n_embd, 2 * work.row_bytes(shape.n_embd));
    let mut block = work.call_traffic(d, RowBytes { read: rows, kept: 0, summed: rows });
    work.circulate(&mut block, 2 * d / work.tp);
    let blocks = vec![block; shape.n_layer];
    std::iter::once(work.embedding_traffic(d, 1)).chain(blocks).chain([work.head_traffic(d, 0)]).collect()
}
