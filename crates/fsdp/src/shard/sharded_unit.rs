//! A unit at rest: its parameters by class, each class kept by its own group of ranks.

use crate::api::bound::Value;
use crate::api::inspect::{ModuleParam, NamedShape};
use crate::api::units::{Initializer, Kept, ValuesFrom};
use crate::groups::comm_thread::{CommStreams, Pending};
use crate::groups::plan::{Class, Plan, UnitStages};
use crate::shard::copies::ShardCopy;
use crate::shard::flat_shard::{FlatShard, owned_copy};
use crate::shard::memory::Counted;
use crate::shard::modules::{BoundModules, ClassParams, Classes, Modules};
use crate::shard::optimizer::GradientScale;
use crate::shard::state::{Part, ReadPart, StatePart};
use crate::shard::storage::device::Leaf;
use crate::shard::weights::Weights;
use crate::{FsdpConfig, FsdpError};
use burn::tensor::{Device, Tensor, TensorData};
use fused::weight_gradients::written_into;
use std::ops::Range;

/// A unit's modules, without values, and this rank's shares of their parameters.
pub(crate) struct ShardedUnit {
    modules: Modules,
    /// One shard for each class of parameters in the unit.
    classes: Vec<FlatShard>,
    /// The class (an index into `classes`) of each parameter in visiting order, and its number there.
    places: Vec<(usize, usize)>,
    /// Number of elements of all parameters.
    len: usize,
}

/// Number of elements of an initial parameter that ranks compare.
const PROBE: usize = 64;

impl ShardedUnit {
    /// Takes this rank's share of the unit's values. No values are created for a unit that the rank's stage does not
    /// hold, or if a state has them. Also returns a sum of squares of values that does not depend on the share, by
    /// which ranks are compared.
    pub fn new(
        modules: Modules,
        config: &FsdpConfig,
        plans: &[Plan],
        kept: &dyn Fn(&ModuleParam) -> Kept,
        values: ValuesFrom,
        unit_stages: UnitStages,
    ) -> Result<(Self, Option<f64>), FsdpError> {
        let plan = |class| plans.iter().find(|plan| plan.class == class).expect("a plan for each class");
        let Classes { places, params } = modules.classes(|class| plan(class).parts, kept)?;
        let classes = params.into_iter().map(|of| {
            let ClassParams { class, is_trained, params } = of;
            FlatShard::new(params, is_trained, config, plan(class), unit_stages)
        });
        let (classes, len) = (classes.collect(), modules.len());
        let mut unit = Self { modules, classes, places, len };
        let device = &plans[0].device;
        let square = match values {
            ValuesFrom::Modules if unit_stages.is_here => Some(unit.take_values(device)),
            ValuesFrom::Initializer(initializer) if unit_stages.is_here => Some(unit.initialize(initializer, device)),
            _ => None,
        };
        unit.modules.release();
        Ok((unit, square))
    }

    fn take_values(&mut self, device: &Device) -> f64 {
        let Self { modules, classes, places, .. } = self;
        let mut values: Vec<Vec<Option<Tensor<1>>>> = classes.iter().map(|_| vec![]).collect();
        let (mut square, mut places) = (0.0, places.iter());
        modules.take_values(&mut |value| {
            let (class, i) = places.next().expect("a place for each parameter");
            let value = value.to_device(device);
            square += fused::sum_of_squares(value.clone());
            let (mut runs, len) = (classes[*class].wanted(*i), value.dims()[0]);
            values[*class].push(match runs.len() {
                0 => None,
                1 if runs[0].len() == len => Some(value),
                1 => Some(owned_copy(value.slice(runs.remove(0)))),
                _ => Some(Tensor::cat(runs.into_iter().map(|run| value.clone().slice(run)).collect(), 0)),
            });
        });
        classes.iter_mut().zip(values).for_each(|(class, values)| class.set_initial(values));
        square
    }

    fn initialize(&mut self, initializer: &Initializer, device: &Device) -> f64 {
        let Self { modules, classes, places, .. } = self;
        let mut values: Vec<Vec<Option<Tensor<1>>>> = classes.iter().map(|_| vec![]).collect();
        let mut square = 0.0;
        for (ModuleParam { name, shape, .. }, (class, i)) in modules.params().iter().zip(places.iter()) {
            let initial = |runs: &[Range<usize>]| {
                let values = initializer(name, shape.len(), runs);
                let len = values.len();
                Tensor::<1>::from_data(TensorData::new(values, [len]), device)
            };
            let (probe, runs) = (0..shape.iter().product::<usize>().min(PROBE), classes[*class].wanted(*i));
            square += fused::sum_of_squares(initial(&[probe]));
            values[*class].push((!runs.is_empty()).then(|| initial(&runs)));
        }
        classes.iter_mut().zip(values).for_each(|(class, values)| class.set_initial(values));
        square
    }

    pub fn name(&self) -> String {
        self.modules.name()
    }

    /// Returns the number of parameter elements, over all ranks together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether any of the parameters must be gathered before they are used.
    pub fn gathers(&self) -> bool {
        self.classes.iter().any(FlatShard::gathers)
    }

    /// Returns the parameters of a unit that is never [gathered](Self::gathers).
    pub fn at_hand(&self) -> Weights {
        Weights::new(self.classes.iter().map(FlatShard::at_hand).collect())
    }

    /// Gathers the whole unit's parameters, or this rank's parts of them, in the compute type, on all ranks or on rank
    /// `to` only.
    pub fn gather(&self, streams: &CommStreams, to: Option<usize>) -> Pending<Option<Weights>> {
        let classes = self.classes.iter().map(|class| class.gather(streams, to)).collect();
        Pending::all(classes).then(|flats| flats.into_iter().collect::<Option<Vec<_>>>().map(Weights::new))
    }

    /// Returns the modules with parameters that are views of `weights`; if `tracked`, each is the leaf of a graph.
    pub fn bind(&self, weights: &Weights, tracked: bool) -> BoundModules {
        let mut values =
            self.places.iter().map(|(class, i)| self.classes[*class].value(&weights.flats[*class].tensor, *i));
        self.modules.bind(&mut values, tracked)
    }

    /// Frees the memory that was gathered for `bound`, the leaves of a graph.
    ///
    /// # Safety
    /// The requirements of [`Weights::free`] apply.
    pub unsafe fn free(&self, weights: &mut Weights, bound: &BoundModules) {
        // SAFETY: guaranteed by the caller.
        unsafe { weights.free(self.by_class(bound.leaves())) };
    }

    /// Replaces what was [`free`](Self::free)d by the parameters gathered `again`.
    pub fn refill(&self, weights: &mut Weights, again: Weights) {
        let leaves = if weights.has_leaves() { self.bind(&again, false).leaves() } else { vec![] };
        weights.refill(again, self.by_class(leaves));
    }

    /// Pairs the leaves, given in visiting order, with their classes.
    fn by_class(&self, leaves: Vec<Leaf>) -> impl Iterator<Item = (usize, Leaf)> {
        self.places.iter().map(|(class, _)| *class).zip(leaves)
    }

    /// Returns the whole parameters in fp32, in visiting order, on every rank of every stage.
    pub fn gather_values(&self, streams: &CommStreams) -> Result<Vec<Value>, FsdpError> {
        let classes = self.classes.iter().map(|class| class.gather_masters(streams)).collect();
        let flats = Pending::all(classes).wait()?;
        Ok(self.places.iter().map(|(class, i)| self.classes[*class].whole_value(&flats[*class], *i)).collect())
    }

    /// Returns the modules with their [`gather_values`](Self::gather_values).
    pub fn gather_whole(&self, streams: &CommStreams) -> Result<BoundModules, FsdpError> {
        Ok(self.modules.bind(&mut self.gather_values(streams)?.into_iter(), false))
    }

    /// Returns the names and shapes of the whole parameters in visiting order.
    pub fn params(&self) -> Vec<NamedShape> {
        self.modules.params().into_iter().map(ModuleParam::named_shape).collect()
    }

    /// Returns the names of the parameters in visiting order.
    pub fn parameter_names(&self) -> Vec<String> {
        self.modules.params().into_iter().map(|param| param.name).collect()
    }

    /// Runs a backward through `bound` and returns its result. On a device the gradients of weights are written into
    /// buffers, one per class, which [`flatten`](Self::flatten) takes.
    pub fn backward<R>(&self, bound: &BoundModules, backward: impl FnOnce() -> R) -> (R, Vec<Option<Tensor<1>>>) {
        let buffers: Vec<_> = self.classes.iter().map(FlatShard::gradient_buffer).collect();
        let mut places = self.places.iter();
        let next = || {
            let (class, i) = places.next().expect("a place for each parameter");
            (buffers[*class].clone(), self.classes[*class].offset(*i))
        };
        let destinations = if buffers.iter().any(Option::is_some) { bound.destinations(next) } else { vec![] };
        let result = written_into(destinations, backward);
        (result, buffers.iter().map(|buffer| buffer.as_ref()?.written()).collect())
    }

    /// Flattens the gradients of all parameters, given in visiting order, into one buffer per trained class: those of
    /// the [`backward`](Self::backward), or new ones.
    pub fn flatten(&self, gradients: Vec<Option<Tensor<1>>>, buffers: Vec<Option<Tensor<1>>>) -> Vec<Tensor<1>> {
        let mut of_classes: Vec<Vec<Option<Tensor<1>>>> = self.classes.iter().map(|_| vec![]).collect();
        for ((class, _), gradient) in self.places.iter().zip(gradients) {
            of_classes[*class].push(gradient);
        }
        let buffers = buffers.into_iter().chain(std::iter::repeat(None));
        let of_class = |((class, gradients), buffer): ((&FlatShard, _), _)| {
            class.is_trained().then(|| class.gradient_of(gradients, buffer))
        };
        self.classes.iter().zip(of_classes).zip(buffers).filter_map(of_class).collect()
    }

    /// The classes with gradients.
    fn trained(&mut self) -> impl Iterator<Item = &mut FlatShard> {
        self.classes.iter_mut().filter(|class| class.is_trained())
    }

    /// Calls [`FlatShard::reduce`] for each trained class.
    pub fn reduce(
        &mut self,
        streams: &CommStreams,
        gradients: Vec<Tensor<1>>,
        sends: bool,
        last: bool,
    ) -> Pending<Vec<Option<Counted>>> {
        let reduce = |(class, gradient): (&mut FlatShard, Tensor<1>)| match class.reduce(streams, gradient, sends, last)
        {
            Some(pending) => pending.then(Some),
            None => Pending::ready(None),
        };
        Pending::all(self.trained().zip(gradients).map(reduce).collect())
    }

    /// Calls [`FlatShard::scatter`] for each trained class.
    pub fn scatter(
        &mut self,
        streams: &CommStreams,
        gradients: Option<Vec<Tensor<1>>>,
        from: usize,
        last_call: bool,
    ) -> Pending<Vec<Option<Counted>>> {
        let mut gradients = gradients.map(Vec::into_iter);
        let scatter = |class: &mut FlatShard| {
            let gradient = gradients.as_mut().map(|all| all.next().expect("a gradient for each class"));
            class.scatter(streams, gradient, from, last_call).then(Some)
        };
        Pending::all(self.trained().map(scatter).collect())
    }

    /// Sums the gradient over the stages that hold the unit, if there are several.
    pub fn sum_over_stages(&mut self, streams: &CommStreams) -> Result<(), FsdpError> {
        for class in &mut self.classes {
            if let Some(sum) = class.sum_over_stages(streams) {
                class.set_gradient(sum.wait()?, true);
            }
        }
        Ok(())
    }

    /// Stores the gradients; `done` means that they are those of all the unit's calls.
    pub fn set_gradients(&mut self, gradients: Vec<Option<Counted>>, done: bool) {
        for (class, gradient) in self.trained().zip(gradients) {
            if let Some(gradient) = gradient {
                class.set_gradient(gradient, done);
            }
        }
    }

    /// Calls [`FlatShard::map_gradient`] for each trained class.
    pub fn map_gradients(&mut self, count: f64, change: &mut dyn FnMut(&Part, Tensor<1>) -> Tensor<1>) {
        self.trained().for_each(|class| class.map_gradient(count, change));
    }

    /// Returns the sum of squares of this rank's gradient by class; see [`FlatShard::gradient_square`].
    pub fn gradient_squares(&self) -> impl Iterator<Item = (Class, f64)> {
        self.classes.iter().map(|class| (class.class(), class.gradient_square()))
    }

    /// Calls [`FlatShard::add_gradient_square`] for all classes, each with the factor of its class.
    pub fn add_gradient_squares(&self, sum: Tensor<1>, factor: impl Fn(Class) -> f64) -> Tensor<1> {
        self.classes.iter().fold(sum, |sum, class| class.add_gradient_square(sum, factor(class.class())))
    }

    /// Calls [`FlatShard::take_step_back`] for each class.
    pub fn take_step_back(&mut self) {
        self.classes.iter_mut().for_each(FlatShard::take_step_back);
    }

    /// Makes an optimizer step with the accumulated gradient times `scale`, and discards the gradient.
    pub fn step(&mut self, lr: f64, scale: &GradientScale) {
        self.classes.iter_mut().for_each(|class| class.step(lr, scale));
    }

    /// Adds `delta` to this rank's part of a parameter of the unit.
    pub fn add_to_parameter(&mut self, name: &str, delta: &[f32]) {
        let found = self.modules.params().iter().position(|param| param.name == name);
        let (class, i) = self.places[found.expect("the unit has the parameter")];
        self.classes[class].add_to_parameter(i, delta);
    }

    /// Calls [`FlatShard::copy`] for each class.
    pub fn copies(&self) -> impl Iterator<Item = ShardCopy> {
        let copies = self.classes.iter().filter_map(FlatShard::copy);
        copies.map(|(of, tensors)| ShardCopy { unit: self.name(), of, tensors })
    }

    /// Returns the parts of parameters that this rank must save.
    pub fn state(&self) -> Vec<StatePart> {
        self.classes.iter().flat_map(FlatShard::state).collect()
    }

    /// Returns all parts of parameters that this rank holds, including those that other ranks save.
    pub fn held_state(&self) -> Vec<StatePart> {
        self.classes.iter().flat_map(FlatShard::held_state).collect()
    }

    /// Reads this rank's share with `read`, including the optimizer's state if `steps` is above 0. Replicas must be
    /// set afterwards.
    pub fn load_state(&mut self, steps: u64, read: &mut ReadPart) -> Result<(), FsdpError> {
        self.classes.iter_mut().try_for_each(|class| class.load_state(steps, read))
    }

    /// Discards the accumulated gradient.
    pub fn skip(&mut self) {
        self.classes.iter_mut().for_each(FlatShard::skip);
    }

    /// Starts to gather the replicas of the updated masters, if there are any; pass them to
    /// [`set_replicas`](Self::set_replicas).
    pub fn replicate(&mut self, streams: &CommStreams) -> Pending<Vec<Option<Counted>>> {
        let replicate = |class: &mut FlatShard| match class.replicate(streams) {
            Some(pending) => pending.then(Some),
            None => Pending::ready(None),
        };
        Pending::all(self.classes.iter_mut().map(replicate).collect())
    }

    pub fn set_replicas(&mut self, replicas: Vec<Option<Counted>>) {
        for (class, replica) in self.classes.iter_mut().zip(replicas) {
            if let Some(replica) = replica {
                class.set_replica(replica);
            }
        }
    }
}
