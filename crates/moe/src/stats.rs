//! Routing statistics of a layer.

use crate::kernels::dispatch::Dispatched;
use crate::kernels::route;
use burn::tensor::{Int, Tensor};

/// Where a layer's tokens went, as tensors on the device. They cost nothing until they are read.
#[derive(Debug, Clone)]
pub struct MoeStats {
    choices_kn: Tensor<2, Int>,
    experts_kn: Tensor<2, Int>,
    gates_kn: Tensor<2>,
    row_of_kn: Tensor<2, Int>,
    kept_e: Tensor<1, Int>,
    pub(crate) sequences: usize,
}

impl MoeStats {
    pub(crate) fn new(
        choices_kn: Tensor<2, Int>,
        experts_kn: Tensor<2, Int>,
        gates_kn: Tensor<2>,
        placed: &Dispatched,
        sequences: usize,
    ) -> Self {
        let Dispatched { row_of_kn, kept_e, .. } = placed.clone();
        Self { choices_kn, experts_kn, gates_kn, row_of_kn, kept_e, sequences }
    }

    fn experts(&self) -> usize {
        self.kept_e.dims()[0]
    }

    /// Returns how many times each sequence chose each expert, whether it had room or not: `[b, e]`.
    pub fn assigned_be(&self) -> Tensor<2, Int> {
        route::count(self.choices_kn.clone(), self.sequences, self.experts())
    }

    /// Returns the same for all sequences together: `[e]`.
    pub fn assigned_e(&self) -> Tensor<1, Int> {
        route::count(self.choices_kn.clone(), 1, self.experts()).squeeze_dim(0)
    }

    /// Returns the number of assignments that each expert took, `[e]`, including rerouted ones.
    pub fn kept_e(&self) -> Tensor<1, Int> {
        self.kept_e.clone()
    }

    /// Returns the number of choices of each expert that no expert took, `[e]`.
    pub fn dropped_e(&self) -> Tensor<1, Int> {
        let dropped_kn = self.row_of_kn.clone().lower_elem(0);
        let lost_kn = self.choices_kn.clone().mask_fill(dropped_kn.bool_not(), -1);
        route::count(lost_kn, 1, self.experts()).squeeze_dim(0)
    }

    /// Returns the sum of the gates of each expert's outputs, `[e]`, before drops.
    pub fn gate_mass_e(&self) -> Tensor<1> {
        let [k, n] = self.gates_kn.dims();
        let e = self.experts();
        if n == 0 {
            return Tensor::zeros([e], (&self.gates_kn.device(), self.gates_kn.dtype())); // reshape would keep a 0
        }
        let expert_1e = Tensor::<1, Int>::arange(0..e as i64, &self.gates_kn.device()).reshape([1, e]);
        let expert_1e = expert_1e.cast(burn::tensor::IntDType::I32);
        let one_hot = self.experts_kn.clone().reshape([k * n, 1]).equal(expert_1e).float();
        (one_hot * self.gates_kn.clone().reshape([k * n, 1])).sum_dim(0).squeeze_dim(0)
    }

    /// Returns each expert's assignments over the mean of all experts, `[e]`: 1 if loads are even.
    pub fn load_ratio_e(&self) -> Tensor<1> {
        let assigned_e = self.assigned_e().float();
        assigned_e.clone() / assigned_e.mean()
    }

    /// Returns the coefficient of variation of the experts' assignments, `[1]`: standard deviation over mean, 0 if
    /// loads are even.
    pub fn load_cv(&self) -> Tensor<1> {
        (self.load_ratio_e() - 1.0).powi_scalar(2).mean().sqrt()
    }
}
