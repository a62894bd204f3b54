//! What a rank shares with each group of ranks: bytes at rest and bytes received per step, in closed form.
//!
//! Consider a class of a unit's parameters with S shards of n elements, R copies of each shard, M micro-batches, p
//! bytes per element in computation and r bytes per element in reductions. Per step a rank receives
//!
//! | layout | collective | bytes | |
//! |---|---|---|---|
//! | `full_shard`, `hybrid_shard` | `all_gather` | G (S - 1) n p | G: M per call, 2 M if gathered again; 1 in a pipeline |
//! | `zero1`, `shard_grad_op` | `all_gather` | (S - 1) n p | of stepped parameters |
//! | all of these | `reduce_scatter` | M (S - 1) n r | 1, not M: `no_sync`, `zero1`, `full_shard` in a pipeline |
//! | several copies | `all_reduce` | 2 (R - 1) n r / R | if small (R - 1) n r, see [`comm::all_reduce_bytes`] |
//! | a unit on several stages | `all_reduce` | the same for n fp32 elements | over these stages |
//! | `block` | `gather` | G (S - 1) n p | G as above, for the calls that it computes itself |
//! | `block` | `scatter` | M n r | for each call that another rank computes |
//! | between stages, and blocks | `recv` | each incoming activation and cotangent | with a header of 24 bytes |
//!
//! and the bytes that the model's calls receive themselves, counted again if the forward is run again. These are sums
//! over the operations that the rank will run. Control numbers (losses, norms, numbers of micro-batches) are left out:
//! a few hundred bytes per step.

use super::shapes::{Class, Shapes};
use crate::groups::placement::axes_of;
use crate::{FsdpConfig, FsdpError, Units};
use comm::{Axis, MeshShape, all_reduce_bytes};
use schedule::{Direction, Kind, Op, Peer};
use std::collections::BTreeMap;

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
    /// The rank. Ranks of one stage differ by at most a column of a matrix, except under
    /// [`Strategy::Block`](crate::Strategy::Block).
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
    /// The axes of the group, as named by [`MeshShape::along`]; `world` for activations under
    /// [`Strategy::Block`](crate::Strategy::Block).
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
        let ops = shapes.lowered(config, run.on_cpu, run.micro_batches)?;
        let mut step = StepTraffic { config, run, mesh: config.mesh(run.world_size)?, shapes: &shapes, shares: vec![] };
        for op in &ops {
            if let Op::Step { unit } = op {
                shapes.units[*unit].classes.iter().for_each(|class| step.rest(class));
            }
        }
        ops.iter().for_each(|op| step.receive_for(*op));
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

    /// Adds the bytes that an operation receives.
    fn receive_for(&mut self, op: Op) {
        let (shapes, config, on_cpu) = (self.shapes, self.config, self.run.on_cpu);
        let classes = |unit: usize| shapes.units[unit].classes.iter();
        match op {
            Op::Gather { unit, to, .. } => {
                for class in classes(unit).filter(|class| class.gathers(config, on_cpu)) {
                    self.parameters(class, to);
                }
            }
            Op::Step { unit } => {
                // The copies of stepped parameters are gathered.
                for class in classes(unit).filter(|class| class.is_trained && class.replicates(config)) {
                    self.parameters(class, None);
                }
            }
            Op::Reduce { unit, sends, last, .. } => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    self.gradients(class, sends, last);
                }
            }
            Op::Scatter { unit, from, .. } if from != self.run.rank => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    let [shard, ..] = axes_of(class.of, self.config.strategy);
                    self.receive(&shard, "scatter", self.reduced(class));
                }
            }
            Op::Tie { unit, stages } => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    let bytes = all_reduce_bytes(elements(class), size_of::<f32>(), stages);
                    self.receive(&[Axis::Pp], "all_reduce", bytes);
                }
            }
            Op::Run { kind, call, .. } => self.of_call(kind, call),
            Op::Recv { value, from } => {
                let bytes = match value.way {
                    Direction::Forward => self.output(value.call - 1),
                    Direction::Backward => self.output(value.call),
                };
                match from {
                    Peer::Stage(_) => self.receive(&[Axis::Pp], "recv", bytes),
                    Peer::Rank(_) => {
                        let world = self.named("world".into(), self.run.world_size);
                        *world.received.entry("recv").or_default() += bytes;
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds a class of parameters, which all ranks get or rank `to`.
    fn parameters(&mut self, class: &Class, to: Option<usize>) {
        let [shard, ..] = axes_of(class.of, self.config.strategy);
        let others = class.whole / class.shards * (class.shards - 1);
        match to {
            None => self.receive(&shard, "all_gather", others),
            Some(to) if to == self.run.rank => self.receive(&shard, "gather", others),
            Some(_) => {}
        }
    }

    /// Adds the gradients of a class, received for shards, and for copies of shards.
    fn gradients(&mut self, class: &Class, sends: bool, last: bool) {
        let [shard, copies, _] = axes_of(class.of, self.config.strategy);
        if sends {
            self.receive(&shard, "reduce_scatter", (class.shards - 1) * self.reduced(class));
        }
        if last {
            let size = self.config.precision.reduce.dtype().size();
            let bytes = all_reduce_bytes(elements(class), size, self.mesh.ranks(&copies));
            self.receive(&copies, "all_reduce", bytes);
        }
    }

    /// Returns the bytes of a shard's gradient in a reduction.
    fn reduced(&self, class: &Class) -> usize {
        elements(class) * self.config.precision.reduce.dtype().size()
    }

    /// Adds the bytes that a call receives itself.
    fn of_call(&mut self, kind: Kind, call: usize) {
        for function in self.functions(call) {
            let received = match kind {
                Kind::Forward(_) | Kind::Recompute => &function.forward,
                Kind::Backward | Kind::Input => &function.backward,
                Kind::Weights => continue,
            };
            for ((axis, collective), bytes) in received {
                self.receive(&[*axis], collective, *bytes);
            }
        }
    }

    /// Returns the bytes that call `i` sends on, including their shapes.
    fn output(&self, i: usize) -> usize {
        let last = self.functions(i).last();
        SIZE * self.shapes.calls[i].returns.iter().sum::<usize>() + last.map_or(0, |call| call.output)
    }

    fn functions(&self, call: usize) -> &'a [CallTraffic] {
        self.run.calls.get(self.shapes.calls[call].functions.clone()).unwrap_or_default()
    }

    fn receive(&mut self, axes: &[Axis], collective: &'static str, bytes: usize) {
        if bytes > 0 {
            *self.share(axes).received.entry(collective).or_default() += bytes;
        }
    }

    /// Returns the share along these axes, creating it if needed.
    fn share(&mut self, axes: &[Axis]) -> &mut Share {
        self.named(self.mesh.along(axes), self.mesh.ranks(axes))
    }

    fn named(&mut self, axes: String, ranks: usize) -> &mut Share {
        let found = self.shares.iter().position(|share| share.axes == axes).unwrap_or(self.shares.len());
        if found == self.shares.len() {
            self.shares.push(Share { axes, ranks, at_rest: 0, received: BTreeMap::new() });
        }
        &mut self.shares[found]
    }
}

/// Returns the number of elements of a shard.
fn elements(class: &Class) -> usize {
    class.shard / size_of::<f32>()
}
