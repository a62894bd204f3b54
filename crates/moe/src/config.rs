//! The settings of a mixture-of-experts layer, and their validation.

use crate::ConfigError;
use crate::kernels::dispatch::{DispatchRule, Order, RowLayout};
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

/// The score of an expert outside of a token's chosen groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupMask {
    /// Minus infinity: never chosen, as in DeepSeek's reference code.
    NegInf,
    /// 0.0, as in Hugging Face `transformers` for DeepSeek-V2, and for V3 in older versions: chosen before an expert of
    /// a chosen group whose biased score is negative.
    Zero,
}

/// What happens to an assignment whose expert is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It is dropped from the token's sum.
    Drop,
    /// It goes to the token's next-best expert with room, or is dropped if there is none.
    Reroute,
}

/// The shape and the rules of a mixture-of-experts layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MoeConfig {
    /// Number of routed experts, E.
    pub num_experts: usize,
    /// Number of experts per token, k; at most 16.
    pub top_k: usize,
    /// Hidden width of one expert's SwiGLU.
    pub moe_intermediate_size: usize,
    /// Shared experts, which process every token: one SwiGLU of this many times the expert's width; 0 for none.
    pub n_shared_experts: usize,
    /// How logits become scores.
    pub score_func: ScoreFunc,
    /// Adds a bias per expert that affects which experts are chosen, but not their weights (DeepSeek-V3). With the
    /// bias, a group's score is the sum of its two best experts; without it, that of its best one, as in DeepSeek's
    /// reference code.
    pub selection_bias: bool,
    /// Number of groups of experts; 1 for none.
    pub n_group: usize,
    /// Number of groups from which a token may choose experts.
    pub topk_group: usize,
    /// How experts outside of the chosen groups are masked.
    pub group_mask: GroupMask,
    /// Largest uniform noise on the scores that choose experts, in training only: a hash of seed, step, layer and
    /// position, so that it does not depend on the layout; 0 for none.
    pub router_noise: f64,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the weights of the chosen experts.
    pub routed_scaling_factor: f64,
    /// In training, an expert takes at most `ceil(capacity_factor * tokens * top_k / num_experts)` assignments of one
    /// sequence, the first ones in order; `None` (in YAML `null`) for a dropless layer. Evaluation and generation are always dropless, so
    /// that the result for a token does not depend on how many tokens follow it.
    pub capacity_factor: Option<f64>,
    /// What happens to an assignment whose expert is full.
    pub overflow: Overflow,
    /// Which assignments come first if capacity is limited.
    pub order: Order,
    /// With expert parallelism, the most expert rows that a rank takes at once, as a multiple of the mean over the
    /// expert-parallel ranks. If a rank would get more, the rows go in rounds, and the backward recomputes their
    /// products: the results are the same, more slowly, within the memory estimated before the start. At least 1; a
    /// value above the number of expert-parallel ranks is never reached.
    pub max_rank_load: f64,
    /// Coefficient of the sequence balance loss (DeepSeek-V3, arXiv 2412.19437, eq. 17); 0 for none.
    pub aux_loss_coef: f64,
    /// Coefficient of the router z-loss, the mean of `log(sum(exp(logits)))^2` (ST-MoE, arXiv 2202.08906, eq. 5); 0 for
    /// none.
    pub z_loss_coef: f64,
    /// Step size of an expert's selection bias, which moves up after a step in which the expert got fewer tokens than
    /// the mean and down if it got more (DeepSeek-V3's auxiliary-loss-free balancing, arXiv 2412.19437, section 2.1.2,
    /// where it is 0.001); 0 for never.
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

macro_rules! with {
    ($($method:ident $field:ident: $type:ty,)*) => {
        impl MoeConfig {
            $(#[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $method(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })*
        }
    };
}

with! {
    with_num_experts num_experts: usize,
    with_top_k top_k: usize,
    with_n_shared_experts n_shared_experts: usize,
    with_score_func score_func: ScoreFunc,
    with_selection_bias selection_bias: bool,
    with_n_group n_group: usize,
    with_topk_group topk_group: usize,
    with_group_mask group_mask: GroupMask,
    with_router_noise router_noise: f64,
    with_norm_topk_prob norm_topk_prob: bool,
    with_routed_scaling_factor routed_scaling_factor: f64,
    with_capacity_factor capacity_factor: Option<f64>,
    with_overflow overflow: Overflow,
    with_order order: Order,
    with_max_rank_load max_rank_load: f64,
    with_aux_loss_coef aux_loss_coef: f64,
    with_z_loss_coef z_loss_coef: f64,
    with_bias_update_speed bias_update_speed: f64,
}

impl MoeConfig {
    /// The default settings, with SwiGLUs of this hidden width as experts.
    pub fn new(moe_intermediate_size: usize) -> Self {
        Self { moe_intermediate_size, ..Self::default() }
    }

    /// Rejects settings from which no layer can be built; the error names field, value and remedy.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check().map_err(ConfigError)
    }

    fn check(&self) -> Result<(), String> {
        let (e, k, g, tg) = (self.num_experts, self.top_k, self.n_group, self.topk_group);
        if e == 0 || self.moe_intermediate_size == 0 {
            let key = if e == 0 { "num_experts" } else { "moe_intermediate_size" };
            return Err(format!("`{key}` is 0: give at least 1"));
        }
        if g == 0 || e % g != 0 || tg == 0 || tg > g {
            return Err(format!(
                "`n_group` {g} must divide `num_experts` {e}, and `topk_group` {tg} must lie between 1 and `n_group`"
            ));
        }
        if k == 0 || k > tg * (e / g) {
            return Err(format!(
                "`top_k` is {k}, but {} can be chosen from: give a value from 1 to {}",
                match (g, tg) {
                    (1, _) => format!("{e} experts"),
                    (_, 1) => format!("1 group of {} experts", e / g),
                    _ => format!("{tg} groups of {} experts", e / g),
                },
                tg * (e / g)
            ));
        }
        if g > 1 && self.selection_bias && e / g < 2 {
            return Err(format!("`n_group` {g} leaves one expert a group; with `selection_bias` a group needs two"));
        }
        if k > MAX_CANDIDATES {
            return Err(format!("`top_k` is {k}: give at most {MAX_CANDIDATES}"));
        }
        if let Some(f) = self.capacity_factor.filter(|f| !(*f > 0.0 && f.is_finite())) {
            return Err(format!(
                "`capacity_factor` is {f:?}: give a number above 0, such as 1.25, or null for a dropless layer"
            ));
        }
        if !(self.max_rank_load >= 1.0 && self.max_rank_load.is_finite()) {
            return Err(format!("`max_rank_load` is {:?}: give a number from 1 on, such as 2", self.max_rank_load));
        }
        let scale = self.routed_scaling_factor;
        if !(scale > 0.0 && (scale as f32).is_finite()) {
            return Err(format!("`routed_scaling_factor` is {scale:?}: give a number above 0"));
        }
        let coefficients = [
            ("router_noise", self.router_noise),
            ("aux_loss_coef", self.aux_loss_coef),
            ("z_loss_coef", self.z_loss_coef),
            ("bias_update_speed", self.bias_update_speed),
        ];
        let wrong = |(_, value): &(&str, f64)| !(*value >= 0.0 && (*value as f32).is_finite());
        if let Some((key, value)) = coefficients.into_iter().find(wrong) {
            return Err(format!("`{key}` is {value:?}: give 0 or more"));
        }
        if self.bias_update_speed > 0.0 && !self.selection_bias {
            return Err(format!(
                "`bias_update_speed` is {}, but there is no bias: set `selection_bias` to true, or the speed to 0",
                self.bias_update_speed
            ));
        }
        if self.overflow == Overflow::Reroute && self.capacity_factor.is_none() {
            return Err("`overflow` is reroute, but a dropless layer has no overflow: set `capacity_factor`".into());
        }
        Ok(())
    }

    /// The rule for choosing experts; the caller sets `noise`.
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

    /// Number of experts that a token can go to: its choices, and with rerouting the next-best ones, up to
    /// [`MAX_CANDIDATES`] in total.
    pub fn candidates(&self) -> usize {
        let open = self.topk_group * (self.num_experts / self.n_group);
        match self.overflow {
            Overflow::Drop => self.top_k,
            Overflow::Reroute => open.min(MAX_CANDIDATES),
        }
    }

    /// The rule for computing gates.
    pub(crate) fn gate_rule(&self) -> GateRule {
        GateRule { normalise: self.norm_topk_prob, scale: self.routed_scaling_factor as f32 }
    }

    /// The rule that places the assignments of `sequences` sequences, at most `capacity` of one sequence per expert, in
    /// tiles of `tile` rows.
    pub(crate) fn dispatch_rule(&self, sequences: usize, capacity: Option<usize>, tile: usize) -> DispatchRule {
        DispatchRule {
            experts: self.num_experts,
            groups: if capacity.is_some() { sequences.max(1) } else { 1 },
            capacity,
            order: self.order,
            layout: RowLayout::Sorted { tile },
        }
    }

    /// Capacity of one expert for a group of `tokens` tokens: `ceil(factor * tokens * k / E)`, at most `tokens` (a
    /// token chooses an expert at most once); `None` if dropless.
    pub fn capacity(&self, tokens: usize) -> Option<usize> {
        let exact = |f: f64| (f * (tokens * self.top_k) as f64 / self.num_experts as f64).ceil() as usize;
        self.capacity_factor.map(|f| exact(f).min(tokens))
    }
}
