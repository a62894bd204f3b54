use crate::comm_thread::{Lanes, Pending};
use crate::group::{BoundGroup, Group};
use crate::memory::{Category, Counted};
use crate::optimizer::ShardOptimizer;
use crate::plan::{Holders, Plan};
use crate::precision::FloatType;
use crate::state::{ReadPart, ShardValues, StatePart, WantedPart};
use crate::weights::Weights;
use crate::{FsdpConfig, FsdpError, Layout, Strategy};
use burn::tensor::{DType, Tensor, TensorData};
use comm::Reduce;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// A unit at rest: this rank's share of its parameters, gradients and optimizer state; nothing of a unit that its stage has no use for.
pub(crate) struct ShardedUnit {
    group: Group,
    layout: Layout,
    plan: Plan,
    holders: Holders,
    /// fp32: this rank's shard, or all if there is one shard only.
    master: Counted,
    /// Under `zero1` and `shard_grad_op`: all parameters, in the type they are computed with.
    replica: Option<Counted>,
    /// fp32 gradients of earlier micro-batches: the shard's, and the whole unit's where they were not communicated.
    gradient: Option<Counted>,
    whole_gradient: Option<Counted>,
    /// Under `block`: the shard's part of a gradient that another call of this unit will add to.
    partial: Option<Counted>,
    optimizer: ShardOptimizer,
}

impl ShardedUnit {
    /// Takes the unit's values and keeps this rank's share of them. Also returns the sum of their squares, which tells whether all ranks
    /// were given the same. Of a unit that the rank's stage does not hold, no values are made.
    pub fn new(group: Group, config: &FsdpConfig, plan: &Plan, holders: Holders) -> (Self, Option<f64>) {
        let layout = group.layout(plan.shards);
        let len = layout.padded_len() / plan.shards;
        let mut unit = Self {
            optimizer: ShardOptimizer::new(&config.adamw, &layout, plan.shard * len, len, plan.ledger.clone()),
            group,
            layout,
            plan: plan.clone(),
            holders,
            master: plan.count(Tensor::zeros([0], &plan.rest_device), Category::Parameters),
            replica: None,
            gradient: None,
            whole_gradient: None,
            partial: None,
        };
        let square = holders.is_here.then(|| unit.take_values());
        (unit, square)
    }

    fn take_values(&mut self) -> f64 {
        let (plan, len) = (&self.plan, self.layout.padded_len() / self.plan.shards);
        let range = plan.shard * len..(plan.shard + 1) * len;
        let values = self.group.take_values(&self.layout, &plan.device);
        let square = fused::sum_of_squares(values.clone());
        let replicate = || plan.count(values.clone().cast(plan.param.dtype()), Category::Parameters);
        let replica = plan.replicates().then(replicate);
        let master = match (plan.shards, &replica) {
            (1, None) => values,
            (_, Some(whole)) if whole.tensor.dtype() == DType::F32 => whole.tensor.clone().slice(range.clone()),
            _ => owned_copy(values.slice(range.clone())),
        };
        self.set_values(master.to_device(&plan.rest_device), replica);
        square
    }

    pub fn name(&self) -> String {
        self.group.name()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The whole unit's parameters in the type they are computed with; under `block` on rank `owner` only.
    pub fn gather(&self, lanes: &Lanes, owner: usize) -> Pending<Option<Weights>> {
        let plan = &self.plan;
        if !plan.gathers() {
            let at_hand = self.replica.as_ref().unwrap_or(&self.master);
            let weights = Weights::at_hand(at_hand.tensor.clone());
            return Pending::ready(plan.rank, Some(weights));
        }
        let (master, ledger) = (self.master.tensor.clone(), plan.ledger.clone());
        let (device, dtype) = (plan.device.clone(), plan.param.dtype());
        match (plan.shards, plan.strategy) {
            (1, _) => {
                Pending::ready(plan.rank, Some(Weights::gathered(master.to_device(&device).cast(dtype), &ledger)))
            }
            (_, Strategy::Block) => lanes.gather.submit(move |groups| {
                let shards = groups.shard.gather(master.to_device(&device).cast(dtype), owner)?;
                let is_owner = groups.shard.rank() == owner;
                Ok(is_owner.then(|| Weights::gathered(Tensor::cat(shards, 0), &ledger)))
            }),
            _ => lanes.gather.submit(move |groups| {
                let flat = groups.shard.all_gather(master.to_device(&device).cast(dtype))?;
                Ok(Some(Weights::gathered(flat, &ledger)))
            }),
        }
    }

    /// The whole unit's masters, on every rank of every stage.
    pub fn gather_masters(&self, lanes: &Lanes) -> Pending<Tensor<1>> {
        let (master, device) = (self.master.tensor.clone(), self.plan.device.clone());
        let (holders, len) = (self.holders, self.layout.padded_len());
        lanes.gather.submit(move |groups| {
            let whole = match holders.is_here {
                true => groups.shard.all_gather(master.to_device(&device))?,
                false => Tensor::zeros([len], &device),
            };
            if groups.stages.world_size() == 1 { Ok(whole) } else { groups.stages.broadcast(whole, holders.first) }
        })
    }

    pub fn bind(&self, flat: &Tensor<1>, tracked: bool) -> BoundGroup {
        self.group.bind(&self.layout, flat, tracked)
    }

    /// Adds a whole unit's gradient to those of earlier micro-batches and communicates it, unless that is put off to the `last`
    /// micro-batch. What comes of it, [`set_gradient`](Self::set_gradient) takes.
    pub fn reduce(&mut self, lanes: &Lanes, gradient: Tensor<1>, last: bool) -> Option<Pending<Counted>> {
        let plan = self.plan.clone();
        let gradient = match self.whole_gradient.take() {
            None => gradient,
            Some(earlier) => earlier.tensor + gradient.cast(DType::F32),
        };
        if plan.no_sync && plan.shards > 1 && !last {
            self.whole_gradient = Some(plan.count(gradient.cast(DType::F32), Category::Gradients));
            return None;
        }
        let in_flight = plan.count(gradient, Category::Gradients);
        let earlier = self.gradient.take();
        if plan.shards == 1 && plan.replicas == 1 {
            let earlier = earlier.map(|earlier| earlier.tensor.to_device(&plan.device));
            let sum = add(earlier, in_flight.tensor.cast(DType::F32)).to_device(&plan.rest_device);
            return Some(Pending::ready(plan.rank, plan.count(sum, Category::Gradients)));
        }
        Some(lanes.reduce.submit(move |groups| {
            let gradient = in_flight.tensor.clone();
            let earlier = earlier.as_ref().map(|earlier| earlier.tensor.clone().to_device(&plan.device));
            let mut sum = match (plan.shards, plan.reduce) {
                (1, _) => add(earlier, gradient.cast(DType::F32)),
                (_, FloatType::Fp32) => groups.shard.reduce_scatter_onto(gradient.cast(DType::F32), earlier)?,
                (_, reduce) => {
                    let chunk = groups.shard.reduce_scatter(gradient.cast(reduce.dtype()))?;
                    add(earlier, chunk.cast(DType::F32))
                }
            };
            if last && plan.replicas > 1 {
                sum = groups.replicate.all_reduce(sum.cast(plan.reduce.dtype()), Reduce::Sum)?.cast(DType::F32);
            }
            Ok(plan.count(sum.to_device(&plan.rest_device), Category::Gradients))
        }))
    }

    /// [`reduce`](Self::reduce) under `block`: the owner gives each rank its part of the gradient of one of the unit's calls; `done`: of
    /// the last of them in this backward.
    pub fn scatter(
        &mut self,
        lanes: &Lanes,
        gradient: Option<Tensor<1>>,
        owner: usize,
        done: bool,
    ) -> Pending<Counted> {
        let (plan, later_calls) = (self.plan.clone(), self.partial.take());
        let earlier = if done { self.gradient.take() } else { None };
        let in_flight = gradient.map(|gradient| plan.count(gradient, Category::Gradients));
        lanes.reduce.submit(move |groups| {
            let parts = in_flight.as_ref().map(|full| {
                let full = full.tensor.clone().cast(plan.reduce.dtype());
                let len = full.dims()[0] / plan.shards;
                (0..plan.shards).map(|i| full.clone().slice(i * len..(i + 1) * len)).collect()
            });
            let part = groups.shard.scatter(parts, owner)?;
            let part = owned_copy(part.cast(DType::F32));
            let sum = add(later_calls.map(|later| later.tensor.to_device(&plan.device)), part);
            let sum = add(earlier.map(|earlier| earlier.tensor.to_device(&plan.device)), sum);
            Ok(plan.count(sum.to_device(&plan.rest_device), Category::Gradients))
        })
    }

    /// The sum of the gradient over the stages that hold the unit, if there are several: [`set_gradient`](Self::set_gradient) takes it.
    pub fn sum_over_holders(&mut self, lanes: &Lanes) -> Option<Pending<Counted>> {
        let tie = self.tie()?;
        let (gradient, plan) = (self.gradient.take()?, self.plan.clone());
        Some(lanes.reduce.submit(move |groups| {
            let mine = gradient.tensor.clone().to_device(&plan.device);
            let sum = groups.ties[tie].all_reduce(mine, Reduce::Sum)?;
            Ok(plan.count(sum.to_device(&plan.rest_device), Category::Gradients))
        }))
    }

    /// `done`: it is the gradient of all the unit's calls.
    pub fn set_gradient(&mut self, gradient: Counted, done: bool) {
        if done {
            self.gradient = Some(gradient);
        } else {
            self.partial = Some(gradient);
        }
    }

    /// Sum of the squares of this rank's gradient, in f64: so it is the same however the gradient is sharded. Of several stages that hold
    /// the unit the first one has it.
    pub fn gradient_square(&self) -> f64 {
        let gradient = self.gradient.as_ref().filter(|_| self.holders.is_first);
        gradient.map_or(0.0, |gradient| fused::sum_of_squares(gradient.tensor.clone()))
    }

    /// Steps along the accumulated gradient times `scale`, and forgets it.
    pub fn step(&mut self, lr: f64, scale: f64) {
        if let Some(gradient) = self.gradient.take() {
            let empty = Tensor::zeros([0], &self.plan.rest_device);
            let master = std::mem::replace(&mut self.master.tensor, empty);
            self.master.tensor = self.optimizer.step(lr, master, gradient.tensor.clone(), scale);
        }
    }

    /// Adds `delta` to this rank's part of a member's parameter.
    pub fn add_to_parameter(&mut self, member: usize, path: &str, delta: &[f32]) {
        if !self.holders.is_here {
            return;
        }
        let param = self.group.param(&self.layout, member, path);
        assert_eq!(delta.len(), param.len(), "{}: a delta of another length", param.name);
        let len = self.layout.padded_len() / self.plan.shards;
        let start = self.plan.shard * len;
        let (from, to) = (param.offset.max(start), (param.offset + delta.len()).min(start + len));
        if from < to {
            let part = &delta[from - param.offset..to - param.offset];
            let part = Tensor::<1>::from_floats(part, &self.plan.rest_device);
            let (master, range) = (self.master.tensor.clone(), from - start..to - start);
            self.master.tensor = master.clone().slice_assign([range.clone()], master.slice([range]) + part);
        }
    }

    /// A digest of this rank's part of the parameters and their moments, to be compared with that of its copies; None where there is no part,
    /// or no copy of it.
    pub fn digest(&self) -> Option<u64> {
        let has_copies = self.holders.is_here && (self.plan.replicas > 1 || self.holders.tie.is_some());
        has_copies.then(|| {
            let mut hasher = DefaultHasher::new();
            let moments = self.optimizer.all_moments();
            for tensor in std::iter::once(self.master.tensor.clone()).chain(moments) {
                tensor.into_data().as_bytes().hash(&mut hasher);
            }
            hasher.finish()
        })
    }

    /// The group of stages that hold the unit too, if there are any.
    pub fn tie(&self) -> Option<usize> {
        self.holders.tie.filter(|_| self.holders.is_here)
    }

    /// The parts of parameters that this rank is to keep: of its shard, which `replicas` ranks hold, its share.
    pub fn state(&self) -> Vec<StatePart> {
        if !self.holders.is_first {
            return vec![];
        }
        let len = self.layout.padded_len() / self.plan.shards;
        let cut = |i: usize| self.plan.shard * len + len * i / self.plan.replicas;
        let (start, share) = (self.plan.shard * len, cut(self.plan.replica)..cut(self.plan.replica + 1));
        let part = |(wanted, at): (WantedPart, usize)| {
            let range = at - start..at - start + wanted.range.len();
            StatePart {
                offset: wanted.range.start,
                len: wanted.range.len(),
                param: self.master.tensor.clone().slice(range.clone()),
                moments: self.optimizer.moments(range),
                name: wanted.name,
                shape: wanted.shape,
            }
        };
        self.parts(share).map(part).collect()
    }

    /// Takes this rank's shard from `read`; with `steps` above 0 the optimizer's moments too. A replica is still to follow.
    pub fn load_state(&mut self, steps: u64, read: &mut ReadPart) -> Result<(), FsdpError> {
        if !self.holders.is_here {
            return Ok(());
        }
        let len = self.layout.padded_len() / self.plan.shards;
        let start = self.plan.shard * len;
        let mut values = ShardValues::new(len, steps > 0);
        for (wanted, at) in self.parts(start..start + len) {
            let part = read(&wanted).map_err(FsdpError::State)?;
            values.put(at - start, &wanted, &part)?;
        }
        let tensor = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, [len]), &self.plan.rest_device);
        let master = tensor(values.param);
        self.optimizer.load(values.moments.map(|moments| moments.map(tensor)), steps);
        self.set_values(master, None);
        Ok(())
    }

    /// The parameters' parts in a range of the unit's buffer, and where each begins in the buffer.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (WantedPart, usize)> {
        self.layout.params().iter().filter_map(move |param| {
            let (from, to) = (param.offset.max(range.start), (param.offset + param.len()).min(range.end));
            let wanted = || WantedPart {
                name: param.name.clone(),
                shape: param.shape.clone(),
                range: from - param.offset..to - param.offset,
            };
            (from < to).then(|| (wanted(), from))
        })
    }

    /// Steps that the optimizer has made.
    pub fn optimizer_steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Forgets the accumulated gradient.
    pub fn skip(&mut self) {
        (self.gradient, self.whole_gradient, self.partial) = (None, None, None);
    }

    /// Sends for the replica of the masters that the ranks have stepped, where there is one: [`set_replica`](Self::set_replica) takes it.
    pub fn replicate(&self, lanes: &Lanes) -> Option<Pending<Counted>> {
        (self.plan.replicates() && self.holders.is_here).then_some(())?;
        let (master, plan) = (self.master.tensor.clone(), self.plan.clone());
        Some(lanes.gather.submit(move |groups| {
            let replica = groups.shard.all_gather(master.to_device(&plan.device).cast(plan.param.dtype()))?;
            Ok(plan.count(replica, Category::Parameters))
        }))
    }

    pub fn set_replica(&mut self, replica: Counted) {
        let master = self.master.tensor.clone();
        self.set_values(master, Some(replica));
    }

    /// In fp32 the master is a part of the replica, and takes no memory of its own.
    fn set_values(&mut self, master: Tensor<1>, replica: Option<Counted>) {
        let (plan, len) = (&self.plan, master.dims()[0]);
        self.master = match &replica {
            Some(whole) if whole.tensor.dtype() == DType::F32 && plan.device == plan.rest_device => {
                Counted::free_of_charge(whole.tensor.clone().slice(plan.shard * len..(plan.shard + 1) * len))
            }
            _ => plan.count(master, Category::Parameters),
        };
        self.replica = replica;
    }
}

/// The same values in memory of their own: a slice may be a view that keeps the whole buffer alive.
fn owned_copy(slice: Tensor<1>) -> Tensor<1> {
    slice.zeros_like() + slice
}

fn add(earlier: Option<Tensor<1>>, gradient: Tensor<1>) -> Tensor<1> {
    match earlier {
        None => gradient,
        Some(earlier) => earlier + gradient,
    }
}
