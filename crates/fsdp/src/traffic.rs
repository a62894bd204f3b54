//! What a rank shares with which ranks: bytes at rest, and those it receives in a step, in closed form.
//!
//! With S shards of n elements in a class of a unit's parameters, R copies of each, M micro-batches, p bytes of an
//! element that is computed with and r of one that is reduced, a rank receives in a step
//!
//! ```text
//! full_shard, hybrid_shard    all_gather       G (S - 1) n p    G: M for each call, 2 M where the backward gathers again; in a pipeline 1
//! zero1, shard_grad_op        all_gather         (S - 1) n p    of stepped parameters
//! all of these                reduce_scatter   M (S - 1) n r    1 for M: no_sync, zero1, full_shard in a pipeline
//! several copies              all_reduce       2 (R - 1) n r / R; of few bytes (R - 1) n r, see comm::all_reduce_bytes
//! a unit on several stages    all_reduce       the same of n fp32, over these stages
//! block                       gather           G (S - 1) n p    G as above, of the calls that it computes itself
//!                             scatter          M n r            of each call that another rank computes
//! between stages, and blocks  recv             each activation and cotangent that comes in, with a header of 24 bytes
//! ```
//!
//! and what the model's calls make it receive themselves, once more where the forward is run again. Control numbers
//! (losses, norms, whether to go on) are left out: some hundred bytes a step.

use crate::placement::axes_of;
use crate::shapes::{Class, ShapeCall, Shapes};
use crate::{FsdpConfig, FsdpError, Strategy, Units};
use comm::{Axis, MeshShape, all_reduce_bytes};
use schedule::{Action, Direction};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a call of the model does beside computing, for one micro-batch on one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTraffic {
    /// Its output, in bytes, which may be for another rank.
    pub output: usize,
    /// Bytes that its forward receives in collectives of its own, by axis and collective,
    pub forward: Received,
    /// and its backward.
    pub backward: Received,
}

/// Bytes by axis and name of the collective.
pub type Received = BTreeMap<(Axis, &'static str), usize>;

/// A rank whose shares [`Units::shares`] computes, and its run.
#[derive(Debug, Clone, Copy)]
pub struct SharesRun<'a> {
    /// Number of ranks.
    pub world_size: usize,
    /// The rank; those of one stage differ by no more than a column of a matrix, but under [`Strategy::Block`].
    pub rank: usize,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// Of each call of the units.
    pub calls: &'a [CallTraffic],
    /// Whether the ranks compute on the CPU.
    pub on_cpu: bool,
}

/// What a rank shares with the ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The axes of the group, as [`MeshShape::along`] names them; `world` for activations under [`Strategy::Block`].
    pub axes: String,
    /// Ranks of the group.
    pub ranks: usize,
    /// Bytes of parameters and moments that rest on the rank, of those that these ranks hold together.
    pub at_rest: usize,
    /// Bytes that the rank receives of the others in a step, by collective.
    pub received: BTreeMap<&'static str, usize>,
}

/// Shape of an activation on its way: three numbers of 64 bits.
const HEADER: usize = 3 * 8;

impl<B: 'static> Units<B> {
    /// What a rank shares with each group that it is in, from shapes alone; groups of one rank are left out.
    ///
    /// # Errors
    /// Those of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn shares(self, config: &FsdpConfig, run: SharesRun) -> Result<Vec<Share>, FsdpError> {
        let shapes = Shapes::new(self, config, run.world_size, run.rank)?;
        let mut step = Step { config, run, mesh: config.mesh(run.world_size)?, shapes: &shapes, shares: vec![] };
        for (i, unit) in shapes.units.iter().enumerate().filter(|(_, unit)| unit.is_here) {
            let calls: Vec<usize> = (0..shapes.calls.len()).filter(|call| shapes.calls[*call].unit == i).collect();
            for class in &unit.classes {
                step.rest(class);
                step.parameters(&calls, class);
                step.gradients(&calls, class);
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

struct Step<'a> {
    config: &'a FsdpConfig,
    run: SharesRun<'a>,
    mesh: MeshShape,
    shapes: &'a Shapes,
    shares: Vec<Share>,
}

impl<'a> Step<'a> {
    /// What rests of a class of a unit's parameters: theirs whom it is spread over, first as shards.
    fn rest(&mut self, class: &Class) {
        let [shard, copies, parts] = axes_of(class.of, self.config.strategy);
        let groups = [&shard, &copies, &parts, &vec![Axis::Pp]];
        if let Some(axes) = groups.into_iter().find(|axes| self.mesh.ranks(axes) > 1) {
            let bytes = class.parameters_at_rest(self.config, self.run.on_cpu) + class.moments();
            self.share(axes).at_rest += bytes;
        }
    }

    /// How a class of the parameters of these calls' unit comes, before it is computed with or after it has stepped.
    fn parameters(&mut self, calls: &[usize], class: &Class) {
        let [shard, ..] = axes_of(class.of, self.config.strategy);
        let others = class.whole / class.shards * (class.shards - 1);
        if self.config.strategy == Strategy::Block {
            let mine: Vec<usize> = calls.iter().copied().filter(|i| self.shapes.calls[*i].is_mine).collect();
            self.receive(&shard, "gather", self.gathers(&mine) * others);
        } else {
            let times = if class.replicates(self.config) { 1 } else { self.gathers(calls) };
            self.receive(&shard, "all_gather", times * others);
        }
    }

    /// How its gradients come: to their shards, to copies of these, and to other stages that have the unit too.
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

    /// How often a unit is gathered in a step for these calls.
    fn gathers(&self, calls: &[usize]) -> usize {
        if self.config.keeps_gathered() {
            return 1;
        }
        let again = |i: usize| self.config.regathers(i, self.shapes.calls.len());
        calls.iter().map(|i| 1 + usize::from(again(*i))).sum::<usize>() * self.run.micro_batches
    }

    /// How often gradients go to their shards in a step.
    fn reductions(&self) -> usize {
        if self.config.reduces_once() { 1 } else { self.run.micro_batches }
    }

    /// Activations and cotangents of the stage's program.
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

    /// Under `block`: activations from the rank of the call before, cotangents from that of the call after.
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

    /// What calls of this rank receive themselves.
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

    /// What call `i` hands on, with its header.
    fn output(&self, i: usize) -> usize {
        let last = self.functions(self.shapes.calls[i].functions.clone()).last();
        HEADER + last.map_or(0, |call| call.output)
    }

    fn functions(&self, range: Range<usize>) -> &'a [CallTraffic] {
        self.run.calls.get(range).unwrap_or_default()
    }

    fn receive(&mut self, axes: &[Axis], collective: &'static str, bytes: usize) {
        if bytes > 0 {
            *self.share(axes).received.entry(collective).or_default() += bytes;
        }
    }

    /// What is shared along these axes.
    fn share(&mut self, axes: &[Axis]) -> &mut Share {
        let (name, ranks) = (self.mesh.along(axes), self.mesh.ranks(axes));
        let found = self.shares.iter().position(|share| share.axes == name).unwrap_or(self.shares.len());
        if found == self.shares.len() {
            self.shares.push(Share { axes: name, ranks, at_rest: 0, received: BTreeMap::new() });
        }
        &mut self.shares[found]
    }
}
