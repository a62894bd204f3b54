use crate::call::Call;
use crate::comm_thread::CommThread;
use crate::group::{Wrapped, wrap};
use crate::memory::Memory;
use crate::placement::{Groups, block_owners};
use crate::precision::LossScale;
use crate::schedule::{Losses, Schedule};
use crate::shard::{Plan, ShardedUnit};
use crate::state::{Progress, ReadPart, State};
use crate::{FsdpConfig, FsdpError, Strategy, UnitId, Units};
use burn::module::Module;
use burn::tensor::{DType, Tensor, TensorData};
use comm::{CommError, Communicator, Reduce, TrafficTable};

/// One rank's part of a model in training.
///
/// Every rank makes the same calls in the same order.
pub struct Fsdp<B> {
    units: Vec<ShardedUnit>,
    calls: Vec<Call<B>>,
    /// Group and member of every unit that was added.
    places: Vec<(usize, usize)>,
    /// Under `block`: which rank computes each call.
    owners: Option<Vec<usize>>,
    thread: CommThread,
    /// Carries activations from rank to rank.
    wire: Communicator,
    plan: Plan,
    config: FsdpConfig,
    loss_scale: LossScale,
}

/// What a step did, the same on every rank.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Mean of the last call's loss over the global batch, before the step.
    pub loss: f64,
    /// Sum of the other calls' own losses, each a mean over the global batch.
    pub aux_loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Whether the step was not made, and the parameters are as they were: fp16 gradients have overflown (then the next step's loss is
    /// scaled by half as much), or there is something [`non_finite`](Self::non_finite).
    pub skipped: bool,
    /// Where the first number came up that is infinite or none, but for fp16 gradients that a smaller scale of the loss may mend.
    pub non_finite: Option<NonFinite>,
}

/// Where a number that is infinite or none came up first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    /// The unit: that whose output it was in, or else the last one whose gradient it was in.
    pub unit: String,
    /// The rank whose micro-batch it was; None for a gradient, which is the sum of all ranks'.
    pub rank: Option<usize>,
}

/// One call of the forward: which unit, and which rank computes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Name of the unit.
    pub unit: String,
    /// Its parameters, without padding.
    pub parameters: usize,
    /// The rank; None: every rank, each for its own part of the batch.
    pub rank: Option<usize>,
}

impl<B: 'static> Fsdp<B> {
    /// Shards `units` over the ranks of `comm`. Units are made one at a time, and of each this rank keeps its share; every rank makes them
    /// with the same values.
    ///
    /// # Errors
    /// If the calls are not one first, any others, one last, or the first one's unit has no parameters; if options do not go together; if
    /// the ranks' values differ; if a rank fails.
    pub fn new(units: Units<B>, comm: Communicator, config: FsdpConfig) -> Result<Self, FsdpError> {
        let world_size = comm.world_size();
        config.validate(world_size)?;
        let Wrapped { groups, calls, places } = wrap(units, config.wrap)?;
        let wire = comm.split(0)?;
        let communicators = Groups::new(comm, &config)?;
        let mut plan = Plan::new(&config, &communicators);
        let (units, squares): (Vec<_>, Vec<f64>) =
            groups.into_iter().map(|group| ShardedUnit::new(group, &config, &plan)).unzip();
        if units[calls[0].unit].layout().is_empty() {
            let name = units[calls[0].unit].name();
            return Err(FsdpError::Calls(format!(
                "the first one's unit, {name}, has no parameters: join it with the next"
            )));
        }
        plan.frees_kept_memory = agree(&communicators.world, &units, &squares, plan.frees_kept_memory)?;
        let owners = (config.strategy == Strategy::Block).then(|| block_owners(calls.len(), world_size));
        let thread = CommThread::start(communicators);
        let loss_scale = LossScale::new(config.precision);
        Ok(Self { units, calls, places, owners, thread, wire, plan, config, loss_scale })
    }

    /// This rank's place among those that share the batch, and their number: all ranks, but under `block` each computes every batch.
    pub fn data_parallel(&self) -> (usize, usize) {
        if self.owners.is_some() { (0, 1) } else { (self.plan.rank, self.wire.world_size()) }
    }

    /// One optimizer step on this rank's micro-batches of the global batch; all of them, on all ranks, are of the same size.
    pub fn train_step(&mut self, micro_batches: &[B], lr: f64) -> Result<StepReport, FsdpError> {
        self.train_step_with(micro_batches, lr, |_| Ok(()))
    }

    /// [`train_step`](Self::train_step) that calls `before_step` when all gradients are there, unless the step is skipped: the place for
    /// [`add_to_parameter`](Self::add_to_parameter).
    pub fn train_step_with(
        &mut self,
        micro_batches: &[B],
        lr: f64,
        before_step: impl FnOnce(&mut Self) -> Result<(), FsdpError>,
    ) -> Result<StepReport, FsdpError> {
        if micro_batches.is_empty() {
            return Err(FsdpError::MicroBatches("a step needs at least one micro-batch".into()));
        }
        let mut losses = vec![];
        for (i, batch) in micro_batches.iter().enumerate() {
            losses.push(self.schedule(i + 1 == micro_batches.len()).forward_backward(batch)?);
        }
        let [loss, aux_loss] = self.mean(&losses)?;
        // Gradients were summed over ranks and micro-batches; the loss is a mean over both.
        let count = (self.data_parallel().1 * micro_batches.len()) as f64 * self.loss_scale.factor;
        let grad_norm = self.gradient_norm()? / count;
        let clip = match self.config.clip_grad_norm {
            Some(limit) if grad_norm > limit => limit / (grad_norm + 1e-6),
            _ => 1.0,
        };
        let finite = loss.is_finite() && aux_loss.is_finite();
        let overflow = finite && self.loss_scale.update(grad_norm);
        let non_finite = match finite && (grad_norm.is_finite() || overflow) {
            true => None,
            false => Some(self.locate_non_finite(micro_batches)?),
        };
        let skipped = overflow || non_finite.is_some();
        if skipped {
            self.units.iter_mut().for_each(ShardedUnit::skip);
        } else {
            before_step(self)?;
            self.step_units(lr, clip / count)?;
        }
        Ok(StepReport { loss, aux_loss, grad_norm, skipped, non_finite })
    }

    /// The mean over ranks of the last call's loss on `batch`, each rank's counted `weight` times, and the sum of weights.
    pub fn evaluate(&mut self, batch: &B, weight: f64) -> Result<(f64, f64), FsdpError> {
        // Under `block` one rank has the loss.
        let (loss, weight) = match self.schedule(true).evaluate(batch)?.loss {
            Some(loss) => (f64::from(loss.into_scalar::<f32>()), weight),
            None => (0.0, 0.0),
        };
        let sums = self.all_reduce(&[loss * weight, weight])?;
        Ok((sums[0] / sums[1], sums[1]))
    }

    /// Adds `delta` to a parameter, by its path in the unit's module, apart from its gradient; all ranks give the same. Copies of
    /// parameters follow with the step, so this belongs into `before_step` of [`train_step_with`](Self::train_step_with).
    ///
    /// # Panics
    /// If the unit has no such parameter, or it is of another length.
    pub fn add_to_parameter<M>(&mut self, unit: UnitId<M>, path: &str, delta: &[f32]) {
        let (group, member) = self.places[unit.index];
        self.units[group].add_to_parameter(member, path, delta);
    }

    /// This rank's part of the run's state between steps. It costs no copy: the tensors share memory until the next step.
    pub fn state(&self) -> State {
        let optimizer_steps = self.units.iter().map(ShardedUnit::optimizer_steps).max().unwrap_or(0);
        let (loss_scale, good_steps) = (self.loss_scale.factor, self.loss_scale.good_steps as u64);
        let progress = Progress { optimizer_steps, loss_scale, good_steps };
        State { parts: self.units.iter().flat_map(ShardedUnit::state).collect(), progress }
    }

    /// Goes on from a [`state`](Self::state) that any number of ranks has kept under any strategy: `read` is asked for the parts that
    /// this rank holds. A collective: every rank calls it with the same `progress`.
    pub fn load_state(&mut self, progress: Progress, read: &mut ReadPart) -> Result<(), FsdpError> {
        for unit in &mut self.units {
            unit.load_state(progress.optimizer_steps, read)?;
        }
        for i in 0..self.units.len() {
            if let Some(replica) = self.units[i].replicate(&self.thread) {
                self.units[i].set_replica(replica.wait()?);
            }
        }
        self.loss_scale.resume(progress.loss_scale, progress.good_steps as usize);
        Ok(())
    }

    /// The sum of each value over the ranks.
    pub fn all_reduce(&self, values: &[f64]) -> Result<Vec<f64>, FsdpError> {
        let values = values.to_vec();
        self.thread.submit(move |groups| all_reduce(&groups.world, values, Reduce::Sum)).wait()
    }

    /// A unit's module with its whole parameters, in fp32. A collective: every rank calls it.
    pub fn gather<M: Module + 'static>(&self, unit: UnitId<M>) -> Result<M, FsdpError> {
        let (group, member) = self.places[unit.index];
        let unit = &self.units[group];
        let flat = unit.gather_masters(&self.thread).wait()?;
        let bound = unit.bind(&flat, false);
        Ok(bound.module(member).downcast_ref::<M>().expect("a unit's id carries its module's type").clone())
    }

    /// This rank's bytes by category. Between steps nothing is gathered and no activation is kept.
    pub fn memory(&self) -> Memory {
        self.plan.ledger.memory()
    }

    /// What this rank has communicated so far.
    pub fn traffic(&self) -> TrafficTable {
        self.wire.traffic()
    }

    /// The calls in the order of the forward.
    pub fn placements(&self) -> Vec<Placement> {
        let placement = |(i, call): (usize, &Call<B>)| Placement {
            unit: self.units[call.unit].name(),
            parameters: self.units[call.unit].layout().len(),
            rank: self.owners.as_ref().map(|owners| owners[i]),
        };
        self.calls.iter().enumerate().map(placement).collect()
    }

    fn schedule(&mut self, last: bool) -> Schedule<'_, B> {
        Schedule {
            units: &mut self.units,
            calls: &self.calls,
            owners: self.owners.as_deref(),
            thread: &self.thread,
            wire: &self.wire,
            plan: &self.plan,
            config: &self.config,
            loss_scale: self.loss_scale.factor,
            last,
        }
    }

    /// Runs the forward again and looks at each call's output; the ranks agree on the first.
    fn locate_non_finite(&mut self, micro_batches: &[B]) -> Result<NonFinite, FsdpError> {
        let (rank, ranks, none) = (self.plan.rank, self.wire.world_size(), f64::INFINITY);
        let mut first = none;
        for batch in micro_batches {
            if let Some(call) = self.schedule(true).first_non_finite(batch)? {
                first = first.min((call * ranks + rank) as f64);
            }
        }
        let in_gradient = |unit: &ShardedUnit| !unit.gradient_square().is_finite();
        let last = self.units.iter().rposition(in_gradient).map_or(none, |unit| -(unit as f64));
        let world =
            |values: Vec<f64>| self.thread.submit(move |groups| all_reduce(&groups.world, values, Reduce::Max)).wait();
        let highest = world(vec![-first, -last])?;
        Ok(match (-highest[0], highest[1]) {
            (first, _) if first.is_finite() => {
                let (call, rank) = (first as usize / ranks, first as usize % ranks);
                NonFinite { unit: self.units[self.calls[call].unit].name(), rank: Some(rank) }
            }
            (_, last) => NonFinite { unit: self.units[last.max(0.0) as usize].name(), rank: None },
        })
    }

    fn step_units(&mut self, lr: f64, scale: f64) -> Result<(), FsdpError> {
        // A unit's replica is on its way while the next one steps: not all of them, for the old ones are still there.
        let mut under_way = None;
        for i in 0..self.units.len() {
            self.units[i].step(lr, scale);
            let before = under_way.take();
            under_way = self.units[i].replicate(&self.thread).map(|replica| (i, replica));
            if let Some((unit, replica)) = before {
                self.units[unit].set_replica(replica.wait()?);
            }
        }
        if let Some((unit, replica)) = under_way {
            self.units[unit].set_replica(replica.wait()?);
        }
        Ok(())
    }

    /// Means over micro-batches and ranks of the loss and of the sum of the other losses.
    fn mean(&self, losses: &[Losses]) -> Result<[f64; 2], FsdpError> {
        let mean = |pick: fn(&Losses) -> &Option<Tensor<1>>| {
            let values = losses.iter().filter_map(|losses| pick(losses).clone());
            let values = values.map(|tensor| f64::from(tensor.into_scalar::<f32>()));
            values.fold(0.0, |sum, value| sum + value) / losses.len() as f64 // `sum` of nothing would be -0.0
        };
        let (count, ranks) = (losses.len() as f64, self.wire.world_size());
        let sums = self.all_reduce(&[mean(|losses| &losses.loss), mean(|losses| &losses.aux), count])?;
        if sums[2] != count * ranks as f64 {
            let (rank, total) = (self.plan.rank, sums[2]);
            return Err(FsdpError::MicroBatches(format!(
                "rank {rank} has {count} micro-batches in this step, the {ranks} ranks together {total}: give each as many"
            )));
        }
        let ranks = self.data_parallel().1 as f64;
        Ok([sums[0] / ranks, sums[1] / ranks])
    }

    /// Norm of the summed gradient over all units, and over all ranks that have different parts of it.
    fn gradient_norm(&self) -> Result<f64, FsdpError> {
        let local = self.units.iter().map(ShardedUnit::gradient_square).sum();
        // Each of the replicas counts the whole.
        let square: f64 = match self.plan.shards {
            1 => local,
            _ => self.all_reduce(&[local])?[0] / self.plan.replicas as f64,
        };
        Ok(square.sqrt())
    }
}

/// Plain numbers, combined over the ranks.
fn all_reduce(world: &Communicator, values: Vec<f64>, how: Reduce) -> Result<Vec<f64>, CommError> {
    let len = values.len();
    let tensor = Tensor::<1>::from_data(TensorData::new(values, [len]), (world.device(), DType::F64));
    Ok(world.all_reduce(tensor, how)?.into_data().iter::<f64>().collect())
}

/// An error unless all ranks were given the same values. Returns whether all of them can free memory that graphs hold.
fn agree(world: &Communicator, units: &[ShardedUnit], squares: &[f64], frees: bool) -> Result<bool, FsdpError> {
    // The highest of each square, of its negative, and of whether a rank cannot free.
    let negatives = squares.iter().map(|square| -square);
    let values = squares.iter().copied().chain(negatives).chain([if frees { 0.0 } else { 1.0 }]);
    let highest = all_reduce(world, values.collect(), Reduce::Max)?;
    let (most, least) = highest.split_at(squares.len());
    match most.iter().zip(least).position(|(most, least)| *most != -least) {
        Some(unit) => Err(FsdpError::Values(units[unit].name())),
        None => Ok(least[squares.len()] == 0.0),
    }
}
