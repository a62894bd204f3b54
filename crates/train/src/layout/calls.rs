//! What a rank receives in the model's own collectives: rows of activations over tensor-parallel ranks, keys and values
//! over those of a context, rows of experts over expert-parallel ones.
//!
//! With `R(w)` the bytes of w numbers of (N - 1)/N of a micro-batch's tokens (those of the rank's part of the context),
//! over N tensor-parallel ranks
//!
//! ```text
//!                forward                            backward
//! read           all_gather                         all_gather again, reduce_scatter      what products of columns read
//! kept           all_gather                         reduce_scatter                        the rotated key
//! summed         reduce_scatter                     all_gather                            partial sums
//!
//!                read                               kept              summed
//! embedding                                                           R(d)
//! GPT-2 block    2 R(d)                                               2 R(d)
//! MLA            R(query) + R(latent)               R(rope)           R(d)          query: its compression, or without that d
//! dense SwiGLU   R(d)                                                 R(d)
//! experts        R(d) if some are shared                              R(d) if some are shared      and see below
//! head           R(d), and an all_reduce of n and one of 2 n fp32 of n tokens; with multi-token prediction once more for each module, of the
//!                tokens that have a target if no document ends
//! ```
//!
//! Over N ranks of a context messages of m numbers a token of the rank's part go round, in GPT-2 keys and values of the
//! rank's heads, m = 2 d / tp, in MLA latent and rotated key (the latent is then kept, not read again): N - 1 in a
//! forward, and in its backward N - 1 with N gradients in fp32.
//!
//! In a layer of e experts the ranks of both kinds tell each other of their tokens, in fp32: with a balance loss 2 e
//! numbers of each sequence in an `all_reduce`, and their gradients in the backward; with a capacity the `top_k`
//! choices of each token, or all its candidates where it may be rerouted; with noise, for which ranks choose for whole
//! sequences, e scores of each token.
//!
//! And over N expert-parallel ranks, whose loads are taken for even, (N - 1)/N of r rows of d there and back, in the
//! forward and in the backward; r is the `top_k` a token, or as many as the capacity lets in. The numbers of rows come
//! first, an `all_gather` of e (N - 1) of 4 bytes. (Where loads are so uneven that rows go in rounds, the backward has
//! those of the forward again.)

use crate::config::{Config, ModelConfig};
use comm::{Axis, all_reduce_bytes};
use fsdp::{CallTraffic, Received};
use model::DeepSeekConfig;
use moe::MoeConfig;

const FP32: usize = 4;

/// A full micro-batch, and the ranks that share it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Sequences, and positions of one, of which `length` are no padding.
    b: usize,
    t: usize,
    length: usize,
    /// Bytes of an element.
    size: usize,
    tp: usize,
    cp: usize,
    /// The rank's number among those of its context.
    of_context: usize,
    ep: usize,
}

/// Bytes that a rank receives of what it reads, keeps and sums with other ranks; as above.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    read: usize,
    kept: usize,
    summed: usize,
}

/// The calls of the model in their order, on a rank.
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
    /// So many embeddings of each token.
    fn embeddings(&self, d: usize, count: usize) -> CallTraffic {
        self.call(d, Rows { summed: count * self.rows(d, self.size), ..Rows::default() })
    }

    /// The losses of the next tokens, and of those that so many modules of multi-token prediction predict.
    fn head(&self, d: usize, modules: usize) -> CallTraffic {
        let mut head = self.call(d, Rows { read: (1 + modules) * self.rows(d, self.size), ..Rows::default() });
        for ahead in 0..=modules {
            // Where none predicts the next token there is one all the same, which does not count.
            let n = (self.b * self.labels(ahead)).max(usize::from(ahead == 0));
            let numbers = all_reduce_bytes(n, FP32, self.tp) + all_reduce_bytes(2 * n, FP32, self.tp);
            add(&mut head.forward, Axis::Tp, "all_reduce", numbers);
        }
        head
    }

    /// The head, or with multi-token prediction the norm, the embeddings, the modules, which hand on all that was
    /// predicted, and the output matrix.
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

    /// What ranks with parts of the same sequences tell each other of their tokens' experts.
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

    /// Positions of a sequence that are here and have a token so far behind the next one.
    fn labels(&self, ahead: usize) -> usize {
        let (end, chunks) = (self.length.saturating_sub(ahead), 2 * self.cp);
        let border = |chunk: usize| (chunk * self.t / chunks).min(end);
        [self.of_context, chunks - 1 - self.of_context].map(|chunk| border(chunk + 1) - border(chunk)).iter().sum()
    }

    /// Rows of experts of this rank's tokens.
    fn rows_of_experts(&self, moe: &MoeConfig) -> usize {
        let choices = self.length * moe.top_k;
        let of_sequence = moe.capacity(self.length).map_or(choices, |capacity| choices.min(capacity * moe.num_experts));
        self.b * of_sequence / self.tp / self.cp
    }

    /// Messages of so many numbers a token, round the ranks of a context.
    fn pass_round(&self, call: &mut CallTraffic, width: usize) {
        let (others, numbers) = (self.cp - 1, self.tokens() * width);
        add(&mut call.forward, Axis::Cp, "recv", others * numbers * self.size);
        if others > 0 {
            add(&mut call.backward, Axis::Cp, "recv", others * numbers * self.size + self.cp * numbers * FP32);
        }
    }

    /// Of the rank's part of the context.
    fn tokens(&self) -> usize {
        self.b * self.t / self.cp
    }

    /// A call that hands on rows of `d`.
    fn call(&self, d: usize, rows: Rows) -> CallTraffic {
        let mut call = CallTraffic { output: self.tokens() / self.tp * d * self.size, ..CallTraffic::default() };
        let Rows { read, kept, summed } = rows;
        add(&mut call.forward, Axis::Tp, "all_gather", read + kept);
        add(&mut call.forward, Axis::Tp, "reduce_scatter", summed);
        add(&mut call.backward, Axis::Tp, "all_gather", read + summed);
        add(&mut call.backward, Axis::Tp, "reduce_scatter", read + kept);
        call
    }

    /// `R(width)`, of elements of `size` bytes.
    fn rows(&self, width: usize, size: usize) -> usize {
        self.tokens() / self.tp * (self.tp - 1) * width * size
    }
}

fn add(received: &mut Received, axis: Axis, collective: &'static str, bytes: usize) {
    *received.entry((axis, collective)).or_default() += bytes;
}
