use crate::comm_thread::{CommThread, Pending};
use crate::optimizer::ShardOptimizer;
use crate::unit::{AnyUnit, Bound};
use crate::{FsdpConfig, FsdpError, Layout, Strategy};
use burn::tensor::{Device, Tensor};

/// Bytes a rank keeps between steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtRest {
    /// Parameters.
    pub parameters: usize,
    /// Gradients that wait for the next step.
    pub gradients: usize,
    /// AdamW's two moments; 0 before the first step.
    pub optimizer: usize,
}

/// A unit at rest: this rank's shard of its parameters, gradients and optimizer state.
pub(crate) struct ShardedUnit {
    unit: Box<dyn AnyUnit>,
    layout: Layout,
    strategy: Strategy,
    shard: Tensor<1>,
    gradient: Option<Tensor<1>>,
    optimizer: ShardOptimizer,
}

impl ShardedUnit {
    /// Takes the unit's values and keeps this rank's share of them.
    pub fn new(
        mut unit: Box<dyn AnyUnit>,
        config: &FsdpConfig,
        rank: usize,
        world_size: usize,
        device: &Device,
    ) -> Self {
        let (shards, index) = match config.strategy {
            Strategy::Ddp => (1, 0),
            Strategy::FullShard => (world_size, rank),
        };
        let layout = unit.layout(shards);
        let len = layout.padded_len() / shards;
        let values = unit.take_values(&layout, device);
        // A slice may be a view that keeps the whole buffer alive; what rests is a copy of just this rank's share.
        let shard = match shards {
            1 => values,
            _ => Tensor::zeros([len], device) + values.slice(index * len..(index + 1) * len),
        };
        let optimizer = ShardOptimizer::new(&config.adamw, &layout, index * len, len);
        Self { unit, layout, strategy: config.strategy, shard, gradient: None, optimizer }
    }

    pub fn name(&self) -> &str {
        self.unit.name()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The whole unit's values, once they are there.
    pub fn gather(&self, thread: &CommThread, rank: usize) -> Pending<Tensor<1>> {
        let shard = self.shard.clone();
        match self.strategy {
            Strategy::Ddp => Pending::ready(rank, shard),
            Strategy::FullShard => thread.submit(move |comm| comm.all_gather(shard)),
        }
    }

    pub fn bind(&self, flat: &Tensor<1>, tracked: bool) -> Box<dyn Bound> {
        self.unit.bind(&self.layout, flat, tracked)
    }

    /// Adds a whole unit's gradient, summed over the ranks, to those of earlier micro-batches, and returns what this rank keeps of it:
    /// [`set_gradient`](Self::set_gradient) takes it back.
    pub fn reduce(&mut self, thread: &CommThread, gradient: Tensor<1>) -> Pending<Tensor<1>> {
        let earlier = self.gradient.take();
        match self.strategy {
            Strategy::Ddp => thread.submit(move |comm| {
                let sum = comm.all_reduce(gradient, comm::Reduce::Sum)?;
                Ok(match earlier {
                    None => sum,
                    Some(earlier) => earlier + sum,
                })
            }),
            Strategy::FullShard => thread.submit(move |comm| comm.reduce_scatter_onto(gradient, earlier)),
        }
    }

    pub fn set_gradient(&mut self, gradient: Tensor<1>) {
        self.gradient = Some(gradient);
    }

    /// Sum of the squares of this rank's gradient, in f64: so it is the same however the gradient is sharded.
    pub fn gradient_square(&self) -> f64 {
        self.gradient.clone().map_or(0.0, fused::sum_of_squares)
    }

    /// Steps along the accumulated gradient times `scale`, and forgets it.
    pub fn step(&mut self, lr: f64, scale: f64) {
        if let Some(gradient) = self.gradient.take() {
            self.shard = self.optimizer.step(lr, self.shard.clone(), gradient, scale);
        }
    }

    pub fn at_rest(&self) -> AtRest {
        AtRest {
            parameters: bytes(&self.shard),
            gradients: self.gradient.as_ref().map_or(0, bytes),
            optimizer: self.optimizer.bytes(),
        }
    }
}

pub(crate) fn bytes(tensor: &Tensor<1>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

/// What a finished reduction adds to, while the next unit's backward runs.
pub(crate) struct Reduction {
    pub unit: usize,
    pub gradient: Pending<Tensor<1>>,
}

impl Reduction {
    pub fn finish(self, units: &mut [ShardedUnit]) -> Result<(), FsdpError> {
        let gradient = self.gradient.wait()?;
        units[self.unit].set_gradient(gradient);
        Ok(())
    }
}
