//! One rank's part of a model in training: steps and evaluations.

mod agree;
mod backward;
mod checkpoints;
mod kept;
mod operations;
mod step;
mod sums;
mod sums_on_device;
mod watch;

pub use backward::Backward;
pub use kept::Unloaded;

use crate::api::bound::with_values;
use crate::api::call::Call;
use crate::api::precision::LossScaling;
use crate::api::units::{ShapeOf, ValuesFrom};
use crate::exec::executor::{StageTimes, TimedOp};
use crate::exec::point_to_point::PointToPoint;
use crate::exec::work::Watch;
use crate::groups::comm_thread::CommStreams;
use crate::groups::outline::outline;
use crate::groups::placement::{Groups, Placement, Stages, block_owners};
use crate::groups::plan::{Class, Plan, UnitStages};
use crate::shard::memory::Memory;
use crate::shard::modules::{Wrapped, wrap};
use crate::shard::sharded_unit::ShardedUnit;
use crate::{FsdpConfig, FsdpError, Strategy, UnitId, Units};
use burn::module::Module;
use comm::{Communicator, FirstError, TrafficTable};
use schedule::{Op, Outline};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// One rank's part of a model in training.
///
/// Every rank makes the same calls in the same order.
pub struct Fsdp<B> {
    units: Vec<ShardedUnit>,
    calls: Vec<Call<B>>,
    /// The unit of every added module, and the module's number in that unit.
    places: Vec<(usize, usize)>,
    /// The unit of every parameter, by name.
    unit_of: HashMap<String, usize>,
    /// Under `block`: the rank that computes each call.
    owners: Option<Vec<usize>>,
    stages: Stages,
    outline: Outline,
    /// The operations of the last step, and its number of micro-batches.
    lowered: Option<(usize, Rc<[Op]>)>,
    point_to_point: PointToPoint,
    streams: CommStreams,
    /// All ranks; under `block` this carries activations from rank to rank.
    world: Communicator,
    plan: Plan,
    /// For each class in use, the number of ranks that hold each shard.
    replicas: Vec<(Class, usize)>,
    /// The first error of the collectives that calls run themselves.
    first_error: FirstError,
    /// The sequences of a batch's activations, and their length.
    shape: Option<Box<ShapeOf<B>>>,
    config: FsdpConfig,
    loss_scale: LossScaling,
    /// Number of steps, without skipped ones.
    optimizer_steps: u64,
    /// Whether the optimizer has updated some parameters of this step, and perhaps not all.
    is_stepping: bool,
    watch: Option<Box<Watch>>,
    /// The operations since [`time_operations`](Self::time_operations), with their times.
    timed: Option<Vec<TimedOp>>,
}

/// A function that runs before a step; it gets the sums over the ranks of the caller's numbers.
pub type BeforeStep<'a, B> = &'a mut dyn FnMut(&mut Fsdp<B>, &[f64]) -> Result<(), FsdpError>;

/// The result of a step; all fields except [`times`](Self::times) are the same on every rank.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StepReport {
    /// Mean of the last call's loss over the global batch, before the step.
    pub loss: f64,
    /// Sum of the losses that all calls add, each a mean over the global batch.
    pub aux_loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Whether the step was skipped and the parameters are unchanged: fp16 gradients have overflowed (the loss scale is
    /// then halved for the next step), or something was [`non_finite`](Self::non_finite).
    pub skipped: bool,
    /// The origin of the first number that is infinite or NaN, except fp16 gradients that a smaller loss scale may fix.
    pub non_finite: Option<NonFinite>,
    /// The sums over the ranks of the caller's numbers.
    pub sums: Vec<f64>,
    /// The times of this rank's forwards and backwards; other ranks report their own.
    pub times: StageTimes,
}

/// The origin of an infinite number or NaN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    /// The unit whose output had it first, or else the last unit whose gradient had it.
    pub unit: String,
    /// The rank whose micro-batch caused it; `None` for a gradient, which is the sum over all ranks.
    pub rank: Option<usize>,
}

impl<B: 'static> Fsdp<B> {
    /// Shards `units` over the ranks of `comm`. Units are created one at a time, and this rank keeps its share of each.
    /// Every rank must create them with the same values.
    ///
    /// # Errors
    /// Returns an error if the calls are not one first call, any number of others and one last call, if a call does not
    /// take what the one before it returns, if the first call's unit has no parameters, if all parameters are frozen,
    /// if a module has buffers, or random layers that would be recomputed, if options conflict, if the ranks' values
    /// differ, or if a rank fails.
    pub fn new(units: Units<B>, comm: Communicator, config: FsdpConfig) -> Result<Self, FsdpError> {
        Self::sharded(units, comm, config, true)
    }

    /// Shards the units, with their initial values or without any.
    fn sharded(units: Units<B>, comm: Communicator, config: FsdpConfig, valued: bool) -> Result<Self, FsdpError> {
        let world_size = comm.world_size();
        config.validate(world_size)?;
        let Wrapped { units: modules, calls, calls_of_chunks, places, initializer, rules, first_error, shape } =
            wrap(units, &config)?;
        let world = comm.split(0)?;
        let (mut communicators, stage) = Groups::new(comm, &config)?;
        let point_to_point = PointToPoint::new(&communicators.stages)?;
        let stages = Stages::new(&config.pipeline, &calls_of_chunks, stage)?;
        let of_unit = |unit: usize| calls.iter().enumerate().filter(move |(_, call)| call.unit == unit).map(|(i, _)| i);
        let mut stages_of = |unit: usize| communicators.unit_stages(&stages, of_unit(unit));
        let unit_stages: Vec<UnitStages> = (0..modules.len()).map(&mut stages_of).collect::<Result<_, _>>()?;
        let plan = Plan::new(&config, &communicators);
        let classes = Class::ALL.into_iter().filter(|class| match class {
            Class::Expert => config.ep > 1,
            Class::Tensor => config.tp > 1,
            Class::Dense | Class::Fp32 => true,
        });
        let plans: Vec<Plan> = classes.map(|class| plan.of(class, &communicators)).collect();
        let made = {
            let kept = rules.kept(&config);
            let values = match initializer.as_deref() {
                _ if !valued => ValuesFrom::State,
                Some(initializer) => ValuesFrom::Initializer(initializer),
                None => ValuesFrom::Modules,
            };
            let make = |(modules, unit_stages)| ShardedUnit::new(modules, &config, &plans, &kept, values, unit_stages);
            modules.into_iter().zip(unit_stages).map(make).collect::<Result<Vec<_>, _>>()?
        };
        let (units, squares): (Vec<_>, Vec<Option<f64>>) = made.into_iter().unzip();
        if units[calls[0].unit].len() == 0 {
            let name = units[calls[0].unit].name();
            return Err(FsdpError::Calls(format!(
                "the first one's unit, {name}, has no parameters: join it with the next"
            )));
        }
        let squares = if valued { squares } else { vec![] };
        agree::on_values(&communicators.world, &units, &squares)?;
        let replicas = plans.iter().map(|plan| (plan.class, plan.replicas)).collect();
        let owners = (config.strategy == Strategy::Block).then(|| block_owners(calls.len(), world_size));
        let units_of_calls: Vec<usize> = calls.iter().map(|call| call.unit).collect();
        let gathers = |unit: usize| units[unit].gathers();
        let outline = outline(&config, &units_of_calls, &stages, owners.as_deref(), gathers);
        agree::on_outline(&world, &outline, &config)?;
        let streams = CommStreams::start(&communicators)?;
        let loss_scale = LossScaling::new(config.precision);
        let names_of = |(i, unit): (usize, &ShardedUnit)| unit.parameter_names().into_iter().map(move |name| (name, i));
        let unit_of = units.iter().enumerate().flat_map(names_of).collect();
        Ok(Self {
            unit_of,
            units,
            calls,
            places,
            owners,
            stages,
            outline,
            lowered: None,
            point_to_point,
            streams,
            world,
            plan,
            replicas,
            first_error,
            shape,
            config,
            loss_scale,
            optimizer_steps: 0,
            is_stepping: false,
            watch: None,
            timed: None,
        })
    }

    /// Returns this rank's number among the ranks that share the batch, and the number of these ranks. They are all
    /// ranks of its stage, where the ranks that compute the same sequences count as one. Under `block` every rank
    /// computes every batch.
    pub fn data_parallel(&self) -> (usize, usize) {
        let (Plan { shard, shards, replica, replicas, .. }, of) = (&self.plan, self.config.tp * self.config.cp);
        if self.owners.is_some() { (0, 1) } else { ((replica * shards + shard) / of, replicas * shards / of) }
    }

    /// Makes one optimizer step on this rank's micro-batches of the global batch, all of equal weight. Every rank
    /// passes the same number of micro-batches.
    ///
    /// # Errors
    /// See [`train_step_with`](Self::train_step_with).
    ///
    /// # Panics
    /// If the last call returns a loss of more than one element.
    pub fn train_step(&mut self, micro_batches: &[B], lr: f64) -> Result<StepReport, FsdpError> {
        self.train_step_with(micro_batches, &vec![1.0; micro_batches.len()], lr, Vec::new, None)
    }

    /// Makes a [`train_step`](Self::train_step) on micro-batches with `weights`, such as their numbers of sequences.
    /// The loss is the weighted mean over all ranks. A rank with fewer micro-batches than others adds some of weight 0.
    ///
    /// `numbers` is called after the last backward and returns the same number of values on every rank. Their sums over
    /// the ranks travel with the losses, are passed to `before_step` and are reported. `before_step` is called when all
    /// gradients are available, unless the step is skipped; call [`add_to_parameter`](Self::add_to_parameter) there.
    /// Without `before_step`, the host waits for a device once per step, after it has launched all of the step's work.
    ///
    /// Besides parameters, gradients and activations, the ranks exchange two small messages per step: one before the
    /// first forward to compare their numbers of micro-batches, and one after the last backward with losses, norms and
    /// `numbers`.
    ///
    /// # Errors
    /// Returns an error if the ranks' numbers of micro-batches differ (before anything is computed), if all weights are
    /// 0, or if a rank fails. Nothing of the failed step carries over to the next one.
    ///
    /// # Panics
    /// If there is not one weight for each micro-batch, or if the last call returns a loss of more than one element.
    pub fn train_step_with(
        &mut self,
        micro_batches: &[B],
        weights: &[f64],
        lr: f64,
        numbers: impl FnOnce() -> Vec<f64>,
        before_step: Option<BeforeStep<B>>,
    ) -> Result<StepReport, FsdpError> {
        let backward = self.backward(micro_batches, weights)?;
        backward.step_with(lr, numbers(), before_step)
    }

    /// Returns, for each batch, the weighted mean over ranks of the last call's loss, and the sum of the weights. All
    /// ranks pass the same number of batches; a pipeline works on several at a time. The mean of weights that are all 0
    /// is NaN.
    ///
    /// # Errors
    /// If a rank fails.
    ///
    /// # Panics
    /// If there is not one weight for each batch.
    pub fn evaluate(&mut self, batches: &[B], weights: &[f64]) -> Result<Vec<(f64, f64)>, FsdpError> {
        assert_eq!(batches.len(), weights.len(), "each batch has a weight");
        let losses = self.forward(batches, &mut |_, _| ())?;
        // Under `block` one rank has the loss; in a pipeline the last stage has it.
        let mine = losses.into_iter().zip(weights).flat_map(|(losses, weight)| match losses.loss {
            Some(loss) => [f64::from(loss.into_scalar::<f32>()) * weight, *weight],
            None => [0.0, 0.0],
        });
        let sums = self.all_reduce(&mine.collect::<Vec<_>>())?;
        // Ranks that compute the same sequences hold shares of the loss, and each of them counts the weight.
        let of = |sums: &[f64]| (sums[0], sums[1] / self.config.tp as f64);
        Ok(sums.chunks(2).map(of).map(|(loss, weight)| (loss / weight, weight)).collect())
    }

    /// Adds `delta` to a parameter, separately from its gradient. Its name is the unit's name, a dot, and its path in
    /// the module. All ranks pass the same `delta`. Copies of parameters are updated with the step, so call this in
    /// `before_step` of [`train_step_with`](Self::train_step_with).
    ///
    /// # Panics
    /// Panics if there is no such parameter, or if the lengths differ.
    pub fn add_to_parameter(&mut self, name: &str, delta: &[f32]) {
        let unit = *self.unit_of.get(name).unwrap_or_else(|| panic!("there is no parameter {name}"));
        self.units[unit].add_to_parameter(name, delta);
    }

    /// Returns `model` with the whole parameters in fp32 if `keep`. The name of each unit must be the path of its
    /// module in the model, as [`Calls`](crate::Calls) has it. This is a collective: every rank calls it, and one that
    /// keeps nothing holds the parameters of one unit at a time.
    ///
    /// # Errors
    /// Returns an error if a rank fails.
    ///
    /// # Panics
    /// Panics if the parameters of the units and of the model differ.
    pub fn gather_model<M: Module>(&self, model: M, keep: bool) -> Result<Option<M>, FsdpError> {
        let mut values = HashMap::new();
        for unit in &self.units {
            let of_unit = unit.gather_values(&self.streams)?;
            if keep {
                values.extend(unit.parameter_names().into_iter().zip(of_unit));
            }
        }
        Ok(keep.then(|| with_values(model, values)))
    }

    /// Returns a unit's module with its whole parameters in fp32. This is a collective: every rank calls it.
    pub fn gather<M: Module + 'static>(&self, unit: UnitId<M>) -> Result<M, FsdpError> {
        let (unit, member) = self.places[unit.index];
        let bound = self.units[unit].gather_whole(&self.streams)?;
        Ok(bound.module(member).downcast_ref::<M>().expect("a unit's id carries its module's type").clone())
    }

    /// Returns this rank's bytes by category. Between steps nothing is gathered and no activation is kept.
    pub fn memory(&self) -> Memory {
        self.plan.ledger.memory()
    }

    /// Returns what this rank has communicated so far.
    pub fn traffic(&self) -> TrafficTable {
        self.world.traffic()
    }

    /// Returns the traffic by the axes of the groups, named as in [`Units::shares`].
    pub fn traffic_by_axes(&self) -> BTreeMap<String, TrafficTable> {
        self.world.traffic_by_axes()
    }

    /// Returns the calls in the order of the forward.
    pub fn placements(&self) -> Vec<Placement> {
        let placement = |(i, call): (usize, &Call<B>)| Placement {
            unit: self.units[call.unit].name(),
            parameters: self.units[call.unit].len(),
            ranks: self.ranks_of(i),
        };
        self.calls.iter().enumerate().map(placement).collect()
    }

    /// Returns this rank's stage of the pipeline, and the number of stages.
    pub fn stage(&self) -> (usize, usize) {
        (self.stages.stage, self.config.pipeline.stages)
    }

    /// Returns the ranks that compute a call; `None` means all.
    fn ranks_of(&self, call: usize) -> Option<Range<usize>> {
        if let Some(owners) = &self.owners {
            return Some(owners[call]..owners[call] + 1);
        }
        let (of, stage) = (self.config.tp * self.config.cp, self.stages.of_call(call));
        let ranks = self.data_parallel().1 * of;
        (self.config.pipeline.stages > 1).then(|| stage * ranks..(stage + 1) * ranks)
    }
}

impl<B> fmt::Debug for Fsdp<B> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let units: Vec<_> = self.units.iter().map(ShardedUnit::name).collect();
        f.debug_struct("Fsdp").field("comm", &self.world).field("units", &units).finish_non_exhaustive()
    }
}
