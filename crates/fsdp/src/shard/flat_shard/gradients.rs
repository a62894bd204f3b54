//! The gradients of a shard: on their way to the ranks that keep them, and summed over micro-batches.

use super::{FlatShard, owned_copy};
use crate::FloatType;
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::groups::plan::Plan;
use crate::shard::memory::{Category, Counted};
use burn::tensor::{DType, Tensor};
use comm::{CommError, Communicator, Reduce, hand_over};

impl FlatShard {
    /// Adds a whole unit's gradient to those of earlier micro-batches and `sends` it to the shards, or keeps it whole
    /// for a later micro-batch. With the `last` one it is summed over the replicas. Pass the result to
    /// [`set_gradient`](Self::set_gradient).
    pub fn reduce(
        &mut self,
        streams: &CommStreams,
        gradient: Tensor<1>,
        sends: bool,
        last: bool,
    ) -> Option<Pending<Counted>> {
        let plan = self.plan.clone();
        let gradient = match self.whole_gradient.take() {
            None => gradient,
            Some(earlier) => earlier.tensor + gradient.cast(DType::F32),
        };
        if !sends && plan.shards > 1 {
            self.whole_gradient = Some(plan.count(gradient.cast(DType::F32), Category::Gradients));
            return None;
        }
        let earlier = self.gradient.take();
        if plan.shards == 1 {
            let sum = add(earlier.map(|earlier| earlier.tensor), plan.to_rest(gradient));
            return Some(match last && plan.replicas > 1 {
                true => self.all_reduce(streams, plan.count(hand_over(sum), Category::Gradients)),
                false => Pending::ready(plan.count(sum, Category::Gradients)),
            });
        }
        let in_flight = plan.count(hand_over(gradient), Category::Gradients);
        Some(streams.reduce.submit(move |groups| {
            let in_flight = in_flight; // with its count: a closure captures single fields
            let (gradient, groups) = (in_flight.tensor.clone(), groups.of(plan.class));
            let mut earlier = earlier.as_ref().map(|earlier| earlier.tensor.clone());
            let onto = if plan.offloads { None } else { earlier.take() };
            let part = groups.shard.reduce_scatter_onto(gradient.cast(plan.reduce.dtype()), onto)?;
            let sum = if last && plan.replicas > 1 {
                let sum = add(earlier.map(|earlier| earlier.to_device(&plan.device)), part.cast(DType::F32));
                sum_over_replicas(&plan, &groups.replicate, sum)?
            } else {
                add(earlier, plan.to_rest(part))
            };
            Ok(plan.count(sum, Category::Gradients))
        }))
    }

    /// Starts to sum a gradient, which is not sharded, over the replicas.
    fn all_reduce(&self, streams: &CommStreams, gradient: Counted) -> Pending<Counted> {
        let plan = self.plan.clone();
        streams.reduce.submit(move |groups| {
            let gradient = gradient; // with its count: a closure captures single fields
            let mine = gradient.tensor.clone().to_device(&plan.device);
            let sum = sum_over_replicas(&plan, &groups.of(plan.class).replicate, mine)?;
            Ok(plan.count(sum, Category::Gradients))
        })
    }

    /// Does the work of [`reduce`](Self::reduce) for a call that only rank `from` has computed: it gives each rank its
    /// part of the gradient. `last_call` marks the last of the unit's calls in this backward.
    pub fn scatter(
        &mut self,
        streams: &CommStreams,
        gradient: Option<Tensor<1>>,
        from: usize,
        last_call: bool,
    ) -> Pending<Counted> {
        let (plan, later_calls) = (self.plan.clone(), self.partial.take());
        let earlier = if last_call { self.gradient.take() } else { None };
        let in_flight = gradient.map(|gradient| plan.count(hand_over(gradient), Category::Gradients));
        streams.reduce.submit(move |groups| {
            let parts = in_flight.as_ref().map(|full| {
                let full = full.tensor.clone().cast(plan.reduce.dtype());
                let len = full.dims()[0] / plan.shards;
                (0..plan.shards).map(|i| full.clone().slice(i * len..(i + 1) * len)).collect()
            });
            let part = groups.of(plan.class).shard.scatter(parts, from)?;
            let part = owned_copy(plan.to_rest(part));
            let sum = add(later_calls.map(|later| later.tensor), part);
            let sum = add(earlier.map(|earlier| earlier.tensor), sum);
            Ok(plan.count(sum, Category::Gradients))
        })
    }

    /// Sums the gradient over the stages that hold the unit, if there are several. Pass the result to
    /// [`set_gradient`](Self::set_gradient).
    pub fn sum_over_stages(&mut self, streams: &CommStreams) -> Option<Pending<Counted>> {
        let tie = self.tie()?;
        let (gradient, plan) = (self.gradient.take()?, self.plan.clone());
        Some(streams.reduce.submit(move |groups| {
            let gradient = gradient; // with its count
            let mine = gradient.tensor.clone().to_device(&plan.device);
            let sum = groups.ties[tie].all_reduce(mine, Reduce::Sum)?;
            Ok(plan.count(sum.to_device(&plan.rest_device), Category::Gradients))
        }))
    }

    /// Stores a gradient; `done` means that it is that of all the unit's calls.
    pub fn set_gradient(&mut self, gradient: Counted, done: bool) {
        if done {
            self.gradient = Some(gradient);
        } else {
            self.partial = Some(gradient);
        }
    }

    /// Returns the sum of squares of this rank's gradient in f64, so that it does not depend on the sharding. If
    /// several stages hold the unit, only the first one has it.
    pub fn gradient_square(&self) -> f64 {
        let gradient = self.gradient.as_ref().filter(|_| self.unit_stages.is_first);
        gradient.map_or(0.0, |gradient| fused::sum_of_squares(gradient.tensor.clone()))
    }

    /// Adds those squares times `factor` to `sum`, on the gradient's device; see [`fused::add_sum_of_squares`].
    pub fn add_gradient_square(&self, sum: Tensor<1>, factor: f64) -> Tensor<1> {
        match self.gradient.as_ref().filter(|_| self.unit_stages.is_first) {
            Some(gradient) => fused::add_sum_of_squares(sum, gradient.tensor.clone(), factor),
            None => sum,
        }
    }
}

/// Sums the gradient over the replicas and moves it to where it rests. In fp16 the mean over all ranks is communicated,
/// so no number of ranks exceeds the range of fp16.
fn sum_over_replicas(plan: &Plan, replicate: &Communicator, sum: Tensor<1>) -> Result<Tensor<1>, CommError> {
    let dtype = plan.reduce.dtype();
    if plan.reduce != FloatType::Fp16 {
        return Ok(plan.to_rest(replicate.all_reduce(sum.cast(dtype), Reduce::Sum)?));
    }
    let mean = replicate.all_reduce((sum / plan.shards as f64).cast(dtype), Reduce::Mean)?;
    Ok(plan.to_rest(mean) * (plan.shards * plan.replicas) as f64)
}

fn add(earlier: Option<Tensor<1>>, gradient: Tensor<1>) -> Tensor<1> {
    match earlier {
        None => gradient,
        Some(earlier) => earlier + gradient,
    }
}
