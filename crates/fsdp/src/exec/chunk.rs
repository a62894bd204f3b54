//! The forward of one micro-batch through consecutive calls, and in `chunk/backward.rs` the backward: what is gathered,
//! bound, run, reduced and freed, and when.
//!
//! ```text
//! communication   gather 0 | gather 1 | gather 2 |         gather 1 | reduce 2, gather 0 | reduce 1 | reduce 0
//! computation              | run 0    | run 1    | run 2   vjp 2    | vjp 1              | vjp 0    |
//! ```
//!
//! While a call computes, the next one's parameters are being gathered, so at most two units are gathered at a time.
//! The last call's parameters stay until its backward, which follows at once.
//!
//! In a pipeline, gathered parameters stay until the backward of the last micro-batch, because at most times some
//! micro-batch needs them.
//!
//! Under [`Strategy::Block`](crate::Strategy::Block) every rank goes through all calls, because it contributes a shard
//! of each unit and receives a part of each gradient. It computes only its own calls and sends the activation on.

mod backward;

pub(crate) use backward::DeferredWeights;

use crate::api::activations::Tensors;
use crate::api::call::{Activation, Loss};
use crate::api::call::{Call, Output, add};
use crate::exec::point_to_point;
use crate::exec::work::Work;
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::groups::placement::Stages;
use crate::groups::plan::Plan;
use crate::shard::memory::{Category, Counted, MemoryGuard};
use crate::shard::modules::BoundModules;
use crate::shard::sharded_unit::ShardedUnit;
use crate::shard::weights::Weights;
use crate::{FsdpConfig, FsdpError, Prefetch};
use burn::tensor::Tensor;
use comm::{Communicator, FirstError};
use std::collections::HashMap;
use std::ops::Range;

/// The losses of one micro-batch that this rank computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    /// The loss that the last call returned, `[1]`.
    pub loss: Option<Tensor<1>>,
    /// The sum of the calls' auxiliary losses.
    pub aux: Option<Tensor<1>>,
}

/// Runs chunks of a model on a rank, within a step or an evaluation.
pub(crate) struct Runner<'a, B> {
    pub units: &'a mut [ShardedUnit],
    pub calls: &'a [Call<B>],
    /// The assignment of calls to stages.
    pub stages: &'a Stages,
    /// Under `block`: the rank that computes each call.
    pub owners: Option<&'a [usize]>,
    pub streams: &'a CommStreams,
    /// Under `block`: carries activations from rank to rank.
    pub world: &'a Communicator,
    pub plan: &'a Plan,
    pub config: &'a FsdpConfig,
    /// The first error of the collectives that calls run themselves.
    pub first_error: &'a FirstError,
    /// The gathered parameters of each unit, if they stay.
    pub kept: Vec<Option<Weights>>,
    /// Number of micro-batches in a step.
    pub micro_batches: usize,
    /// For units that the stage calls more than once, by unit and micro-batch: the number of calls whose gradients are
    /// available, and the sum of these gradients.
    pub partial: HashMap<(usize, usize), (usize, Vec<Counted>)>,
    /// For each unit, the number of micro-batches whose gradients are complete.
    pub reduced: Vec<usize>,
    /// The progress of the step.
    pub work: Work<'a>,
}

/// A micro-batch in the backward.
pub(crate) struct Micro<'a, B> {
    pub batch: &'a B,
    pub number: usize,
    /// The factor of its losses: its weight times the fp16 loss scale.
    pub scale: f64,
}

/// What the forward of a call leaves for its backward.
pub(crate) enum Saved {
    /// Nothing: another rank computed the call.
    Elsewhere,
    /// The call's input (the first call has none); the backward runs the forward again.
    Input {
        x: Option<Tensors>,
        weights: Option<Weights>,
        held: MemoryGuard,
    },
    Graph {
        graph: Graph,
        weights: Weights,
    },
}

/// A call that ran with tracked leaves.
pub(crate) struct Graph {
    bound: BoundModules,
    x: Option<Tensors>,
    output: Output,
    _held: MemoryGuard,
}

impl<B> Runner<'_, B> {
    /// Runs calls without keeping anything, and passes each one's output to `look`.
    pub fn evaluate(
        &mut self,
        calls: Range<usize>,
        x: Option<Tensors>,
        batch: &B,
        losses: &mut Losses,
        look: &mut dyn FnMut(usize, &Output),
    ) -> Result<Option<Tensors>, FsdpError> {
        self.run(calls, x, losses, |runner, i, weights, x| {
            let bound = runner.unit(i).bind(&weights, false);
            let output = runner.calls[i].run(|member| bound.module(member), x, batch).detached();
            look(i, &output);
            output
        })
    }

    /// Runs calls and adds their losses to `losses`. Returns what their backward needs, and the last one's activation.
    pub fn forward(
        &mut self,
        calls: Range<usize>,
        x: Option<Tensors>,
        batch: &B,
        losses: &mut Losses,
    ) -> Result<(Vec<Saved>, Option<Tensors>), FsdpError> {
        let (first, mut saved) = (calls.start, calls.clone().map(|_| Saved::Elsewhere).collect::<Vec<_>>());
        let x = self.run(calls, x, losses, |runner, i, weights, x| {
            let output;
            (saved[i - first], output) = runner.run_and_save(i, weights, x, batch);
            runner.work.forward();
            output
        })?;
        Ok((saved, x))
    }

    /// Gathers the parameters of each call in turn, and calls `run` for the calls of this rank.
    fn run(
        &mut self,
        calls: Range<usize>,
        mut x: Option<Tensors>,
        losses: &mut Losses,
        mut run: impl FnMut(&Self, usize, Weights, Option<Tensors>) -> Output,
    ) -> Result<Option<Tensors>, FsdpError> {
        let (first, mut ahead) = (calls.start, None);
        let prefetch = self.config.forward_prefetch;
        for i in calls.clone() {
            let weights = self.wait(ahead.take(), i)?;
            let next = (i + 1 < calls.end).then_some(i + 1);
            if prefetch == Prefetch::Pre {
                ahead = next.map(|next| self.gather(next));
            }
            if let Some(weights) = weights {
                if i > first && !self.is_mine(i - 1) {
                    x = Some(point_to_point::recv(self.world, self.owner(i - 1), self.calls[i].takes())?);
                }
                x = losses.take(run(self, i, weights, x));
                self.first_error.check()?;
                if let (Some(next), Some(y)) = (next, &x)
                    && !self.is_mine(next)
                {
                    point_to_point::send(self.world, y, self.owner(next))?;
                }
            }
            if prefetch == Prefetch::Post {
                ahead = next.map(|next| self.gather(next));
            }
        }
        Ok(x)
    }

    /// Runs call `i` and keeps what its backward needs.
    fn run_and_save(&self, i: usize, weights: Weights, x: Option<Tensors>, batch: &B) -> (Saved, Output) {
        if self.recomputes(i) {
            let bound = self.unit(i).bind(&weights, false);
            let output = self.calls[i].run(|member| bound.module(member), x.clone(), batch).detached();
            let weights = (!self.reshards_after_forward(i)).then_some(weights);
            let held = self.plan.ledger.hold(Category::Activations, x.as_ref().map_or(0, Tensors::bytes));
            return (Saved::Input { x, weights, held }, output);
        }
        let mut weights = if self.reshards_after_forward(i) { weights.refillable() } else { weights };
        let graph = self.run_tracked(i, &weights, x, batch);
        let output = graph.output.detached();
        if self.reshards_after_forward(i) {
            // SAFETY: the call has returned. Operations have slices of parameters only while they run, and the function
            // of a call keeps none, as `Units` requires.
            unsafe { self.unit(i).free(&mut weights, &graph.bound) };
        }
        (Saved::Graph { graph, weights }, output)
    }

    /// Runs call `i` on tracked leaves.
    fn run_tracked(&self, i: usize, weights: &Weights, x: Option<Tensors>, batch: &B) -> Graph {
        let allocated = || self.config.allocated.map_or(0, |allocated| allocated());
        let before = allocated();
        let bound = self.unit(i).bind(weights, true);
        let x = x.map(Tensors::tracked);
        let output = self.calls[i].run(|member| bound.module(member), x.clone(), batch);
        // The input existed before; the output is the next call's input and is counted there.
        let kept = allocated() - before - output.bytes() as isize;
        let bytes = x.as_ref().map_or(0, Tensors::bytes) + usize::try_from(kept).unwrap_or(0);
        Graph { bound, x, output, _held: self.plan.ledger.hold(Category::Activations, bytes) }
    }

    /// Returns whether the backward runs the forward of call `i` again.
    fn recomputes(&self, i: usize) -> bool {
        self.config.recomputes(i, self.calls.len())
    }

    /// Returns whether the backward gathers the parameters of call `i` again.
    fn reshards_after_forward(&self, i: usize) -> bool {
        self.plan.gathers() && self.config.reshards_after_forward(i, self.calls.len())
    }

    fn owner(&self, i: usize) -> usize {
        self.owners.map_or(self.plan.rank, |owners| owners[i])
    }

    fn is_mine(&self, i: usize) -> bool {
        self.owner(i) == self.plan.rank
    }

    fn unit(&self, i: usize) -> &ShardedUnit {
        &self.units[self.calls[i].unit]
    }

    fn gather(&self, i: usize) -> Pending<Option<Weights>> {
        match &self.kept[self.calls[i].unit] {
            Some(weights) => Pending::ready(Some(weights.lent())),
            None => self.unit(i).gather(self.streams, self.owner(i)),
        }
    }

    fn wait(&mut self, ahead: Option<Pending<Option<Weights>>>, i: usize) -> Result<Option<Weights>, FsdpError> {
        let weights = ahead.unwrap_or_else(|| self.gather(i)).wait()?;
        let kept = &mut self.kept[self.calls[i].unit];
        Ok(match weights {
            Some(weights) if self.config.keeps_gathered() && kept.is_none() => Some(kept.insert(weights).lent()),
            weights => weights,
        })
    }
}

impl Losses {
    /// Adds the losses of a call's output, and returns its activation.
    fn take(&mut self, output: Output) -> Option<Tensors> {
        let (x, aux) = match output {
            Output::Activation(Activation { x, aux }) => (Some(x), aux),
            Output::Loss(Loss { loss, aux }) => {
                self.loss = Some(loss);
                (None, aux)
            }
        };
        self.aux = add(self.aux.take(), aux);
        x
    }
}
