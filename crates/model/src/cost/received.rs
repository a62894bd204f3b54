//! Traffic of the collectives within a call: activation rows over tensor-parallel ranks, KV blocks over
//! context-parallel ranks, and expert rows over expert-parallel ranks.
//!
//! Let `R(w)` be the bytes of w numbers for (N - 1)/N of a micro-batch's tokens (those of the rank's part of the
//! context). Over N tensor-parallel ranks, a rank receives
//!
//! ```text
//!                forward                            backward
//! read           all_gather                         all_gather again, reduce_scatter      inputs of column-parallel products
//! kept           all_gather                         reduce_scatter                        the rotated key
//! summed         reduce_scatter                     all_gather                            partial sums
//!
//!                read                               kept              summed
//! embedding                                                           R(d)
//! dense SwiGLU   R(d)                                                 R(d)
//! experts        R(d) if some are shared                              R(d) if some are shared      and see below
//! head           R(d), one all_reduce of n and one of 2 n fp32 for n tokens; the same again for each multi-token prediction module, for the
//!                tokens that have a target if no document ends
//! ```
//!
//! Over N context-parallel ranks, messages of m numbers per token of the rank's part circulate: N - 1 in the forward,
//! and in the backward N - 1 plus N gradients in fp32.
//!
//! In a layer of e experts, ranks of both kinds exchange routing data in fp32. A balance loss takes an `all_reduce` of
//! 2 e numbers per sequence, and another for the gradients in the backward. A capacity takes the `top_k` choices of
//! each token, or all its candidates if overflow is rerouted. Noise takes e scores per token, because ranks then choose
//! for whole sequences.
//!
//! Over N expert-parallel ranks with balanced loads, (N - 1)/N of r rows of width d are sent to the experts and back,
//! in the forward and in the backward; r is `top_k` per token, or what the capacity admits. An `all_gather` of
//! e (N - 1) row counts of 4 bytes precedes them. (If loads are so uneven that rows move in several rounds, the
//! backward repeats those of the forward.)

use super::Workload;
use comm::{Axis, all_reduce_bytes};
use fsdp::{CallTraffic, Received};
use moe::MoeConfig;

const FP32: usize = 4;

/// Bytes that a rank receives of rows it reads, keeps and sums with other ranks, as defined above.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowBytes {
    pub read: usize,
    pub kept: usize,
    pub summed: usize,
}

impl Workload {
    /// A call that outputs rows of width `d`.
    pub(crate) fn call_traffic(&self, d: usize, rows: RowBytes) -> CallTraffic {
        let mut call = CallTraffic { output: self.tokens() / self.tp * d * self.element, ..CallTraffic::default() };
        let RowBytes { read, kept, summed } = rows;
        add(&mut call.forward, Axis::Tp, "all_gather", read + kept);
        add(&mut call.forward, Axis::Tp, "reduce_scatter", summed);
        add(&mut call.backward, Axis::Tp, "all_gather", read + summed);
        add(&mut call.backward, Axis::Tp, "reduce_scatter", read + kept);
        call
    }

    /// Embeds each token `count` times.
    pub(crate) fn embedding_traffic(&self, d: usize, count: usize) -> CallTraffic {
        self.call_traffic(d, RowBytes { summed: count * self.row_bytes(d), ..RowBytes::default() })
    }

    /// The losses of the next tokens, and of the tokens that `modules` multi-token prediction modules predict.
    pub(crate) fn head_traffic(&self, d: usize, modules: usize) -> CallTraffic {
        let mut head =
            self.call_traffic(d, RowBytes { read: (1 + modules) * self.row_bytes(d), ..RowBytes::default() });
        for ahead in 0..=modules {
            // If no position predicts the next token, a dummy with weight 0 takes its place.
            let n = (self.sequences * self.labels(ahead)).max(usize::from(ahead == 0));
            let numbers = all_reduce_bytes(n, FP32, self.tp) + all_reduce_bytes(2 * n, FP32, self.tp);
            add(&mut head.forward, Axis::Tp, "all_reduce", numbers);
        }
        head
    }

    /// Adds the circulation of messages of `width` numbers per token in the context-parallel group.
    pub(crate) fn circulate(&self, call: &mut CallTraffic, width: usize) {
        let (others, numbers) = (self.cp - 1, self.tokens() * width);
        add(&mut call.forward, Axis::Cp, "recv", others * numbers * self.element);
        if others > 0 {
            add(&mut call.backward, Axis::Cp, "recv", others * numbers * self.element + self.cp * numbers * FP32);
        }
    }

    /// Adds what a mixture of experts of width `d` exchanges: rows of experts and routing data.
    pub(crate) fn exchange(&self, call: &mut CallTraffic, d: usize, moe: &MoeConfig) {
        let exchanged = 2 * self.rows_of_experts(moe) * (self.ep - 1) / self.ep * d * self.element;
        add(&mut call.forward, Axis::Ep, "all_gather", moe.num_experts * (self.ep - 1) * FP32);
        add(&mut call.forward, Axis::Ep, "all_to_all", exchanged);
        add(&mut call.backward, Axis::Ep, "all_to_all", exchanged);
        self.route(call, moe);
    }

    /// Adds the routing data exchanged by ranks with parts of the same sequences.
    fn route(&self, call: &mut CallTraffic, moe: &MoeConfig) {
        let scores = if moe.router_noise > 0.0 { moe.num_experts } else { 0 };
        let gathered = scores + moe.capacity_factor.map_or(0, |_| moe.candidates());
        let of_context = (self.cp - 1) * self.tokens() * gathered * FP32;
        add(&mut call.forward, Axis::Tp, "all_gather", self.rows_of(gathered, FP32));
        add(&mut call.forward, Axis::Cp, "all_gather", of_context);
        let numbers = if moe.aux_loss_coef != 0.0 { 2 * self.sequences * moe.num_experts } else { 0 };
        for (axis, ranks) in [(Axis::Tp, self.tp), (Axis::Cp, self.cp)] {
            add(&mut call.forward, axis, "all_reduce", all_reduce_bytes(numbers, FP32, ranks));
            add(&mut call.backward, axis, "all_reduce", all_reduce_bytes(numbers, FP32, ranks));
        }
    }

    /// `R(width)` in the type of the activations.
    pub(crate) fn row_bytes(&self, width: usize) -> usize {
        self.rows_of(width, self.element)
    }

    /// `R(width)` with elements of `size` bytes.
    fn rows_of(&self, width: usize, size: usize) -> usize {
        self.tokens() / self.tp * (self.tp - 1) * width * size
    }

    /// Local positions of a sequence that have a token `ahead` places after the next one.
    fn labels(&self, ahead: usize) -> usize {
        let (end, chunks) = (self.length.saturating_sub(ahead), 2 * self.cp);
        let border = |chunk: usize| (chunk * self.positions / chunks).min(end);
        [self.cp_rank, chunks - 1 - self.cp_rank].map(|chunk| border(chunk + 1) - border(chunk)).iter().sum()
    }

    /// Expert rows of this rank's tokens.
    fn rows_of_experts(&self, moe: &MoeConfig) -> usize {
        let choices = self.length * moe.top_k;
        let of_sequence = moe.capacity(self.length).map_or(choices, |capacity| choices.min(capacity * moe.num_experts));
        self.sequences * of_sequence / self.tp / self.cp
    }

    /// Tokens of the rank's part of the context.
    fn tokens(&self) -> usize {
        self.sequences * self.positions / self.cp
    }
}

fn add(received: &mut Received, axis: Axis, collective: &'static str, bytes: usize) {
    *received.entry((axis, collective)).or_default() += bytes;
}
