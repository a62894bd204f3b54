//! The forward and backward of one micro-batch: what is gathered, bound, run, reduced and freed, and when.
//!
//! ```text
//! communication   gather 0 | gather 1 | gather 2 | ..      gather 2 | gather 1 | reduce 2 | gather 0 | reduce 1 | reduce 0
//! computation              | run 0    | run 1    | run 2 ..           vjp 2    |  vjp 1   |  vjp 0   |
//! ```
//!
//! While a call computes, the next one's parameters are on their way: at most two units are gathered at a time.

use crate::comm_thread::{CommThread, Pending};
use crate::shard::{Reduction, ShardedUnit};
use crate::unit::{Bound, Call, Output};
use crate::vjp::vjp_seed;
use crate::{ActivationCheckpointing, FsdpError};
use burn::tensor::{Device, Tensor};

/// The losses of one micro-batch on this rank.
#[derive(Debug, Clone)]
pub(crate) struct Losses {
    /// What the last call returned, `[1]`.
    pub loss: Tensor<1>,
    /// The other calls' own losses.
    pub aux: Vec<Tensor<1>>,
}

pub(crate) struct Schedule<'a, B> {
    pub units: &'a mut [ShardedUnit],
    pub calls: &'a [Call<B>],
    pub thread: &'a CommThread,
    pub rank: usize,
    pub device: &'a Device,
    pub checkpointing: ActivationCheckpointing,
}

/// What the forward of a call leaves for its backward.
enum Saved {
    /// Its input: the forward will be run again.
    Input(Option<Tensor<3>>),
    Graph(Graph),
}

/// A call that has run with tracked leaves.
struct Graph {
    bound: Box<dyn Bound>,
    x: Option<Tensor<3>>,
    output: Output,
}

impl<B> Schedule<'_, B> {
    /// Losses only.
    pub fn evaluate(&self, batch: &B) -> Result<Losses, FsdpError> {
        let mut weights = Some(self.gather(0));
        let (mut x, mut aux) = (None, vec![]);
        for i in 0..self.calls.len() {
            let flat = self.next(&mut weights, i + 1)?;
            let bound = self.unit(i).bind(&flat, false);
            match self.calls[i].run(&*bound, x.take(), batch) {
                Output::Activation(activation) => {
                    aux.extend(activation.aux);
                    x = Some(activation.x);
                }
                Output::Loss(loss) => return Ok(Losses { loss, aux }),
            }
        }
        unreachable!("the last call returns a loss")
    }

    /// Losses, and gradients added to the units'.
    pub fn forward_backward(&mut self, batch: &B) -> Result<Losses, FsdpError> {
        let (saved, losses) = self.forward(batch)?;
        self.backward(saved, batch)?;
        Ok(losses)
    }

    fn forward(&self, batch: &B) -> Result<(Vec<Saved>, Losses), FsdpError> {
        let mut weights = Some(self.gather(0));
        let (mut x, mut aux, mut saved) = (None::<Tensor<3>>, vec![], vec![]);
        for i in 0..self.calls.len() {
            let flat = self.next(&mut weights, i + 1)?;
            let is_last = i + 1 == self.calls.len();
            let output = if is_last || self.checkpointing == ActivationCheckpointing::None {
                let graph = self.run_tracked(i, &flat, x.take(), batch);
                let output = graph.output.detached();
                saved.push(Saved::Graph(graph));
                output
            } else {
                let bound = self.unit(i).bind(&flat, false);
                saved.push(Saved::Input(x.clone()));
                self.calls[i].run(&*bound, x.take(), batch)
            };
            match output {
                Output::Activation(activation) => {
                    aux.extend(activation.aux);
                    x = Some(activation.x);
                }
                Output::Loss(loss) => return Ok((saved, Losses { loss, aux })),
            }
        }
        unreachable!("the last call returns a loss")
    }

    fn backward(&mut self, mut saved: Vec<Saved>, batch: &B) -> Result<(), FsdpError> {
        let mut weights = self.recomputed_before(saved.len(), &saved);
        let mut cotangent = None;
        let mut partial: Vec<Option<Tensor<1>>> = self.units.iter().map(|_| None).collect();
        let mut reduction: Option<Reduction> = None;
        while let Some(call) = saved.pop() {
            let i = saved.len();
            let graph = match call {
                Saved::Graph(graph) => graph,
                Saved::Input(x) => {
                    let flat = weights.take().expect("requested one call earlier").wait()?;
                    weights = self.recomputed_before(i, &saved);
                    self.run_tracked(i, &flat, x, batch)
                }
            };
            let (gradient, input_cotangent) = self.vjp(i, graph, cotangent.take());
            cotangent = input_cotangent;

            let unit = self.calls[i].unit;
            let gradient = match partial[unit].take() {
                None => gradient,
                Some(later_call) => later_call + gradient,
            };
            let has_earlier_call = self.calls[..i].iter().any(|call| call.unit == unit);
            if has_earlier_call {
                partial[unit] = Some(gradient);
                continue;
            }
            // At most one reduction is under way: finished gradients do not pile up behind a slow link.
            if let Some(reduction) = reduction.take() {
                reduction.finish(self.units)?;
            }
            reduction = Some(Reduction { unit, gradient: self.units[unit].reduce(self.thread, gradient) });
        }
        reduction.map_or(Ok(()), |reduction| reduction.finish(self.units))
    }

    /// Runs call `i` on tracked leaves.
    fn run_tracked(&self, i: usize, flat: &Tensor<1>, x: Option<Tensor<3>>, batch: &B) -> Graph {
        let bound = self.unit(i).bind(flat, true);
        let x = x.map(|x| x.autodiff().require_grad());
        let output = self.calls[i].run(&*bound, x.clone(), batch);
        Graph { bound, x, output }
    }

    /// From the cotangent of a call's output to the gradient of its unit and the cotangent of its input.
    fn vjp(&self, i: usize, graph: Graph, cotangent: Option<Tensor<3>>) -> (Tensor<1>, Option<Tensor<3>>) {
        let root = match graph.output {
            Output::Loss(loss) => loss,
            Output::Activation(activation) => {
                let seed = vjp_seed(activation.x, cotangent.expect("the call after this one has run its backward"));
                activation.aux.into_iter().fold(seed, |root, aux| root + aux)
            }
        };
        let mut gradients = root.backward();
        let gradient = graph.bound.take_gradients(self.unit(i).layout(), &mut gradients, self.device);
        let cotangent = graph.x.map(|x| {
            let zeros = || Tensor::zeros(x.shape(), self.device);
            x.grad_remove(&mut gradients).unwrap_or_else(zeros)
        });
        (gradient, cotangent)
    }

    fn unit(&self, i: usize) -> &ShardedUnit {
        &self.units[self.calls[i].unit]
    }

    fn gather(&self, i: usize) -> Pending<Tensor<1>> {
        self.unit(i).gather(self.thread, self.rank)
    }

    /// Waits for the gathered parameters and sends for those of call `following`.
    fn next(&self, weights: &mut Option<Pending<Tensor<1>>>, following: usize) -> Result<Tensor<1>, FsdpError> {
        let flat = weights.take().expect("requested one call earlier").wait()?;
        *weights = (following < self.calls.len()).then(|| self.gather(following));
        Ok(flat)
    }

    /// Sends for the parameters of the nearest call before `i` whose forward will be run again.
    fn recomputed_before(&self, i: usize, saved: &[Saved]) -> Option<Pending<Tensor<1>>> {
        (0..i).rev().find(|i| matches!(saved[*i], Saved::Input(_))).map(|i| self.gather(i))
    }
}

impl Output {
    /// The same values outside of any graph.
    fn detached(&self) -> Output {
        match self {
            Self::Loss(loss) => Self::Loss(loss.clone().inner()),
            Self::Activation(activation) => Self::Activation(crate::Activation {
                x: activation.x.clone().inner(),
                aux: activation.aux.clone().map(Tensor::inner),
            }),
        }
    }
}
