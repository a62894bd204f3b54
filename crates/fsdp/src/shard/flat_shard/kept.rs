//! Saving and loading of a shard, comparison with its copies, and changes that are not part of its gradient.

use super::{FlatShard, overlap};
use crate::FsdpError;
use crate::shard::copies::ShardOf;
use crate::shard::memory::{Category, Counted};
use crate::shard::state::{OptimizerState, Part, ReadPart, ShardValues, StatePart};
use burn::tensor::{Tensor, TensorData};
use comm::hand_over;
use std::ops::Range;

impl FlatShard {
    /// Returns the parts of parameters that this rank must save: its share of the shard, which `replicas` ranks hold.
    pub fn state(&self) -> Vec<StatePart> {
        if !self.unit_stages.is_first {
            return vec![];
        }
        let (len, start) = (self.len(), self.range().start);
        let cut = |i: usize| start + len * i / self.plan.replicas;
        self.state_in(cut(self.plan.replica)..cut(self.plan.replica + 1))
    }

    /// Returns all parts of parameters that this rank holds, including those that other ranks save.
    pub fn held_state(&self) -> Vec<StatePart> {
        if self.unit_stages.is_here { self.state_in(self.range()) } else { vec![] }
    }

    /// Returns the parts of parameters in a range of the unit's buffer, which lies in this rank's shard.
    fn state_in(&self, share: Range<usize>) -> Vec<StatePart> {
        let start = self.range().start;
        let states = self.optimizer.states();
        let part = |(wanted, at): (Part, usize)| {
            let range = at - start..at - start + wanted.range.len();
            let param = self.master.tensor.clone().slice(range.clone());
            let of_part = |(of, _): &&(Range<usize>, _)| of.contains(&range.start);
            let optimizer = states.iter().find(of_part).map(|(of, OptimizerState { tensors, numbers })| {
                let range = range.start - of.start..range.end - of.start;
                let part =
                    |(name, all): (&String, &Tensor<1>)| (name.clone(), hand_over(all.clone().slice(range.clone())));
                OptimizerState { tensors: tensors.iter().map(part).collect(), numbers: numbers.clone() }
            });
            StatePart { of: wanted, param: hand_over(param), optimizer }
        };
        self.parts(share).map(part).collect()
    }

    /// Reads this rank's shard with `read`, including the optimizer's state if `steps` is above 0. A replica must be
    /// set afterwards.
    pub fn load_state(&mut self, steps: u64, read: &mut ReadPart) -> Result<(), FsdpError> {
        if !self.unit_stages.is_here {
            return Ok(());
        }
        let (len, start) = (self.len(), self.range().start);
        let mut values = ShardValues::new(len);
        for (wanted, at) in self.parts(start..start + len) {
            values.put(at - start, &wanted, read(&wanted).map_err(FsdpError::State)?)?;
        }
        self.optimizer.load(if self.is_trained { steps } else { 0 }, &values, &self.plan.rest_device)?;
        let master = Tensor::from_data(TensorData::new(values.param, [len]), &self.plan.rest_device);
        self.set_master(master);
        Ok(())
    }

    /// Returns the parts of parameters in a range of the unit's buffer, and where each starts in the buffer.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (Part, usize)> {
        self.layout.params().iter().zip(&self.params).filter_map(move |(param, whole)| {
            let range = overlap(param, &range)?;
            let at = param.offset + range.start;
            let region = whole.region(self.plan.place());
            Some((Part { name: whole.name.clone(), shape: whole.shape.clone(), region, range }, at))
        })
    }

    /// Replaces this rank's gradient, part by part; `change` gets it divided by `count`. A gradient that is not finite
    /// stays, so that the step is skipped.
    pub fn map_gradient(&mut self, count: f64, change: &mut dyn FnMut(&Part, Tensor<1>) -> Tensor<1>) {
        let Some(Counted { tensor, .. }) = &self.gradient else { return };
        if !fused::sum_of_squares(tensor.clone()).is_finite() {
            return;
        }
        let (start, mut all) = (self.range().start, tensor.clone());
        for (part, at) in self.parts(self.range()) {
            let range = at - start..at - start + part.range.len();
            let changed = change(&part, all.clone().slice(range.clone()) / count) * count;
            let (given, has) = (changed.dims()[0], range.len());
            assert_eq!(given, has, "{}: a gradient of {given} elements is returned for {has}", part.name);
            all = all.slice_assign([range], changed);
        }
        self.gradient = Some(self.plan.count(all, Category::Gradients));
    }

    /// Adds `delta` to this rank's part of parameter `i`.
    pub fn add_to_parameter(&mut self, i: usize, delta: &[f32]) {
        if !self.unit_stages.is_here {
            return;
        }
        self.is_changed = true; // on every rank, which gather the replica together
        let (param, held) = (&self.layout.params()[i], self.range());
        let len = self.params[i].shape.iter().product::<usize>();
        assert_eq!(delta.len(), len, "{}: a delta of another length", param.name);
        if let Some(part) = overlap(param, &held) {
            let whole = &self.params[i];
            let runs = whole.region(self.plan.place()).runs(&whole.shape, part.clone()).collect::<Vec<_>>();
            let delta: Vec<f32> = runs.into_iter().flat_map(|run| delta[run].to_vec()).collect();
            let delta = Tensor::<1>::from_floats(delta.as_slice(), &self.plan.rest_device);
            let (master, range) = (
                self.master.tensor.clone(),
                param.offset + part.start - held.start..param.offset + part.end - held.start,
            );
            self.master.tensor = master.clone().slice_assign([range.clone()], master.slice([range]) + delta);
        }
    }

    /// Returns this rank's part of the parameters and their moments, to compare it with its copies; `None` if there is
    /// no part or no copy of it.
    pub fn copy(&self) -> Option<(ShardOf, Vec<Tensor<1>>)> {
        let plan = &self.plan;
        let has_copies = self.unit_stages.is_here && (plan.replicas > 1 || self.unit_stages.tie.is_some());
        has_copies.then(|| {
            let states = self.optimizer.states().into_iter().flat_map(|(_, state)| state.tensors.into_values());
            let tensors = std::iter::once(self.master.tensor.clone()).chain(states).collect();
            (ShardOf { class: plan.class, is_trained: self.is_trained, part: plan.part, shard: plan.shard }, tensors)
        })
    }
}
