//! Runs of calls: what each takes, and what it leaves for the next ones.

use super::{Executor, Key, Rank, Saved};
use crate::FsdpError;
use crate::api::activations::Tensors;
use crate::exec::call_graph::{CallGraph, CallRunner, DeferredWeights};
use crate::exec::gradients::CallGradients;
use crate::shard::memory::Category;
use crate::shard::weights::Weights;
use schedule::{Direction, Keeps, Kind, Value};

impl<B> Executor<'_, B> {
    /// Runs a call with the parameters of a slot, for which it waits.
    pub(super) fn run_call(&mut self, kind: Kind, key: Key, slot: Option<usize>) -> Result<(), FsdpError> {
        let mut weights = self.gathered.take(self.rank.runner(key).unit, slot)?;
        match kind {
            Kind::Forward(keeps) => {
                if keeps == Keeps::HollowGraph {
                    weights = weights.refillable();
                    self.hollow.extend(slot.map(|slot| (slot, key)));
                }
                self.forward(keeps, key, &weights)?;
            }
            Kind::Recompute => {
                let x = self.saved_input(key);
                let graph = self.rank.runner(key).tracked(&weights, x);
                self.saved.insert(key, Saved::Graph { graph, hollow: None });
            }
            Kind::Backward => {
                let graph = self.saved_graph(key, &mut weights);
                let (cotangent, scale) = (self.cotangent(key), self.rank.scales[key.1]);
                let (gradients, of_input) = self.rank.runner(key).backward(graph, cotangent, scale)?;
                self.pass_back(key, of_input);
                self.finish(gradients);
            }
            Kind::Input => {
                let graph = self.saved_graph(key, &mut weights);
                let (cotangent, scale) = (self.cotangent(key), self.rank.scales[key.1]);
                let (deferred, of_input) = self.rank.runner(key).backward_of_input(graph, cotangent, scale)?;
                self.pass_back(key, of_input);
                self.saved.insert(key, Saved::Weights(deferred));
            }
            Kind::Weights => {
                let deferred = self.deferred_weights(key);
                let gradients = self.rank.runner(key).backward_of_weights(deferred)?;
                self.finish(gradients);
            }
        }
        self.gathered.put(slot, weights);
        Ok(())
    }

    fn forward(&mut self, keeps: Keeps, key: Key, weights: &Weights) -> Result<(), FsdpError> {
        let ((call, micro_batch), way) = (key, Direction::Forward);
        let x = self.values.remove(&Value { way, call, micro_batch });
        let runner = self.rank.runner(key);
        let output = match keeps {
            Keeps::Nothing => {
                let output = runner.untracked(weights, x);
                (self.look)(call, &output);
                output
            }
            Keeps::Input => {
                let output = runner.untracked(weights, x.clone());
                let held = runner.ledger.hold(Category::Activations, x.as_ref().map_or(0, Tensors::bytes));
                self.saved.insert(key, Saved::Input { x, held });
                output
            }
            Keeps::Graph | Keeps::HollowGraph => {
                let graph = runner.tracked(weights, x);
                let output = graph.output.detached();
                self.saved.insert(key, Saved::Graph { graph, hollow: None });
                output
            }
        };
        if keeps != Keeps::Nothing {
            self.work.forward();
        }
        let y = self.losses[micro_batch].take(output);
        self.rank.first_error.check()?;
        self.values.extend(y.map(|y| (Value { way, call: call + 1, micro_batch }, y)));
        Ok(())
    }

    /// Takes the gradients of a call whose backward is complete.
    fn finish(&mut self, gradients: CallGradients) {
        self.gradients.put(gradients);
        self.work.backward();
    }

    /// Takes the gradient of a call's output; the last call has none.
    fn cotangent(&mut self, (call, micro_batch): Key) -> Option<Tensors> {
        self.values.remove(&Value { way: Direction::Backward, call, micro_batch })
    }

    /// Gives the gradient of a call's input to the call before it; the first call has none.
    fn pass_back(&mut self, (call, micro_batch): Key, of_input: Option<Tensors>) {
        let value = |call| Value { way: Direction::Backward, call, micro_batch };
        self.values.extend(of_input.map(|x| (value(call - 1), x)));
    }

    fn saved_input(&mut self, key: Key) -> Option<Tensors> {
        match self.saved.remove(&key) {
            Some(Saved::Input { x, held }) => {
                drop(held); // the graph counts it
                x
            }
            _ => panic!("the forward has kept the input"),
        }
    }

    /// Takes the graph of a call. If the memory of its parameters was freed, it gets that of `weights`, which then
    /// belong to the graph.
    fn saved_graph(&mut self, key: Key, weights: &mut Weights) -> CallGraph {
        match self.saved.remove(&key) {
            Some(Saved::Graph { graph, hollow: None }) => graph,
            Some(Saved::Graph { graph, hollow: Some(mut of_graph) }) => {
                std::mem::swap(&mut of_graph, weights);
                self.rank.runner(key).unit.refill(weights, of_graph);
                graph
            }
            _ => panic!("the forward has kept the graph"),
        }
    }

    fn deferred_weights(&mut self, key: Key) -> DeferredWeights {
        match self.saved.remove(&key) {
            Some(Saved::Weights(deferred)) => deferred,
            _ => panic!("the gradient of the input comes first"),
        }
    }
}

impl<B> Rank<'_, B> {
    fn runner(&self, (call, micro_batch): Key) -> CallRunner<'_, B> {
        let call = &self.calls[call];
        CallRunner {
            call,
            unit: &self.units[call.unit],
            batch: &self.batches[micro_batch],
            ledger: &self.plan.ledger,
            allocated: self.allocated,
            device: &self.plan.device,
            first_error: self.first_error,
        }
    }
}
