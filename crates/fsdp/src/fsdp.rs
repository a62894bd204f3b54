use crate::comm_thread::CommThread;
use crate::schedule::{Losses, Schedule};
use crate::shard::{AtRest, ShardedUnit};
use crate::unit::{Call, Role};
use crate::{FsdpConfig, FsdpError, Layout, Strategy, UnitId, Units};
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use comm::{Communicator, Reduce};

/// One rank's part of a model in training.
///
/// Every rank makes the same calls in the same order.
pub struct Fsdp<B> {
    units: Vec<ShardedUnit>,
    calls: Vec<Call<B>>,
    thread: CommThread,
    rank: usize,
    world_size: usize,
    device: Device,
    config: FsdpConfig,
}

/// What a step did, the same on every rank.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// Mean of the last call's loss over the global batch, before the step.
    pub loss: f64,
    /// Sum of the other calls' own losses, each a mean over the global batch.
    pub aux_loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
}

impl<B: 'static> Fsdp<B> {
    /// Shards `units` over the ranks of `comm`. Units are made one at a time, and of each this rank keeps its share.
    ///
    /// # Errors
    /// If the calls are not one first, any others, one last.
    pub fn new(units: Units<B>, comm: Communicator, config: FsdpConfig) -> Result<Self, FsdpError> {
        check_calls(&units.calls)?;
        let (rank, world_size, device) = (comm.rank(), comm.world_size(), comm.device().clone());
        let shard = |unit| ShardedUnit::new(unit, &config, rank, world_size, &device);
        let sharded = units.units.into_iter().map(shard).collect();
        let thread = CommThread::start(comm);
        Ok(Self { units: sharded, calls: units.calls, thread, rank, world_size, device, config })
    }

    /// One optimizer step on this rank's micro-batches of the global batch; all of them, on all ranks, are of the same size.
    pub fn train_step(&mut self, micro_batches: &[B], lr: f64) -> Result<StepReport, FsdpError> {
        let mut losses = vec![];
        for batch in micro_batches {
            losses.push(self.schedule().forward_backward(batch)?);
        }
        let [loss, aux_loss] = self.mean(&losses)?;
        // Gradients were summed over ranks and micro-batches; the loss is a mean over both.
        let count = (self.world_size * micro_batches.len()) as f64;
        let grad_norm = self.gradient_norm()? / count;
        let clip = match self.config.clip_grad_norm {
            Some(limit) if grad_norm > limit => limit / (grad_norm + 1e-6),
            _ => 1.0,
        };
        for unit in &mut self.units {
            unit.step(lr, clip / count);
        }
        Ok(StepReport { loss, aux_loss, grad_norm })
    }

    /// The mean over ranks of the last call's loss on `batch`, each rank's counted `weight` times, and the sum of weights.
    pub fn evaluate(&mut self, batch: &B, weight: f64) -> Result<(f64, f64), FsdpError> {
        let loss = f64::from(self.schedule().evaluate(batch)?.loss.into_scalar::<f32>());
        let sums = self.all_reduce(&[loss * weight, weight])?;
        Ok((sums[0] / sums[1], sums[1]))
    }

    /// The sum of each value over the ranks.
    pub fn all_reduce(&self, values: &[f64]) -> Result<Vec<f64>, FsdpError> {
        let data = TensorData::new(values.to_vec(), [values.len()]);
        let tensor = Tensor::<1>::from_data(data, (&self.device, DType::F64));
        let sum = self.thread.submit(move |comm| comm.all_reduce(tensor, Reduce::Sum)).wait()?;
        Ok(sum.into_data().iter::<f64>().collect())
    }

    /// A unit's module with its whole parameters. A collective: every rank calls it.
    pub fn gather<M: Module + 'static>(&self, unit: UnitId<M>) -> Result<M, FsdpError> {
        let unit = &self.units[unit.index];
        let flat = unit.gather(&self.thread, self.rank).wait()?;
        let bound = unit.bind(&flat, false);
        Ok(bound.module().downcast_ref::<M>().expect("a unit's id carries its module's type").clone())
    }

    /// Bytes this rank keeps between steps.
    pub fn at_rest(&self) -> AtRest {
        self.units.iter().map(ShardedUnit::at_rest).fold(AtRest::default(), |sum, unit| AtRest {
            parameters: sum.parameters + unit.parameters,
            gradients: sum.gradients + unit.gradients,
            optimizer: sum.optimizer + unit.optimizer,
        })
    }

    /// Name and layout of every unit.
    pub fn layouts(&self) -> impl Iterator<Item = (&str, &Layout)> {
        self.units.iter().map(|unit| (unit.name(), unit.layout()))
    }

    fn schedule(&mut self) -> Schedule<'_, B> {
        Schedule {
            units: &mut self.units,
            calls: &self.calls,
            thread: &self.thread,
            rank: self.rank,
            device: &self.device,
            checkpointing: self.config.activation_checkpointing,
        }
    }

    /// Means over micro-batches and ranks of the loss and of the sum of the other losses.
    fn mean(&self, losses: &[Losses]) -> Result<[f64; 2], FsdpError> {
        let mean = |tensors: Vec<Tensor<1>>| {
            let sum = tensors.into_iter().map(|tensor| f64::from(tensor.into_scalar::<f32>())).sum::<f64>();
            sum / losses.len() as f64
        };
        let loss = mean(losses.iter().map(|losses| losses.loss.clone()).collect());
        let aux = mean(losses.iter().flat_map(|losses| losses.aux.clone()).collect());
        let sums = self.all_reduce(&[loss, aux])?;
        Ok([0, 1].map(|i| sums[i] / self.world_size as f64))
    }

    /// Norm of the summed gradient over all units, and over all ranks where each has a part of it.
    fn gradient_norm(&self) -> Result<f64, FsdpError> {
        let local = self.units.iter().map(ShardedUnit::gradient_square).sum();
        let square: f64 = match self.config.strategy {
            Strategy::Ddp => local,
            Strategy::FullShard => self.all_reduce(&[local])?[0],
        };
        Ok(square.sqrt())
    }
}

fn check_calls<B>(calls: &[Call<B>]) -> Result<(), FsdpError> {
    let roles: Vec<Role> = calls.iter().map(|call| call.role).collect();
    match roles.as_slice() {
        [Role::First, middle @ .., Role::Last] if middle.iter().all(|role| *role == Role::Middle) => Ok(()),
        _ => Err(FsdpError::Calls(format!("the calls are {roles:?}"))),
    }
}
