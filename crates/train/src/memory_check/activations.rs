//! Estimated activation memory of a micro-batch, from what each operation keeps for its backward.
//!
//! With `n = b t` tokens, `S = n d` elements of the residual stream, and `P = b heads t` log-sum-exps of attention,
//! which are fp32, the sizes in elements of the parameters' type are:
//!
//! ```text
//! GPT-2 block     8 S + 2 n inner + P       x, norm, q, k, v, y, x + y, norm; the MLP before and after its GELU
//! MLA             4 S + n (2 rank + rope + heads (2 nope + rope + 2 v)) + P + both slices of the projection;
//!                 with a compressed query 2 n q_lora more
//! dense SwiGLU    3 n inner                 gate, up, and their product
//! several ranks:   each keeps 1/(tp cp) of all of this, but the rotated key of all rows (tp)
//! experts         r (2 d + 3 h) + 3 n e + 3 n shared      r = n top_k expert rows, or what the capacity admits; over
//!                                           several ranks r d more for the returned rows, and the first term times the
//!                                           largest load of one rank (`moe.max_rank_load`), at most its capacity
//! head            3 S + d vocab             x, norm, and the gradients of norm and, in fp32, of the matrix, which the
//!                                           forward computes
//! modules of multi-token prediction         a block, and (1 + depth) S + 7 S; the head's share for each loss
//! ```
//!
//! Dropout masks are generated where they are used. The head holds 256 rows of logits at once (256 MB on a GPU). The
//! router reads and keeps its input and scores in fp32.

use crate::config::{Config, ModelConfig};
use crate::device;
use fsdp::CallBytes;
use model::{DeepSeekConfig, Gpt2Config};
use moe::MoeConfig;

const FP32: f64 = 4.0;
/// Overhead of the graph's nodes beyond the tensors.
const NODES: f64 = 1.02;

/// A micro-batch (sequences and tokens per sequence), and how it is computed.
#[derive(Debug, Clone, Copy)]
struct Shape {
    b: f64,
    t: f64,
    /// Bytes of an element.
    size: f64,
    /// Whether it is computed on the CPU.
    on_cpu: bool,
    /// Ranks in an expert-parallel group.
    ep: f64,
    /// Ranks that share a sequence's rows, the heads and the columns.
    tp: f64,
    /// Ranks that share a sequence's rows through all layers.
    cp: f64,
}

/// The memory of each call of the model, in order, for micro-batches of `sequences` sequences.
pub fn calls(config: &Config, sequences: usize) -> Vec<CallBytes> {
    let size = config.parallel.precision.param().dtype().size() as f64;
    let (b, t) = (sequences as f64, config.padded_length() as f64);
    let [ep, tp, cp] = [config.parallel.ep, config.parallel.tp, config.parallel.cp].map(|ranks| ranks as f64);
    let on_cpu = device::meant(&config.train.device) == "cpu";
    let shape = Shape { b, t, size, on_cpu, ep, tp, cp };
    match &config.model {
        ModelConfig::Gpt2(model) => shape.gpt2(model),
        ModelConfig::DeepSeek(model) => shape.deepseek(model, &config.moe.clone().unwrap_or_default()),
    }
}

impl Shape {
    fn gpt2(&self, model: &Gpt2Config) -> Vec<CallBytes> {
        let (d, heads) = (model.n_embd as f64, model.n_head as f64);
        let inner = model.n_inner.map_or(4.0 * d, |inner| inner as f64);
        let kept = self.kept(7.0 * d + 2.0 * inner) + self.wide(heads);
        let block = self.call(
            d,
            kept,
            (self.scores(heads) + self.ring(2.0 * d)).max(self.kept(2.0 * inner)) + self.gathered(2.0 * d),
        );
        let mut calls = vec![CallBytes { input: 0, graph: 0, backward: 0 }];
        calls.extend(vec![block; model.n_layer]);
        calls.push(self.head(d, model.vocab_size as f64));
        calls
    }

    fn deepseek(&self, model: &DeepSeekConfig, moe: &MoeConfig) -> Vec<CallBytes> {
        let (d, heads) = (model.hidden_size as f64, model.num_attention_heads as f64);
        let attention = self.kept(3.0 * d) + self.latent_attention(model);
        let rotated = self.wide(heads * model.qk_rope_head_dim as f64);
        let keys = (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim) as f64;
        let ring = self.ring(heads * keys);
        let block = |mlp: f64, backward: f64| {
            self.call(d, attention + mlp, (self.scores(heads) + rotated + ring).max(backward) + self.gathered(2.0 * d))
        };
        let inner = model.intermediate_size as f64;
        let dense = block(self.kept(3.0 * inner), self.kept(3.0 * inner));
        let experts = block(self.experts(d, moe), self.rows(d, moe));
        let dense_blocks = model.first_k_dense_replace.min(model.num_hidden_layers);
        let mut calls = vec![CallBytes { input: 0, graph: 0, backward: 0 }];
        calls.extend(vec![dense; dense_blocks]);
        calls.extend(vec![experts; model.num_hidden_layers - dense_blocks]);
        calls.extend(self.behind_blocks(model, [dense, experts]));
        calls
    }

    /// The head; with multi-token prediction the norm, the embedding, the modules with their blocks, and the output
    /// matrix.
    fn behind_blocks(&self, model: &DeepSeekConfig, [dense, experts]: [CallBytes; 2]) -> Vec<CallBytes> {
        let (d, depth) = (model.hidden_size as f64, model.mtp_depth);
        let head = self.head(d, model.vocab_size as f64);
        if depth == 0 {
            return vec![head];
        }
        let (width, joined) = ((1 + depth) as f64 * d, self.call(d, 0.0, 0.0));
        let module = |block: CallBytes| {
            // The input is wider than a block's. The module also keeps the joined input, its norm, their product, and
            // the final norm.
            let more = self.kept(width + 7.0 * d) as usize;
            CallBytes { input: self.kept(width) as usize, graph: block.graph + more, ..block }
        };
        let of_layer = |layer: usize| if layer < model.first_k_dense_replace { dense } else { experts };
        let more = self.kept(width - d) as usize;
        let graph = head.input + (1 + depth) * (head.graph - head.input) + more;
        let modules = (model.num_hidden_layers..model.num_layers()).map(|layer| module(of_layer(layer)));
        [joined; 2].into_iter().chain(modules).chain([CallBytes { input: head.input + more, graph, ..head }]).collect()
    }

    fn call(&self, width: f64, kept: f64, backward: f64) -> CallBytes {
        let input = self.kept(width);
        CallBytes { input: input as usize, graph: (input + NODES * kept) as usize, backward: backward as usize }
    }

    /// Bytes kept in the computation's type, for `width` elements per token.
    fn kept(&self, width: f64) -> f64 {
        self.tokens() / self.tp * width * self.size
    }

    /// Bytes kept in fp32.
    fn wide(&self, width: f64) -> f64 {
        self.tokens() / self.tp * width * FP32
    }

    /// Bytes of all rows, gathered on each of several tensor-parallel ranks.
    fn gathered(&self, width: f64) -> f64 {
        if self.tp > 1.0 { self.tokens() * width * self.size } else { 0.0 }
    }

    /// Tokens of the sequences' parts on this rank.
    fn tokens(&self) -> f64 {
        self.b * self.t / self.cp
    }

    /// Messages, keys, values and their gradients in the backward of ring attention, for `width` elements per token.
    fn ring(&self, width: f64) -> f64 {
        if self.cp > 1.0 { self.wide(3.0 * width) } else { 0.0 }
    }

    /// The fp32 copy of something that is kept anyway.
    fn widened(&self, width: f64) -> f64 {
        if self.size < FP32 { self.wide(width) } else { 0.0 }
    }

    fn latent_attention(&self, model: &DeepSeekConfig) -> f64 {
        let (heads, rank) = (model.num_attention_heads as f64, model.kv_lora_rank as f64);
        let [nope, rope, v] =
            [model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim].map(|width| width as f64);
        let cut = model.hidden_size as f64 * (rank + rope) * self.size;
        let query = 2.0 * model.q_lora_rank.unwrap_or(0) as f64;
        let widths = query + 2.0 * rank + rope + heads * (2.0 * nope + rope + 2.0 * v);
        self.kept(widths) + cut + self.wide(heads) + self.gathered(rope)
    }

    fn experts(&self, d: f64, moe: &MoeConfig) -> f64 {
        let (e, k) = (moe.num_experts as f64, moe.top_k as f64);
        let shared = moe.n_shared_experts as f64 * moe.moe_intermediate_size as f64;
        let router = self.widened(d) + self.wide(3.0 * e + 5.0 * k);
        router + self.rows(d, moe) + self.kept(3.0 * shared)
    }

    /// Expert rows: `x`, gate, up, their product and `y`; with several ranks also the returned rows.
    fn rows(&self, d: f64, moe: &MoeConfig) -> f64 {
        let capacity = moe.capacity(self.t as usize).map_or(f64::INFINITY, |c| (c * moe.num_experts) as f64);
        let own = (self.t * moe.top_k as f64).min(capacity); // per sequence
        let came_back = if self.ep > 1.0 { own * d } else { 0.0 };
        // A full expert has the same number of rows from each sequence, so a rank whose experts are all full holds the
        // capacity of each of them.
        let here = own * self.ep.min(moe.max_rank_load);
        let rows = here.min(capacity) * (2.0 * d + 3.0 * moe.moe_intermediate_size as f64);
        self.kept((rows + came_back) / self.t)
    }

    /// Probabilities and gradients of the scores, in tiles of at most 128 queries for each head computed at a time,
    /// assumed to be 16.
    fn scores(&self, heads: f64) -> f64 {
        2.0 * FP32 * (self.b * heads / self.tp).min(16.0) * self.t.min(128.0) * self.t / self.cp
    }

    /// The gradients computed in the forward, and the memory to multiply them by the upstream gradient.
    fn head(&self, d: f64, vocab: f64) -> CallBytes {
        if self.tp > 1.0 {
            // Here the backward computes the gradients, and logits are in fp32: the logits, their probabilities and the
            // target mask.
            let (rows, vocab) = (self.tokens().min(256.0), vocab / self.tp);
            let gradients = self.gathered(d) / self.size * FP32 + 2.0 * d * vocab * FP32;
            return self.call(d, self.kept(d), 2.0 * gradients + 4.0 * rows * vocab * FP32);
        }
        let gradients = self.kept(d) + d * vocab * FP32;
        // On a GPU a chunk of rows has 256 MB of logits, its part of the matrix's gradient is a separate product, and a
        // matrix whose columns are not a multiple of 128 is copied.
        let (rows, parts) = if self.on_cpu { (256.0, 1.0) } else { ((256 << 20) as f64 / (vocab * self.size), 2.0) };
        let logits = self.tokens().min(rows) * vocab * self.size;
        let padded = if self.on_cpu || vocab % 128.0 == 0.0 { 0.0 } else { d * vocab * self.size };
        self.call(d, self.kept(d) + gradients, gradients.max(logits + padded + (parts - 1.0) * d * vocab * FP32))
    }
}
