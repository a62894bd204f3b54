//! The mixture-of-experts layer.

use crate::balance::{bias_update, router_z_loss_over, sequence_balance_loss_over};
use crate::kernels::dispatch::{Dispatched, dispatch};
use crate::kernels::permute::{permute, unpermute};
use crate::kernels::reroute::{RerouteRule, reroute};
use crate::kernels::{grouped_gemm, route};
use crate::router::{all_rows, rows_here};
use crate::{Experts, MoeConfig, MoeStats, NoiseKey, Overflow, Router, Routing, SwiGlu};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use comm::SequenceRanks;
use fused::check::Call;

/// A mixture-of-experts layer: a router, routed experts, and shared experts that process every token.
#[derive(Module, Debug)]
pub struct MoeLayer {
    /// Chooses experts.
    pub router: Router,
    /// The routed experts.
    pub experts: Experts,
    /// The shared experts as one SwiGLU of their summed width.
    pub shared_experts: Option<SwiGlu>,
    #[module(skip)]
    pub(crate) config: MoeConfig,
}

/// What a layer returns.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MoeOutput {
    /// The layer's output, with the shape of its input.
    pub y_btd: Tensor<3>,
    /// Balance loss and z-loss, each times its coefficient, `[1]`; present if a coefficient is not 0 and there are
    /// tokens.
    pub aux_loss: Option<Tensor<1>>,
    /// Where the tokens went.
    pub stats: MoeStats,
}

/// Applies the experts to their rows.
pub(crate) type RunExperts<'a> = dyn FnOnce(Tensor<2>, &Dispatched) -> Tensor<2> + 'a;

/// The routing of a batch: gates, rows, statistics and choices.
pub(crate) struct RoutingPlan {
    pub gates_kn: Tensor<2>,
    pub placed: Dispatched,
    pub stats: MoeStats,
    pub choices_kn: Tensor<2, Int>,
}

impl MoeConfig {
    /// Makes a layer of width `d`.
    ///
    /// # Panics
    /// If [`validate`](Self::validate) rejects the settings.
    pub fn init(&self, d: usize, device: &Device) -> MoeLayer {
        if let Err(error) = self.validate() {
            panic!("MoeConfig::init: {error}");
        }
        let shared = self.n_shared_experts * self.moe_intermediate_size;
        MoeLayer {
            router: Router::new(d, self, device),
            experts: Experts::new(self.num_experts, d, self.moe_intermediate_size, device),
            shared_experts: (shared > 0).then(|| SwiGlu::new(d, shared, device)),
            config: self.clone(),
        }
    }
}

impl MoeLayer {
    /// Routes every token of `x_btd`, and returns the weighted sum of its experts (plus the shared ones):
    /// `y[n] = sum over k of gate[k, n] * expert(x[n])`, without dropped choices.
    ///
    /// With a key, noise affects the choice. For bf16 or f16 tokens, the sum is in f32, the precision of the gates, and
    /// rounded once.
    pub fn forward(&self, x_btd: Tensor<3>, noise: Option<NoiseKey>) -> MoeOutput {
        self.forward_over(x_btd, noise, &SequenceRanks::default())
    }

    /// [`forward`](Self::forward) without noise and without capacity: no choice is dropped or rerouted for any
    /// `capacity_factor`.
    ///
    /// Capacity depends on the number of tokens of a whole sequence. With it, the output of a token would depend on how
    /// many tokens follow, and generation, which sees one token at a time, could not match evaluation.
    pub fn evaluate(&self, x_btd: Tensor<3>) -> MoeOutput {
        self.evaluate_over(x_btd, &SequenceRanks::default())
    }

    /// Returns the layer with its selection bias updated after an optimizer step, given the step's routing statistics.
    /// Without a selection bias, or with a `bias_update_speed` of 0, the layer is unchanged. See [`bias_update`].
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use moe::MoeConfig;
    ///
    /// let device = Device::flex();
    /// let config = MoeConfig::new(128).with_selection_bias(true).with_bias_update_speed(0.001);
    /// let layer = config.init(64, &device);
    /// let output = layer.forward(Tensor::random([2, 16, 64], Distribution::Default, &device), None);
    /// let layer = layer.update_bias(&output.stats);
    /// assert!(layer.router.bias.unwrap().val().abs().max().into_scalar::<f32>() > 0.0);
    /// ```
    pub fn update_bias(mut self, stats: &MoeStats) -> Self {
        self.update_bias_from(stats.assigned_e().float());
        self
    }

    /// [`update_bias`](Self::update_bias) given the number of tokens assigned to each expert, `[e]`: the sum of
    /// [`MoeStats::assigned_e`] over the step's micro-batches.
    ///
    /// # Panics
    /// If there is a bias and the number of values differs from the number of experts.
    pub fn update_bias_from(&mut self, assigned_e: Tensor<1>) {
        let speed = self.config.bias_update_speed;
        let Some(bias) = self.router.bias.take_if(|_| speed != 0.0) else { return };
        Call("MoeLayer::update_bias").shape("assigned", assigned_e.dims(), [self.config.num_experts]);
        let change = bias_update(&assigned_e.into_data().iter::<f64>().collect::<Vec<_>>(), speed);
        let moved = |bias_e: Tensor<1>| {
            let change_e = Tensor::from_floats(change.as_slice(), &bias_e.device());
            bias_e + change_e
        };
        self.router.bias = Some(bias.map(moved));
    }

    /// [`forward`](Self::forward) for this rank's rows, `[b, s, d]`, with its part of the shared experts' columns. The
    /// loss is the rank's share.
    pub fn forward_over(&self, x_bsd: Tensor<3>, noise: Option<NoiseKey>, ranks: &SequenceRanks) -> MoeOutput {
        let capacity = self.config.capacity(ranks.whole(x_bsd.dims()[1]));
        self.forward_here(x_bsd, noise, capacity, ranks)
    }

    /// [`evaluate`](Self::evaluate) for this rank's rows.
    pub fn evaluate_over(&self, x_bsd: Tensor<3>, ranks: &SequenceRanks) -> MoeOutput {
        self.forward_here(x_bsd, None, None, ranks)
    }

    fn forward_here(
        &self,
        x_bsd: Tensor<3>,
        noise: Option<NoiseKey>,
        capacity: Option<usize>,
        ranks: &SequenceRanks,
    ) -> MoeOutput {
        let tile = grouped_gemm::tile_rows(&x_bsd);
        let experts = |x_rd, placed: &Dispatched| self.experts.forward(x_rd, &placed.expert_offsets);
        self.forward_with(x_bsd, noise, capacity, tile, ranks, Box::new(experts))
    }

    /// The layer around its routed experts, which take and return rows in tiles of `tile`.
    pub(crate) fn forward_with(
        &self,
        x_bsd: Tensor<3>,
        noise: Option<NoiseKey>,
        capacity: Option<usize>,
        tile: usize,
        ranks: &SequenceRanks,
        experts: Box<RunExperts<'_>>,
    ) -> MoeOutput {
        let (call, [b, s, d], router) = (Call("MoeLayer::forward"), x_bsd.dims(), self.router.proj.weight.dims());
        call.not_empty("router.proj", &router);
        call.width("x", [b, s, d], router[0]);
        if b > 0 && s == 0 {
            // Burn reads a 0 in a new shape as "keep this dimension", so `[b, 0, d]` cannot become `[0, d]`, but
            // `[0, b, d]` can.
            let mut output = self.forward_with(x_bsd.swap_dims(0, 1), noise, capacity, tile, ranks, experts);
            output.stats.sequences = b;
            return MoeOutput { y_btd: output.y_btd.swap_dims(0, 1), ..output };
        }
        let x_nd = x_bsd.clone().reshape([b * s, d]);
        let routing = self.router.forward_over(x_nd.clone(), ranks.whole(s), noise, ranks);
        let RoutingPlan { gates_kn, placed, stats, choices_kn } = self.plan(&routing, [b, s], capacity, tile, ranks);

        let x_rd = permute(x_nd, &placed);
        let y_rd = experts(x_rd, &placed);
        let mut y_bsd = unpermute(y_rd, gates_kn, &placed).reshape([b, s, d]);
        if let Some(shared) = &self.shared_experts {
            y_bsd = shared.forward_add_over(x_bsd, y_bsd, &ranks.tp);
        }
        MoeOutput { y_btd: y_bsd, aux_loss: self.aux_loss(routing, choices_kn, b, ranks), stats }
    }

    /// Turns the router's output into rows of experts.
    ///
    /// Even if a rank has only a part of the rows, capacity counts whole sequences: every rank gathers all choices and
    /// places them. Assignments without room are then masked before each rank places its own.
    fn plan(
        &self,
        routing: &Routing,
        [b, s]: [usize; 2],
        capacity: Option<usize>,
        tile: usize,
        ranks: &SequenceRanks,
    ) -> RoutingPlan {
        let MoeConfig { top_k, num_experts, order, overflow, .. } = self.config;
        let candidates_cn = routing.candidates_cn.clone();
        let choices_kn = candidates_cn.clone().slice([0..top_k, 0..b * s]);
        let rerouted = |candidates_cn, capacity| {
            reroute(candidates_cn, RerouteRule { top_k, experts: num_experts, groups: b, capacity, order })
        };
        let (experts_kn, placed) = match capacity {
            Some(capacity) if !ranks.is_alone() => {
                let all_cn = all_rows(candidates_cn, [b, s], ranks);
                let all_kn = if overflow == Overflow::Reroute { rerouted(all_cn, capacity) } else { all_cn };
                let of_all = dispatch(all_kn.clone(), self.config.dispatch_rule(b, Some(capacity), 1));
                let with_room_kn = all_kn.clone().mask_fill(of_all.row_of_kn.lower_elem(0), -1);
                let here = |of_all_kn| rows_here(of_all_kn, [b, s], ranks);
                (here(all_kn), dispatch(here(with_room_kn), self.config.dispatch_rule(b, None, tile)))
            }
            _ => {
                let experts_kn = match (overflow, capacity) {
                    (Overflow::Reroute, Some(capacity)) => rerouted(candidates_cn, capacity),
                    _ => choices_kn.clone(),
                };
                (experts_kn.clone(), dispatch(experts_kn, self.config.dispatch_rule(b, capacity, tile)))
            }
        };
        let gates_kn = route::gates(routing.scores_ne.clone(), experts_kn.clone(), self.config.gate_rule());
        let stats = MoeStats::new(choices_kn.clone(), experts_kn, gates_kn.clone().inner(), &placed, b);
        RoutingPlan { gates_kn, placed, stats, choices_kn }
    }

    /// The auxiliary loss; this rank's share, if several ranks have parts of the rows.
    fn aux_loss(
        &self,
        routing: Routing,
        choices_kn: Tensor<2, Int>,
        sequences: usize,
        ranks: &SequenceRanks,
    ) -> Option<Tensor<1>> {
        let MoeConfig { aux_loss_coef, z_loss_coef, num_experts, .. } = self.config;
        if routing.scores_ne.dims()[0] == 0 {
            return None; // the mean over no tokens is undefined
        }
        let share = 1.0 / ranks.tp.size() as f64; // context-parallel ranks have separate losses, which are averaged
        let balance = (aux_loss_coef != 0.0).then(|| {
            let assigned_be = route::count(choices_kn, sequences, num_experts);
            sequence_balance_loss_over(routing.scores_ne, assigned_be, ranks) * (aux_loss_coef * share)
        });
        let z = (z_loss_coef != 0.0)
            .then(|| router_z_loss_over(routing.logits_ne, sequences, ranks) * (z_loss_coef * share));
        match (balance, z) {
            (Some(balance), Some(z)) => Some(balance + z),
            (balance, z) => balance.or(z),
        }
    }
}
