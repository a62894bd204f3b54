//! Modules of any type, which have values only while a call computes with them.

use crate::api::inspect::{self, ModuleParam, empty};
use crate::shard::storage::device::Leaf;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use fused::weight_gradients::{Destination, GradientBuffer};
use std::any::Any;
use std::collections::HashMap;
use std::rc::Rc;

/// The value of a parameter: its shape and elements.
pub(crate) type Value = (Vec<usize>, Tensor<1>);

/// A module of any type.
pub(crate) trait AnyUnit {
    fn name(&self) -> &str;

    /// Returns the parameters in visiting order, with full names: the unit's name, a dot, and the path.
    fn params(&self) -> &[ModuleParam];

    /// Returns the paths of layers that draw random numbers in training, such as Burn's `Dropout`.
    fn random_layers(&self) -> Vec<String>;

    /// Returns the paths of buffers, which a forward changes: `RunningState`s, as in Burn's `BatchNorm`.
    fn buffers(&self) -> Vec<String>;

    /// Passes the parameter values to `take`, flat and one at a time; the module releases them.
    fn take_values(&mut self, take: &mut dyn FnMut(Tensor<1>));

    /// Releases the parameter values, which may never have been created.
    fn release(&mut self);

    /// Returns the module with these parameters, given in visiting order; if `tracked`, each that requires gradients is
    /// the leaf of a graph.
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

pub(crate) struct ModuleUnit<M> {
    name: String,
    /// `None` only while the values are taken.
    module: Option<M>,
    params: Vec<ModuleParam>,
}

struct BoundModule<M>(M);

impl<M: Module> ModuleUnit<M> {
    pub fn new(name: String, module: M) -> Self {
        let params = inspect::params(&module).into_iter();
        let params = params.map(|param| ModuleParam { name: format!("{name}.{}", param.name), ..param }).collect();
        Self { name, params, module: Some(module) }
    }

    fn module(&self) -> &M {
        self.module.as_ref().expect("it is there but while its values are taken")
    }

    fn map(&mut self, mapper: &mut impl ModuleMapper) {
        self.module = self.module.take().map(|module| module.map(mapper));
    }
}

impl<M: Module + 'static> AnyUnit for ModuleUnit<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[ModuleParam] {
        &self.params
    }

    fn random_layers(&self) -> Vec<String> {
        inspect::random_layers(self.module())
    }

    fn buffers(&self) -> Vec<String> {
        inspect::buffers(self.module())
    }

    fn take_values(&mut self, take: &mut dyn FnMut(Tensor<1>)) {
        self.map(&mut Take(take));
    }

    fn release(&mut self) {
        self.map(&mut Release);
    }

    fn bind(&self, values: &mut dyn Iterator<Item = Value>, tracked: bool) -> Box<dyn Bound> {
        let requires_grad = self.params.iter().map(|param| param.requires_grad);
        let mut bind = Bind { values: &mut values.zip(requires_grad), tracked };
        Box::new(BoundModule(self.module().clone().map(&mut bind)))
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

/// Takes values one at a time, so a module with lazily initialized parameters never holds all of them.
struct Take<'a>(&'a mut dyn FnMut(Tensor<1>));

impl ModuleMapper for Take<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let empty = empty(&param);
        (self.0)(flat(param.val().without_autodiff()));
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
    /// The values, and whether gradients of them are wanted.
    values: &'a mut dyn Iterator<Item = (Value, bool)>,
    tracked: bool,
}

impl ModuleMapper for Bind<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (value, requires_grad) = self.values.next().expect("a value for each parameter");
        bound(param, value, |value| match (self.tracked, requires_grad) {
            (true, true) => value.autodiff().require_grad(),
            (true, false) => value.autodiff(),
            (false, _) => value,
        })
    }
}

/// Returns a parameter at rest with a value.
fn bound<const D: usize>(
    param: Param<Tensor<D>>,
    (shape, value): Value,
    track: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    let shape: [usize; D] = shape.try_into().expect("a parameter's value has as many dimensions");
    param.map(|_| track(value.reshape(shape)))
}

/// Returns the module with these parameters, which are given by their paths.
pub(crate) fn with_values<M: Module>(module: M, values: HashMap<String, Value>) -> M {
    let mut bind = BindByPath { path: vec![], values };
    let module = module.map(&mut bind);
    assert!(bind.values.is_empty(), "the model lacks {:?}", bind.values.keys());
    module
}

struct BindByPath {
    path: Vec<String>,
    values: HashMap<String, Value>,
}

impl ModuleMapper for BindByPath {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        let value = self.values.remove(&path).unwrap_or_else(|| panic!("no unit has the parameter {path}"));
        bound(empty(&param), value, |value| value)
    }
}
