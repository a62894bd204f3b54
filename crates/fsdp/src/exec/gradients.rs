//! The gradients of a call on their way to the shards of its unit.

use crate::FsdpError;
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::shard::memory::{Category, Counted, Ledger};
use crate::shard::sharded_unit::ShardedUnit;
use burn::tensor::Tensor;
use std::collections::HashMap;

/// The gradients of a call's parameters.
pub(crate) struct CallGradients {
    /// Those that are in no buffer, in visiting order.
    pub of_parameters: Vec<Option<Tensor<1>>>,
    /// On a device: one buffer for each class of parameters; see [`ShardedUnit::backward`].
    pub buffers: Vec<Option<Tensor<1>>>,
}

/// Gradients between a call's backward and the shards. There is one buffer for each trained class of a unit.
#[derive(Default)]
pub(crate) struct GradientsInFlight {
    of_call: Option<CallGradients>,
    flat: Option<Vec<Tensor<1>>>,
    /// Sums over some of a unit's calls, by unit and micro-batch.
    sums: HashMap<(usize, usize), Vec<Counted>>,
    /// By unit.
    reductions: HashMap<usize, Reduction>,
}

struct Reduction {
    gradients: Pending<Vec<Option<Counted>>>,
    /// Whether they are those of all the unit's calls.
    done: bool,
}

impl GradientsInFlight {
    /// Takes the gradients of the call that has just run.
    pub fn put(&mut self, gradients: CallGradients) {
        self.of_call = Some(gradients);
    }

    pub fn flatten(&mut self, unit: &ShardedUnit) {
        let CallGradients { of_parameters, buffers } = self.of_call.take().expect("a call has run backward");
        self.flat = Some(unit.flatten(of_parameters, buffers));
    }

    pub fn add(&mut self, of: (usize, usize), ledger: &Ledger) {
        let count = |gradient| Counted::new(gradient, Category::Gradients, ledger);
        let sum = self.summed(of).into_iter().map(count).collect();
        self.sums.insert(of, sum);
    }

    pub fn reduce(
        &mut self,
        of: (usize, usize),
        unit: &mut ShardedUnit,
        streams: &CommStreams,
        [sends, last]: [bool; 2],
    ) {
        let gradients = unit.reduce(streams, self.summed(of), sends, last);
        self.reductions.insert(of.0, Reduction { gradients, done: true });
    }

    /// Starts to scatter the gradients of a call from the rank that has them.
    pub fn scatter(&mut self, of: usize, unit: &mut ShardedUnit, streams: &CommStreams, from: usize, last_call: bool) {
        let gradients = unit.scatter(streams, self.flat.take(), from, last_call);
        self.reductions.insert(of, Reduction { gradients, done: last_call });
    }

    pub fn wait(&mut self, of: usize, unit: &mut ShardedUnit) -> Result<(), FsdpError> {
        let Reduction { gradients, done } = self.reductions.remove(&of).expect("a reduction is in flight");
        unit.set_gradients(gradients.wait()?, done);
        Ok(())
    }

    /// Returns the sum of the latest gradients and those of the unit's other calls.
    fn summed(&mut self, of: (usize, usize)) -> Vec<Tensor<1>> {
        let gradients = self.flat.take().expect("the gradients are flat");
        match self.sums.remove(&of) {
            Some(sum) => sum.into_iter().zip(gradients).map(|(sum, gradient)| sum.tensor + gradient).collect(),
            None => gradients,
        }
    }
}
