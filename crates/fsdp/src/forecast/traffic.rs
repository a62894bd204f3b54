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

use super::offload::{Offloaded, elements};
use super::shapes::{Class, Shapes};
use crate::groups::placement::axes_of;
use crate::{FsdpConfig, FsdpError, Units};
use comm::{Axis, MeshShape, all_reduce_bytes};
use schedule::{Direction, Kind, Op, Peer};
use std::collections::{BTreeMap, HashSet};
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

/// Ranks whose shares [`Units::shares`] computes, and their run.
#[derive(Debug, Clone, Copy)]
pub struct SharesRun<'a> {
    /// Number of ranks.
    pub world_size: usize,
    /// The ranks. Those of one stage differ by at most a column of a matrix, except under
    /// [`Strategy::Block`](crate::Strategy::Block).
    pub ranks: &'a [usize],
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

/// An operation of a rank in a step, and what it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The operation.
    pub op: Op,
    /// What the rank receives for it.
    pub transfers: Vec<Transfer>,
    /// The model's functions that a [`Run`](Op::Run) runs, of those that were given with [`SharesRun::calls`].
    pub functions: Range<usize>,
    /// Elements of the gradients that a [`Flatten`](Op::Flatten) or an [`Add`](Op::Add) touches, of those that a
    /// [`Reduce`](Op::Reduce) adds to earlier micro-batches' on the rank, and of the shards that a [`Step`](Op::Step)
    /// changes.
    pub elements: usize,
    /// What it moves between the device and the CPU's memory.
    pub offloaded: Offloaded,
}

/// Bytes that a rank receives from the ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The axes of the group; none for an activation from any rank under
    /// [`Strategy::Block`](crate::Strategy::Block).
    pub axes: Vec<Axis>,
    /// The collective.
    pub collective: &'static str,
    /// Bytes.
    pub bytes: usize,
}

/// Bytes of one dimension of an activation's shape in flight.
const SIZE: usize = 8;

impl<B: 'static> Units<B> {
    /// Returns what each rank of `run` shares with each of its groups, from shapes alone; groups of one rank are left out.
    ///
    /// # Errors
    /// Returns the errors of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn shares(self, config: &FsdpConfig, run: SharesRun) -> Result<Vec<Vec<Share>>, FsdpError> {
        let shapes = Shapes::of_ranks(self, config, run.world_size, run.ranks)?;
        shapes.iter().map(|shapes| StepTraffic::new(shapes, config, run)?.shares()).collect()
    }

    /// Returns the operations of each rank of `run` in a step, each with what it moves, from shapes alone.
    ///
    /// # Errors
    /// Returns the errors of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn operations(self, config: &FsdpConfig, run: SharesRun) -> Result<Vec<Vec<Operation>>, FsdpError> {
        let shapes = Shapes::of_ranks(self, config, run.world_size, run.ranks)?;
        shapes.iter().map(|shapes| StepTraffic::new(shapes, config, run)?.operations()).collect()
    }
}

struct StepTraffic<'a> {
    config: &'a FsdpConfig,
    run: SharesRun<'a>,
    mesh: MeshShape,
    shapes: &'a Shapes,
}

/// The shares of a rank so far.
struct Shares<'a> {
    world_size: usize,
    mesh: &'a MeshShape,
    shares: Vec<Share>,
}

impl<'a> StepTraffic<'a> {
    fn new(shapes: &'a Shapes, config: &'a FsdpConfig, run: SharesRun<'a>) -> Result<Self, FsdpError> {
        Ok(Self { config, run, mesh: config.mesh(run.world_size)?, shapes })
    }

    fn lowered(&self) -> Result<Vec<Op>, FsdpError> {
        self.shapes.lowered(self.config, self.run.on_cpu, self.run.micro_batches)
    }

    fn shares(&self) -> Result<Vec<Share>, FsdpError> {
        let (shapes, run, ops, step) = (self.shapes, self.run, self.lowered()?, self);
        let mut shares = Shares { world_size: run.world_size, mesh: &step.mesh, shares: vec![] };
        for op in &ops {
            if let Op::Step { unit } = op {
                shapes.units[*unit].classes.iter().for_each(|class| step.rest(class, &mut shares));
            }
        }
        for Transfer { axes, collective, bytes } in ops.iter().flat_map(|op| step.transfers(*op)) {
            *shares.along(&axes).received.entry(collective).or_default() += bytes;
        }
        shares.shares.retain(|share| share.at_rest > 0 || !share.received.is_empty());
        Ok(shares.shares)
    }

    fn operations(&self) -> Result<Vec<Operation>, FsdpError> {
        let (shapes, ops) = (self.shapes, self.lowered()?);
        let offloads = self.config.cpu_offload && !self.run.on_cpu;
        let whole = |class: &Class| class.whole_fp32 / size_of::<f32>();
        let (mut reduced, mut offloaded) = (HashSet::new(), HashSet::new());
        let mut touched = |op| match op {
            Op::Flatten { unit } | Op::Add { unit, .. } => shapes.units[unit].trained().map(whole).sum(),
            // What is sent with every micro-batch is added up with the reduction, shard by shard.
            Op::Reduce { unit, .. } if !reduced.insert(unit) => {
                let is_whole = |class: &&Class| match class.shards {
                    1 => !offloads, // or the CPU adds it up
                    _ => self.config.reduces_once(),
                };
                shapes.units[unit].trained().filter(is_whole).map(whole).sum()
            }
            Op::Step { unit } => shapes.units[unit].trained().map(elements).sum(),
            _ => 0,
        };
        let operation = |op| {
            let functions = match op {
                Op::Run { call, .. } => shapes.calls[call].functions.clone(),
                _ => 0..0,
            };
            let offloaded = if offloads { self.offloaded(op, &mut offloaded) } else { Offloaded::default() };
            Operation { op, transfers: self.transfers(op), functions, elements: touched(op), offloaded }
        };
        Ok(ops.into_iter().map(operation).collect())
    }

    /// Adds the resident bytes of a class of a unit's parameters to the first group that holds them together, shards
    /// first.
    fn rest(&self, class: &Class, shares: &mut Shares) {
        let [shard, copies, parts] = axes_of(class.of, self.config.strategy);
        let groups = [&shard, &copies, &parts, &vec![Axis::Pp]];
        if let Some(axes) = groups.into_iter().find(|axes| self.mesh.ranks(axes) > 1) {
            let bytes = class.parameters_at_rest(self.config, self.run.on_cpu) + class.moments();
            shares.along(axes).at_rest += bytes;
        }
    }

    /// Returns what an operation moves between the device and the CPU's memory; `reduced` has the units of earlier
    /// reductions.
    fn offloaded(&self, op: Op, reduced: &mut HashSet<usize>) -> Offloaded {
        let (shapes, config) = (self.shapes, self.config);
        let size = config.precision.reduce.dtype().size();
        let of = |unit: usize| shapes.units[unit].classes.iter();
        match op {
            Op::Gather { unit, .. } => {
                of(unit).filter(|class| class.gathers(config, false)).map(Offloaded::parameters).sum()
            }
            Op::Step { unit } => {
                let copied = of(unit).filter(|class| class.is_trained && class.replicates(config));
                copied.map(Offloaded::parameters).sum()
            }
            Op::Reduce { unit, sends, last, .. } => {
                // Of what is kept whole, nothing has been added on the CPU before.
                let adds = !reduced.insert(unit);
                let sent = shapes.units[unit].trained().filter(|class| sends || class.shards == 1);
                let adds = |class: &Class| adds && (class.shards == 1 || !config.reduces_once());
                sent.map(|class| Offloaded::gradients(class, size, adds(class), last)).sum()
            }
            Op::Scatter { unit, .. } => {
                let adds = !reduced.insert(unit);
                shapes.units[unit].trained().map(|class| Offloaded::gradients(class, size, adds, false)).sum()
            }
            Op::Tie { unit, .. } => shapes.units[unit].trained().map(Offloaded::tie).sum(),
            _ => Offloaded::default(),
        }
    }

    /// Returns what an operation receives.
    fn transfers(&self, op: Op) -> Vec<Transfer> {
        let mut received = vec![];
        let (shapes, config, on_cpu) = (self.shapes, self.config, self.run.on_cpu);
        let classes = |unit: usize| shapes.units[unit].classes.iter();
        match op {
            Op::Gather { unit, to, .. } => {
                for class in classes(unit).filter(|class| class.gathers(config, on_cpu)) {
                    received.extend(self.parameters(class, to));
                }
            }
            Op::Step { unit } => {
                // The copies of stepped parameters are gathered.
                for class in classes(unit).filter(|class| class.is_trained && class.replicates(config)) {
                    received.extend(self.parameters(class, None));
                }
            }
            Op::Reduce { unit, sends, last, .. } => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    received.extend(self.gradients(class, sends, last));
                }
            }
            Op::Scatter { unit, from, .. } if from != self.shapes.rank => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    let [shard, ..] = axes_of(class.of, self.config.strategy);
                    received.push(transfer(&shard, "scatter", self.reduced(class)));
                }
            }
            Op::Tie { unit, stages } => {
                for class in classes(unit).filter(|class| class.is_trained) {
                    let bytes = all_reduce_bytes(elements(class), size_of::<f32>(), stages);
                    received.push(transfer(&[Axis::Pp], "all_reduce", bytes));
                }
            }
            Op::Run { kind, call, .. } => received.extend(self.of_call(kind, call)),
            Op::Recv { value, from } => {
                let bytes = match value.way {
                    Direction::Forward => self.output(value.call - 1),
                    Direction::Backward => self.output(value.call),
                };
                let axes: &[Axis] = if let Peer::Stage(_) = from { &[Axis::Pp] } else { &[] };
                received.push(transfer(axes, "recv", bytes));
            }
            _ => {}
        }
        received.retain(|transfer| transfer.bytes > 0);
        received
    }

    /// Returns the transfer of a class of parameters, which all ranks get or rank `to`.
    fn parameters(&self, class: &Class, to: Option<usize>) -> Option<Transfer> {
        let [shard, ..] = axes_of(class.of, self.config.strategy);
        let others = class.whole / class.shards * (class.shards - 1);
        match to {
            None => Some(transfer(&shard, "all_gather", others)),
            Some(to) if to == self.shapes.rank => Some(transfer(&shard, "gather", others)),
            Some(_) => None,
        }
    }

    /// Returns the transfers of the gradients of a class, for shards and for copies of shards.
    fn gradients(&self, class: &Class, sends: bool, last: bool) -> impl Iterator<Item = Transfer> {
        let [shard, copies, _] = axes_of(class.of, self.config.strategy);
        let scattered = sends.then(|| transfer(&shard, "reduce_scatter", (class.shards - 1) * self.reduced(class)));
        let summed = last.then(|| {
            let size = self.config.precision.reduce.dtype().size();
            transfer(&copies, "all_reduce", all_reduce_bytes(elements(class), size, self.mesh.ranks(&copies)))
        });
        scattered.into_iter().chain(summed)
    }

    /// Returns the bytes of a shard's gradient in a reduction.
    fn reduced(&self, class: &Class) -> usize {
        elements(class) * self.config.precision.reduce.dtype().size()
    }

    /// Returns what a call receives itself.
    fn of_call(&self, kind: Kind, call: usize) -> Vec<Transfer> {
        let received = |function: &'a CallTraffic| match kind {
            Kind::Forward(_) | Kind::Recompute => Some(&function.forward),
            Kind::Backward | Kind::Input => Some(&function.backward),
            Kind::Weights => None,
        };
        let all = self.functions(call).iter().filter_map(received).flatten();
        all.map(|((axis, collective), bytes)| transfer(&[*axis], collective, *bytes)).collect()
    }

    /// Returns the bytes that call `i` sends on, including their shapes.
    fn output(&self, i: usize) -> usize {
        let last = self.functions(i).last();
        SIZE * self.shapes.calls[i].returns.iter().sum::<usize>() + last.map_or(0, |call| call.output)
    }

    fn functions(&self, call: usize) -> &'a [CallTraffic] {
        self.run.calls.get(self.shapes.calls[call].functions.clone()).unwrap_or_default()
    }
}

impl Shares<'_> {
    /// Returns the share along these axes, creating it if needed.
    fn along(&mut self, axes: &[Axis]) -> &mut Share {
        let (axes, ranks) = match axes {
            [] => ("world".into(), self.world_size),
            axes => (self.mesh.along(axes), self.mesh.ranks(axes)),
        };
        let found = self.shares.iter().position(|share| share.axes == axes).unwrap_or(self.shares.len());
        if found == self.shares.len() {
            self.shares.push(Share { axes, ranks, at_rest: 0, received: BTreeMap::new() });
        }
        &mut self.shares[found]
    }
}

fn transfer(axes: &[Axis], collective: &'static str, bytes: usize) -> Transfer {
    Transfer { axes: axes.to_vec(), collective, bytes }
}
