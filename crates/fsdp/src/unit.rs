//! A model as its user defines it: units, and the calls that a forward makes to them.

use crate::call::{Call, Forward, Output, Role};
use crate::layout::NamedShape;
use crate::plan::Class;
use crate::storage::device::Leaf;
use crate::{FloatType, FsdpConfig};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use comm::Cut;
use comm::FirstError;
use fused::weight_gradients::{Destination, GradientBuffer};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

/// A model as units and the calls that a forward makes to them; `B` is the batch, which only the calls inspect.
///
/// The function of a call gets a module whose parameters exist only while it runs. It must return newly computed
/// values, not a parameter or a view of one. It must not pass a parameter to another thread or keep a slice of its
/// memory (`try_into_primitive`), which is freed after the function returns.
///
/// A unit may be called more than once (tied embeddings): it is gathered for each call, and its gradients are added
/// before they are communicated.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
///
/// let device = Device::flex();
/// let mut units = fsdp::Units::<Tensor<3>>::new();
/// let input = units.add("input", LinearConfig::new(4, 8).init(&device));
/// let output = units.add("output", LinearConfig::new(8, 1).init(&device));
/// units.first(input, |linear: &Linear, batch| linear.forward(batch.clone()));
/// units.last(output, |linear: &Linear, x, _batch| linear.forward(x).mean());
/// ```
pub struct Units<B> {
    pub(crate) units: Vec<Box<dyn AnyUnit>>,
    pub(crate) calls: Vec<Call<B>>,
    /// The roles of the calls.
    pub(crate) roles: Vec<Role>,
    pub(crate) initializer: Option<Box<Initializer>>,
    pub(crate) rules: ParameterRules,
    pub(crate) first_error: FirstError,
    pub(crate) shape: Option<Box<ShapeOf<B>>>,
}

/// Returns the number of sequences in a batch, and their length.
pub(crate) type ShapeOf<B> = dyn Fn(&B) -> [usize; 2];

/// Returns how a parameter is cut, by its name.
type CutOf = dyn Fn(&str) -> Option<Cut>;

/// Selects by name the parameters that are kept differently from others.
pub(crate) struct ParameterRules {
    is_expert: Box<dyn Fn(&str) -> bool>,
    is_fp32: Box<dyn Fn(&str) -> bool>,
    cut: Box<CutOf>,
}

impl ParameterRules {
    /// Returns the class of a parameter, and how it is cut.
    pub fn class_of(&self, config: &FsdpConfig) -> impl Fn(&str) -> (Class, Option<Cut>) {
        let (spread, cuts, rounds) = (config.ep > 1, config.tp > 1, config.precision.param != FloatType::Fp32);
        move |name: &str| match (self.cut)(name).filter(|_| cuts) {
            _ if spread && (self.is_expert)(name) => (Class::Expert, Some(Cut::ROWS)),
            Some(cut) => (Class::Tensor, Some(cut)),
            None if rounds && (self.is_fp32)(name) => (Class::Fp32, None),
            None => (Class::Dense, None),
        }
    }
}

/// Returns the values of runs of a parameter's elements, flat and concatenated. The arguments are its name (the unit's
/// name, a dot, the path of fields), its number of dimensions, and the runs.
pub(crate) type Initializer = dyn Fn(&str, usize, &[Range<usize>]) -> Vec<f32>;

/// The source of a model's parameter values.
#[derive(Clone, Copy)]
pub(crate) enum ValuesFrom<'a> {
    /// The modules have them or create them.
    Modules,
    /// Each rank draws the values that it holds.
    Initializer(&'a Initializer),
    /// A state is loaded later, so none are created.
    State,
}

/// Identifies a unit of [`Units`] and the type of its module.
pub struct UnitId<M> {
    pub(crate) index: usize,
    module: PhantomData<fn() -> M>,
}

impl<M> Clone for UnitId<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for UnitId<M> {}

/// The result of a call in the middle of a forward.
pub struct Activation {
    /// The input of the next call.
    pub x: Tensor<3>,
    /// `[1]`: a loss of this call, which is added to the model's.
    pub aux: Option<Tensor<1>>,
}

impl From<Tensor<3>> for Activation {
    fn from(x: Tensor<3>) -> Self {
        Self { x, aux: None }
    }
}

impl From<(Tensor<3>, Option<Tensor<1>>)> for Activation {
    fn from((x, aux): (Tensor<3>, Option<Tensor<1>>)) -> Self {
        Self { x, aux }
    }
}

/// The result of the last call of a forward.
pub struct Loss {
    /// `[1]`: the model's loss.
    pub loss: Tensor<1>,
    /// `[1]`: a loss that is added to it, and reported with the other calls' own losses.
    pub aux: Option<Tensor<1>>,
}

impl From<Tensor<1>> for Loss {
    fn from(loss: Tensor<1>) -> Self {
        Self { loss, aux: None }
    }
}

impl<B: 'static> Units<B> {
    /// Creates a model without units.
    pub fn new() -> Self {
        let rules = ParameterRules {
            is_expert: Box::new(|_: &str| false),
            is_fp32: Box::new(|_: &str| false),
            cut: Box::new(|_: &str| None),
        };
        Self {
            units: vec![],
            calls: vec![],
            roles: vec![],
            initializer: None,
            rules,
            first_error: FirstError::default(),
            shape: None,
        }
    }

    /// Takes values from `initializer` instead of the modules. Each rank draws only the values that it holds:
    /// `initializer` gets a parameter's name (the unit's name, a dot, the path of fields), its number of dimensions and
    /// runs of its elements, and returns the values of the runs, flat and concatenated.
    pub fn initializer(&mut self, initializer: impl Fn(&str, usize, &[Range<usize>]) -> Vec<f32> + 'static) {
        self.initializer = Some(Box::new(initializer));
    }

    /// Marks the parameters whose names satisfy `is_expert` as stacks of experts. Each of
    /// [`FsdpConfig::ep`](crate::FsdpConfig) ranks holds a part of every stack, and the function of a call gets that
    /// part.
    pub fn experts(&mut self, is_expert: impl Fn(&str) -> bool + 'static) {
        self.rules.is_expert = Box::new(is_expert);
    }

    /// Ends a step if `first_error` reports a failure of the collectives that calls run themselves.
    pub fn collectives(&mut self, first_error: FirstError) {
        self.first_error = first_error;
    }

    /// Cuts the matrices and vectors for whose names `cut` returns a cut. Each of [`FsdpConfig::tp`](crate::FsdpConfig)
    /// ranks holds a part, and the function of a call gets that part and returns values for this rank's rows. Losses
    /// that it returns are this rank's shares, which add up.
    pub fn tensor_parallel(&mut self, cut: impl Fn(&str) -> Option<Cut> + 'static) {
        self.rules.cut = Box::new(cut);
    }

    /// Sets the function that returns the number of sequences in a batch's activations, and their length. A pipeline
    /// stage that sends other shapes is then named in an error.
    pub fn shape(&mut self, shape: impl Fn(&B) -> [usize; 2] + 'static) {
        self.shape = Some(Box::new(shape));
    }

    /// Keeps the parameters whose names satisfy `is_fp32` in fp32 in every call, whatever
    /// [`Precision`](crate::Precision) says.
    pub fn keep_fp32(&mut self, is_fp32: impl Fn(&str) -> bool + 'static) {
        self.rules.is_fp32 = Box::new(is_fp32);
    }

    /// Adds a unit. Its parameter values are read when it is sharded, so a lazily initialized module is created only
    /// then. All parameters are trained, in fp32, whatever the module's own settings.
    pub fn add<M: Module + 'static>(&mut self, name: impl Into<String>, module: M) -> UnitId<M> {
        self.units.push(Box::new(ModuleUnit::new(name.into(), module)));
        UnitId { index: self.units.len() - 1, module: PhantomData }
    }

    /// Adds the first call of a forward: from the batch to an activation.
    pub fn first<M: Module + 'static>(&mut self, unit: UnitId<M>, forward: impl Fn(&M, &B) -> Tensor<3> + 'static) {
        self.call(unit, Role::First, move |module, _x, batch| Output::Activation(forward(module, batch).into()));
    }

    /// Adds the next call of a forward: from an activation to an activation, with or without a loss of its own.
    pub fn then<M: Module + 'static, A: Into<Activation>>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, Tensor<3>, &B) -> A + 'static,
    ) {
        self.call(unit, Role::Middle, move |module, x, batch| {
            Output::Activation(forward(module, expect(x), batch).into())
        });
    }

    /// Adds the last call of a forward: from an activation to the batch's mean loss, `[1]`, in fp32.
    pub fn last<M: Module + 'static, L: Into<Loss>>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, Tensor<3>, &B) -> L + 'static,
    ) {
        self.call(unit, Role::Last, move |module, x, batch| Output::Loss(forward(module, expect(x), batch).into()));
    }

    fn call<M: Module + 'static>(
        &mut self,
        unit: UnitId<M>,
        role: Role,
        forward: impl Fn(&M, Option<Tensor<3>>, &B) -> Output + 'static,
    ) {
        let forward: Forward<B> = Box::new(move |module, x, batch| {
            forward(module.downcast_ref().expect("a unit's id carries its module's type"), x, batch)
        });
        self.calls.push(Call::new(unit.index, forward));
        self.roles.push(role);
    }
}

impl<B: 'static> Default for Units<B> {
    fn default() -> Self {
        Self::new()
    }
}

fn expect(x: Option<Tensor<3>>) -> Tensor<3> {
    x.expect("every call but the first gets an activation")
}

/// The value of a parameter: its shape and elements.
pub(crate) type Value = (Vec<usize>, Tensor<1>);

/// A module of any type.
pub(crate) trait AnyUnit {
    fn name(&self) -> &str;

    /// Returns the names and shapes of the parameters in visiting order.
    fn params(&self) -> Vec<NamedShape>;

    /// Passes the parameter values to `take`, flat and one at a time; the module releases them.
    fn take_values(&mut self, take: &mut dyn FnMut(Tensor<1>));

    /// Releases the parameter values, which may never have been created.
    fn release(&mut self);

    /// Returns the module with these parameters, given in visiting order; if `tracked`, each is the leaf of a graph.
    fn bind(&self, values: &mut dyn Iterator<Item = Value>, tracked: bool) -> Box<dyn Bound>;
}

/// A module with values.
pub(crate) trait Bound {
    fn module(&self) -> &dyn Any;

    /// Returns the parameters that are on a device.
    fn leaves(&self) -> Vec<Leaf>;

    /// Adds where the parameters' gradients go on a device; `next` returns the buffer of each parameter and
    /// its offset there.
    fn destinations(
        &self,
        next: &mut dyn FnMut() -> (Option<Rc<GradientBuffer>>, usize),
        destinations: &mut Vec<Destination>,
    );

    /// Returns the gradients of the parameters, flat; `None` if the loss does not depend on a parameter.
    fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>>;
}

struct ModuleUnit<M> {
    name: String,
    /// `None` only while the values are taken.
    module: Option<M>,
    params: Vec<NamedShape>,
}

struct BoundModule<M>(M);

impl<M: Module> ModuleUnit<M> {
    fn new(name: String, module: M) -> Self {
        Self { name, params: crate::layout::params(&module), module: Some(module) }
    }

    fn map(&mut self, mapper: &mut impl ModuleMapper) {
        self.module = self.module.take().map(|module| module.map(mapper));
    }
}

impl<M: Module + 'static> AnyUnit for ModuleUnit<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> Vec<NamedShape> {
        self.params.clone()
    }

    fn take_values(&mut self, take: &mut dyn FnMut(Tensor<1>)) {
        self.map(&mut Take(take));
    }

    fn release(&mut self) {
        self.map(&mut Release);
    }

    fn bind(&self, values: &mut dyn Iterator<Item = Value>, tracked: bool) -> Box<dyn Bound> {
        let module = self.module.clone().expect("it is there but while its values are taken");
        Box::new(BoundModule(module.map(&mut Bind { values, tracked })))
    }
}

impl<M: Module + 'static> Bound for BoundModule<M> {
    fn module(&self) -> &dyn Any {
        &self.0
    }

    fn leaves(&self) -> Vec<Leaf> {
        let mut leaves = Leaves(vec![]);
        self.0.visit(&mut leaves);
        leaves.0
    }

    fn destinations(
        &self,
        next: &mut dyn FnMut() -> (Option<Rc<GradientBuffer>>, usize),
        destinations: &mut Vec<Destination>,
    ) {
        self.0.visit(&mut Destinations { next, destinations });
    }

    fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        let mut taken = TakeGradients { gradients, flat: vec![] };
        self.0.visit(&mut taken);
        taken.flat
    }
}

fn flat<const D: usize>(value: Tensor<D>) -> Tensor<1> {
    let len = value.shape().num_elements();
    value.reshape([len])
}

/// Returns a parameter at rest, which holds no memory.
fn empty<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    Param::initialized(param.id, Tensor::empty([0; D], &param.lazy_device()))
}

struct Leaves(Vec<Leaf>);

impl ModuleVisitor for Leaves {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(Leaf::of(param.val().inner()));
    }
}

struct Destinations<'a> {
    next: &'a mut dyn FnMut() -> (Option<Rc<GradientBuffer>>, usize),
    destinations: &'a mut Vec<Destination>,
}

impl ModuleVisitor for Destinations<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (buffer, start) = (self.next)();
        self.destinations.extend(buffer.and_then(|buffer| Destination::new(&param.val(), &buffer, start)));
    }
}

struct TakeGradients<'a> {
    gradients: &'a mut Gradients,
    flat: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for TakeGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.flat.push(param.val().grad_remove(self.gradients).map(flat));
    }
}

/// Takes values one at a time, so that a module with lazily initialized parameters never holds all of them.
struct Take<'a>(&'a mut dyn FnMut(Tensor<1>));

impl ModuleMapper for Take<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let empty = empty(&param);
        (self.0)(flat(param.val()));
        empty
    }
}

struct Release;

impl ModuleMapper for Release {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        empty(&param)
    }
}

struct Bind<'a> {
    values: &'a mut dyn Iterator<Item = Value>,
    tracked: bool,
}

impl ModuleMapper for Bind<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, value) = self.values.next().expect("a value for each parameter");
        let shape: [usize; D] = shape.try_into().expect("a parameter's value has as many dimensions");
        let value = value.reshape(shape);
        let value = if self.tracked { value.autodiff().require_grad() } else { value };
        Param::initialized(param.id, value)
    }
}
