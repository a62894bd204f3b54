use crate::{MoeConfig, ScoreFunc};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Device, Int, Tensor};
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

/// What the router decided.
#[derive(Debug, Clone)]
pub struct Routing {
    /// Score of every expert, before choice and scaling.
    pub scores_ne: Tensor<2>,
    /// The chosen experts, best first.
    pub experts_nk: Tensor<2, Int>,
    /// Their weights in the output.
    pub weights_nk: Tensor<2>,
}

impl Router {
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

    /// Routes the tokens of `x_nd`.
    pub fn forward(&self, x_nd: Tensor<2>) -> Routing {
        let logits_ne = linear(widened(x_nd), widened(self.proj.weight.val()), None);
        let scores_ne = match self.config.score_func {
            ScoreFunc::Softmax => softmax(logits_ne, 1),
            ScoreFunc::Sigmoid => sigmoid(logits_ne),
        };
        let experts_nk = self.choose(scores_ne.clone().inner());
        let mut weights_nk = scores_ne.clone().gather(1, experts_nk.clone());
        if self.config.norm_topk_prob {
            let sum_n1 = weights_nk.clone().sum_dim(1);
            weights_nk = weights_nk / (sum_n1 + 1e-20);
        }
        Routing { scores_ne, experts_nk, weights_nk: weights_nk * self.config.routed_scaling_factor }
    }

    /// The top k experts, inside the best groups when there are groups. Experts of other groups are masked with -inf, as in
    /// DeepSeek's reference code: with 0.0 an expert outside could win over a negative biased score inside.
    fn choose(&self, scores_ne: Tensor<2>) -> Tensor<2, Int> {
        let MoeConfig { num_experts: e, n_group: g, topk_group, top_k, .. } = self.config;
        let mut scores_ne = scores_ne;
        if let Some(bias) = &self.bias {
            scores_ne = scores_ne + widened(bias.val().inner()).unsqueeze();
        }
        if g > 1 {
            let n = scores_ne.dims()[0];
            let per_group = if self.bias.is_some() { 2 } else { 1 };
            let groups_nge = scores_ne.clone().reshape([n, g, e / g]);
            let group_scores_ng = groups_nge.clone().topk(per_group, 2).sum_dim(2).squeeze_dim::<2>(2);
            let best = group_scores_ng.topk_with_indices(topk_group, 1).1;
            let chosen_ng = Tensor::<2>::zeros([n, g], &scores_ne.device()).scatter(
                1,
                best,
                Tensor::ones([n, topk_group], &scores_ne.device()),
                burn::tensor::IndexingUpdateOp::Add,
            );
            let outside = chosen_ng.equal_elem(0.0).unsqueeze_dim::<3>(2).repeat_dim(2, e / g);
            scores_ne = groups_nge.mask_fill(outside, f32::NEG_INFINITY).reshape([n, e]);
        }
        scores_ne.topk_with_indices(top_k, 1).1
    }
}
