//! What a rank shares with each group of ranks: bytes at rest and bytes received per step, in closed form.
//!
//! Consider a class of a unit's parameters with S shards of n elements, R copies of each shard, M micro-batches, p
//! bytes per element in computation and r bytes per element in reductions. Per step a rank receives
//! ```text
//! full_shard, hybrid_shard    all_gather       G (S - 1) n p    G: M per call, 2 M if gathered again; 1 in a pipeline
//! zero1, shard_grad_op        all_gather         (S - 1) n p    of stepped parameters all of these
//! reduce_scatter   M (S - 1) n r    1, not M: no_sync, zero1, full_shard in a pipeline several copies
//! all_reduce       2 (R - 1) n r / R; if small (R - 1) n r, see comm::all_reduce_bytes a unit on several stages
//! all_reduce       the same for n fp32 elements, over these stages block                       gather           G
//! (S - 1) n p    G as above, for the calls that it computes itself
//!                             scatter          M n r            for each call that another rank computes
//! between stages, and blocks  recv             each incoming activation and cotangent, with a header of 24 bytes
//! ```
//!
//! and the bytes that the model's calls receive themselves, counted again if the forward is run again. Control numbers
//! (losses, norms, numbers of micro-batches) are left out: a few hundred bytes per step.

use super::shapes::{Class, ShapeCall, Shapes};
use crate::groups::placement::axes_of;
use crate::{FsdpConfig, FsdpError, Strategy, Units};
use comm::{Axis, MeshShape, all_reduce_bytes};
use schedule::{Action, Direction};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The communication of a model's call for one micro-batch on one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTraffic {
    /// Bytes of its output, which another rank may need.
    pub output: usize,
    /// Bytes that its forward receives in its own collectives, by axis and collective.
    pub forward: Received,
    /// The same for its backward.
    pub backward: Received,
}

/// Bytes by axis and name of the collective.
pub type Received = BTreeMap<(Axis, &'static str), usize>;

/// A rank whose shares [`Units::shares`] computes, and its run.
#[derive(Debug, Clone, Copy)]
pub struct SharesRun<'a> {
    /// Number of ranks.
    pub world_size: usize,
    /// The rank. Ranks of one stage differ by at most a column of a matrix, except under [`Strategy::Block`].
    pub rank: usize,
    /// Number of micro-batches per step.
    pub micro_batches: usize,
    /// One entry for each call of the units.
    pub calls: &'a [CallTraffic],
    /// Whether the ranks compute on the CPU.
    pub on_cpu: bool,
}

/// What a rank shares with the ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The axes of the group, as named by [`MeshShape::along`]; `world` for activations under [`Strategy::Block`].
    pub axes: String,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// Resident bytes of this rank: parameters and moments that the group holds together.
    pub at_rest: usize,
    /// Bytes that the rank receives from the others per step, by collective.
    pub received: BTreeMap<&'static str, usize>,
}

/// Bytes of one dimension of an activation's shape in flight.
const SIZE: usize = 8;

impl<B: 'static> Units<B> {
    /// Returns what a rank shares with each of its groups, from shapes alone; groups of one rank are left out.
    ///
    /// # Errors
    /// Returns the errors of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn shares(self, config: &FsdpConfig, run: SharesRun) -> Result<Vec<Share>, FsdpError> {
        let shapes = Shapes::new(self, config, run.world_size, run.rank)?;
        let mut step = StepTraffic { config, run, mesh: config.mesh(run.world_size)?, shapes: &shapes, shares: vec![] };
        for (i, unit) in shapes.units.iter().enumerate().filter(|(_, unit)| unit.is_here) {
            let calls: Vec<usize> = (0..shapes.calls.len()).filter(|call| shapes.calls[*call].unit == i).collect();
            for class in &unit.classes {
                step.rest(class);
                step.parameters(&calls, class);
                if class.is_trained {
                    step.gradients(&calls, class);
                }
            }
        }
        match config.strategy {
            Strategy::Block => step.between_blocks(),
            _ => step.between_stages()?,
        }
        step.of_calls();
        step.shares.retain(|share| share.at_rest > 0 || !share.received.is_empty());
        Ok(step.shares)
    }
}

struct StepTraffic<'a> {
    config: &'a FsdpConfig,
    run: SharesRun<'a>,
    mesh: MeshShape,
    shapes: &'a Shapes,
    shares: Vec<Share>,
}

impl<'a> StepTraffic<'a> {
    /// Adds the resident bytes of a class of a unit's parameters to the first group that holds them together, shards
    /// first.
    fn rest(&mut self, class: &Class) {
        let [shard, copies, parts] = axes_of(class.of, self.config.strategy);
        let groups = [&shard, &copies, &parts, &vec![Axis::Pp]];
        if let Some(axes) = groups.into_iter().find(|axes| self.mesh.ranks(axes) > 1) {
            let bytes = class.parameters_at_rest(self.config, self.run.on_cpu) + class.moments();
            self.share(axes).at_rest += bytes;
        }
    }

    /// Adds the parameters of these calls' unit, received before they are used or after the optimizer's step.
    fn parameters(&mut self, calls: &[usize], class: &Class) {
        let [shard, ..] = axes_of(class.of, self.config.strategy);
        let others = class.whole / class.shards * (class.shards - 1);
        if self.config.strategy == Strategy::Block {
            let mine: Vec<usize> = calls.iter().copied().filter(|i| self.shapes.calls[*i].is_mine).collect();
            self.receive(&shard, "gather", self.gathers(&mine) * others);
        } else {
            let times = match class.replicates(self.config) {
                true => usize::from(class.is_trained), // after the step
                false => self.gathers(calls),
            };
            self.receive(&shard, "all_gather", times * others);
        }
    }

    /// Adds their gradients, received for shards, for copies of shards, and for other stages that hold the unit.
    fn gradients(&mut self, calls: &[usize], class: &Class) {
        let [shard, copies, _] = axes_of(class.of, self.config.strategy);
        let (n, r) = (class.shard / size_of::<f32>(), self.config.precision.reduce.dtype().size());
        if self.config.strategy == Strategy::Block {
            let elsewhere = calls.iter().filter(|i| !self.shapes.calls[**i].is_mine).count();
            self.receive(&shard, "scatter", elsewhere * self.run.micro_batches * n * r);
        } else {
            self.receive(&shard, "reduce_scatter", self.reductions() * (class.shards - 1) * n * r);
        }
        self.receive(&copies, "all_reduce", all_reduce_bytes(n, r, self.mesh.ranks(&copies)));
        let stages: BTreeSet<usize> = calls.iter().map(|i| self.shapes.stages.of_call(*i)).collect();
        self.receive(&[Axis::Pp], "all_reduce", all_reduce_bytes(n, size_of::<f32>(), stages.len()));
    }

    /// Returns how often a unit is gathered per step for these calls.
    fn gathers(&self, calls: &[usize]) -> usize {
        if self.config.keeps_gathered() {
            return 1;
        }
        let again = |i: usize| self.config.reshards_after_forward(i, self.shapes.calls.len());
        calls.iter().map(|i| 1 + usize::from(again(*i))).sum::<usize>() * self.run.micro_batches
    }

    /// Returns how often gradients are sent to their shards per step.
    fn reductions(&self) -> usize {
        if self.config.reduces_once() { 1 } else { self.run.micro_batches }
    }

    /// Adds the activations and cotangents that the stage's program receives.
    fn between_stages(&mut self) -> Result<(), FsdpError> {
        let stages = &self.shapes.stages;
        let come = |action| match action {
            Action::Recv(Direction::Forward, cell) => Some(self.output(stages.calls(cell.chunk).start - 1)),
            Action::Recv(Direction::Backward, cell) => Some(self.output(stages.calls(cell.chunk).end - 1)),
            _ => None,
        };
        let program = self.config.pipeline.of(self.run.micro_batches)?.program_of(stages.stage);
        let bytes = program.into_iter().filter_map(come).sum();
        self.receive(&[Axis::Pp], "recv", bytes);
        Ok(())
    }

    /// Under `block`: activations from the rank of the previous call, cotangents from the rank of the next call.
    fn between_blocks(&mut self) {
        let calls = &self.shapes.calls;
        let come = |i: usize| {
            let before = (i > 0 && !calls[i - 1].is_mine).then(|| self.output(i - 1));
            let after = calls.get(i + 1).filter(|after| !after.is_mine).map(|_| self.output(i));
            before.unwrap_or(0) + after.unwrap_or(0)
        };
        let bytes = (0..calls.len()).filter(|i| calls[*i].is_mine).map(come).sum::<usize>() * self.run.micro_batches;
        if bytes > 0 {
            let received = BTreeMap::from([("recv", bytes)]);
            self.shares.push(Share { axes: "world".into(), ranks: self.run.world_size, at_rest: 0, received });
        }
    }

    /// Adds the bytes that calls of this rank receive themselves.
    fn of_calls(&mut self) {
        let all: &'a [ShapeCall] = &self.shapes.calls;
        for (i, ShapeCall { functions, is_mine, .. }) in all.iter().enumerate() {
            if !is_mine || !self.shapes.stages.is_here(i) {
                continue;
            }
            let forwards = 1 + usize::from(self.config.recomputes(i, all.len()));
            for call in self.functions(functions.clone()) {
                for (received, times) in [(&call.forward, forwards), (&call.backward, 1)] {
                    for ((axis, collective), bytes) in received {
                        self.receive(&[*axis], collective, times * self.run.micro_batches * bytes);
                    }
                }
            }
        }
    }

    /// Returns the bytes that call `i` sends on, including their shapes.
    fn output(&self, i: usize) -> usize {
        let last = self.functions(self.shapes.calls[i].functions.clone()).last();
        SIZE * self.shapes.calls[i].returns.iter().sum::<usize>() + last.map_or(0, |call| call.output)
    }

    fn functions(&self, range: Range<usize>) -> &'a [CallTraffic] {
        self.run.calls.get(range).unwrap_or_default()
    }

    fn receive(&mut self, axes: &[Axis], collective: &'static str, bytes: usize) {
        if bytes > 0 {
            *self.share(axes).received.entry(collective).or_default() += bytes;
        }
    }

    /// Returns the share along these axes, creating it if needed.
    fn share(&mut self, axes: &[Axis]) -> &mut Share {
        let (name, ranks) = (self.mesh.along(axes), self.mesh.ranks(axes));
        let found = self.shares.iter().position(|share| share.axes == name).unwrap_or(self.shares.len());
        if found == self.shares.len() {
            self.shares.push(Share { axes: name, ranks, at_rest: 0, received: BTreeMap::new() });
        }
        &mut self.shares[found]
    }
}
