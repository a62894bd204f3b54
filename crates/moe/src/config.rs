use serde::{Deserialize, Serialize};

/// How the router turns logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreFunc {
    /// Softmax over all experts (GShard, DeepSeek-V2).
    Softmax,
    /// An independent sigmoid per expert (DeepSeek-V3).
    Sigmoid,
}

/// The shape and the rules of a mixture-of-experts layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MoeConfig {
    /// Number of routed experts, E.
    pub num_experts: usize,
    /// Experts a token is sent to, k.
    pub top_k: usize,
    /// Hidden width of one expert's SwiGLU.
    pub moe_intermediate_size: usize,
    /// Shared experts, which every token passes: one SwiGLU of this many times the expert's width; 0 for none.
    pub n_shared_experts: usize,
    /// Scores from logits.
    pub score_func: ScoreFunc,
    /// A bias per expert that takes part in the choice of experts and not in their weights (DeepSeek-V3). With it a group's
    /// score is the sum of its two best experts, without it its best one, as in DeepSeek's reference code.
    pub selection_bias: bool,
    /// Groups the experts are divided into; 1 for none.
    pub n_group: usize,
    /// Groups a token may choose experts from.
    pub topk_group: usize,
    /// Whether the chosen experts' weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the weights of the chosen experts.
    pub routed_scaling_factor: f64,
    /// An expert takes at most `ceil(capacity_factor * tokens * top_k / num_experts)` assignments of one sequence, the
    /// first ones in order; what is over is dropped. Null: dropless.
    pub capacity_factor: Option<f64>,
    /// Coefficient of the balance loss per sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17); 0 for none.
    pub aux_loss_coef: f64,
}

impl Default for MoeConfig {
    fn default() -> Self {
        Self {
            num_experts: 8,
            top_k: 2,
            moe_intermediate_size: 128,
            n_shared_experts: 0,
            score_func: ScoreFunc::Softmax,
            selection_bias: false,
            n_group: 1,
            topk_group: 1,
            norm_topk_prob: true,
            routed_scaling_factor: 1.0,
            capacity_factor: None,
            aux_loss_coef: 0.0,
        }
    }
}

impl MoeConfig {
    /// Refuses what no layer can be built from, naming key, value and remedy.
    pub fn validate(&self) -> Result<(), String> {
        let (e, k, g, tg) = (self.num_experts, self.top_k, self.n_group, self.topk_group);
        if e == 0 || self.moe_intermediate_size == 0 {
            return Err("moe.num_experts and moe.moe_intermediate_size must be at least 1".into());
        }
        if g == 0 || e % g != 0 || tg == 0 || tg > g {
            return Err(format!(
                "moe.n_group {g} must divide moe.num_experts {e}, and moe.topk_group {tg} must lie between 1 and moe.n_group"
            ));
        }
        if k == 0 || k > tg * (e / g) {
            return Err(format!(
                "moe.top_k is {k}, but {tg} group(s) of {} experts can be chosen from: give a value from 1 to {}",
                e / g,
                tg * (e / g)
            ));
        }
        if g > 1 && self.selection_bias && e / g < 2 {
            return Err(format!(
                "moe.n_group {g} leaves one expert a group; with moe.selection_bias a group needs two"
            ));
        }
        match self.capacity_factor {
            Some(f) if !(f > 0.0 && f.is_finite()) => {
                Err(format!("moe.capacity_factor is {f}: give a number above 0, or null for a dropless layer"))
            }
            _ => Ok(()),
        }
    }

    /// Slots of one expert for a group of `tokens` tokens: `ceil(factor * tokens * k / E)`, at most `tokens` (an expert is
    /// chosen at most once by a token); `None` when dropless.
    pub fn capacity(&self, tokens: usize) -> Option<usize> {
        let exact = |f: f64| (f * (tokens * self.top_k) as f64 / self.num_experts as f64).ceil() as usize;
        self.capacity_factor.map(|f| exact(f).min(tokens))
    }
}
