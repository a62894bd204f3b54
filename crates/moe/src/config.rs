//! The settings of a mixture-of-experts layer, and what makes them valid.

use crate::kernels::dispatch::{DispatchRule, Layout, Order};
use crate::kernels::route::{GateRule, MAX_CANDIDATES, SelectRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the router turns logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoreFunc {
    /// Softmax over all experts (GShard, DeepSeek-V2).
    Softmax,
    /// An independent sigmoid per expert (DeepSeek-V3).
    Sigmoid,
}

/// What an expert outside of a token's chosen groups has in place of its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupMask {
    /// Minus infinity: never chosen, as in DeepSeek's reference code.
    NegInf,
    /// 0.0, as in Hugging Face `transformers` for DeepSeek-V2, and for V3 in older versions: chosen before an expert inside whose biased score is negative.
    Zero,
}

/// What happens to an assignment whose expert is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It is left out of the token's sum.
    Drop,
    /// It goes to the token's next-best expert with room, and is left out where there is none.
    Reroute,
}

/// The shape and the rules of a mixture-of-experts layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MoeConfig {
    /// Number of routed experts, E.
    pub num_experts: usize,
    /// Experts a token is sent to, k; at most 16.
    pub top_k: usize,
    /// Hidden width of one expert's SwiGLU.
    pub moe_intermediate_size: usize,
    /// Shared experts, which every token passes: one SwiGLU of this many times the expert's width; 0 for none.
    pub n_shared_experts: usize,
    /// Scores from logits.
    pub score_func: ScoreFunc,
    /// A bias per expert that takes part in the choice of experts and not in their weights (DeepSeek-V3). With it a
    /// group's score is the sum of its two best experts, without it its best one, as in DeepSeek's reference code.
    pub selection_bias: bool,
    /// Groups the experts are divided into; 1 for none.
    pub n_group: usize,
    /// Groups a token may choose experts from.
    pub topk_group: usize,
    /// How experts outside of the chosen groups are kept out.
    pub group_mask: GroupMask,
    /// Uniform noise of at most this size on the scores by which experts are chosen, in training: a hash of seed, step,
    /// layer and place, so the same on any layout; 0 for none.
    pub router_noise: f64,
    /// Whether the chosen experts' weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the weights of the chosen experts.
    pub routed_scaling_factor: f64,
    /// In training an expert takes at most `ceil(capacity_factor * tokens * top_k / num_experts)` assignments of one
    /// sequence, the first ones in order; null for dropless, as evaluation and generation always are: what they make of
    /// a token must not depend on how many follow it.
    pub capacity_factor: Option<f64>,
    /// What happens to an assignment whose expert is full.
    pub overflow: Overflow,
    /// Whose assignments come first where capacity is limited.
    pub order: Order,
    /// With `parallel.ep`, the most rows of experts that a rank takes at once, as a multiple of the mean of the ranks
    /// that have the experts together. Where one would get more, the rows go in rounds, whose products are computed
    /// again in the backward: the same numbers, more slowly, in the memory that is counted before the start. At least
    /// 1; a number above `parallel.ep` is never reached.
    pub max_rank_load: f64,
    /// Coefficient of the balance loss per sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17); 0 for none.
    pub aux_loss_coef: f64,
    /// Coefficient of the router z-loss, the mean of `log(sum(exp(logits)))^2` (ST-MoE, arXiv 2202.08906, eq. 5); 0 for
    /// none.
    pub z_loss_coef: f64,
    /// How much the selection bias of an expert moves at each step, up where it had fewer tokens than the mean of all,
    /// down where it had more (DeepSeek-V3's balance without a loss, arXiv 2412.19437, section 2.1.2, where it is
    /// 0.001); 0 for never.
    pub bias_update_speed: f64,
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
            group_mask: GroupMask::NegInf,
            router_noise: 0.0,
            norm_topk_prob: true,
            routed_scaling_factor: 1.0,
            capacity_factor: None,
            overflow: Overflow::Drop,
            order: Order::Choice,
            max_rank_load: 2.0,
            aux_loss_coef: 0.0,
            z_loss_coef: 0.0,
            bias_update_speed: 0.0,
        }
    }
}

impl MoeConfig {
    /// Refuses what no layer can be built from, naming key, value and remedy.
    pub fn validate(&self) -> Result<(), String> {
        let (e, k, g, tg) = (self.num_experts, self.top_k, self.n_group, self.topk_group);
        if e == 0 || self.moe_intermediate_size == 0 {
            let key = if e == 0 { "num_experts" } else { "moe_intermediate_size" };
            return Err(format!("moe.{key} is 0: give at least 1"));
        }
        if g == 0 || e % g != 0 || tg == 0 || tg > g {
            return Err(format!(
                "moe.n_group {g} must divide moe.num_experts {e}, and moe.topk_group {tg} must lie between 1 and moe.n_group"
            ));
        }
        if k == 0 || k > tg * (e / g) {
            return Err(format!(
                "moe.top_k is {k}, but {} can be chosen from: give a value from 1 to {}",
                match (g, tg) {
                    (1, _) => format!("{e} experts"),
                    (_, 1) => format!("1 group of {} experts", e / g),
                    _ => format!("{tg} groups of {} experts", e / g),
                },
                tg * (e / g)
            ));
        }
        if g > 1 && self.selection_bias && e / g < 2 {
            return Err(format!(
                "moe.n_group {g} leaves one expert a group; with moe.selection_bias a group needs two"
            ));
        }
        if k > MAX_CANDIDATES {
            return Err(format!("moe.top_k is {k}: give at most {MAX_CANDIDATES}"));
        }
        if let Some(f) = self.capacity_factor.filter(|f| !(*f > 0.0 && f.is_finite())) {
            return Err(format!(
                "moe.capacity_factor is {f:?}: give a number above 0, such as 1.25, or null for a dropless layer"
            ));
        }
        if !(self.max_rank_load >= 1.0 && self.max_rank_load.is_finite()) {
            return Err(format!("moe.max_rank_load is {:?}: give a number from 1 on, such as 2", self.max_rank_load));
        }
        let scale = self.routed_scaling_factor;
        if !(scale > 0.0 && (scale as f32).is_finite()) {
            return Err(format!("moe.routed_scaling_factor is {scale:?}: give a number above 0"));
        }
        let coefficients = [
            ("router_noise", self.router_noise),
            ("aux_loss_coef", self.aux_loss_coef),
            ("z_loss_coef", self.z_loss_coef),
            ("bias_update_speed", self.bias_update_speed),
        ];
        let wrong = |(_, value): &(&str, f64)| !(*value >= 0.0 && (*value as f32).is_finite());
        if let Some((key, value)) = coefficients.into_iter().find(wrong) {
            return Err(format!("moe.{key} is {value:?}: give 0 or more"));
        }
        if self.bias_update_speed > 0.0 && !self.selection_bias {
            return Err(format!(
                "moe.bias_update_speed is {}, but there is no bias: set moe.selection_bias to true, or the speed to 0",
                self.bias_update_speed
            ));
        }
        if self.overflow == Overflow::Reroute && self.capacity_factor.is_none() {
            return Err("moe.overflow is reroute, but a dropless layer has no overflow: set moe.capacity_factor".into());
        }
        Ok(())
    }

    /// How experts are chosen; `noise` is left to the caller.
    pub(crate) fn select_rule(&self) -> SelectRule {
        SelectRule {
            candidates: self.candidates(),
            n_group: self.n_group,
            topk_group: self.topk_group,
            group_best: if self.selection_bias { 2 } else { 1 },
            mask: match self.group_mask {
                GroupMask::NegInf => f32::NEG_INFINITY,
                GroupMask::Zero => 0.0,
            },
            noise: None,
        }
    }

    /// Experts that a token can go to: its choices, and where it may be rerouted, as many of the next as there are, up
    /// to [`MAX_CANDIDATES`] in all.
    pub fn candidates(&self) -> usize {
        let open = self.topk_group * (self.num_experts / self.n_group);
        match self.overflow {
            Overflow::Drop => self.top_k,
            Overflow::Reroute => open.min(MAX_CANDIDATES),
        }
    }

    /// How gates are made.
    pub(crate) fn gate_rule(&self) -> GateRule {
        GateRule { normalise: self.norm_topk_prob, scale: self.routed_scaling_factor as f32 }
    }

    /// Where the assignments of `sequences` sequences go, at most `capacity` of one to an expert, in tiles of `tile`
    /// rows.
    pub(crate) fn dispatch_rule(&self, sequences: usize, capacity: Option<usize>, tile: usize) -> DispatchRule {
        DispatchRule {
            experts: self.num_experts,
            groups: if capacity.is_some() { sequences.max(1) } else { 1 },
            capacity,
            order: self.order,
            layout: Layout::Sorted { tile },
        }
    }

    /// Slots of one expert for a group of `tokens` tokens: `ceil(factor * tokens * k / E)`, at most `tokens` (an expert
    /// is chosen at most once by a token); `None` when dropless.
    pub fn capacity(&self, tokens: usize) -> Option<usize> {
        let exact = |f: f64| (f * (tokens * self.top_k) as f64 / self.num_experts as f64).ceil() as usize;
        self.capacity_factor.map(|f| exact(f).min(tokens))
    }
}
