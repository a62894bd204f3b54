//! A forecast of a rank's memory before anything is allocated: the ledger of a step without its tensors.
//!
//! The operations of the rank are those that it will run. Each one holds bytes, or lets go of them:
//!
//! ```text
//! +2            gathered parameters of unit 2, until -2
//! F3.0          activations of call 3, until its backward
//! B3.0          gradients of its parameters, one by one and then in one buffer, which no category counts
//! add, reduce   gradients that wait for the step, or are in flight until the unit's wait
//! ```

pub mod offload;
mod shapes;
pub mod traffic;

use self::shapes::{Class, ShapeCall, Shapes, Unit};
use crate::shard::memory::{Bytes, Category, Ledger, MemoryGuard};
use crate::{FsdpConfig, FsdpError, Memory, PipelineConfig, Strategy, Units};
use schedule::{Keeps, Kind, Op, Schedule};
use std::collections::HashMap;

/// The bytes that the forward of a call leaves in memory and that its backward needs; only the model knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallBytes {
    /// The call's input: all that is kept if the forward is run again.
    pub input: usize,
    /// The call's graph: the input and what operations keep, without the output, which is the next call's input.
    pub graph: usize,
    /// What the backward holds in addition to the graph, without the gradients of parameters.
    pub backward: usize,
}

/// Ranks whose memory [`Units::forecast`] computes, and their run.
#[derive(Debug, Clone, Copy)]
pub struct ForecastRun<'a> {
    /// Number of ranks.
    pub world_size: usize,
    /// The ranks, which differ in a pipeline and under [`Strategy::Block`](crate::Strategy::Block).
    pub ranks: &'a [usize],
    /// Number of micro-batches per step.
    pub micro_batches: usize,
    /// One entry for each call of the units.
    pub calls: &'a [CallBytes],
    /// Whether the ranks compute on the CPU.
    pub on_cpu: bool,
}

/// The memory that a rank will take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The bytes that the rank will count itself, with each category at its own peak.
    pub memory: Memory,
    /// The bytes of each category at the moment of a step when the total is highest.
    pub most: Bytes,
    /// The bytes at that moment that no category counts: gradients of a backward in progress, and the optimizer's
    /// copies.
    pub working: usize,
    /// The whole model's parameters in fp32.
    pub model: usize,
}

/// Gradients on their way to their shards. When they have arrived, the new sum is beside them for a moment.
struct InFlight {
    sum: usize,
    of: SumOf,
    /// The gradients, and earlier sums.
    held: Vec<MemoryGuard>,
}

/// What a sum of gradients is of.
enum SumOf {
    /// All calls, for this class.
    Class(usize),
    /// Some calls of this micro-batch, for all classes.
    Calls(usize),
}

/// A rank's ledger while operations hold bytes.
struct StepMemory<'a> {
    config: &'a FsdpConfig,
    run: ForecastRun<'a>,
    rank: usize,
    units: Vec<Unit>,
    /// The unit of each call, and what the call leaves.
    calls: Vec<(usize, CallBytes)>,
    ledger: Ledger,
    slots: HashMap<usize, MemoryGuard>,
    /// What calls have left, by call and micro-batch.
    saved: HashMap<(usize, usize), Vec<MemoryGuard>>,
    /// Sums of the gradients of units with several calls, by unit and micro-batch.
    sums: HashMap<(usize, usize), MemoryGuard>,
    /// Waiting gradients for each unit and class: those of the shard, and whole ones that were not communicated.
    gradients: Vec<[[Option<MemoryGuard>; 2]; 4]>,
    /// By unit.
    in_flight: HashMap<usize, Vec<InFlight>>,
    most: Bytes,
    working: usize,
    ops: Vec<Op>,
    /// See [`Forecast::model`].
    model: usize,
}

impl<B: 'static> Units<B> {
    /// Forecasts the memory of each rank of `run` that has made a step, from shapes alone. Memory at rest is exact with
    /// Kiln's AdamW; activations are those given in `run`.
    ///
    /// # Errors
    /// Returns the errors of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn forecast(self, config: &FsdpConfig, run: ForecastRun) -> Result<Vec<Forecast>, FsdpError> {
        let shapes = Shapes::of_ranks(self, config, run.world_size, run.ranks)?;
        let run = ForecastRun { micro_batches: enough(&config.pipeline, run.micro_batches), ..run };
        shapes.into_iter().map(|shapes| Ok(StepMemory::new(shapes, config, run)?.forecast())).collect()
    }

    /// Returns the operations of each rank of `run` in a step, each with the bytes that the rank holds after it.
    ///
    /// # Errors
    /// Those of [`forecast`](Self::forecast).
    pub fn memory_over_step(self, config: &FsdpConfig, run: ForecastRun) -> Result<Vec<Vec<(Op, Bytes)>>, FsdpError> {
        let shapes = Shapes::of_ranks(self, config, run.world_size, run.ranks)?;
        shapes.into_iter().map(|shapes| Ok(StepMemory::new(shapes, config, run)?.over_step())).collect()
    }
}

/// Of `micro_batches`, the number after which further ones take no more memory: they come when others have gone. What
/// does not fill a round of an interleaved pipeline makes the first rounds larger, so the same rest is kept.
fn enough(pipeline: &PipelineConfig, micro_batches: usize) -> usize {
    let (rounds, rest) = (micro_batches / pipeline.stages, micro_batches % pipeline.stages);
    let few = rest.max(4 * pipeline.virtual_stages);
    match pipeline.schedule {
        _ if pipeline.stages == 1 => micro_batches.min(2),
        Schedule::Gpipe => micro_batches,
        _ if rounds > few => few * pipeline.stages + rest,
        _ => micro_batches,
    }
}

impl<'a> StepMemory<'a> {
    fn new(shapes: Shapes, config: &'a FsdpConfig, run: ForecastRun<'a>) -> Result<Self, FsdpError> {
        let ops = shapes.lowered(config, run.on_cpu, run.micro_batches)?;
        let Shapes { units, calls, model, rank, .. } = shapes;
        let call = |ShapeCall { unit, functions, .. }: ShapeCall| {
            let merged = run.calls.get(functions).unwrap_or_default();
            let bytes = CallBytes {
                input: merged.first().map_or(0, |first| first.input),
                graph: merged.iter().map(|bytes| bytes.graph).sum(),
                backward: merged.iter().map(|bytes| bytes.backward).max().unwrap_or(0),
            };
            (unit, bytes)
        };
        Ok(Self {
            config,
            run,
            rank,
            gradients: units.iter().map(|_| Default::default()).collect(),
            units,
            calls: calls.into_iter().map(call).collect(),
            ledger: Ledger::default(),
            slots: HashMap::new(),
            saved: HashMap::new(),
            sums: HashMap::new(),
            in_flight: HashMap::new(),
            most: Bytes::default(),
            working: 0,
            ops,
            model,
        })
    }

    fn forecast(mut self) -> Forecast {
        let here = self.units_here();
        let rest = self.at_rest(&here);
        for op in std::mem::take(&mut self.ops) {
            self.hold_for(op);
        }
        let replicas = self.new_replicas(&here);
        // A shard that steps exists twice more: as separate matrices and vectors, and with both joined.
        let shards = here.iter().flat_map(|unit| self.units[*unit].trained()).map(|class| class.shard);
        self.note(2 * shards.max().unwrap_or(0));
        drop(replicas);
        self.gradients.clear();
        let memory = self.ledger.memory();
        drop(rest);
        Forecast { memory, most: self.most, working: self.working, model: self.model }
    }

    fn over_step(mut self) -> Vec<(Op, Bytes)> {
        let _rest = self.at_rest(&self.units_here());
        let ops = std::mem::take(&mut self.ops);
        let after = |op| {
            self.hold_for(op);
            (op, self.ledger.memory().now)
        };
        ops.into_iter().map(after).collect()
    }

    /// Returns the units that the rank's stage holds.
    fn units_here(&self) -> Vec<usize> {
        self.ops.iter().filter_map(|op| if let Op::Step { unit } = op { Some(*unit) } else { None }).collect()
    }

    fn hold_for(&mut self, op: Op) {
        let (rank, config, on_cpu) = (self.rank, self.config, self.run.on_cpu);
        match op {
            Op::Gather { unit, slot, to } => {
                let gathered = |class: &Class| if class.gathers(config, on_cpu) { class.whole } else { 0 };
                let is_here = to.is_none_or(|to| to == rank);
                let bytes = if is_here { self.units[unit].sum(gathered) } else { 0 };
                self.slots.insert(slot, self.hold(Category::Gathered, bytes));
            }
            Op::Free { slot, .. } => drop(self.slots.remove(&slot)),
            Op::Run { kind, call, micro_batch, .. } => self.run(kind, call, micro_batch),
            Op::Add { unit, micro_batch } => {
                let sum = self.units[unit].sum(Class::gradient);
                drop(self.sums.remove(&(unit, micro_batch)));
                self.sums.insert((unit, micro_batch), self.hold(Category::Gradients, sum));
                self.note(0);
            }
            Op::Reduce { unit, micro_batch, sends, last } => {
                drop(self.sums.remove(&(unit, micro_batch)));
                self.reduce(unit, [sends, last], true);
                self.note(0);
            }
            Op::Scatter { unit, micro_batch, from, last_call } => {
                let later_calls = self.sums.remove(&(unit, micro_batch));
                if last_call {
                    self.reduce(unit, [true, false], from == rank);
                    if let Some(first) = self.in_flight.get_mut(&unit).and_then(|classes| classes.first_mut()) {
                        first.held.extend(later_calls);
                    }
                } else {
                    let sum = |bytes: fn(&Class) -> usize| self.units[unit].trained().map(bytes).sum();
                    let sent = if from == rank { sum(|class| class.whole) } else { 0 };
                    let sent = self.hold(Category::Gradients, sent);
                    let (of, sum) = (SumOf::Calls(micro_batch), sum(|class| class.shard));
                    let held = [sent].into_iter().chain(later_calls).collect();
                    self.in_flight.entry(unit).or_default().push(InFlight { sum, of, held });
                }
                self.note(0);
            }
            Op::Wait { unit } => self.arrive(unit),
            Op::Tie { unit, .. } => {
                let sum = self.units[unit].trained().map(|class| class.shard).sum();
                let _sum = self.hold(Category::Gradients, sum); // beside what it is a sum of
                self.note(0);
            }
            // Within a run, and with the optimizer's step.
            Op::Flatten { .. } | Op::Send { .. } | Op::Recv { .. } | Op::Step { .. } => {}
        }
    }

    fn run(&mut self, kind: Kind, call: usize, micro_batch: usize) {
        let (unit, bytes) = self.calls[call];
        let (key, gradient) = ((call, micro_batch), self.units[unit].sum(Class::gradient));
        let kept = match kind {
            Kind::Forward(Keeps::Nothing) => return,
            Kind::Forward(Keeps::Input) => self.hold(Category::Activations, bytes.input),
            Kind::Forward(Keeps::Graph | Keeps::HollowGraph) => self.hold(Category::Activations, bytes.graph),
            Kind::Recompute => self.hold(Category::Activations, bytes.graph - bytes.input),
            // The gradients of matrices follow with the weights; those of an embedding and of the head do not.
            Kind::Input => {
                self.note(bytes.backward);
                let vectors = self.units[unit].trained().map(|class| class.vectors).sum();
                let ends = call == 0 || call + 1 == self.calls.len();
                self.hold(Category::Gradients, if ends { gradient } else { vectors })
            }
            Kind::Backward => {
                self.note(bytes.backward + gradient);
                drop(self.saved.remove(&key));
                return self.note(2 * gradient); // one per parameter, and all in one buffer
            }
            Kind::Weights => {
                self.note(2 * gradient); // one per parameter, and all in one buffer
                return drop(self.saved.remove(&key));
            }
        };
        self.saved.entry(key).or_default().push(kept);
    }

    /// Sends the gradient of a unit to its shards, or keeps it whole; `is_mine` if this rank has computed it.
    fn reduce(&mut self, unit: usize, [sends, last]: [bool; 2], is_mine: bool) {
        let ledger = self.ledger.clone();
        let gradient = |bytes| ledger.hold(Category::Gradients, bytes);
        for (i, (class, [shard, whole])) in self.units[unit].trained().zip(&mut self.gradients[unit]).enumerate() {
            if !sends && class.shards > 1 {
                drop(whole.take());
                *whole = Some(gradient(class.whole_fp32));
                continue;
            }
            // What is not sharded is added in place; under `block`, one rank scatters to itself.
            if class.shards == 1 && self.config.strategy != Strategy::Block {
                drop(shard.take());
                let sum = gradient(class.shard);
                if last && class.replicas > 1 {
                    let in_flight = InFlight { sum: class.shard, of: SumOf::Class(i), held: vec![sum] };
                    self.in_flight.entry(unit).or_default().push(in_flight);
                } else {
                    *shard = Some(sum);
                }
                continue;
            }
            let sent = whole.take().map_or(if is_mine { class.whole } else { 0 }, |_| class.whole_fp32);
            let held = [gradient(sent)].into_iter().chain(shard.take()).collect();
            let in_flight = InFlight { sum: class.shard, of: SumOf::Class(i), held };
            self.in_flight.entry(unit).or_default().push(in_flight);
        }
        // Last reductions of what was added up are awaited at the end of the step, and may have ended long before: the new
        // sum is then beside what is held now. With experts, a unit has two reductions, of which the other has not ended.
        if last && self.config.reduces_once() && self.run.micro_batches > 1 {
            let sum = match self.in_flight.get(&unit).map(Vec::as_slice) {
                Some([alone]) => alone.sum,
                _ => 0,
            };
            let _sum = self.hold(Category::Gradients, sum);
            self.note(0);
        }
    }

    /// Ends the reduction of a unit.
    fn arrive(&mut self, unit: usize) {
        for InFlight { sum, of, mut held } in self.in_flight.remove(&unit).into_iter().flatten() {
            // A scatter adds earlier sums in place.
            held.truncate(if self.config.strategy == Strategy::Block { 1 } else { held.len() });
            let sum = self.hold(Category::Gradients, sum);
            self.note(0);
            match of {
                SumOf::Class(class) => self.gradients[unit][class][0] = Some(sum),
                SumOf::Calls(micro_batch) => _ = self.sums.insert((unit, micro_batch), sum),
            }
            drop(held);
        }
    }

    fn hold(&self, category: Category, bytes: usize) -> MemoryGuard {
        self.ledger.hold(category, bytes)
    }

    /// Records a moment of the step with `working` uncounted bytes.
    fn note(&mut self, working: usize) {
        let now = self.ledger.memory().now;
        if now.total().saturating_add(working) > self.most.total().saturating_add(self.working) {
            (self.most, self.working) = (now, working);
        }
    }

    /// Holds parameters and moments of the units that the rank's stage holds.
    fn at_rest(&self, here: &[usize]) -> Vec<MemoryGuard> {
        let parameters = |class: &Class| class.parameters_at_rest(self.config, self.run.on_cpu);
        let unit = |unit: &usize| {
            let unit = &self.units[*unit];
            let (parameters, moments) = (unit.sum(parameters), unit.sum(Class::moments));
            [self.hold(Category::Parameters, parameters), self.hold(Category::Optimizer, moments)]
        };
        here.iter().flat_map(unit).collect()
    }

    /// Holds a new replica: while units step, that of one unit exists in addition to the old ones.
    fn new_replicas(&self, here: &[usize]) -> MemoryGuard {
        let replica = |class: &Class| if class.replicates(self.config) { class.whole } else { 0 };
        let replicas = here.iter().map(|unit| self.units[*unit].trained().map(replica).sum());
        self.hold(Category::Parameters, replicas.max().unwrap_or(0))
    }
}
