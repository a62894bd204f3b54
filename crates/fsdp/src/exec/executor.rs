//! The executor of a rank's operations: a loop over the list that `schedule` makes.
//!
//! ```text
//! communication   +0 | +1     | +2     |                  +1     | reduce2, +0   | reduce1 | reduce0
//! computation        | F0, -0 | F1, -1 | F2       B2, -2         | B1, -1        | B0, -0  |
//! ```
//!
//! A gather and a reduction run on communication threads from the operation that starts them to the one that needs
//! their result, while this thread goes on with the list.

mod run_call;

use crate::FsdpError;
use crate::api::activations::Tensors;
use crate::api::call::{Activation, Call, Loss, Output, add};
use crate::exec::call_graph::{CallGraph, DeferredWeights};
use crate::exec::gathered::Gathered;
use crate::exec::gradients::GradientsInFlight;
use crate::exec::point_to_point::Messages;
use crate::exec::work::Work;
use crate::groups::comm_thread::CommStreams;
use crate::groups::plan::Plan;
use crate::shard::memory::MemoryGuard;
use crate::shard::sharded_unit::ShardedUnit;
use crate::shard::weights::Weights;
use burn::tensor::Tensor;
use comm::FirstError;
use schedule::{Op, Peer, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time that a step's forwards and backwards took on a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageTimes {
    /// Time spent computing and waiting for other ranks of the stage.
    pub computing: Duration,
    /// Time spent waiting for another stage and, at the end, for all ranks: the rank's part of the pipeline's bubble,
    /// and messages.
    pub waiting: Duration,
}

/// The losses of one micro-batch that this rank computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Losses {
    /// The loss that the last call returned, `[1]`.
    pub loss: Option<Tensor<1>>,
    /// The sum of the calls' auxiliary losses.
    pub aux: Option<Tensor<1>>,
}

/// What a rank runs operations with.
pub(crate) struct Rank<'a, B> {
    pub units: &'a mut [ShardedUnit],
    pub calls: &'a [Call<B>],
    pub streams: &'a CommStreams,
    pub messages: Messages<'a, B>,
    pub plan: &'a Plan,
    /// The same as in [`FsdpConfig`](crate::FsdpConfig).
    pub allocated: Option<fn() -> isize>,
    /// The first error of the collectives that calls run themselves.
    pub first_error: &'a FirstError,
    pub batches: &'a [B],
    /// The factors of each micro-batch's losses: its weight times the fp16 loss scale.
    pub scales: &'a [f64],
    /// Gets the times of operations, if they are wanted.
    pub timed: Option<&'a mut Vec<TimedOp>>,
}

/// An operation that a rank has run, and when. On a GPU, this is the time that the host took to start it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOp {
    /// The operation.
    pub op: Op,
    /// Its start.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
}

/// Runs a list of operations.
pub(crate) struct Executor<'a, B> {
    rank: Rank<'a, B>,
    /// The progress of the step.
    work: Work<'a>,
    /// Gets the output of each call that no backward follows.
    look: &'a mut dyn FnMut(usize, &Output),
    gathered: Gathered,
    /// For each slot that is about to be freed: the call whose graph has its memory.
    hollow: HashMap<usize, Key>,
    /// Activations and cotangents that the next calls take.
    values: HashMap<Value, Tensors>,
    saved: HashMap<Key, Saved>,
    gradients: GradientsInFlight,
    losses: Vec<Losses>,
}

/// A call and a micro-batch.
type Key = (usize, usize);

/// What a call leaves for its next run.
enum Saved {
    /// After the forward: the input (the first call has none), from which the forward runs again.
    Input { x: Option<Tensors>, held: MemoryGuard },
    /// The graph, and the parameters if their memory was freed.
    Graph { graph: CallGraph, hollow: Option<Weights> },
    /// After the gradient of the input: what the gradients of the weights need.
    Weights(DeferredWeights),
}

impl<'a, B> Executor<'a, B> {
    pub fn new(rank: Rank<'a, B>, work: Work<'a>, look: &'a mut dyn FnMut(usize, &Output)) -> Self {
        Self {
            losses: vec![Losses::default(); rank.batches.len()],
            rank,
            work,
            look,
            gathered: Gathered::default(),
            hollow: HashMap::new(),
            values: HashMap::new(),
            saved: HashMap::new(),
            gradients: GradientsInFlight::default(),
        }
    }

    /// Runs operations up to the optimizer's step. Returns the losses of each micro-batch that this rank has computed,
    /// and the times.
    pub fn run(mut self, ops: &[Op]) -> Result<(Vec<Losses>, StageTimes), FsdpError> {
        let (started, mut waiting) = (Instant::now(), Duration::ZERO);
        for op in ops {
            let before = Instant::now();
            self.execute(*op)?;
            if let Some(timed) = self.rank.timed.as_mut().filter(|_| !matches!(op, Op::Step { .. })) {
                timed.push(TimedOp { op: *op, start: before, end: Instant::now() });
            }
            if matches!(op, Op::Recv { from: Peer::Stage(_), .. } | Op::Tie { .. }) {
                waiting += before.elapsed();
            }
        }
        Ok((self.losses, StageTimes { computing: started.elapsed() - waiting, waiting }))
    }

    fn execute(&mut self, op: Op) -> Result<(), FsdpError> {
        let Rank { units, calls, streams, messages, plan, batches, .. } = &mut self.rank;
        match op {
            Op::Gather { unit, slot, to } => self.gathered.gather(&units[unit], streams, to, slot),
            Op::Run { kind, call, micro_batch, slot } => self.run_call(kind, (call, micro_batch), slot)?,
            Op::Free { unit, slot } => {
                let weights = self.gathered.free(slot)?;
                let graph = self.hollow.remove(&slot).and_then(|key| self.saved.get_mut(&key));
                if let (Some(mut weights), Some(Saved::Graph { graph, hollow })) = (weights, graph) {
                    // SAFETY: the call has returned. Operations have slices of parameters only while they run, and the
                    // function of a call keeps none, as `Units` requires.
                    unsafe { units[unit].free(&mut weights, &graph.bound) };
                    *hollow = Some(weights);
                }
            }
            Op::Flatten { unit } => self.gradients.flatten(&units[unit]),
            Op::Add { unit, micro_batch } => self.gradients.add((unit, micro_batch), &plan.ledger),
            Op::Reduce { unit, micro_batch, sends, last } => {
                self.gradients.reduce((unit, micro_batch), &mut units[unit], streams, [sends, last]);
            }
            Op::Scatter { unit, from, last_call, .. } => {
                self.gradients.scatter(unit, &mut units[unit], streams, from, last_call);
            }
            Op::Wait { unit } => self.gradients.wait(unit, &mut units[unit])?,
            Op::Send { value, to } => {
                let x = self.values.remove(&value).expect("what is sent has been computed");
                messages.send(value, &x, to)?;
            }
            Op::Recv { value, from } => {
                let x = messages.recv(value, from, &calls[value.call], &batches[value.micro_batch])?;
                self.values.insert(value, x);
            }
            Op::Tie { unit, .. } => units[unit].sum_over_stages(streams)?,
            Op::Step { .. } => {} // follows once the norm is known
        }
        Ok(())
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
