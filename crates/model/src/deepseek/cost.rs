//! What the calls of a DeepSeek cost.
//!
//! ```text
//! kept (see `cost::kept`)
//! MLA             4 S + n (2 rank + rope + heads (2 nope + rope + 2 v)) + P + both slices of the projection; 2 n q_lora more with a compressed query
//! modules of multi-token prediction         a block, and (1 + depth) S + 7 S; the head's share for each loss
//!
//! received (see `cost::received`)
//!                 read                               kept              summed
//! MLA             R(query) + R(latent)               R(rope)           R(d)          query: the compressed width, or d without compression
//! ```
//!
//! Over context-parallel ranks, a message holds the latent and the rotated key, m = `kv_lora_rank + qk_rope_head_dim`;
//! the latent is then kept, not read again.

use crate::cost::received::RowBytes;
use crate::cost::{Flops, Workload, product_flops};
use crate::{DeepSeekConfig, Family};
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

/// The embedding, every block, and the calls after them. The output matrix counts once per token that a position
/// predicts.
pub(super) fn flops(family: &impl Family, shape: &DeepSeekConfig) -> Vec<Flops> {
    let mut calls = product_flops(family);
    let (blocks, last) = (shape.num_hidden_layers, calls.len() - 1);
    let widths = shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim;
    let attention = 6.0 * (shape.num_attention_heads * widths) as f64;
    (1..=blocks).chain(last - shape.mtp_depth..last).for_each(|call| calls[call].attention = attention);
    calls
}

pub(super) fn memory(shape: &DeepSeekConfig, moe: &MoeConfig, work: &Workload) -> Vec<CallBytes> {
    let (d, heads) = (shape.hidden_size as f64, shape.num_attention_heads as f64);
    let attention = work.kept(3.0 * d) + latent_attention(shape, work);
    let rotated = work.wide(heads * shape.qk_rope_head_dim as f64);
    let keys = (shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim) as f64;
    let ring = work.ring(heads * keys);
    let block = |mlp: f64, backward: f64| {
        let backward = (work.scores(heads) + rotated + ring).max(backward) + work.gathered(2.0 * d);
        work.call_bytes(d, attention + mlp, backward)
    };
    let inner = shape.intermediate_size as f64;
    let dense = block(work.kept(3.0 * inner), work.kept(3.0 * inner));
    let experts = block(work.experts(d, moe), work.expert_rows(d, moe));
    let dense_blocks = shape.first_k_dense_replace.min(shape.num_hidden_layers);
    let mut calls = vec![CallBytes::default()];
    calls.extend(vec![dense; dense_blocks]);
    calls.extend(vec![experts; shape.num_hidden_layers - dense_blocks]);
    calls.extend(memory_after_blocks(shape, work, [dense, experts]));
    calls
}

/// The head; with multi-token prediction the norm, the embedding, the modules with their blocks, and the output matrix.
fn memory_after_blocks(shape: &DeepSeekConfig, work: &Workload, [dense, experts]: [CallBytes; 2]) -> Vec<CallBytes> {
    let (d, depth) = (shape.hidden_size as f64, shape.mtp_depth);
    let head = work.head_bytes(d, shape.vocab_size as f64);
    if depth == 0 {
        return vec![head];
    }
    let (width, joined) = ((1 + depth) as f64 * d, work.call_bytes(d, 0.0, 0.0));
    let module = |block: CallBytes| {
        // The input is wider than a block's. The module also keeps the embeddings, both norms, and the final norm.
        let more = work.kept(width + 5.0 * d) as usize;
        CallBytes { input: work.kept(width) as usize, graph: block.graph + more, ..block }
    };
    let of_layer = |layer: usize| if layer < shape.first_k_dense_replace { dense } else { experts };
    let more = work.kept(width - d) as usize;
    // The head's own norm is a call before, and predictions are parts of the input.
    let of_prediction = head.graph - head.input - work.kept(d) as usize;
    let graph = head.input + (1 + depth) * of_prediction + more;
    let modules = (shape.num_hidden_layers..shape.num_layers()).map(|layer| module(of_layer(layer)));
    [joined; 2].into_iter().chain(modules).chain([CallBytes { input: head.input + more, graph, ..head }]).collect()
}

fn latent_attention(shape: &DeepSeekConfig, work: &Workload) -> f64 {
    let (heads, rank) = (shape.num_attention_heads as f64, shape.kv_lora_rank as f64);
    let [nope, rope, v] = [shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim].map(|width| width as f64);
    let slices = shape.hidden_size as f64 * (rank + rope) * work.element as f64;
    let query = 2.0 * shape.q_lora_rank.unwrap_or(0) as f64;
    let widths = query + 2.0 * rank + rope + heads * (2.0 * nope + rope + 2.0 * v);
    work.kept(widths) + slices + work.wide(heads) + work.gathered(rope)
}

pub(super) fn traffic(shape: &DeepSeekConfig, moe: &MoeConfig, work: &Workload) -> Vec<CallTraffic> {
    let block = |layer| block_traffic(shape, (layer >= shape.first_k_dense_replace).then_some(moe), work);
    let (d, depth) = (shape.hidden_size, shape.mtp_depth);
    let mut calls = vec![work.embedding_traffic(d, 1)];
    calls.extend((0..shape.num_hidden_layers).map(block));
    if depth == 0 {
        calls.push(work.head_traffic(d, 0));
        return calls;
    }
    // The norm, the embeddings, the modules, which pass on all predictions, and the output matrix.
    let norm = work.call_traffic(d, RowBytes::default());
    let wide = |call: CallTraffic| CallTraffic { output: (1 + depth) * norm.output, ..call };
    calls.extend([norm.clone(), wide(work.embedding_traffic(d, depth))]);
    calls.extend((shape.num_hidden_layers..shape.num_layers()).map(|layer| wide(block(layer))));
    calls.push(work.head_traffic(d, depth));
    calls
}

fn block_traffic(shape: &DeepSeekConfig, moe: Option<&MoeConfig>, work: &Workload) -> CallTraffic {
    let (d, rows) = (shape.hidden_size, |width| work.row_bytes(width));
    let query = shape.q_lora_rank.unwrap_or(d);
    let has_columns = moe.is_none_or(|moe| moe.n_shared_experts > 0);
    let mlp = if has_columns { rows(d) } else { 0 };
    let [latent, rope] = [shape.kv_lora_rank, shape.qk_rope_head_dim];
    let (latent_read, latent_kept) = if work.cp == 1 { (rows(latent), 0) } else { (0, rows(latent)) };
    let read = rows(query) + latent_read + mlp;
    let mut call = work.call_traffic(d, RowBytes { read, kept: latent_kept + rows(rope), summed: rows(d) + mlp });
    work.circulate(&mut call, latent + rope);
    if let Some(moe) = moe {
        work.exchange(&mut call, d, moe);
    }
    call
}
