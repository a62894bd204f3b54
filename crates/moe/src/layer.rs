use crate::{Dispatch, Experts, MoeConfig, Router, SwiGlu, sequence_balance_loss};
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
    config: MoeConfig,
}

/// What a layer returns.
#[derive(Debug, Clone)]
pub struct MoeOutput {
    /// The layer's output, of its input's shape.
    pub y_btd: Tensor<3>,
    /// `[1]`: balance loss times its coefficient, where the coefficient is not 0.
    pub balance_loss: Option<Tensor<1>>,
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

    /// Routes every token of `x_btd` and returns the weighted sum of its experts (plus the shared ones).
    pub fn forward(&self, x_btd: Tensor<3>) -> MoeOutput {
        let [b, t, d] = x_btd.dims();
        let x_nd = x_btd.clone().reshape([b * t, d]);
        let routing = self.router.forward(x_nd.clone());
        let dispatch = match self.config.capacity(t) {
            Some(capacity) => {
                let experts_btk = routing.experts_nk.clone().reshape([b, t, self.config.top_k]);
                Dispatch::limited(experts_btk, self.config.num_experts, capacity)
            }
            None => Dispatch::dropless(routing.experts_nk.clone(), self.config.num_experts),
        };
        let mut y_btd = self.experts.forward(x_nd, &routing, dispatch).reshape([b, t, d]);
        if let Some(shared) = &self.shared_experts {
            y_btd = y_btd + shared.forward(x_btd);
        }
        let coefficient = self.config.aux_loss_coef;
        let balance_loss = (coefficient != 0.0).then(|| sequence_balance_loss(&routing, b) * coefficient);
        MoeOutput { y_btd, balance_loss }
    }
}
