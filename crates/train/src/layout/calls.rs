//! Traffic of the model's own collectives: activation rows over tensor-parallel ranks, KV blocks over context-parallel
//! ranks, and expert rows over expert-parallel ranks.
//!
//! Let `R(w)` be the bytes of w numbers for (N - 1)/N of a micro-batch's tokens (those of the rank's part of the
//! context). Over N tensor-parallel ranks, a rank receives
//!
//! ```text
//!                forward            backward
//! read           all_gather         all_gather again, reduce_scatter      inputs of column-parallel products
//! kept           all_gather         reduce_scatter                        the rotated key
//! summed         reduce_scatter     all_gather                            partial sums
//!
//!                read                       kept        summed
//! embedding                                             R(d)
//! GPT-2 block    2 R(d)                                 2 R(d)
//! MLA            R(query) + R(latent)       R(rope)     R(d)
//! dense SwiGLU   R(d)                                   R(d)
//! experts        R(d) if some are shared                R(d) if some are shared      and see below
//! head           R(d), one all_reduce of n and one of 2 n fp32 for n tokens
//! ```
//!
//! The query's width is its compressed width, or d without compression. The head's traffic occurs again for each
//! multi-token prediction module, for the tokens that have a target if no document ends.
//!
//! Over N context-parallel ranks, messages of m numbers per token of the rank's part circulate: N - 1 in the forward,
//! and in the backward N - 1 plus N gradients in fp32. In GPT-2 a message holds keys and values of the rank's heads, m
//! = 2 d / tp. In MLA it holds the latent and the rotated key; the latent is then kept, not read again.
//!
//! In a layer of e experts, ranks of both kinds exchange routing data in fp32. A balance loss takes an `all_reduce` of
//! 2 e numbers per sequence, and another for the gradients in the backward. A capacity takes the `top_k` choices of
//! each token, or all its candidates if overflow is rerouted. Noise takes e scores per token, because ranks then choose
//! for whole sequences.
//!
//! Over N expert-parallel ranks with balanced loads, (N - 1)/N of r rows of width d go there and back, in the forward
//! and in the backward; r is `top_k` per token, or what the capacity admits. An `all_gather` of e (N - 1) row counts of
//! 4 bytes precedes them. (If loads are so uneven that rows move in several rounds, the backward repeats those of the
//! forward.)

use crate::config::{Config, ModelConfig};
use comm::{Axis, all_reduce_bytes};
use fsdp::{CallTraffic, Received};
use model::DeepSeekConfig;
use moe::MoeConfig;

const FP32: usize = 4;

/// A full micro-batch and the ranks that share it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Sequences, and positions per sequence, `length` of which are not padding.
    b: usize,
    t: usize,
    length: usize,
    /// Bytes of an element.
    size: usize,
    tp: usize,
    cp: usize,
    /// The rank's index in its context-parallel group.
    of_context: usize,
    ep: usize,
}

/// Bytes that a rank receives of rows it reads, keeps and sums with other ranks, as defined above.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    read: usize,
    kept: usize,
    summed: usize,
}

/// The traffic of each call of the model on a rank, in order.
pub fn calls(config: &Config, rank: usize) -> Vec<CallTraffic> {
    let (size, parallel) = (config.parallel.precision.param().dtype().size(), &config.parallel);
    let (b, t, length) = (config.micro_batch_size(), config.padded_length(), config.train.seq_len);
    let mesh = config.fsdp().mesh(parallel.gpus).expect("the configuration is validated");
    let of_context = mesh.coordinate(rank, Axis::Cp);
    let shape = Shape { b, t, length, size, tp: parallel.tp, cp: parallel.cp, of_context, ep: parallel.ep };
    match &config.model {
        ModelConfig::Gpt2(model) => {
            let (d, rows) = (model.n_embd, 2 * shape.rows(model.n_embd, size));
            let mut block = shape.call(d, Rows { read: rows, kept: 0, summed: rows });
            shape.pass_round(&mut block, 2 * d / shape.tp);
            let blocks = vec![block; model.n_layer];
            std::iter::once(shape.embeddings(d, 1)).chain(blocks).chain([shape.head(d, 0)]).collect()
        }
        ModelConfig::DeepSeek(model) => {
            let moe = config.moe.clone().unwrap_or_default();
            let block = |i| shape.deepseek_block(model, (i >= model.first_k_dense_replace).then_some(&moe));
            let mut calls = vec![shape.embeddings(model.hidden_size, 1)];
            calls.extend((0..model.num_hidden_layers).map(block));
            calls.extend(shape.behind_blocks(model, block));
            calls
        }
    }
}

impl Shape {
    /// Embeds each token `count` times.
    fn embeddings(&self, d: usize, count: usize) -> CallTraffic {
        self.call(d, Rows { summed: count * self.rows(d, self.size), ..Rows::default() })
    }

    /// The losses of the next tokens, and of the tokens that `modules` multi-token prediction modules predict.
    fn head(&self, d: usize, modules: usize) -> CallTraffic {
        let mut head = self.call(d, Rows { read: (1 + modules) * self.rows(d, self.size), ..Rows::default() });
        for ahead in 0..=modules {
            // If no position predicts the next token, a dummy with weight 0 takes its place.
            let n = (self.b * self.labels(ahead)).max(usize::from(ahead == 0));
            let numbers = all_reduce_bytes(n, FP32, self.tp) + all_reduce_bytes(2 * n, FP32, self.tp);
            add(&mut head.forward, Axis::Tp, "all_reduce", numbers);
        }
        head
    }

    /// The head; with multi-token prediction the norm, the embeddings, the modules, which pass on all predictions, and
    /// the output matrix.
    fn behind_blocks(&self, model: &DeepSeekConfig, block: impl Fn(usize) -> CallTraffic) -> Vec<CallTraffic> {
        let (d, depth) = (model.hidden_size, model.mtp_depth);
        if depth == 0 {
            return vec![self.head(d, 0)];
        }
        let norm = self.call(d, Rows::default());
        let wide = |call: CallTraffic| CallTraffic { output: (1 + depth) * norm.output, ..call };
        let modules = (model.num_hidden_layers..model.num_layers()).map(|layer| wide(block(layer)));
        let embeddings = wide(self.embeddings(d, depth));
        [norm.clone(), embeddings].into_iter().chain(modules).chain([self.head(d, depth)]).collect()
    }

    fn deepseek_block(&self, model: &DeepSeekConfig, moe: Option<&MoeConfig>) -> CallTraffic {
        let (d, rows) = (model.hidden_size, |width| self.rows(width, self.size));
        let query = model.q_lora_rank.unwrap_or(d);
        let has_columns = moe.is_none_or(|moe| moe.n_shared_experts > 0);
        let mlp = if has_columns { rows(d) } else { 0 };
        let [latent, rope] = [model.kv_lora_rank, model.qk_rope_head_dim];
        let (latent_read, latent_kept) = if self.cp == 1 { (rows(latent), 0) } else { (0, rows(latent)) };
        let read = rows(query) + latent_read + mlp;
        let mut call = self.call(d, Rows { read, kept: latent_kept + rows(rope), summed: rows(d) + mlp });
        self.pass_round(&mut call, latent + rope);
        if let Some(moe) = moe {
            let exchanged = 2 * self.rows_of_experts(moe) * (self.ep - 1) / self.ep * d * self.size;
            add(&mut call.forward, Axis::Ep, "all_gather", moe.num_experts * (self.ep - 1) * FP32);
            add(&mut call.forward, Axis::Ep, "all_to_all", exchanged);
            add(&mut call.backward, Axis::Ep, "all_to_all", exchanged);
            self.route(&mut call, moe);
        }
        call
    }

    /// Routing data exchanged by ranks with parts of the same sequences.
    fn route(&self, call: &mut CallTraffic, moe: &MoeConfig) {
        let scores = if moe.router_noise > 0.0 { moe.num_experts } else { 0 };
        let gathered = scores + moe.capacity_factor.map_or(0, |_| moe.candidates());
        let of_context = (self.cp - 1) * self.tokens() * gathered * FP32;
        add(&mut call.forward, Axis::Tp, "all_gather", self.rows(gathered, FP32));
        add(&mut call.forward, Axis::Cp, "all_gather", of_context);
        let numbers = if moe.aux_loss_coef != 0.0 { 2 * self.b * moe.num_experts } else { 0 };
        for (axis, ranks) in [(Axis::Tp, self.tp), (Axis::Cp, self.cp)] {
            add(&mut call.forward, axis, "all_reduce", all_reduce_bytes(numbers, FP32, ranks));
            add(&mut call.backward, axis, "all_reduce", all_reduce_bytes(numbers, FP32, ranks));
        }
    }

    /// Local positions of a sequence that have a token `ahead` places after the next one.
    fn labels(&self, ahead: usize) -> usize {
        let (end, chunks) = (self.length.saturating_sub(ahead), 2 * self.cp);
        let border = |chunk: usize| (chunk * self.t / chunks).min(end);
        [self.of_context, chunks - 1 - self.of_context].map(|chunk| border(chunk + 1) - border(chunk)).iter().sum()
    }

    /// Expert rows of this rank's tokens.
    fn rows_of_experts(&self, moe: &MoeConfig) -> usize {
        let choices = self.length * moe.top_k;
        let of_sequence = moe.capacity(self.length).map_or(choices, |capacity| choices.min(capacity * moe.num_experts));
        self.b * of_sequence / self.tp / self.cp
    }

    /// Circulates messages of `width` numbers per token in the context-parallel group.
    fn pass_round(&self, call: &mut CallTraffic, width: usize) {
        let (others, numbers) = (self.cp - 1, self.tokens() * width);
        add(&mut call.forward, Axis::Cp, "recv", others * numbers * self.size);
        if others > 0 {
            add(&mut call.backward, Axis::Cp, "recv", others * numbers * self.size + self.cp * numbers * FP32);
        }
    }

    /// Tokens of the rank's part of the context.
    fn tokens(&self) -> usize {
        self.b * self.t / self.cp
    }

    /// A call that outputs rows of width `d`.
    fn call(&self, d: usize, rows: Rows) -> CallTraffic {
        let mut call = CallTraffic { output: self.tokens() / self.tp * d * self.size, ..CallTraffic::default() };
        let Rows { read, kept, summed } = rows;
        add(&mut call.forward, Axis::Tp, "all_gather", read + kept);
        add(&mut call.forward, Axis::Tp, "reduce_scatter", summed);
        add(&mut call.backward, Axis::Tp, "all_gather", read + summed);
        add(&mut call.backward, Axis::Tp, "reduce_scatter", read + kept);
        call
    }

    /// `R(width)` with elements of `size` bytes.
    fn rows(&self, width: usize, size: usize) -> usize {
        self.tokens() / self.tp * (self.tp - 1) * width * size
    }
}

fn add(received: &mut Received, axis: Axis, collective: &'static str, bytes: usize) {
    *received.entry((axis, collective)).or_default() += bytes;
}
