//! The router, which chooses each token's experts.

use crate::kernels::route::{self, Noise};
use crate::{MoeConfig, NoiseKey};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use comm::SequenceRanks;
use fused::{linear, widened};

/// Chooses the experts of each token and their weights (GShard arXiv 2006.16668; DeepSeek-V2/V3's `Gate`).
///
/// Weights carry gradients; the choice does not. For bf16 or f16 tokens and parameters, everything is computed in f32,
/// as in DeepSeek's code.
#[derive(Module, Debug)]
pub struct Router {
    /// `[d, e]`, no bias.
    pub proj: Linear,
    /// `[e]`, added to the scores for the choice only. The expert loads update it, never a gradient.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: MoeConfig,
}

/// The router's output for a batch of tokens.
#[derive(Debug, Clone)]
pub struct Routing {
    /// The product with the router's matrix.
    pub logits_ne: Tensor<2>,
    /// Score of every expert, before choice and scaling.
    pub scores_ne: Tensor<2>,
    /// The best experts of each token, best first. The first `top_k` are its choices; the others are reserves for
    /// rerouting.
    pub candidates_cn: Tensor<2, Int>,
}

impl Router {
    /// Makes a router for width `d`.
    pub fn new(d: usize, config: &MoeConfig, device: &Device) -> Self {
        let bias = || {
            let experts = config.num_experts;
            Param::uninitialized(
                ParamId::new(),
                move |device, _| Tensor::zeros([experts], device),
                device.clone(),
                false,
                [experts].into(),
            )
        };
        Self {
            proj: LinearConfig::new(d, config.num_experts).with_bias(false).init(device),
            bias: config.selection_bias.then(bias),
            config: config.clone(),
        }
    }

    /// Routes the tokens of `x_nd`, sequences of `seq_len` tokens. With a key, noise affects the choice.
    pub fn forward(&self, x_nd: Tensor<2>, seq_len: usize, noise: Option<NoiseKey>) -> Routing {
        self.forward_over(x_nd, seq_len, noise, &SequenceRanks::default())
    }

    /// [`forward`](Self::forward) for a rank's rows of sequences of `seq_len` tokens.
    ///
    /// A token's choice follows from its own scores, so no rank needs the scores of others. Noise is a hash of a
    /// token's position in its sequence: with noise, all ranks choose for whole sequences, whose scores they gather one
    /// block at a time.
    pub(crate) fn forward_over(
        &self,
        x_nd: Tensor<2>,
        seq_len: usize,
        noise: Option<NoiseKey>,
        ranks: &SequenceRanks,
    ) -> Routing {
        let logits_ne = linear(widened(x_nd), widened(self.proj.weight.val()), None);
        let scores_ne = route::scores(logits_ne.clone(), self.config.score_func);
        let plain_ne = scores_ne.clone().inner();
        let bias_e = match &self.bias {
            Some(bias) => widened(bias.val().inner()),
            None => Tensor::zeros([self.config.num_experts], &plain_ne.device()),
        };
        let select = |scores_ne: Tensor<2>, noise: Option<NoiseKey>| {
            let mut rule = self.config.select_rule();
            let amplitude = self.config.router_noise as f32;
            rule.noise = noise.map(|NoiseKey { key, first_row }| Noise { amplitude, key, first_row, seq_len });
            route::select(scores_ne, bias_e.clone(), rule)
        };
        let candidates_cn = match noise.filter(|_| self.config.router_noise > 0.0) {
            Some(noise) if !ranks.is_alone() => {
                let ([n, e], s) = (plain_ne.dims(), ranks.here(seq_len));
                let of_block = |(block_bse, first): (Tensor<3>, usize)| {
                    let b = block_bse.dims()[0];
                    let all_ne = ranks.gather(block_bse).reshape([b * seq_len, e]);
                    let first_row = noise.first_row.wrapping_add(first as u32);
                    rows_here(select(all_ne, Some(NoiseKey { first_row, ..noise })), [b, s], ranks)
                };
                let blocks = blocks(plain_ne.reshape([n / s, s, e]), sequences_at_once(seq_len, e));
                Tensor::cat(blocks.into_iter().map(of_block).collect(), 1)
            }
            noise => without_padding(select(plain_ne, noise), ranks.here(seq_len), ranks),
        };
        Routing { candidates_cn, logits_ne, scores_ne }
    }
}

/// Scores that are gathered at once: 64 MB. Those of one sequence may be more.
const SCORES: usize = 16 << 20;

/// Number of sequences whose scores of `e` experts are gathered at once.
fn sequences_at_once(seq_len: usize, e: usize) -> usize {
    (SCORES / (seq_len * e).max(1)).max(1)
}

/// Blocks of at most `sequences` sequences, each with the number of its first one.
fn blocks(x_bse: Tensor<3>, sequences: usize) -> Vec<(Tensor<3>, usize)> {
    let b = x_bse.dims()[0];
    let block = |first: usize| (x_bse.clone().slice_dim(0, first..b.min(first + sequences)), first);
    (0..b).step_by(sequences).map(block).collect()
}

/// Selects this rank's `s` rows of each of `b` sequences from `[k, n]` of all rows; padding has no expert.
pub(crate) fn rows_here(of_all_kn: Tensor<2, Int>, [b, s]: [usize; 2], ranks: &SequenceRanks) -> Tensor<2, Int> {
    if ranks.is_alone() {
        return of_all_kn;
    }
    let (k, t) = (of_all_kn.dims()[0], ranks.whole(s));
    let mut of_all_kbt = of_all_kn.reshape([k, b, t]);
    if ranks.padding > 0 {
        let none = Tensor::<3, Int>::full([k, b, ranks.padding], -1, &of_all_kbt.device()).cast(of_all_kbt.dtype());
        of_all_kbt = Tensor::cat(vec![of_all_kbt, none], 2);
    }
    ranks.own(of_all_kbt, 2).reshape([k, b * s])
}

/// Removes the experts of padding from `[k, n]` of this rank's `s` rows of each sequence.
fn without_padding(experts_kn: Tensor<2, Int>, s: usize, ranks: &SequenceRanks) -> Tensor<2, Int> {
    if ranks.padding == 0 {
        return experts_kn;
    }
    let [k, n] = experts_kn.dims();
    ranks.fill_padding(experts_kn.reshape([k, n / s, s]), 2, -1).reshape([k, n])
}

/// Gathers `[k, n]` of all rows from `[k, n]` of this rank's `s` rows of each of `b` sequences.
pub(crate) fn all_rows(own_kn: Tensor<2, Int>, [b, s]: [usize; 2], ranks: &SequenceRanks) -> Tensor<2, Int> {
    if ranks.is_alone() {
        return own_kn;
    }
    let (k, dtype) = (own_kn.dims()[0], own_kn.dtype());
    // Expert numbers are exact in f32.
    let own_bsk = own_kn.float().transpose().reshape([b, s, k]);
    ranks.gather(own_bsk).inner().reshape([b * ranks.whole(s), k]).transpose().int().cast(dtype)
}
