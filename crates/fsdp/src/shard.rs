use crate::comm_thread::{CommThread, Pending};
use crate::group::{BoundGroup, Group};
use crate::memory::{Category, Counted, Ledger, bytes};
use crate::optimizer::ShardOptimizer;
use crate::placement::Groups;
use crate::precision::FloatType;
use crate::state::{ReadPart, ShardValues, StatePart, WantedPart};
use crate::storage::Storage;
use crate::{FsdpConfig, FsdpError, Layout, Strategy};
use burn::tensor::{DType, Device, Tensor, TensorData};
use comm::Reduce;
use std::ops::Range;

/// A unit at rest: this rank's share of its parameters, gradients and optimizer state.
pub(crate) struct ShardedUnit {
    group: Group,
    layout: Layout,
    plan: Plan,
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

/// What is the same for all units of a rank.
#[derive(Clone)]
pub(crate) struct Plan {
    pub strategy: Strategy,
    pub param: FloatType,
    pub reduce: FloatType,
    pub no_sync: bool,
    /// S, and which of the S shards is this rank's.
    pub shards: usize,
    pub shard: usize,
    /// How many ranks hold this shard, and which of them this rank is.
    pub replicas: usize,
    pub replica: usize,
    pub rank: usize,
    /// Where the rank computes, and where its share rests.
    pub device: Device,
    pub rest_device: Device,
    /// Whether the memory of parameters can be taken away while a graph holds them; see [`Storage`].
    pub frees_kept_memory: bool,
    pub ledger: Ledger,
}

impl Plan {
    pub fn new(config: &FsdpConfig, groups: &Groups) -> Self {
        let device = groups.world.device().clone();
        Self {
            strategy: config.strategy,
            param: config.precision.param,
            reduce: config.precision.reduce,
            no_sync: config.no_sync || config.strategy == Strategy::Zero1,
            shards: groups.shard.world_size(),
            shard: groups.shard.rank(),
            replicas: groups.replicate.world_size(),
            replica: groups.replicate.rank(),
            rank: groups.world.rank(),
            frees_kept_memory: Storage::new(Tensor::empty([1], &device)).is_some(),
            rest_device: if config.cpu_offload { Device::flex() } else { device.clone() },
            device,
            ledger: Ledger::default(),
        }
    }

    /// Whether computing needs parameters that this rank does not hold, or not in the type or place that it needs.
    pub fn gathers(&self) -> bool {
        let at_hand = self.shards == 1 && self.param == FloatType::Fp32 && self.device == self.rest_device;
        !at_hand && !self.replicates()
    }

    fn replicates(&self) -> bool {
        self.shards > 1 && matches!(self.strategy, Strategy::Zero1 | Strategy::ShardGradOp)
    }

    fn count(&self, tensor: Tensor<1>, category: Category) -> Counted {
        Counted::new(tensor, category, &self.ledger)
    }
}

/// A whole unit's parameters, for as long as this lives.
pub(crate) struct Weights {
    pub flat: Tensor<1>,
    storage: Option<Storage>,
    /// Counts what was gathered, and not what is at rest anyway.
    held: Option<crate::memory::Held>,
}

impl Weights {
    fn gathered(flat: Tensor<1>, ledger: &Ledger) -> Self {
        let held = Some(ledger.hold(Category::Gathered, bytes(&flat)));
        Self { flat, storage: None, held }
    }

    /// The same, in memory that can be [`free`](Self::free)d while graphs hold it.
    pub fn refillable(mut self) -> Self {
        if self.held.is_some()
            && let Some(storage) = Storage::new(self.flat.clone())
        {
            self.flat = storage.tensor().clone();
            self.storage = Some(storage);
        }
        self
    }

    /// Gives up the memory; a graph that holds it must not run until it is [`refill`](Self::refill)ed.
    pub fn free(&mut self) {
        if let Some(storage) = &mut self.storage {
            storage.free();
            self.held = None;
        }
    }

    /// Takes the memory of the same unit gathered again.
    pub fn refill(&mut self, again: Self) {
        if let Some(storage) = &mut self.storage {
            storage.refill(again.flat);
            self.held = again.held;
        }
    }
}

impl ShardedUnit {
    /// Takes the unit's values and keeps this rank's share of them. Also returns the sum of their squares, which tells whether all ranks
    /// were given the same.
    pub fn new(mut group: Group, config: &FsdpConfig, plan: &Plan) -> (Self, f64) {
        let layout = group.layout(plan.shards);
        let len = layout.padded_len() / plan.shards;
        let range = plan.shard * len..(plan.shard + 1) * len;
        let values = group.take_values(&layout, &plan.device);
        let square = fused::sum_of_squares(values.clone());
        let replicate = || plan.count(values.clone().cast(plan.param.dtype()), Category::Parameters);
        let replica = plan.replicates().then(replicate);
        let master = match (plan.shards, &replica) {
            (1, None) => values,
            (_, Some(whole)) if whole.tensor.dtype() == DType::F32 => whole.tensor.clone().slice(range.clone()),
            _ => owned_copy(values.slice(range.clone())),
        };
        let optimizer = ShardOptimizer::new(&config.adamw, &layout, range.start, len, plan.ledger.clone());
        let mut unit = Self {
            group,
            layout,
            plan: plan.clone(),
            master: plan.count(Tensor::zeros([0], &plan.rest_device), Category::Parameters),
            replica: None,
            gradient: None,
            whole_gradient: None,
            partial: None,
            optimizer,
        };
        unit.set_values(master.to_device(&plan.rest_device), replica);
        (unit, square)
    }

    pub fn name(&self) -> String {
        self.group.name()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The whole unit's parameters in the type they are computed with; under `block` on rank `owner` only.
    pub fn gather(&self, thread: &CommThread, owner: usize) -> Pending<Option<Weights>> {
        let plan = &self.plan;
        if !plan.gathers() {
            let at_hand = self.replica.as_ref().unwrap_or(&self.master);
            let weights = Weights { flat: at_hand.tensor.clone(), storage: None, held: None };
            return Pending::ready(plan.rank, Some(weights));
        }
        let (master, ledger) = (self.master.tensor.clone(), plan.ledger.clone());
        let (device, dtype) = (plan.device.clone(), plan.param.dtype());
        match (plan.shards, plan.strategy) {
            (1, _) => {
                Pending::ready(plan.rank, Some(Weights::gathered(master.to_device(&device).cast(dtype), &ledger)))
            }
            (_, Strategy::Block) => thread.submit(move |groups| {
                let shards = groups.shard.gather(master.to_device(&device).cast(dtype), owner)?;
                let is_owner = groups.shard.rank() == owner;
                Ok(is_owner.then(|| Weights::gathered(Tensor::cat(shards, 0), &ledger)))
            }),
            _ => thread.submit(move |groups| {
                let flat = groups.shard.all_gather(master.to_device(&device).cast(dtype))?;
                Ok(Some(Weights::gathered(flat, &ledger)))
            }),
        }
    }

    /// The whole unit's masters, on every rank.
    pub fn gather_masters(&self, thread: &CommThread) -> Pending<Tensor<1>> {
        let (master, device) = (self.master.tensor.clone(), self.plan.device.clone());
        thread.submit(move |groups| groups.shard.all_gather(master.to_device(&device)))
    }

    pub fn bind(&self, flat: &Tensor<1>, tracked: bool) -> BoundGroup {
        self.group.bind(&self.layout, flat, tracked)
    }

    /// Adds a whole unit's gradient to those of earlier micro-batches and communicates it, unless that is put off to the `last`
    /// micro-batch. What comes of it, [`set_gradient`](Self::set_gradient) takes.
    pub fn reduce(&mut self, thread: &CommThread, gradient: Tensor<1>, last: bool) -> Option<Pending<Counted>> {
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
        Some(thread.submit(move |groups| {
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
        thread: &CommThread,
        gradient: Option<Tensor<1>>,
        owner: usize,
        done: bool,
    ) -> Pending<Counted> {
        let (plan, later_calls) = (self.plan.clone(), self.partial.take());
        let earlier = if done { self.gradient.take() } else { None };
        let in_flight = gradient.map(|gradient| plan.count(gradient, Category::Gradients));
        thread.submit(move |groups| {
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

    /// `done`: it is the gradient of all the unit's calls.
    pub fn set_gradient(&mut self, gradient: Counted, done: bool) {
        if done {
            self.gradient = Some(gradient);
        } else {
            self.partial = Some(gradient);
        }
    }

    /// Sum of the squares of this rank's gradient, in f64: so it is the same however the gradient is sharded.
    pub fn gradient_square(&self) -> f64 {
        self.gradient.as_ref().map_or(0.0, |gradient| fused::sum_of_squares(gradient.tensor.clone()))
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

    /// The parts of parameters that this rank is to keep: of its shard, which `replicas` ranks hold, its share.
    pub fn state(&self) -> Vec<StatePart> {
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
        self.gradient = None;
    }

    /// Sends for the replica of the masters that the ranks have stepped, where there is one: [`set_replica`](Self::set_replica) takes it.
    pub fn replicate(&self, thread: &CommThread) -> Option<Pending<Counted>> {
        self.plan.replicates().then_some(())?;
        let (master, plan) = (self.master.tensor.clone(), self.plan.clone());
        Some(thread.submit(move |groups| {
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
