//! What a micro-batch leaves in memory for its backward: an estimate, from what each operation keeps.
//!
//! With `n = b t` tokens, `S = n d` elements of the residual stream, and `P = b heads t` of attention, the log-sum-exp of each row; where its probabilities
//! are kept (GPT-2's with dropout, and where operations are compositions) `b heads t^2`:
//!
//! ```text
//! GPT-2 block     8 S + 2 n inner + P       x, norm, q, k, v, y, x + y, norm; the MLP before and after its GELU; probabilities
//! MLA             3 S + n (2 rank + heads (2 (nope + rope) + 2 v)) + P + the projections cut by head; with a compressed query 2 n q_lora more
//! dense SwiGLU    S + 3 n inner             its input; gate, up, and their product
//! experts         S + r (2 d + 3 h) + 3 n e + 3 n shared      r = n top_k rows of experts, or as many as their capacity lets in; over
//!                                           ranks r d more, what came back, and r rows only where all ranks' experts get as many
//! head            2 S + n vocab             x, norm, logits
//! ```
//!
//! in elements of the parameters' type. Of bf16 and f16 those that norms, softmax, gates and the loss read are kept in fp32 (`wide` below),
//! for these are computed in fp32. Where the operations are not the one-pass ones of [`fused`], as on GPUs, each keeps some more.

use crate::config::{Config, ModelConfig};
use crate::device;
use fsdp::CallBytes;
use model::{DeepSeekConfig, Gpt2Config};
use moe::MoeConfig;

const FP32: f64 = 4.0;
/// What the graphs' nodes take beside the tensors.
const NODES: f64 = 1.02;

/// A micro-batch: sequences, tokens of one, and the types and operations it is computed with.
#[derive(Debug, Clone, Copy)]
struct Shape {
    b: f64,
    t: f64,
    /// Bytes of an element.
    size: f64,
    /// Whether operations are compositions of Burn's, not the one-pass ones of the CPU.
    composed: bool,
    /// Whether experts are spread over ranks.
    spread: bool,
}

/// The calls of the model in their order, for micro-batches of so many sequences.
pub fn calls(config: &Config, sequences: usize) -> Vec<CallBytes> {
    let size = config.parallel.precision.param.dtype().size() as f64;
    let composed = device::meant(&config.train.device) != "cpu";
    let (b, t, spread) = (sequences as f64, config.train.seq_len as f64, config.parallel.ep > 1);
    let shape = Shape { b, t, size, composed, spread };
    match &config.model {
        ModelConfig::Gpt2(model) => shape.gpt2(model),
        ModelConfig::DeepSeek(model) => shape.deepseek(model, &config.moe.clone().unwrap_or_default()),
    }
}

impl Shape {
    fn gpt2(&self, model: &Gpt2Config) -> Vec<CallBytes> {
        let (d, heads) = (model.n_embd as f64, model.n_head as f64);
        let inner = model.n_inner.map_or(4.0 * d, |inner| inner as f64);
        let dropout = model.dropout > 0.0;
        let kept = self.norms(d, true) + self.kept(4.0 * d) + self.probabilities(heads, dropout);
        let mlp = self.activation(inner, 4.0) + self.kept(inner);
        let block = self.call(d, kept + mlp, self.scores(heads, dropout).max(self.wide(2.0 * inner)));
        let mut calls = vec![self.embedding(d, model.vocab_size as f64)];
        calls.extend(vec![block; model.n_layer]);
        calls.push(self.head(d, model.vocab_size as f64, true));
        calls
    }

    fn deepseek(&self, model: &DeepSeekConfig, moe: &MoeConfig) -> Vec<CallBytes> {
        let (d, heads) = (model.hidden_size as f64, model.num_attention_heads as f64);
        let attention = self.norms(d, false) + self.latent_attention(model);
        let block = |mlp: f64, backward: f64| self.call(d, attention + mlp, self.scores(heads, false).max(backward));
        let inner = model.intermediate_size as f64;
        let dense = block(self.swiglu(inner), self.wide(3.0 * inner));
        let experts = block(self.experts(d, moe), self.rows(d, moe));
        let dense_blocks = model.first_k_dense_replace.min(model.num_hidden_layers);
        let mut calls = vec![self.embedding(d, model.vocab_size as f64)];
        calls.extend(vec![dense; dense_blocks]);
        calls.extend(vec![experts; model.num_hidden_layers - dense_blocks]);
        calls.push(self.head(d, model.vocab_size as f64, false));
        calls
    }

    fn call(&self, width: f64, kept: f64, backward: f64) -> CallBytes {
        let input = self.kept(width);
        CallBytes { input: input as usize, graph: (input + NODES * kept) as usize, backward: backward as usize }
    }

    /// What is kept as it was computed, so many elements a token.
    fn kept(&self, width: f64) -> f64 {
        self.b * self.t * width * self.size
    }

    /// What is kept in fp32.
    fn wide(&self, width: f64) -> f64 {
        self.b * self.t * width * FP32
    }

    /// The copy in fp32 of what is kept anyway.
    fn widened(&self, width: f64) -> f64 {
        if self.size < FP32 { self.wide(width) } else { 0.0 }
    }

    /// What an element-wise operation in fp32 reads, and what a composition of `parts` operations keeps beside.
    fn activation(&self, width: f64, parts: f64) -> f64 {
        self.wide(width) * if self.composed { parts } else { 1.0 }
    }

    /// A norm's result, which the next product keeps, and what its composition keeps.
    fn norm(&self, width: f64, centred: bool) -> f64 {
        let parts = if centred { 2.0 } else { 1.0 };
        self.kept(width) + if self.composed { self.wide(parts * width) } else { 0.0 }
    }

    /// Both norms of a block; the second one reads the sum of stream and attention.
    fn norms(&self, d: f64, centred: bool) -> f64 {
        self.widened(d) + 2.0 * self.norm(d, centred) + self.wide(d)
    }

    /// Whether attention's probabilities are all in memory.
    fn keeps_probabilities(&self, dropout: bool) -> bool {
        self.composed || dropout || self.size < FP32
    }

    /// Softmax's result, and of it what the product with the values reads, if that is another; or the log-sum-exp.
    fn probabilities(&self, heads: f64, dropout: bool) -> f64 {
        if !self.keeps_probabilities(dropout) {
            return FP32 * self.b * heads * self.t;
        }
        let elements = self.b * heads * self.t * self.t;
        let others = if dropout || self.size < FP32 { self.size } else { 0.0 };
        let mask = if self.composed && dropout { FP32 } else { 0.0 };
        elements * (FP32 + others + mask)
    }

    fn latent_attention(&self, model: &DeepSeekConfig) -> f64 {
        let (heads, rank) = (model.num_attention_heads as f64, model.kv_lora_rank as f64);
        let [nope, rope, v] =
            [model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim].map(|width| width as f64);
        let d = model.hidden_size as f64;
        let query = model.q_lora_rank.map_or(d, |rank| rank as f64);
        let compressed = if model.q_lora_rank.is_some() { self.wide(query) + self.norm(query, false) } else { 0.0 };
        let matrices = (query * heads * (nope + rope) + d * (rank + rope) + rank * heads * (nope + v)) * self.size;
        let latent = self.wide(rank) + self.norm(rank, false);
        let rotated = if self.composed { self.wide(2.0 * (heads + 1.0) * rope) } else { 0.0 };
        compressed
            + latent
            + rotated
            + matrices
            + self.kept(heads * 2.0 * (nope + rope + v))
            + self.probabilities(heads, false)
    }

    fn swiglu(&self, inner: f64) -> f64 {
        self.activation(inner, 2.0) + self.wide(inner) + self.kept(inner)
    }

    fn experts(&self, d: f64, moe: &MoeConfig) -> f64 {
        let (e, k) = (moe.num_experts as f64, moe.top_k as f64);
        let shared = moe.n_shared_experts as f64 * moe.moe_intermediate_size as f64;
        let router = self.widened(d) + self.wide(3.0 * e + 5.0 * k);
        router + self.rows(d, moe) + if shared > 0.0 { self.swiglu(shared) } else { 0.0 }
    }

    /// Rows of experts: `x`, gate, up, their product, and `y`, there and back where it was computed.
    fn rows(&self, d: f64, moe: &MoeConfig) -> f64 {
        let capacity = moe.capacity(self.t as usize).map_or(f64::INFINITY, |c| (c * moe.num_experts) as f64);
        let rows = (self.t * moe.top_k as f64).min(capacity); // of a sequence
        let widths = if self.spread { 3.0 } else { 2.0 };
        self.kept(rows / self.t * (widths * d + 3.0 * moe.moe_intermediate_size as f64))
    }

    /// The gradients of probabilities and scores; in tiles of at most 128 queries for each head that is computed at a time, 16 say.
    fn scores(&self, heads: f64, dropout: bool) -> f64 {
        let rows = if self.keeps_probabilities(dropout) { self.t } else { self.t.min(128.0) };
        let at_once = if self.keeps_probabilities(dropout) { self.b * heads } else { (self.b * heads).min(16.0) };
        2.0 * FP32 * at_once * rows * self.t
    }

    fn embedding(&self, d: f64, vocab: f64) -> CallBytes {
        // Its gradient is summed in fp32, for which the matrix is kept in fp32.
        let table = if self.size < FP32 { vocab * d * FP32 } else { 0.0 };
        CallBytes { input: 0, graph: table as usize, backward: table as usize }
    }

    fn head(&self, d: f64, vocab: f64, centred: bool) -> CallBytes {
        let kept = self.widened(d) + self.norm(d, centred) + self.wide(vocab) + 8.0 * self.b * self.t;
        self.call(d, kept, self.wide(vocab) + if self.size < FP32 { self.kept(vocab) } else { 0.0 })
    }
}
