//! `route`: chooses the experts of each token, and their weights.
//!
//! ```text
//! scores[n, e] = softmax over e of logits[n, e]   or   sigmoid(logits[n, e])
//! choice[n, e] = scores[n, e] + bias[e] + noise[n, e]        rule.mask for experts of groups that are not chosen
//! experts[j, n] = the j-th largest of choice[n, ..]; of equal ones, the lower number first
//! gates[j, n]  = scale * s[j] / (s[0] + .. + s[k-1])  with s[j] = scores[n, experts[j, n]]
//! ```
//!
//! A group's score is its best choice, or the sum of its two best (DeepSeek-V3, arXiv 2412.19437, and its `Gate`). The
//! choice carries no gradient. Gates carry gradients into the scores: with `S` the sum above,
//! `ds[j] = scale / S * (dg[j] - sum_i dg[i] s[i] / S)`.
//!
//! ```text
//! scores_ne  token 0: e0 e1 e2 .. | token 1: ..       a token's scores are adjacent: one unit reads its row
//! experts_cn choice 0: t0 t1 t2 .. | choice 1: ..     choice-major: assignment p = j * n + t, first choices first
//! ```

mod autodiff;
mod composed;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod flex;

use super::elsewhere::on_cpu;
use crate::ScoreFunc;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor};
use fused::check::Call;
#[cfg(feature = "cubecl")]
use fused::cube::specs::{spec, statistic};
use fused::has_kernels;
use rayon::prelude::*;

/// How experts are chosen by their scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectRule {
    /// Number of experts to find for each token, 1 to [`MAX_CANDIDATES`].
    pub candidates: usize,
    /// Number of groups of experts.
    pub n_group: usize,
    /// Number of groups from which experts may be chosen.
    pub topk_group: usize,
    /// Number of a group's best experts whose sum is its score: 2 with a bias, otherwise 1.
    pub group_best: usize,
    /// The choice score of experts outside the chosen groups.
    pub mask: f32,
    /// Noise on the choice.
    pub noise: Option<Noise>,
}

/// The most experts that [`select`] finds for a token.
pub const MAX_CANDIDATES: usize = 16;

/// Uniform noise in `-amplitude..amplitude`: a hash of the key and of a token's position, the same on every device and
/// in any batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// The largest noise.
    pub amplitude: f32,
    /// The noises of different keys are independent.
    pub key: u32,
    /// The index in the global batch of the first sequence.
    pub first_row: u32,
    /// Tokens per sequence.
    pub seq_len: usize,
}

/// How [`gates`] are computed from scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateRule {
    /// Whether a token's gates are divided by the sum of its chosen scores.
    pub normalise: bool,
    /// Factor on the gates.
    pub scale: f32,
}

/// Maps `logits_ne` to `scores_ne`, in f32.
///
/// # Panics
/// If the logits are not f32, or if there are no experts.
pub fn scores(logits_ne: Tensor<2>, func: ScoreFunc) -> Tensor<2> {
    check_scores(Call("scores"), "logits", &logits_ne);
    if !has_kernels(&logits_ne.device()) {
        return composed::scores(logits_ne, func);
    }
    Tensor::from_dispatch(Dispatch::moe_scores(logits_ne.into_dispatch(), func))
}

/// Returns the best `rule.candidates` experts of each token, `[c, n]` in i32, from `scores_ne` and `bias_e`.
///
/// # Panics
/// If scores and bias are not f32 or do not have these shapes, if there are not that many candidates, or if the rule's
/// groups do not divide the experts.
pub fn select(scores_ne: Tensor<2>, bias_e: Tensor<1>, rule: SelectRule) -> Tensor<2, Int> {
    let (call, [n, e]) = (Call("select"), scores_ne.dims());
    check_scores(call, "scores", &scores_ne);
    call.dtype("bias", bias_e.dtype(), DType::F32);
    call.shape("bias", bias_e.dims(), [e]);
    let SelectRule { candidates, n_group, topk_group, .. } = rule;
    let (found, most) = ((1..=MAX_CANDIDATES.min(e)).contains(&candidates), MAX_CANDIDATES.min(e));
    call.that(found, format_args!("{candidates} candidates of {e} experts, expected 1 to {most}"));
    let groups = n_group > 0 && e.is_multiple_of(n_group) && (1..=n_group).contains(&topk_group);
    call.that(groups, format_args!("{topk_group} of {n_group} groups of {e} experts"));
    let noise = n == 0 || rule.noise.is_none_or(|noise| noise.seq_len > 0);
    call.that(noise, "noise in sequences of 0 tokens");
    let (scores_ne, bias_e) = (scores_ne.inner(), bias_e.inner());
    let (device, cpu) = (scores_ne.device(), Device::flex());
    if !has_kernels(&device) {
        return select(scores_ne.to_device(&cpu), bias_e.to_device(&cpu), rule).to_device(&device);
    }
    Tensor::from_dispatch(Dispatch::moe_select(scores_ne.into_dispatch(), bias_e.into_dispatch(), rule))
}

/// Returns the weights `[k, n]` of the chosen experts; 0 if `experts_kn` is -1.
///
/// # Panics
/// If the scores are not f32, if the experts are not i32, or if their numbers of tokens differ; on the CPU, if an
/// expert is out of range.
pub fn gates(scores_ne: Tensor<2>, experts_kn: Tensor<2, Int>, rule: GateRule) -> Tensor<2> {
    let (call, [n, _], [k, _]) = (Call("gates"), scores_ne.dims(), experts_kn.dims());
    check_scores(call, "scores", &scores_ne);
    call.dtype("experts", experts_kn.dtype(), DType::I32);
    call.shape("experts", experts_kn.dims(), [k, n]);
    if !has_kernels(&scores_ne.device()) {
        return composed::gates(scores_ne, experts_kn, rule);
    }
    Tensor::from_dispatch(Dispatch::moe_gates(scores_ne.into_dispatch(), experts_kn.into_dispatch(), rule))
}

/// Counts how many times each of `groups` sequences (one after another) chose each of `e` experts: `[groups, e]` in
/// i32. A -1 chooses none.
///
/// # Panics
/// If the experts are not i32, or if the tokens cannot be divided into `groups`; on the CPU, if an expert is out of
/// range.
pub fn count(experts_kn: Tensor<2, Int>, groups: usize, e: usize) -> Tensor<2, Int> {
    check_assignments(Call("count"), "experts", &experts_kn, groups);
    if !has_kernels(&experts_kn.device()) {
        return on_cpu(experts_kn, |experts_kn| count(experts_kn, groups, e));
    }
    Tensor::from_dispatch(Dispatch::moe_count(experts_kn.into_dispatch(), groups, e))
}

/// The operations; the tape records scores and gates.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait RouteOps: Backend {
    /// Maps `logits_ne` to `scores_ne`, both f32.
    #[fusion(meta = |logits, _| logits.clone())]
    fn moe_scores(logits: FloatTensor<Self>, func: ScoreFunc) -> FloatTensor<Self>;

    /// Maps `scores_ne` and `bias_e` to the best `rule.candidates` experts of each token, `[c, n]` in i32, best first.
    #[fusion(meta = |scores, _, rule| spec([rule.candidates, scores.shape[0]], DType::I32))]
    fn moe_select(scores: FloatTensor<Self>, bias: FloatTensor<Self>, rule: SelectRule) -> IntTensor<Self>;

    /// Maps `scores_ne` and `experts_kn` to `gates_kn` in f32.
    #[fusion(meta = |_, experts, _| statistic(experts.shape.clone()))]
    fn moe_gates(scores: FloatTensor<Self>, experts: IntTensor<Self>, rule: GateRule) -> FloatTensor<Self>;

    /// Counts how many times each of `groups` sequences in `experts_kn` chose each of `e` experts, `[groups, e]` in
    /// i32.
    #[fusion(meta = |_, groups, e| spec([*groups, *e], DType::I32))]
    fn moe_count(experts: IntTensor<Self>, groups: usize, e: usize) -> IntTensor<Self>;
}

/// Gradients of scores and gates.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait RouteBackwardOps: Backend {
    /// Maps `scores_ne` and their gradient to the gradient of the logits.
    #[fusion(meta = |scores, _, _| scores.clone())]
    fn moe_scores_backward(
        scores: FloatTensor<Self>,
        d_scores: FloatTensor<Self>,
        func: ScoreFunc,
    ) -> FloatTensor<Self>;

    /// Returns the gradient of `scores_ne`.
    #[fusion(meta = |scores, _, _, _| scores.clone())]
    fn moe_gates_backward(
        scores: FloatTensor<Self>,
        experts: IntTensor<Self>,
        d_gates: FloatTensor<Self>,
        rule: GateRule,
    ) -> FloatTensor<Self>;
}

/// Checks scores, or logits.
fn check_scores(call: Call, argument: &str, scores_ne: &Tensor<2>) {
    call.dtype(argument, scores_ne.dtype(), DType::F32);
    call.that(scores_ne.dims()[1] > 0, format_args!("{argument} has shape {:?}, expected experts", scores_ne.dims()));
}

/// Checks experts of the tokens of `groups` sequences.
pub(crate) fn check_assignments(call: Call, argument: &str, experts_kn: &Tensor<2, Int>, groups: usize) {
    let [_, n] = experts_kn.dims();
    call.dtype(argument, experts_kn.dtype(), DType::I32);
    call.that(n == 0 || (groups > 0 && n % groups == 0), format_args!("{n} tokens in {groups} groups"));
}

/// On the CPU, checks that indices are below `end`, or -1.
///
/// # Panics
/// If an index is anything else.
pub(crate) fn check_indices(function: &str, argument: &str, indices: &[i32], end: usize) {
    let wrong = indices.iter().find(|index| **index < -1 || **index >= end as i32);
    if let Some(wrong) = wrong {
        panic!("{function}: {argument} has a {wrong}, expected -1 or an index below {end}");
    }
}

/// Added to the sum of a token's scores before the division, as in DeepSeek's reference code.
pub(crate) const TINY: f32 = 1e-20;

/// Rows per task.
const ROWS: usize = 256;

fn scores_cpu(logits: &[f32], e: usize, func: ScoreFunc) -> Vec<f32> {
    let mut scores = vec![0.0; logits.len()];
    scores.par_chunks_mut(e * ROWS).zip(logits.par_chunks(e * ROWS)).for_each(|(scores, logits)| {
        for (scores, logits) in scores.chunks_exact_mut(e).zip(logits.chunks_exact(e)) {
            match func {
                ScoreFunc::Sigmoid => {
                    scores.iter_mut().zip(logits).for_each(|(s, x)| *s = 1.0 / (1.0 + cpu::math::exp(-x)))
                }
                ScoreFunc::Softmax => {
                    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    scores.iter_mut().zip(logits).for_each(|(s, x)| *s = cpu::math::exp(x - max));
                    let sum: f32 = scores.iter().sum();
                    scores.iter_mut().for_each(|s| *s /= sum);
                }
            }
        }
    });
    scores
}

/// The gradient of logits: `ds s (1 - s)` for sigmoid, `s (ds - sum(ds s))` for softmax.
fn scores_backward_cpu(scores: &[f32], d_scores: &[f32], e: usize, func: ScoreFunc) -> Vec<f32> {
    let mut d_logits = vec![0.0; scores.len()];
    let rows = d_logits.par_chunks_mut(e).zip(scores.par_chunks(e).zip(d_scores.par_chunks(e)));
    rows.with_min_len(ROWS).for_each(|(d_logits, (scores, d_scores))| {
        let dot: f32 = scores.iter().zip(d_scores).map(|(s, ds)| s * ds).sum();
        for ((dx, s), ds) in d_logits.iter_mut().zip(scores).zip(d_scores) {
            *dx = match func {
                ScoreFunc::Sigmoid => ds * s * (1.0 - s),
                ScoreFunc::Softmax => s * (ds - dot),
            };
        }
    });
    d_logits
}

fn select_cpu(scores: &[f32], bias: &[f32], e: usize, rule: &SelectRule) -> Vec<i32> {
    let (n, c) = (scores.len() / e, rule.candidates);
    let mut by_token = vec![0; n * c];
    by_token.par_chunks_mut(c).zip(scores.par_chunks(e)).enumerate().with_min_len(ROWS).for_each_init(
        || vec![0.0f32; e],
        |choice, (token, (chosen, scores))| {
            for (i, (choice, score)) in choice.iter_mut().zip(scores).enumerate() {
                let noise = rule.noise.map_or(0.0, |noise| noise.at(token, i, e));
                *choice = score + bias[i] + noise;
            }
            mask_groups(choice, rule);
            largest(choice, chosen);
        },
    );
    (0..c * n).map(|p| by_token[p % n * c + p / n]).collect()
}

impl Noise {
    /// Returns the noise of expert `expert` of `e` for token number `token` of the batch.
    pub(crate) fn at(&self, token: usize, expert: usize, e: usize) -> f32 {
        let (row, position) = (token / self.seq_len, token % self.seq_len);
        let start = mix(self.key ^ mix((self.first_row.wrapping_add(row as u32)).wrapping_add(GAMMA)));
        let number = mix(start.wrapping_add(((position * e + expert) as u32).wrapping_mul(GAMMA)));
        // The upper 24 bits, times 2^-23, are exact in f32.
        self.amplitude * ((number >> 8) as f32 * (2.0 / (1 << 24) as f32) - 1.0)
    }
}

/// 2^32 divided by the golden ratio.
pub(crate) const GAMMA: u32 = 0x9e37_79b9;

/// A bijection of u32 that spreads every bit over all bits: the "lowbias32" constants of Chris Wellons' hash
/// prospector.
pub(crate) fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Masks the choice scores of experts whose group is not among the best.
fn mask_groups(choice: &mut [f32], rule: &SelectRule) {
    if rule.n_group == 1 {
        return;
    }
    let of_group = |group: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for value in group {
            second = second.max(first.min(*value));
            first = first.max(*value);
        }
        if rule.group_best == 2 { first + second } else { first }
    };
    let groups: Vec<f32> = choice.chunks_exact(choice.len() / rule.n_group).map(of_group).collect();
    let mut best = vec![0; rule.topk_group];
    largest(&groups, &mut best);
    for (group, choice) in choice.chunks_exact_mut(choice.len() / rule.n_group).enumerate() {
        if !best.contains(&(group as i32)) {
            choice.fill(rule.mask);
        }
    }
}

/// Finds the places of the largest values, best first; of equal values, the lower place first.
fn largest(values: &[f32], places: &mut [i32]) {
    let mut found = 0;
    for (place, value) in values.iter().enumerate() {
        let mut at = found;
        while at > 0 && *value > values[places[at - 1] as usize] {
            if at < places.len() {
                places[at] = places[at - 1];
            }
            at -= 1;
        }
        if at < places.len() {
            places[at] = place as i32;
            found = (found + 1).min(places.len());
        }
    }
}

fn count_cpu(experts: &[i32], n: usize, groups: usize, e: usize) -> Vec<i32> {
    check_indices("count", "experts", experts, e);
    let mut counts = vec![0; groups * e];
    for (p, expert) in experts.iter().enumerate().filter(|(_, expert)| **expert >= 0) {
        counts[p % n / (n / groups) * e + *expert as usize] += 1;
    }
    counts
}

fn gates_cpu(scores: &[f32], experts: &[i32], e: usize, rule: &GateRule) -> Vec<f32> {
    check_indices("gates", "experts", experts, e);
    let n = scores.len() / e;
    let mut gates = vec![0.0; experts.len()];
    for token in 0..n {
        let score = |p: usize| if experts[p] < 0 { 0.0 } else { scores[token * e + experts[p] as usize] };
        let sum = if rule.normalise { (token..experts.len()).step_by(n).map(score).sum::<f32>() + TINY } else { 1.0 };
        (token..experts.len()).step_by(n).for_each(|p| gates[p] = score(p) / sum * rule.scale);
    }
    gates
}

fn gates_backward_cpu(scores: &[f32], experts: &[i32], d_gates: &[f32], e: usize, rule: &GateRule) -> Vec<f32> {
    let n = scores.len() / e;
    let mut d_scores = vec![0.0; scores.len()];
    for (token, (scores, d_scores)) in scores.chunks_exact(e).zip(d_scores.chunks_exact_mut(e)).enumerate() {
        let chosen =
            || (token..experts.len()).step_by(n).filter(|p| experts[*p] >= 0).map(|p| (p, experts[p] as usize));
        let sum = if rule.normalise { chosen().map(|(_, expert)| scores[expert]).sum::<f32>() + TINY } else { 1.0 };
        let dot: f32 = chosen().map(|(p, expert)| d_gates[p] * scores[expert] / sum).sum();
        let share = if rule.normalise { dot } else { 0.0 };
        chosen().for_each(|(p, expert)| d_scores[expert] += rule.scale / sum * (d_gates[p] - share));
    }
    d_scores
}
