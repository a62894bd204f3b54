//! What a rank receives in the model's own collectives: rows of activations over tensor-parallel ranks, rows of experts over expert-parallel ones.
//!
//! With `R(w)` the bytes of w numbers of (N - 1)/N of a micro-batch's tokens, over N tensor-parallel ranks
//!
//! ```text
//!                forward                            backward
//! read           all_gather                         all_gather again, reduce_scatter      what products of columns read
//! kept           all_gather                         reduce_scatter                        the rotated key, the scores of experts
//! summed         reduce_scatter                     all_gather                            partial sums
//!
//!                read                               kept              summed
//! embedding                                                           R(d)
//! GPT-2 block    2 R(d)                                               2 R(d)
//! MLA            R(query) + R(latent)               R(rope)           R(d)          query: its compression, or without that d
//! dense SwiGLU   R(d)                                                 R(d)
//! experts        R(d) if some are shared            R(e), fp32        R(d) if some are shared
//! head           R(d), and an all_reduce of n and one of 2 n fp32 of n tokens
//! ```
//!
//! and over N expert-parallel ranks, whose loads are taken for even, (N - 1)/N of r rows of d there and back, in the forward and in the backward; r is
//! the `top_k` a token, or as many as the capacity lets in. The numbers of rows come first: e (N - 1)/N of 4 bytes.

use crate::config::{Config, ModelConfig};
use comm::{Axis, all_reduce_bytes};
use fsdp::{CallTraffic, Received};
use model::DeepSeekConfig;
use moe::MoeConfig;

const FP32: usize = 4;

/// A full micro-batch, and the ranks that share it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Sequences, and tokens of one.
    b: usize,
    t: usize,
    /// Bytes of an element.
    size: usize,
    tp: usize,
    ep: usize,
}

/// Bytes that a rank receives of what it reads, keeps and sums with other ranks; as above.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    read: usize,
    kept: usize,
    summed: usize,
}

/// The calls of the model in their order.
pub fn calls(config: &Config) -> Vec<CallTraffic> {
    let (size, parallel) = (config.parallel.precision.param.dtype().size(), &config.parallel);
    let (b, t) = (config.micro_batch_size(), config.train.seq_len);
    let shape = Shape { b, t, size, tp: parallel.tp, ep: parallel.ep };
    match &config.model {
        ModelConfig::Gpt2(model) => {
            let rows = 2 * shape.rows(model.n_embd, size);
            let block = shape.call(model.n_embd, Rows { read: rows, kept: 0, summed: rows });
            shape.model(model.n_embd, vec![block; model.n_layer])
        }
        ModelConfig::DeepSeek(model) => {
            let moe = config.moe.clone().unwrap_or_default();
            let block = |i| shape.deepseek_block(model, (i >= model.first_k_dense_replace).then_some(&moe));
            shape.model(model.hidden_size, (0..model.num_hidden_layers).map(block).collect())
        }
    }
}

impl Shape {
    /// Embedding, blocks, head.
    fn model(&self, d: usize, blocks: Vec<CallTraffic>) -> Vec<CallTraffic> {
        let embedding = self.call(d, Rows { summed: self.rows(d, self.size), ..Rows::default() });
        let mut head = self.call(d, Rows { read: self.rows(d, self.size), ..Rows::default() });
        let (n, tp) = (self.b * self.t, self.tp);
        let numbers = all_reduce_bytes(n, FP32, tp) + all_reduce_bytes(2 * n, FP32, tp);
        add(&mut head.forward, Axis::Tp, "all_reduce", numbers);
        std::iter::once(embedding).chain(blocks).chain([head]).collect()
    }

    fn deepseek_block(&self, model: &DeepSeekConfig, moe: Option<&MoeConfig>) -> CallTraffic {
        let (d, rows) = (model.hidden_size, |width| self.rows(width, self.size));
        let query = model.q_lora_rank.unwrap_or(d);
        let has_columns = moe.is_none_or(|moe| moe.n_shared_experts > 0);
        let mlp = if has_columns { rows(d) } else { 0 };
        let scores = moe.map_or(0, |moe| self.rows(moe.num_experts, FP32));
        let read = rows(query) + rows(model.kv_lora_rank) + mlp;
        let mut call = self.call(d, Rows { read, kept: rows(model.qk_rope_head_dim) + scores, summed: rows(d) + mlp });
        if let Some(moe) = moe {
            let exchanged = 2 * self.rows_of_experts(moe) * (self.ep - 1) / self.ep * d * self.size;
            let counts = moe.num_experts / self.ep * (self.ep - 1) * FP32;
            add(&mut call.forward, Axis::Ep, "all_to_all", counts + exchanged);
            add(&mut call.backward, Axis::Ep, "all_to_all", exchanged);
        }
        call
    }

    /// Rows of experts of this rank's tokens.
    fn rows_of_experts(&self, moe: &MoeConfig) -> usize {
        let choices = self.t * moe.top_k;
        let of_sequence = moe.capacity(self.t).map_or(choices, |capacity| choices.min(capacity * moe.num_experts));
        self.b * of_sequence / self.tp
    }

    /// A call that hands on rows of `d`.
    fn call(&self, d: usize, rows: Rows) -> CallTraffic {
        let mut call = CallTraffic { output: self.b * self.t / self.tp * d * self.size, ..CallTraffic::default() };
        let Rows { read, kept, summed } = rows;
        add(&mut call.forward, Axis::Tp, "all_gather", read + kept);
        add(&mut call.forward, Axis::Tp, "reduce_scatter", summed);
        add(&mut call.backward, Axis::Tp, "all_gather", read + summed);
        add(&mut call.backward, Axis::Tp, "reduce_scatter", read + kept);
        call
    }

    /// `R(width)`, of elements of `size` bytes.
    fn rows(&self, width: usize, size: usize) -> usize {
        self.b * self.t / self.tp * (self.tp - 1) * width * size
    }
}

fn add(received: &mut Received, axis: Axis, collective: &'static str, bytes: usize) {
    *received.entry((axis, collective)).or_default() += bytes;
}
