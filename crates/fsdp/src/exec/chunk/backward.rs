//! The backward of one micro-batch: at once, or in two parts, the second of which fills a pipeline's bubble.

use super::{Graph, Micro, Runner, Saved};
use crate::api::activations::Tensors;
use crate::api::call::{Activation, Loss};
use crate::api::call::{Output, add};
use crate::exec::point_to_point;
use crate::groups::comm_thread::Pending;
use crate::shard::memory::{Category, Counted, MemoryGuard, bytes};
use crate::shard::modules::BoundModules;
use crate::shard::weights::Weights;
use crate::{FsdpError, Prefetch};
use burn::tensor::{Gradients, Tensor};
use fused::deferred::{Deferred, backward_of_inputs};
use std::ops::Range;

/// Gradients in flight to their shards.
struct Reduction {
    unit: usize,
    gradients: Pending<Vec<Option<Counted>>>,
    done: bool,
}

/// A call with deferred weight gradients.
pub(crate) struct DeferredWeights {
    call: usize,
    bound: BoundModules,
    /// The gradients of parameters that were not deferred.
    now: Vec<Option<Tensor<1>>>,
    later: Deferred,
    weights: Weights,
    /// The memory that is counted in the meantime: the inputs of the deferred gradients, and the gradients that are
    /// already available.
    held: [MemoryGuard; 2],
}

impl<B> Runner<'_, B> {
    /// Runs backward the calls that `forward` has saved, adds their gradients to the units' gradients, and returns the
    /// gradient of their input.
    pub fn backward(
        &mut self,
        calls: Range<usize>,
        mut saved: Vec<Saved>,
        mut cotangent: Option<Tensors>,
        micro: &Micro<B>,
    ) -> Result<Option<Tensors>, FsdpError> {
        let (mut ahead, mut reduction) = (None, None::<Reduction>);
        let prefetch = self.config.backward_prefetch;
        while let Some(call) = saved.pop() {
            let i = calls.start + saved.len();
            let again = if self.reshards_after_forward(i) { self.wait(ahead.take(), i)? } else { None };
            let next = (calls.start..i).rev().find(|next| self.reshards_after_forward(*next));
            if prefetch == Prefetch::Pre && ahead.is_none() {
                ahead = next.map(|next| self.gather(next));
            }
            if i + 1 < calls.end && self.is_mine(i) && !self.is_mine(i + 1) {
                cotangent = Some(point_to_point::recv(self.world, self.owner(i + 1), self.calls[i].returns())?);
            }
            let gradients = match self.restore(i, call, again, micro.batch) {
                Some((Graph { bound, x, output, _held }, weights)) => {
                    let root = root(output, cotangent.take(), micro.scale);
                    let (mut gradients, buffers) = self.unit(i).backward(&bound, || root.backward());
                    self.first_error.check()?;
                    cotangent = self.of_input(x, &mut gradients);
                    let of_unit = bound.take_gradients(&mut gradients);
                    drop((gradients, bound, weights));
                    Some(self.unit(i).flatten(of_unit, buffers))
                }
                None => None,
            };
            if let Some(cotangent) = cotangent.take_if(|_| i > calls.start && !self.is_mine(i - 1)) {
                point_to_point::send(self.world, &cotangent, self.owner(i - 1))?;
            }
            if prefetch == Prefetch::Post && ahead.is_none() {
                ahead = next.map(|next| self.gather(next));
            }

            self.finish(reduction.take())?;
            reduction = self.reduce(i, gradients, micro);
        }
        self.finish(reduction)?;
        Ok(cotangent)
    }

    /// Runs the first part of [`backward`](Self::backward), for which the previous stages wait. Returns the deferred
    /// calls for [`backward_of_weights`](Self::backward_of_weights), without calls that have no deferred gradients, and
    /// the gradient of the calls' input. Nothing is gathered again, and all calls are this rank's.
    pub fn backward_of_inputs(
        &mut self,
        calls: Range<usize>,
        mut saved: Vec<Saved>,
        mut cotangent: Option<Tensors>,
        micro: &Micro<B>,
    ) -> Result<(Vec<DeferredWeights>, Option<Tensors>), FsdpError> {
        let (mut all, mut reduction) = (vec![], None::<Reduction>);
        while let Some(saved_call) = saved.pop() {
            let call = calls.start + saved.len();
            let (Graph { bound, x, output, _held }, weights) =
                self.restore(call, saved_call, None, micro.batch).expect("a call of this rank");
            let (mut gradients, later) = backward_of_inputs(&root(output, cotangent.take(), micro.scale));
            self.first_error.check()?;
            cotangent = self.of_input(x, &mut gradients);
            let now = bound.take_gradients(&mut gradients);
            if !later.is_empty() {
                let bytes = now.iter().flatten().map(bytes).sum();
                let held = [_held, self.plan.ledger.hold(Category::Gradients, bytes)];
                all.push(DeferredWeights { call, bound, now, later, weights, held });
                continue;
            }
            // Nothing was deferred, so the gradients are complete.
            drop((gradients, bound, weights, _held));
            let gradients = self.unit(call).flatten(now, vec![]);
            self.finish(reduction.take())?;
            reduction = self.reduce(call, Some(gradients), micro);
        }
        self.finish(reduction)?;
        Ok((all, cotangent))
    }

    /// Runs the second part of [`backward`](Self::backward).
    pub fn backward_of_weights(&mut self, all: Vec<DeferredWeights>, micro: &Micro<B>) -> Result<(), FsdpError> {
        let mut reduction = None::<Reduction>;
        for DeferredWeights { call, bound, now, later, weights, held } in all {
            let (mut gradients, buffers) = self.unit(call).backward(&bound, || later.backward());
            self.first_error.check()?;
            let later = bound.take_gradients(&mut gradients);
            drop((bound, weights));
            let of_unit = now.into_iter().zip(later).map(|(now, later)| add(now, later)).collect();
            drop(held);
            let gradients = self.unit(call).flatten(of_unit, buffers);
            self.finish(reduction.take())?;
            reduction = self.reduce(call, Some(gradients), micro);
        }
        self.finish(reduction)
    }

    /// Returns the graph of a call of this rank and its parameters; the call runs again if only its input was kept.
    fn restore(&self, i: usize, call: Saved, again: Option<Weights>, batch: &B) -> Option<(Graph, Weights)> {
        match call {
            Saved::Elsewhere => None,
            Saved::Graph { graph, mut weights } => {
                if let Some(again) = again {
                    self.unit(i).refill(&mut weights, again);
                }
                Some((graph, weights))
            }
            Saved::Input { x, weights, held } => {
                drop(held); // the graph counts it
                let weights = again.or(weights).expect("kept, or gathered again");
                Some((self.run_tracked(i, &weights, x, batch), weights))
            }
        }
    }

    /// Returns the gradient of a call's input, if it has one.
    fn of_input(&self, x: Option<Tensors>, gradients: &mut Gradients) -> Option<Tensors> {
        x.map(|x| x.take_gradients(gradients, &self.plan.device))
    }

    /// Sends the gradients of call `i` to the unit's shards, once all calls of the unit have theirs for this
    /// micro-batch.
    fn reduce(&mut self, i: usize, gradients: Option<Vec<Tensor<1>>>, micro: &Micro<B>) -> Option<Reduction> {
        let (unit, owner) = (self.calls[i].unit, self.owner(i));
        if self.is_mine(i) {
            self.work.backward();
        }
        if self.owners.is_some() {
            let done = !self.calls[..i].iter().any(|before| before.unit == unit);
            let gradients = self.units[unit].scatter(self.streams, gradients, owner, done);
            return Some(Reduction { unit, gradients, done });
        }
        let mut gradients = gradients?;
        let (mut arrived, calls) = (1, self.calls.iter().enumerate());
        let calls = calls.filter(|(call, of)| of.unit == unit && self.stages.is_here(*call)).count();
        if let Some((before, sum)) = self.partial.remove(&(unit, micro.number)) {
            gradients = sum.into_iter().zip(gradients).map(|(sum, gradient)| sum.tensor + gradient).collect();
            arrived += before;
        }
        if arrived < calls {
            let count = |gradient| Counted::new(gradient, Category::Gradients, &self.plan.ledger);
            self.partial.insert((unit, micro.number), (arrived, gradients.into_iter().map(count).collect()));
            return None;
        }
        self.reduced[unit] += 1;
        let last = self.reduced[unit] == self.micro_batches;
        if last {
            self.kept[unit] = None;
        }
        let gradients = self.units[unit].reduce(self.streams, gradients, last);
        Some(Reduction { unit, gradients, done: true })
    }

    /// Waits for the reduction in flight before the next one starts, so that finished gradients do not pile up behind a
    /// slow link.
    fn finish(&mut self, reduction: Option<Reduction>) -> Result<(), FsdpError> {
        if let Some(Reduction { unit, gradients, done }) = reduction {
            self.units[unit].set_gradients(gradients.wait()?, done);
        }
        Ok(())
    }
}

/// Returns the start of a call's backward: its losses times `scale`, and the cotangent of its output.
fn root(output: Output, cotangent: Option<Tensors>, scale: f64) -> Tensor<1> {
    let scaled = |loss: Tensor<1>| if scale == 1.0 { loss } else { loss * scale };
    let root = match output {
        Output::Loss(Loss { loss, aux }) => {
            for loss in aux.iter().chain([&loss]) {
                let elements = loss.dims()[0];
                assert_eq!(elements, 1, "the last call returns a loss of {elements} elements: return their mean");
            }
            add(Some(scaled(loss)), aux.map(scaled))
        }
        Output::Activation(Activation { x, aux }) => {
            let seed = x.seed(cotangent.expect("the call after this one has run its backward"));
            add(Some(seed), aux.map(scaled))
        }
    };
    let root = root.expect("one of two");
    // Burn runs no backward without a leaf. A first call whose parameters are frozen has none.
    if root.is_tracked() { root } else { root.clone() + root.zeros_like().require_grad() }
}
