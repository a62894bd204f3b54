//! Numbers of a step that all ranks share: the weight of its micro-batches, its loss, its norm.

use super::Fsdp;
use crate::exec::executor::Losses;
use crate::groups::plan::Class;
use crate::shard::sharded_unit::ShardedUnit;
use crate::{FsdpConfig, FsdpError};
use burn::tensor::Tensor;
use comm::Reduce;

/// The totals over all ranks after a step's last backward.
pub(super) struct Totals {
    /// The loss and the sum of the other losses, as means over micro-batches and ranks, weighted by their shares.
    pub losses: [f64; 2],
    /// The sum of all shares.
    pub weight: f64,
    /// The norm of the summed gradient.
    pub norm: f64,
    /// The sums of the caller's numbers.
    pub sums: Vec<f64>,
}

impl<B: 'static> Fsdp<B> {
    /// Returns the sum of each value over the ranks.
    pub fn all_reduce(&self, values: &[f64]) -> Result<Vec<f64>, FsdpError> {
        self.over_world(values.to_vec(), Reduce::Sum)
    }

    pub(super) fn over_world(&self, values: Vec<f64>, how: Reduce) -> Result<Vec<f64>, FsdpError> {
        Ok(self.world.all_reduce_numbers(&values, how)?)
    }

    /// Returns the largest weight of a micro-batch, after checking that all ranks have the same number of
    /// micro-batches.
    pub(super) fn agree_on(&self, count: usize, weights: &[f64]) -> Result<f64, FsdpError> {
        assert_eq!(count, weights.len(), "each micro-batch has a weight");
        let most = weights.iter().copied().fold(0.0, f64::max);
        let mine = vec![count as f64, -(count as f64), most];
        let highest = if self.world.world_size() == 1 { mine } else { self.over_world(mine, Reduce::Max)? };
        let (highest, lowest, most) = (highest[0], -highest[1], highest[2]);
        if highest != lowest {
            return Err(FsdpError::MicroBatches(format!(
                "rank {} has {count} micro-batches in this step, the ranks between {lowest} and {highest}: give each as many, some of \
                 them of weight 0",
                self.plan.rank
            )));
        }
        match count > 0 && most > 0.0 && most.is_finite() {
            true => Ok(most),
            false => Err(FsdpError::MicroBatches("a step needs at least one micro-batch that counts".into())),
        }
    }

    /// Returns the totals over all ranks after a step's last backward, exchanged in one message; `numbers` are the
    /// caller's.
    pub(super) fn totals(&self, losses: &[Losses], shares: &[f64], numbers: Vec<f64>) -> Result<Totals, FsdpError> {
        let sum = |pick: fn(&Losses) -> &Option<Tensor<1>>| {
            let values = losses.iter().zip(shares).filter_map(|(losses, share)| Some((pick(losses).clone()?, share)));
            let values = values.map(|(tensor, share)| f64::from(tensor.into_scalar::<f32>()) * share);
            values.fold(0.0, |sum, value| sum + value) // `sum` of nothing would be -0.0
        };
        let squares = self.gradient_squares();
        let mine = [sum(|losses| &losses.loss), sum(|losses| &losses.aux), shares.iter().sum()];
        let mut sums = self.all_reduce(&[&mine[..], &squares, &numbers].concat())?.into_iter();
        let mut next = || sums.next().expect("as many sums as there were numbers");
        let ([loss, aux, shares], of_squares) = ([next(), next(), next()], [next(), next(), next()]);
        let weight = self.weight(shares);
        let norm = self.norm(squares, of_squares);
        Ok(Totals { losses: [loss / weight, aux / weight], weight, norm, sums: sums.collect() })
    }

    /// Returns the total weight of all micro-batches from the sum of all ranks' shares: every stage, and under `block`
    /// every rank, has the same micro-batches.
    pub(super) fn weight(&self, shares: f64) -> f64 {
        let counting = self.data_parallel().1 * self.config.cp; // ranks with their own losses or shares of one
        shares * counting as f64 / self.world.world_size() as f64
    }

    /// Returns the sums of squares of this rank's gradient: experts, tensor-parallel parts, and all other parameters.
    /// Each replica of a shard counts the whole shard.
    fn gradient_squares(&self) -> [f64; 3] {
        let mut squares = [0.0; 3];
        for (class, square) in self.units.iter().flat_map(ShardedUnit::gradient_squares) {
            match class {
                Class::Expert => squares[0] += square,
                Class::Tensor => squares[1] += square,
                Class::Dense | Class::Fp32 => squares[2] += square,
            }
        }
        squares
    }

    /// Returns the norm of the summed gradient over all units and over all ranks that hold different parts of it, from
    /// this rank's squares and their sums over all ranks.
    fn norm(&self, mine: [f64; 3], sums: [f64; 3]) -> f64 {
        let FsdpConfig { pipeline, ep, tp, .. } = &self.config;
        if self.plan.shards * pipeline.stages * ep * tp == 1 {
            return mine[2].sqrt();
        }
        let of = |square: usize, class| sums[square] / self.replicas(class) as f64;
        (of(0, Class::Expert) + of(1, Class::Tensor) + of(2, Class::Dense)).sqrt()
    }

    /// Returns the number of ranks that hold each shard of a class.
    pub(super) fn replicas(&self, class: Class) -> usize {
        self.replicas.iter().find(|(other, _)| *other == class).map_or(1, |(_, replicas)| *replicas)
    }
}
