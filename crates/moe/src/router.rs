use crate::kernels::route::{self, Noise};
use crate::{MoeConfig, NoiseKey};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use comm::SequenceRanks;
use fused::{linear, widened};

/// Chooses the experts of each token and their weights (GShard arXiv 2006.16668; DeepSeek-V2/V3's `Gate`).
///
/// Weights carry gradients, the choice does not. Of bf16 or f16 tokens and parameters all of it is computed in f32, as in DeepSeek's.
#[derive(Module, Debug)]
pub struct Router {
    /// `[d, e]`, no bias.
    pub proj: Linear,
    /// `[e]`, added to the scores for the choice only. It is moved by the balance of loads and never by a gradient.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: MoeConfig,
}

/// What the router thinks of the tokens.
#[derive(Debug, Clone)]
pub struct Routing {
    /// The product with the router's matrix.
    pub logits_ne: Tensor<2>,
    /// Score of every expert, before choice and scaling.
    pub scores_ne: Tensor<2>,
    /// The same of all rows of the sequences, where a rank has a part of them.
    pub scores_of_all_ne: Tensor<2>,
    /// The best experts of each token of all rows, best first: the first `top_k` are its choices, others the reserves of a reroute.
    pub candidates_cn: Tensor<2, Int>,
}

impl Router {
    /// Whether a path of fields leads to a router's bias. It is to stay fp32: near 0.3 a step of bf16 is 0.002, twice what a step of training moves
    /// it by.
    pub fn holds_bias(path: &str) -> bool {
        path.ends_with("router.bias")
    }

    /// A router for width `d`.
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

    /// Routes the tokens of `x_nd`, which are sequences of `seq_len` tokens; with a key, noise takes part in the choice.
    pub fn forward(&self, x_nd: Tensor<2>, seq_len: usize, noise: Option<NoiseKey>) -> Routing {
        self.forward_over(x_nd, seq_len, noise, &SequenceRanks::default())
    }

    /// The same of a rank's rows of sequences of `seq_len` tokens; every rank chooses for all rows.
    pub(crate) fn forward_over(
        &self,
        x_nd: Tensor<2>,
        seq_len: usize,
        noise: Option<NoiseKey>,
        ranks: &SequenceRanks,
    ) -> Routing {
        let logits_ne = linear(widened(x_nd), widened(self.proj.weight.val()), None);
        let scores_ne = route::scores(logits_ne.clone(), self.config.score_func);
        let scores_of_all_ne = of_all(ranks, scores_ne.clone(), seq_len);
        let bias_e = match &self.bias {
            Some(bias) => widened(bias.val().inner()),
            None => Tensor::zeros([self.config.num_experts], &scores_ne.clone().inner().device()),
        };
        let mut rule = self.config.select_rule();
        let amplitude = self.config.router_noise as f32;
        rule.noise = noise.filter(|_| amplitude > 0.0).map(|NoiseKey { key, first_row }| Noise {
            amplitude,
            key,
            first_row,
            seq_len,
        });
        let candidates_cn = route::select(scores_of_all_ne.clone(), bias_e, rule);
        Routing { candidates_cn, logits_ne, scores_ne, scores_of_all_ne }
    }
}

/// Of each row of sequences of `seq_len` rows what a rank has of its own.
fn of_all(ranks: &SequenceRanks, own_ne: Tensor<2>, seq_len: usize) -> Tensor<2> {
    if ranks.is_alone() {
        return own_ne;
    }
    let ([n, e], s) = (own_ne.dims(), seq_len / ranks.whole(1));
    ranks.gather(own_ne.reshape([n / s, s, e])).reshape([n / s * seq_len, e])
}
