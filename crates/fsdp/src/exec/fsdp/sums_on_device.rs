//! The totals of a step whose gradients are on a device. They stay there, so the optimizer's step is launched before
//! the host knows the loss.
//!
//! ```text
//! host     launch forward, backward | launch totals, factor, AdamW of each unit |  read totals  | next step
//! device       forward, backward                   | totals, factor | AdamW .. |
//! ```
//!
//! The factor that clips the gradient also tells whether there is a step at all; host and device derive it from the
//! same totals.

use super::Fsdp;
use super::sums::Totals;
use crate::FsdpError;
use crate::exec::executor::Losses;
use crate::shard::storage::device::launch_all;
use burn::tensor::{DType, Device, Tensor};
use comm::Reduce;
use fused::ClipRule;

/// The totals over all ranks after a step's last backward.
pub(super) struct DeviceTotals {
    /// `[4]`: the loss and the sum of the other losses, not yet divided by the weight, and the squared norm of the
    /// gradient with its rounding remainder.
    totals: Tensor<1>,
    /// The sums of squares of this rank's gradient over the last 0, 1, 2, ... units, each with its rounding remainder.
    squares: Vec<Tensor<1>>,
    /// The sum of all shares.
    pub weight: f64,
    /// The sums of the caller's numbers.
    sums: Vec<f64>,
}

impl<B: 'static> Fsdp<B> {
    /// Returns whether gradients rest on a device.
    pub(super) fn rests_on_device(&self) -> bool {
        self.plan.rest_device != Device::flex()
    }

    /// Returns the totals over all ranks after a step's last backward without waiting for the device; `numbers` are the
    /// caller's.
    pub(super) fn totals_on_device(
        &self,
        losses: &[Losses],
        shares: &[f64],
        numbers: &[f64],
    ) -> Result<DeviceTotals, FsdpError> {
        let zeros = |len: usize| Tensor::<1>::zeros([len], (&self.plan.device, DType::F32));
        let sum = |pick: fn(&Losses) -> &Option<Tensor<1>>| {
            let values = losses.iter().zip(shares).filter_map(|(losses, share)| Some((pick(losses).clone()?, share)));
            let values = values.map(|(tensor, share)| tensor.cast(DType::F32) * *share);
            values.reduce(|sum, value| sum + value).unwrap_or_else(|| zeros(1))
        };
        let mut squares = vec![zeros(2)];
        for unit in self.units.iter().rev() {
            let sum = squares.last().expect("one to begin with").clone();
            squares.push(unit.add_gradient_squares(sum, |class| 1.0 / self.replicas(class) as f64));
        }
        let of_all = squares.last().expect("one to begin with").clone();
        let mine = Tensor::cat(vec![sum(|losses| &losses.loss), sum(|losses| &losses.aux), of_all], 0);
        let totals = self.world.all_reduce(mine, Reduce::Sum)?;
        let shares: f64 = shares.iter().sum();
        let mut sums = self.all_reduce(&[&[shares], numbers].concat())?.into_iter();
        let shares = sums.next().expect("as many sums as there were numbers");
        Ok(DeviceTotals { totals, squares, weight: self.weight(shares), sums: sums.collect() })
    }
}

impl DeviceTotals {
    /// Returns the factor for gradients that are sums of `count`; it is below 0 if something is not finite.
    pub fn factor(&self, count: f64, limit: Option<f64>) -> Tensor<1> {
        fused::clip_factor(self.totals.clone(), ClipRule { count, limit })
    }

    /// Launches all queued operations and waits for the device.
    pub fn read(&self) -> Totals {
        launch_all(self.totals.clone());
        let totals: Vec<f64> = self.totals.clone().into_data().iter::<f64>().collect();
        let losses = [totals[0] / self.weight, totals[1] / self.weight];
        Totals { losses, weight: self.weight, norm: (totals[2] + totals[3]).sqrt(), sums: self.sums.clone() }
    }

    /// Returns the last unit whose gradient on this rank is not finite.
    pub fn last_non_finite(&self) -> Option<usize> {
        let squares: Vec<f32> = Tensor::cat(self.squares.clone(), 0).into_data().iter::<f32>().collect();
        let units = self.squares.len() - 1;
        squares.chunks(2).position(|square| !(square[0] + square[1]).is_finite()).map(|units_back| units - units_back)
    }
}
