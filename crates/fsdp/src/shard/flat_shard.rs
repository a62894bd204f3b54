//! One rank's share of a unit's parameters, with its gradients and optimizer state.

mod gradients;
mod kept;

use crate::api::bound::Value;
use crate::api::precision::FloatType;
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::groups::plan::{Class, Plan, UnitStages};
use crate::shard::memory::{Category, Counted};
use crate::shard::optimizer::{GradientScale, ShardOptimizer};
use crate::shard::tensor_shard::{self, Sliced};
use crate::shard::weights::Flat;
use crate::{FsdpConfig, Layout, ParamLayout};
use burn::tensor::{DType, Tensor};
use comm::hand_over;
use fused::weight_gradients::GradientBuffer;
use std::ops::Range;
use std::rc::Rc;

/// A class of a unit's parameters at rest: this rank's share of them, of their gradients and of the optimizer state. It
/// is empty for a unit that the rank's stage does not hold.
pub(crate) struct FlatShard {
    params: Vec<Sliced>,
    /// Whether they have gradients and moments.
    is_trained: bool,
    /// The layout of this rank's part of each parameter.
    layout: Layout,
    plan: Plan,
    unit_stages: UnitStages,
    /// fp32: this rank's shard, or all parameters if there is only one shard.
    master: Counted,
    /// All parameters in the compute type, if there is one shard in 16 bits, and under `zero1` and `shard_grad_op`.
    replica: Option<Counted>,
    /// The master in that type, from its step until the replica is made from it.
    stepped: Option<Tensor<1>>,
    /// fp32 gradients of earlier micro-batches: those of the shard, and those of the whole unit that were not
    /// communicated.
    gradient: Option<Counted>,
    whole_gradient: Option<Counted>,
    /// Under `block`: the shard's part of a gradient to which another call of this unit will add.
    partial: Option<Counted>,
    optimizer: ShardOptimizer,
    /// Whether the last step had a gradient.
    has_stepped: bool,
    /// Whether the master has changed since the replica was made.
    is_changed: bool,
}

impl FlatShard {
    /// Creates a shard of this rank's parts of parameters. Its values must be set afterwards.
    pub fn new(
        params: Vec<Sliced>,
        is_trained: bool,
        config: &FsdpConfig,
        plan: &Plan,
        unit_stages: UnitStages,
    ) -> Self {
        let layout = tensor_shard::layout(&params, plan.place(), plan.shards);
        let len = layout.padded_len() / plan.shards;
        let shard = plan.shard * len..(plan.shard + 1) * len;
        Self {
            optimizer: ShardOptimizer::new(&config.optimizers, &params, &layout, shard, plan.ledger.clone()),
            params,
            is_trained,
            layout,
            plan: plan.clone(),
            unit_stages,
            master: plan.count(Tensor::zeros([0], &plan.rest_device), Category::Parameters),
            replica: None,
            stepped: None,
            gradient: None,
            whole_gradient: None,
            partial: None,
            has_stepped: false,
            is_changed: false,
        }
    }

    pub fn class(&self) -> Class {
        self.plan.class
    }

    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// Returns the number of elements of this shard.
    fn len(&self) -> usize {
        self.layout.padded_len() / self.plan.shards
    }

    /// Returns the range of this shard in the buffer.
    fn range(&self) -> Range<usize> {
        self.plan.shard * self.len()..(self.plan.shard + 1) * self.len()
    }

    /// Returns the range of the buffer that this rank holds between steps.
    fn held(&self) -> Range<usize> {
        if self.plan.replicates() { 0..self.layout.padded_len() } else { self.range() }
    }

    /// Returns the elements of parameter `i`, counted from 0, that this rank needs, in order.
    pub fn wanted(&self, i: usize) -> Vec<Range<usize>> {
        let whole = &self.params[i];
        let region = whole.region(self.plan.place());
        overlap(&self.layout.params()[i], &self.held()).map_or(vec![], |part| region.runs(&whole.shape, part).collect())
    }

    /// Takes those elements of each parameter.
    pub fn set_initial(&mut self, mut values: Vec<Option<Tensor<1>>>) {
        let (plan, range, held) = (self.plan.clone(), self.range(), self.held());
        let parts = self.layout.by_offset().iter().filter_map(|i| {
            let offset = self.layout.params()[*i].offset;
            Some((offset.max(held.start) - held.start, values[*i].take()?))
        });
        let held = fused::flatten(parts.collect(), held.len(), DType::F32, &plan.device);
        if !plan.replicates() {
            return self.set_master(held.to_device(&plan.rest_device));
        }
        let replica = plan.count(held.clone().cast(plan.param.dtype()), Category::Parameters);
        if !self.holds_master(&replica) {
            let master = if plan.shards == 1 { held } else { owned_copy(held.slice(range)) };
            self.set_master(master.to_device(&plan.rest_device));
        }
        self.set_replica(replica);
    }

    /// Returns parameter `i`, or this rank's part of it, from the whole buffer.
    pub fn value(&self, flat: &Tensor<1>, i: usize) -> Value {
        let param = &self.layout.params()[i];
        (param.shape.clone(), flat.clone().slice(param.offset..param.offset + param.len()))
    }

    /// Returns the length of the longest part's buffer.
    fn longest(&self) -> usize {
        let parts = self.plan.parts;
        let len = |part| tensor_shard::layout(&self.params, [part, parts], self.plan.shards).padded_len();
        (0..parts).map(len).max().unwrap_or(0)
    }

    /// Returns the whole parameter `i` from the concatenated buffers of all parts, each padded to the longest.
    pub fn whole_value(&self, buffers: &Tensor<1>, i: usize) -> Value {
        let (parts, longest, whole) = (self.plan.parts, self.longest(), &self.params[i]);
        let part = |part| {
            let start =
                part * longest + tensor_shard::layout(&self.params, [part, parts], self.plan.shards).params()[i].offset;
            let around = whole.around([part, parts]);
            buffers.clone().slice(start..start + around.iter().product::<usize>()).reshape(around)
        };
        let value = match parts {
            1 => part(0),
            _ => Tensor::<3>::cat((0..parts).map(part).collect(), 1),
        };
        (whole.shape.clone(), value.flatten(0, 2))
    }

    /// The offset of parameter `i`, or of this rank's part of it, in the buffer of all.
    pub fn offset(&self, i: usize) -> usize {
        self.layout.params()[i].offset
    }

    /// A buffer for the gradients of all parameters, if products can write into it.
    pub fn gradient_buffer(&self) -> Option<Rc<GradientBuffer>> {
        self.is_trained.then_some(())?;
        GradientBuffer::new(self.layout.padded_len(), self.plan.param.dtype(), &self.plan.device)
    }

    /// Returns the gradients of all parameters, or of this rank's parts of them, in one buffer: the given one, or a new
    /// one. Missing gradients are zeros.
    pub fn gradient_of(&self, mut gradients: Vec<Option<Tensor<1>>>, buffer: Option<Tensor<1>>) -> Tensor<1> {
        let dtype = self.plan.param.dtype();
        let parts = self.layout.by_offset().iter().filter_map(|i| Some((self.offset(*i), gradients[*i].take()?)));
        match buffer {
            Some(buffer) => fused::flatten_into(buffer, parts.collect()),
            None => fused::flatten(parts.collect(), self.layout.padded_len(), dtype, &self.plan.device),
        }
    }

    /// Returns whether the parameters must be gathered before they are used.
    pub fn gathers(&self) -> bool {
        self.plan.gathers()
    }

    /// Returns all parameters, which rest here in the compute type.
    pub fn at_hand(&self) -> Flat {
        Flat::at_hand(self.replica.as_ref().unwrap_or(&self.master).tensor.clone())
    }

    /// Gathers all parameters in the compute type, on all ranks or on rank `to` only, unless they are
    /// [`at_hand`](Self::at_hand).
    pub fn gather(&self, streams: &CommStreams, to: Option<usize>) -> Pending<Option<Flat>> {
        let plan = &self.plan;
        if !plan.gathers() {
            return Pending::ready(Some(self.at_hand()));
        }
        let (master, ledger, class) = (hand_over(self.master.tensor.clone()), plan.ledger.clone(), plan.class);
        let (device, dtype) = (plan.device.clone(), plan.param.dtype());
        match (plan.shards, to) {
            (1, _) => Pending::ready(Some(Flat::gathered(master.cast(dtype).to_device(&device), &ledger))),
            (_, Some(to)) => streams.gather.submit(move |groups| {
                let shard = &groups.of(class).shard;
                let shards = shard.gather(master.cast(dtype).to_device(&device), to)?;
                Ok((shard.rank() == to).then(|| Flat::gathered(Tensor::cat(shards, 0), &ledger)))
            }),
            (_, None) => streams.gather.submit(move |groups| {
                let flat = groups.of(class).shard.all_gather(master.cast(dtype).to_device(&device))?;
                Ok(Some(Flat::gathered(flat, &ledger)))
            }),
        }
    }

    /// Gathers the masters of all parts, concatenated, on every rank of every stage.
    pub fn gather_masters(&self, streams: &CommStreams) -> Pending<Tensor<1>> {
        let (master, device, class) =
            (hand_over(self.master.tensor.clone()), self.plan.device.clone(), self.plan.class);
        let (unit_stages, longest, parts) = (self.unit_stages, self.longest(), self.plan.parts);
        streams.gather.submit(move |groups| {
            let of = groups.of(class);
            let whole = match unit_stages.is_here {
                true => {
                    let mine = of.shard.all_gather(master.to_device(&device))?;
                    let missing = longest - mine.dims()[0];
                    let mine =
                        if missing == 0 { mine } else { Tensor::cat(vec![mine, Tensor::zeros([missing], &device)], 0) };
                    of.parts.all_gather(mine)?
                }
                false => Tensor::zeros([longest * parts], &device),
            };
            if groups.stages.world_size() == 1 { Ok(whole) } else { groups.stages.broadcast(whole, unit_stages.first) }
        })
    }

    /// Makes an optimizer step with the accumulated gradient times `scale`, and discards the gradient.
    pub fn step(&mut self, lr: f64, scale: &GradientScale) {
        self.has_stepped = self.gradient.is_some();
        if let Some(gradient) = self.gradient.take() {
            let empty = Tensor::zeros([0], &self.plan.rest_device);
            let master = std::mem::replace(&mut self.master.tensor, empty);
            let is_copied = self.plan.replicates() && self.plan.param != FloatType::Fp32;
            let copy = is_copied.then(|| self.plan.param.dtype());
            self.is_changed = true;
            (self.master.tensor, self.stepped) =
                self.optimizer.step(lr, scale, [master, gradient.tensor.clone()], copy);
        }
    }

    /// Undoes the last step, which had no effect; see [`ShardOptimizer::take_back`].
    pub fn take_step_back(&mut self) {
        if self.has_stepped {
            self.optimizer.take_back();
        }
    }

    /// Returns the group of stages that hold the unit, if there are several and this stage is one.
    fn tie(&self) -> Option<usize> {
        self.unit_stages.tie.filter(|_| self.unit_stages.is_here)
    }

    /// Discards the accumulated gradient.
    pub fn skip(&mut self) {
        (self.gradient, self.whole_gradient, self.partial) = (None, None, None);
    }

    /// Starts to gather the replica of the masters, if there is one and they have changed. Pass it to
    /// [`set_replica`](Self::set_replica).
    pub fn replicate(&mut self, streams: &CommStreams) -> Option<Pending<Counted>> {
        let is_changed = std::mem::take(&mut self.is_changed);
        (is_changed && self.plan.replicates() && self.unit_stages.is_here).then_some(())?;
        let plan = self.plan.clone();
        let mine = self.stepped.take().unwrap_or_else(|| self.master.tensor.clone().cast(plan.param.dtype()));
        if plan.shards == 1 {
            self.set_replica(plan.count(mine, Category::Parameters)); // at once, so that the old one goes
            return None;
        }
        let mine = hand_over(mine);
        Some(streams.gather.submit(move |groups| {
            let replica = groups.of(plan.class).shard.all_gather(mine.to_device(&plan.device))?;
            Ok(plan.count(replica, Category::Parameters))
        }))
    }

    pub fn set_replica(&mut self, replica: Counted) {
        if self.holds_master(&replica) {
            self.master = Counted::free_of_charge(replica.tensor.clone().slice(self.range()));
        }
        (self.replica, self.is_changed) = (Some(replica), false);
    }

    /// Returns whether the master is a part of the replica and takes no extra memory, as in fp32.
    fn holds_master(&self, replica: &Counted) -> bool {
        replica.tensor.dtype() == DType::F32 && self.plan.device == self.plan.rest_device
    }

    fn set_master(&mut self, master: Tensor<1>) {
        self.master = self.plan.count(master, Category::Parameters);
        (self.replica, self.is_changed) = (None, true);
    }
}

/// Returns the elements of a parameter in a range of the buffer, if there are any.
fn overlap(param: &ParamLayout, range: &Range<usize>) -> Option<Range<usize>> {
    let (from, to) = (param.offset.max(range.start), (param.offset + param.len()).min(range.end));
    (from < to).then(|| from - param.offset..to - param.offset)
}

/// Copies the values to new memory: a slice may be a view that keeps the whole buffer alive.
pub(crate) fn owned_copy(slice: Tensor<1>) -> Tensor<1> {
    slice.zeros_like() + slice
}
