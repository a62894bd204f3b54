use crate::kernels::dispatch::{Dispatched, dispatch};
use crate::kernels::permute::{permute, unpermute};
use crate::kernels::reroute::{RerouteRule, reroute};
use crate::kernels::{grouped_gemm, route};
use crate::{Experts, MoeConfig, MoeStats, NoiseKey, Overflow, Router, Routing, SwiGlu};
use crate::{router_z_loss, sequence_balance_loss};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// A mixture-of-experts layer: router, routed experts, and shared experts that every token passes.
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
pub struct MoeOutput {
    /// The layer's output, of its input's shape.
    pub y_btd: Tensor<3>,
    /// `[1]`: balance loss and z-loss, each times its coefficient, where one of the coefficients is not 0.
    pub aux_loss: Option<Tensor<1>>,
    /// Where the tokens went.
    pub stats: MoeStats,
}

/// Rows through their experts.
pub(crate) type RunExperts<'a> = dyn FnOnce(Tensor<2>, &Dispatched) -> Tensor<2> + 'a;

/// Which experts compute what, and with which weight it counts.
pub(crate) struct Plan {
    pub gates_kn: Tensor<2>,
    pub placed: Dispatched,
    pub stats: MoeStats,
}

impl MoeLayer {
    /// A layer of width `d`.
    pub fn new(d: usize, config: &MoeConfig, device: &Device) -> Self {
        let shared = config.n_shared_experts * config.moe_intermediate_size;
        Self {
            router: Router::new(d, config, device),
            experts: Experts::new(config.num_experts, d, config.moe_intermediate_size, device),
            shared_experts: (shared > 0).then(|| SwiGlu::new(d, shared, device)),
            config: config.clone(),
        }
    }

    /// Routes every token of `x_btd` and returns the weighted sum of its experts (plus the shared ones):
    /// `y[n] = sum over k of gate[k, n] * expert(x[n])`, dropped choices left out. With a key, noise takes part in the choice.
    /// Of bf16 or f16 tokens the sum is made in f32, the precision of the gates, and rounded.
    pub fn forward(&self, x_btd: Tensor<3>, noise: Option<NoiseKey>) -> MoeOutput {
        let capacity = self.config.capacity(x_btd.dims()[1]);
        self.forward_here(x_btd, noise, capacity)
    }

    /// [`forward`](Self::forward) without noise and without capacity: no choice is dropped or rerouted, whatever `capacity_factor` is.
    ///
    /// Capacity counts a whole sequence's tokens, so with it the output of a token would depend on how many follow, and generation, which
    /// sees one at a time, could not have the output of evaluation.
    pub fn evaluate(&self, x_btd: Tensor<3>) -> MoeOutput {
        self.forward_here(x_btd, None, None)
    }

    fn forward_here(&self, x_btd: Tensor<3>, noise: Option<NoiseKey>, capacity: Option<usize>) -> MoeOutput {
        let tile = grouped_gemm::tile_rows(&x_btd);
        let experts = |x_rd, placed: &Dispatched| self.experts.forward(x_rd, &placed.segments);
        self.forward_with(x_btd, noise, capacity, tile, Box::new(experts))
    }

    /// The layer around its routed experts, which take and return rows in tiles of `tile`.
    pub(crate) fn forward_with(
        &self,
        x_btd: Tensor<3>,
        noise: Option<NoiseKey>,
        capacity: Option<usize>,
        tile: usize,
        experts: Box<RunExperts<'_>>,
    ) -> MoeOutput {
        let [b, t, d] = x_btd.dims();
        if b > 0 && t == 0 {
            // In a new shape Burn takes a 0 for "as it was", so `[b, 0, d]` does not become `[0, d]`; `[0, b, d]` does.
            let output = self.forward_with(x_btd.swap_dims(0, 1), noise, capacity, tile, experts);
            return MoeOutput { y_btd: output.y_btd.swap_dims(0, 1), ..output };
        }
        let x_nd = x_btd.clone().reshape([b * t, d]);
        let routing = self.router.forward(x_nd.clone(), t, noise);
        let Plan { gates_kn, placed, stats } = self.plan(&routing, b, t, capacity, tile);

        let x_rd = permute(x_nd, &placed);
        let y_rd = experts(x_rd, &placed);
        let mut y_btd = unpermute(y_rd, gates_kn, &placed).reshape([b, t, d]);
        if let Some(shared) = &self.shared_experts {
            y_btd = shared.forward_add(x_btd, y_btd);
        }
        MoeOutput { y_btd, aux_loss: self.aux_loss(routing, &stats), stats }
    }

    /// From what the router thinks to rows of experts.
    fn plan(&self, routing: &Routing, b: usize, t: usize, capacity: Option<usize>, tile: usize) -> Plan {
        let MoeConfig { top_k, num_experts, order, .. } = self.config;
        let candidates_cn = routing.candidates_cn.clone();
        let choices_kn = candidates_cn.clone().slice([0..top_k, 0..b * t]);
        let experts_kn = match (self.config.overflow, capacity) {
            (Overflow::Reroute, Some(capacity)) => {
                reroute(candidates_cn, RerouteRule { top_k, experts: num_experts, groups: b, capacity, order })
            }
            _ => choices_kn.clone(),
        };
        let gates_kn = route::gates(routing.scores_ne.clone(), experts_kn.clone(), self.config.gate_rule());
        let placed = dispatch(experts_kn.clone(), self.config.dispatch_rule(b, capacity, tile));
        let stats = MoeStats::new(choices_kn, experts_kn, gates_kn.clone().inner(), &placed, b);
        Plan { gates_kn, placed, stats }
    }

    fn aux_loss(&self, routing: Routing, stats: &MoeStats) -> Option<Tensor<1>> {
        let MoeConfig { aux_loss_coef, z_loss_coef, .. } = self.config;
        if routing.scores_ne.dims()[0] == 0 {
            return None; // a mean over no tokens
        }
        let balance = (aux_loss_coef != 0.0)
            .then(|| sequence_balance_loss(routing.scores_ne, stats.assigned_be()) * aux_loss_coef);
        let z = (z_loss_coef != 0.0).then(|| router_z_loss(routing.logits_ne) * z_loss_coef);
        match (balance, z) {
            (Some(balance), Some(z)) => Some(balance + z),
            (balance, z) => balance.or(z),
        }
    }
}
