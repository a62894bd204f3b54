//! A forecast of a rank's memory before anything is allocated: the ledger of a step without its tensors.

mod shapes;
pub mod traffic;

use self::shapes::{Class, ShapeCall, Shapes, Unit};
use crate::groups::placement::Stages;
use crate::shard::memory::{Bytes, Category, Ledger, MemoryGuard};
use crate::{FsdpConfig, FsdpError, Memory, Prefetch, Strategy, Units};
use schedule::{Action, Cell};
use std::collections::HashMap;
use std::ops::Range;

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

/// A rank whose memory [`Units::forecast`] computes, and its run.
#[derive(Debug, Clone, Copy)]
pub struct ForecastRun<'a> {
    /// Number of ranks.
    pub world_size: usize,
    /// The rank; ranks differ in a pipeline and under [`Strategy::Block`].
    pub rank: usize,
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

/// A call: its unit, what it leaves, and whether this rank computes it.
#[derive(Clone, Copy)]
struct Call {
    unit: usize,
    bytes: CallBytes,
    is_mine: bool,
}

struct SimulatedStep<'a> {
    config: &'a FsdpConfig,
    units: Vec<Unit>,
    calls: Vec<Call>,
    stages: Stages,
    /// The gathered parameters of each unit, if they stay.
    kept: Vec<Option<MemoryGuard>>,
    /// Gradients of units that are also called earlier in the model, by unit and micro-batch.
    partial: HashMap<(usize, usize), MemoryGuard>,
    on_cpu: bool,
    ledger: Ledger,
    /// Waiting gradients for each unit and class: those of the shard, and whole ones that were not communicated.
    gradients: Vec<[[Option<MemoryGuard>; 2]; 4]>,
    most: Bytes,
    working: usize,
}

impl<B: 'static> Units<B> {
    /// Forecasts the memory of a rank that has made a step, from shapes alone. Memory at rest is exact with Kiln's
    /// AdamW; activations are those given in `run`.
    ///
    /// # Errors
    /// Returns the errors of [`Fsdp::new`](crate::Fsdp::new) that need no values.
    pub fn forecast(self, config: &FsdpConfig, run: ForecastRun) -> Result<Forecast, FsdpError> {
        let Shapes { units, calls, stages, model } = Shapes::new(self, config, run.world_size, run.rank)?;
        let call = |ShapeCall { unit, functions, is_mine, .. }: ShapeCall| {
            let merged = run.calls.get(functions).unwrap_or_default();
            let bytes = CallBytes {
                input: merged.first().map_or(0, |first| first.input),
                graph: merged.iter().map(|bytes| bytes.graph).sum(),
                backward: merged.iter().map(|bytes| bytes.backward).max().unwrap_or(0),
            };
            Call { unit, bytes: if is_mine { bytes } else { CallBytes::default() }, is_mine }
        };
        let calls = calls.into_iter().map(call).collect();
        let step = SimulatedStep {
            gradients: units.iter().map(|_| Default::default()).collect(),
            kept: units.iter().map(|_| None).collect(),
            partial: HashMap::new(),
            config,
            units,
            calls,
            stages,
            on_cpu: run.on_cpu,
            ledger: Ledger::default(),
            most: Bytes::default(),
            working: 0,
        };
        step.run(run.micro_batches, model)
    }
}

/// What a forward leaves of a call: its weights, unless they are gathered again, and its activations.
type Saved = (Option<MemoryGuard>, MemoryGuard);

impl SimulatedStep<'_> {
    fn run(mut self, micro_batches: usize, model: usize) -> Result<Forecast, FsdpError> {
        let rest = self.at_rest();
        // Without stages, a third micro-batch takes no more memory.
        let micro_batches = if self.config.pipeline.stages == 1 { micro_batches.min(2) } else { micro_batches };
        let (mut saved, mut deferred) =
            (HashMap::<Cell, Vec<Saved>>::new(), HashMap::<Cell, Vec<(Saved, MemoryGuard)>>::new());
        let number = |cell: Cell| (cell.micro_batch, cell.micro_batch + 1 == micro_batches);
        for action in self.config.pipeline.of(micro_batches)?.program_of(self.stages.stage) {
            match action {
                Action::Forward(cell) => {
                    let kept = self.forward(self.stages.calls(cell.chunk));
                    saved.insert(cell, kept);
                }
                Action::Backward(cell) | Action::BackwardInput(cell) => {
                    let kept = saved.remove(&cell).expect("a program runs forward before it runs backward");
                    let calls = self.stages.calls(cell.chunk);
                    match action {
                        Action::BackwardInput(_) => deferred.insert(cell, self.backward_of_inputs(calls, kept)),
                        _ => {
                            self.backward(calls, kept, number(cell));
                            None
                        }
                    };
                }
                Action::BackwardWeights(cell) => {
                    let kept =
                        deferred.remove(&cell).expect("a program has the gradient of an input before its weights'");
                    self.backward_of_weights(self.stages.calls(cell.chunk), kept, number(cell));
                }
                _ => {}
            }
        }
        let replicas = self.new_replicas();
        // A shard that steps exists twice more: as separate matrices and vectors, and with both joined.
        let shards = self.here().flat_map(Unit::trained).map(|class| class.shard);
        self.note(2 * shards.max().unwrap_or(0));
        drop(replicas);
        self.gradients.clear();
        let memory = self.ledger.memory();
        drop(rest);
        Ok(Forecast { memory, most: self.most, working: self.working, model })
    }

    /// Returns the units that the rank's stage holds.
    fn here(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(|unit| unit.is_here)
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

    /// Holds parameters and moments.
    fn at_rest(&self) -> Vec<MemoryGuard> {
        let parameters = |class: &Class| class.parameters_at_rest(self.config, self.on_cpu);
        let unit = |unit: &Unit| {
            let (parameters, moments) = (unit.sum(parameters), unit.sum(Class::moments));
            [self.hold(Category::Parameters, parameters), self.hold(Category::Optimizer, moments)]
        };
        self.here().flat_map(unit).collect()
    }

    /// Holds new replicas: while units step, those of two units (or of the only one) exist in addition to the old ones.
    fn new_replicas(&self) -> MemoryGuard {
        let replica = |class: &Class| if class.replicates(self.config) { class.whole } else { 0 };
        let replicas: Vec<usize> = self.here().map(|unit| unit.trained().map(replica).sum()).collect();
        let most = replicas.chunks(1).chain(replicas.windows(2)).map(|new| new.iter().sum()).max().unwrap_or(0);
        self.hold(Category::Parameters, most)
    }

    /// Holds the whole parameters of call `i`, unless they exist anyway.
    fn gather(&mut self, i: usize) -> MemoryGuard {
        let call = self.calls[i];
        let gathered = |class: &Class| if class.gathers(self.config, self.on_cpu) { class.whole } else { 0 };
        let is_free = !call.is_mine || self.kept[call.unit].is_some();
        let held = self.hold(Category::Gathered, if is_free { 0 } else { self.units[call.unit].sum(gathered) });
        if self.config.keeps_gathered() && self.kept[call.unit].is_none() {
            self.kept[call.unit] = Some(held);
            return self.hold(Category::Gathered, 0);
        }
        held
    }

    fn recomputes(&self, i: usize) -> bool {
        self.config.recomputes(i, self.calls.len())
    }

    fn reshards_after_forward(&self, i: usize) -> bool {
        let gathers =
            self.units[self.calls[i].unit].classes.iter().any(|class| class.gathers(self.config, self.on_cpu));
        gathers && self.config.reshards_after_forward(i, self.calls.len())
    }

    fn forward(&mut self, calls: Range<usize>) -> Vec<Saved> {
        let (mut ahead, mut saved) = (None, vec![]);
        let prefetch = self.config.forward_prefetch;
        for i in calls.clone() {
            let weights = ahead.take().unwrap_or_else(|| self.gather(i));
            let next = (i + 1 < calls.end).then_some(i + 1);
            if prefetch == Prefetch::Pre {
                ahead = next.map(|next| self.gather(next));
            }
            let bytes = self.calls[i].bytes;
            let kept = if self.recomputes(i) { bytes.input } else { bytes.graph };
            saved.push(((!self.reshards_after_forward(i)).then_some(weights), self.hold(Category::Activations, kept)));
            if prefetch == Prefetch::Post {
                ahead = next.map(|next| self.gather(next));
            }
        }
        saved
    }

    fn backward(&mut self, calls: Range<usize>, mut saved: Vec<Saved>, number: (usize, bool)) {
        let (mut ahead, mut reduction) = (None, vec![]);
        while let Some((weights, kept)) = saved.pop() {
            let i = calls.start + saved.len();
            let weights = weights.unwrap_or_else(|| ahead.take().unwrap_or_else(|| self.gather(i)));
            let next = (calls.start..i).rev().find(|next| self.reshards_after_forward(*next));
            if self.config.backward_prefetch == Prefetch::Pre && ahead.is_none() {
                ahead = next.map(|next| self.gather(next));
            }
            let Call { unit, bytes, is_mine } = self.calls[i];
            let again = self.recomputes(i).then(|| self.hold(Category::Activations, bytes.graph - bytes.input));
            let gradient = if is_mine { self.units[unit].sum(Class::gradient) } else { 0 };
            self.note(bytes.backward + gradient);
            drop((kept, again));
            self.note(2 * gradient); // one per parameter, and all in one buffer
            drop(weights);
            if self.config.backward_prefetch == Prefetch::Post && ahead.is_none() {
                ahead = next.map(|next| self.gather(next));
            }
            reduction.clear();
            reduction = self.reduce(i, number);
        }
        self.note(0);
    }

    /// The inputs of deferred weight gradients count until those are computed. Gradients that are already available
    /// count as the whole unit's, an upper bound.
    fn backward_of_inputs(&mut self, calls: Range<usize>, saved: Vec<Saved>) -> Vec<(Saved, MemoryGuard)> {
        let mut all = vec![];
        for (i, (weights, mut kept)) in calls.zip(saved).rev() {
            let Call { unit, bytes, .. } = self.calls[i];
            if self.recomputes(i) {
                kept = self.hold(Category::Activations, bytes.graph);
            }
            self.note(bytes.backward);
            let there = self.hold(Category::Gradients, self.units[unit].sum(Class::gradient));
            all.push(((weights, kept), there));
        }
        all.reverse();
        all
    }

    fn backward_of_weights(
        &mut self,
        calls: Range<usize>,
        mut saved: Vec<(Saved, MemoryGuard)>,
        number: (usize, bool),
    ) {
        let mut reduction = vec![];
        while let Some(kept) = saved.pop() {
            let i = calls.start + saved.len();
            let gradient = self.units[self.calls[i].unit].sum(Class::gradient);
            self.note(2 * gradient); // one per parameter, and all in one buffer
            drop(kept);
            reduction.clear();
            reduction = self.reduce(i, number);
        }
        self.note(0);
    }

    /// Sends the gradient of call `i` to its shards; returns what exists until it has arrived.
    fn reduce(&mut self, i: usize, (micro_batch, last): (usize, bool)) -> Vec<MemoryGuard> {
        let (u, ledger) = (self.calls[i].unit, self.ledger.clone());
        let gradient = |bytes| ledger.hold(Category::Gradients, bytes);
        let done = !(0..i).any(|before| self.calls[before].unit == u && self.stages.is_here(before));
        let is_block = self.config.strategy == Strategy::Block;
        let before = self.partial.remove(&(u, micro_batch)).filter(|_| is_block);
        if !done {
            let sum = |bytes: fn(&Class) -> usize| self.units[u].trained().map(bytes).sum();
            let in_flight = gradient(if is_block && self.calls[i].is_mine { sum(|class| class.whole) } else { 0 });
            let sum = gradient(sum(if is_block { |class| class.shard } else { |class| class.whole }));
            self.partial.insert((u, micro_batch), sum);
            return std::iter::once(in_flight).chain(before).collect();
        }
        if last {
            self.kept[u] = None;
        }
        let waits = self.config.reduces_once() && !last;
        let mut there: Vec<MemoryGuard> = before.into_iter().collect();
        for (class, [shard, whole]) in self.units[u].trained().zip(&mut self.gradients[u]) {
            if waits && class.shards > 1 {
                *whole = Some(gradient(class.whole_fp32));
                continue;
            }
            let is_mine = self.calls[i].is_mine;
            let in_flight = whole.take().map_or(if is_mine { class.whole } else { 0 }, |_| class.whole_fp32);
            there.push(gradient(in_flight));
            there.extend(shard.replace(gradient(class.shard)));
        }
        there
    }
}
