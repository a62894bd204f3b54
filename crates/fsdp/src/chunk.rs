//! The forward of one micro-batch through calls that follow each other, and in `chunk/backward.rs` the backward: what
//! is gathered, bound, run, reduced and freed, and when.
//!
//! ```text
//! communication   gather 0 | gather 1 | gather 2 |         gather 1 | reduce 2, gather 0 | reduce 1 | reduce 0
//! computation              | run 0    | run 1    | run 2   vjp 2    | vjp 1              | vjp 0    |
//! ```
//!
//! While a call computes, the next one's parameters are on their way: at most two units are gathered at a time. The
//! last call's stay until its backward, which follows at once.
//!
//! In a pipeline what is gathered stays until the last micro-batch's backward is through, for some micro-batch needs it
//! most of the time.
//!
//! Under [`Strategy::Block`](crate::Strategy::Block) every rank goes through all calls, for it has a shard of each unit
//! to give and a part of each gradient to take; it computes only its own, and hands the activation on.

mod backward;

pub(crate) use backward::PutOff;

use crate::call::{Call, Output, add};
use crate::comm_thread::{Lanes, Pending};
use crate::memory::{Category, Counted, Held, bytes};
use crate::modules::BoundModules;
use crate::placement::Stages;
use crate::plan::Plan;
use crate::sharded_unit::ShardedUnit;
use crate::unit::{Activation, Loss};
use crate::weights::Weights;
use crate::work::Work;
use crate::{FsdpConfig, FsdpError, Prefetch, wire};
use burn::tensor::Tensor;
use comm::{Communicator, FirstError};
use std::collections::HashMap;
use std::ops::Range;

/// The losses of one micro-batch, as far as this rank computed them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    /// What the last call returned, `[1]`.
    pub loss: Option<Tensor<1>>,
    /// The calls' own losses.
    pub aux: Option<Tensor<1>>,
}

/// What runs chunks of a model on a rank, within a step or an evaluation.
pub(crate) struct Runner<'a, B> {
    pub units: &'a mut [ShardedUnit],
    pub calls: &'a [Call<B>],
    /// Which stage computes each call.
    pub stages: &'a Stages,
    /// Under `block`: which rank computes each call.
    pub owners: Option<&'a [usize]>,
    pub lanes: &'a Lanes,
    /// Under `block`: carries activations from rank to rank.
    pub world: &'a Communicator,
    pub plan: &'a Plan,
    pub config: &'a FsdpConfig,
    /// Of the collectives that calls make themselves.
    pub first_error: &'a FirstError,
    /// What was gathered of each unit, where it stays.
    pub kept: Vec<Option<Weights>>,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// Of units that the stage calls more than once, by unit and micro-batch: how many calls have given their
    /// gradients, and the sum of these.
    pub partial: HashMap<(usize, usize), (usize, Vec<Counted>)>,
    /// Of each unit how many micro-batches have given all their gradients.
    pub reduced: Vec<usize>,
    /// How far the step is.
    pub work: Work<'a>,
}

/// A micro-batch on its way back.
pub(crate) struct Micro<'a, B> {
    pub batch: &'a B,
    pub number: usize,
    /// By what its losses are multiplied: its weight, and the factor of fp16.
    pub scale: f64,
}

/// What the forward of a call leaves for its backward.
pub(crate) enum Saved {
    /// Another rank computed it.
    Elsewhere,
    /// Its input (the first has none): the forward will be run again.
    Input {
        x: Option<Tensor<3>>,
        weights: Option<Weights>,
        held: Held,
    },
    Graph {
        graph: Graph,
        weights: Weights,
    },
}

/// A call that has run with tracked leaves.
pub(crate) struct Graph {
    bound: BoundModules,
    x: Option<Tensor<3>>,
    output: Output,
    _held: Held,
}

impl<B> Runner<'_, B> {
    /// Runs calls without keeping anything, and `look`s at each one's output.
    pub fn evaluate(
        &mut self,
        calls: Range<usize>,
        x: Option<Tensor<3>>,
        batch: &B,
        losses: &mut Losses,
        look: &mut dyn FnMut(usize, &Output),
    ) -> Result<Option<Tensor<3>>, FsdpError> {
        self.run(calls, x, losses, |runner, i, weights, x| {
            let output = runner.calls[i].run(&runner.unit(i).bind(&weights, false), x, batch);
            look(i, &output);
            output
        })
    }

    /// Runs calls, adds their losses to `losses`, and returns what their backward needs and the last one's activation.
    pub fn forward(
        &mut self,
        calls: Range<usize>,
        x: Option<Tensor<3>>,
        batch: &B,
        losses: &mut Losses,
    ) -> Result<(Vec<Saved>, Option<Tensor<3>>), FsdpError> {
        let (first, mut saved) = (calls.start, calls.clone().map(|_| Saved::Elsewhere).collect::<Vec<_>>());
        let x = self.run(calls, x, losses, |runner, i, weights, x| {
            let output;
            (saved[i - first], output) = runner.run_and_save(i, weights, x, batch);
            runner.work.forward();
            output
        })?;
        Ok((saved, x))
    }

    /// Gathers for each of the calls in turn, and `run`s those of this rank.
    fn run(
        &mut self,
        calls: Range<usize>,
        mut x: Option<Tensor<3>>,
        losses: &mut Losses,
        mut run: impl FnMut(&Self, usize, Weights, Option<Tensor<3>>) -> Output,
    ) -> Result<Option<Tensor<3>>, FsdpError> {
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
                    x = Some(wire::recv(self.world, self.owner(i - 1))?);
                }
                x = losses.take(run(self, i, weights, x));
                self.first_error.check()?;
                if let (Some(next), Some(y)) = (next, &x)
                    && !self.is_mine(next)
                {
                    wire::send(self.world, y, self.owner(next))?;
                }
            }
            if prefetch == Prefetch::Post {
                ahead = next.map(|next| self.gather(next));
            }
        }
        Ok(x)
    }

    /// Runs call `i`, and keeps of it what its backward needs.
    fn run_and_save(&self, i: usize, weights: Weights, x: Option<Tensor<3>>, batch: &B) -> (Saved, Output) {
        if self.recomputes(i) {
            let bound = self.unit(i).bind(&weights, false);
            let output = self.calls[i].run(&bound, x.clone(), batch);
            let weights = (!self.regathers(i)).then_some(weights);
            let held = self.plan.ledger.hold(Category::Activations, x.as_ref().map_or(0, bytes));
            return (Saved::Input { x, weights, held }, output);
        }
        let mut weights = if self.regathers(i) { weights.refillable() } else { weights };
        let graph = self.run_tracked(i, &weights, x, batch);
        let output = graph.output.detached();
        if self.regathers(i) {
            // SAFETY: the call has returned. Operations have slices of parameters only while they run, and a call's
            // function keeps none, as `Units` asks of it.
            unsafe { self.unit(i).free(&mut weights, &graph.bound) };
        }
        (Saved::Graph { graph, weights }, output)
    }

    /// Runs call `i` on tracked leaves.
    fn run_tracked(&self, i: usize, weights: &Weights, x: Option<Tensor<3>>, batch: &B) -> Graph {
        let allocated = || self.config.allocated.map_or(0, |allocated| allocated());
        let before = allocated();
        let bound = self.unit(i).bind(weights, true);
        let x = x.map(|x| x.autodiff().require_grad());
        let output = self.calls[i].run(&bound, x.clone(), batch);
        // Its input was there before; its output is the next call's input, and counted there.
        let kept = allocated() - before - output.bytes() as isize;
        let bytes = x.as_ref().map_or(0, bytes) + usize::try_from(kept).unwrap_or(0);
        Graph { bound, x, output, _held: self.plan.ledger.hold(Category::Activations, bytes) }
    }

    /// Whether the backward runs the forward of call `i` again.
    fn recomputes(&self, i: usize) -> bool {
        self.config.recomputes(i, self.calls.len())
    }

    /// Whether the backward gathers the parameters of call `i` again.
    fn regathers(&self, i: usize) -> bool {
        self.plan.gathers() && self.config.regathers(i, self.calls.len())
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
            None => self.unit(i).gather(self.lanes, self.owner(i)),
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
    /// Keeps the losses of a call's output, and returns its activation.
    fn take(&mut self, output: Output) -> Option<Tensor<3>> {
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
