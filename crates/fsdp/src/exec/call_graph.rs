//! The graph of one call: an autodiff graph of its own, from its input and parameters to its output.

use crate::api::activations::Tensors;
use crate::api::call::{Activation, Call, Loss, Output, add};
use crate::exec::gradients::CallGradients;
use crate::shard::memory::{Category, Ledger, MemoryGuard, bytes};
use crate::shard::modules::BoundModules;
use crate::shard::sharded_unit::ShardedUnit;
use crate::shard::weights::Weights;
use burn::tensor::{Device, Tensor};
use comm::{CommError, FirstError};
use fused::deferred::{Deferred, backward_of_inputs};

/// A call, its unit and what both need to run.
pub(crate) struct CallRunner<'a, B> {
    pub call: &'a Call<B>,
    pub unit: &'a ShardedUnit,
    pub batch: &'a B,
    pub ledger: &'a Ledger,
    /// The same as in [`FsdpConfig`](crate::FsdpConfig).
    pub allocated: Option<fn() -> isize>,
    pub device: &'a Device,
    /// The first error of the collectives that calls run themselves.
    pub first_error: &'a FirstError,
}

/// A call that ran with tracked leaves.
pub(crate) struct CallGraph {
    pub bound: BoundModules,
    x: Option<Tensors>,
    pub output: Output,
    held: MemoryGuard,
}

/// A call with the gradient of its input but not yet those of its weights.
pub(crate) struct DeferredWeights {
    /// The gradients of parameters that were not deferred, and their memory.
    now: Vec<Option<Tensor<1>>>,
    _held: MemoryGuard,
    /// The other gradients, and the inputs that they need; `None` if all are there.
    later: Option<(BoundModules, Deferred, MemoryGuard)>,
}

impl<B> CallRunner<'_, B> {
    /// Runs the call without keeping anything.
    pub fn untracked(&self, weights: &Weights, x: Option<Tensors>) -> Output {
        let bound = self.unit.bind(weights, false);
        self.call.run(|member| bound.module(member), x, self.batch).detached()
    }

    /// Runs the call on tracked leaves.
    pub fn tracked(&self, weights: &Weights, x: Option<Tensors>) -> CallGraph {
        let allocated = || self.allocated.map_or(0, |allocated| allocated());
        let before = allocated();
        let bound = self.unit.bind(weights, true);
        let x = x.map(Tensors::tracked);
        let output = self.call.run(|member| bound.module(member), x.clone(), self.batch);
        // The input existed before; the output is the next call's input and is counted there.
        let kept = allocated() - before - output.bytes() as isize;
        let bytes = x.as_ref().map_or(0, Tensors::bytes) + usize::try_from(kept).unwrap_or(0);
        CallGraph { bound, x, output, held: self.ledger.hold(Category::Activations, bytes) }
    }

    /// Runs the backward from the cotangent of the output, or from the losses times `scale`. Returns the gradients of
    /// the parameters and that of the input.
    pub fn backward(
        &self,
        graph: CallGraph,
        cotangent: Option<Tensors>,
        scale: f64,
    ) -> Result<(CallGradients, Option<Tensors>), CommError> {
        let CallGraph { bound, x, output, held } = graph;
        let root = root(output, cotangent, scale);
        let (mut gradients, buffers) = self.unit.backward(&bound, || root.backward());
        self.first_error.check()?;
        let of_input = x.map(|x| x.take_gradients(&mut gradients, self.device));
        let of_parameters = bound.take_gradients(&mut gradients);
        drop(held);
        Ok((CallGradients { of_parameters, buffers }, of_input))
    }

    /// Runs the first part of a [`backward`](Self::backward), for which the previous stages wait, and returns the
    /// gradient of the input.
    pub fn backward_of_input(
        &self,
        graph: CallGraph,
        cotangent: Option<Tensors>,
        scale: f64,
    ) -> Result<(DeferredWeights, Option<Tensors>), CommError> {
        let CallGraph { bound, x, output, held } = graph;
        let (mut gradients, later) = backward_of_inputs(&root(output, cotangent, scale));
        self.first_error.check()?;
        let of_input = x.map(|x| x.take_gradients(&mut gradients, self.device));
        let now = bound.take_gradients(&mut gradients);
        let _held = self.ledger.hold(Category::Gradients, now.iter().flatten().map(bytes).sum());
        let later = (!later.is_empty()).then_some((bound, later, held));
        Ok((DeferredWeights { now, _held, later }, of_input))
    }

    /// Runs the second part of a [`backward`](Self::backward).
    pub fn backward_of_weights(&self, deferred: DeferredWeights) -> Result<CallGradients, CommError> {
        let DeferredWeights { now, _held, later } = deferred;
        let Some((bound, later, held)) = later else {
            return Ok(CallGradients { of_parameters: now, buffers: vec![] });
        };
        let (mut gradients, buffers) = self.unit.backward(&bound, || later.backward());
        self.first_error.check()?;
        let later = bound.take_gradients(&mut gradients);
        drop((bound, held));
        let of_parameters = now.into_iter().zip(later).map(|(now, later)| add(now, later)).collect();
        Ok(CallGradients { of_parameters, buffers })
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
