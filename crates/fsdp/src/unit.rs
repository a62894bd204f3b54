use crate::call::{Call, Forward, Output, Role};
use crate::layout::ParamLayout;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use std::any::Any;
use std::marker::PhantomData;

/// A model as units and the calls a forward makes of them; `B` is the batch, which only the calls look into.
///
/// A call's function gets a module whose parameters are there for as long as it runs: it returns what it has computed of them, not one
/// of them or a view of it, and hands none to another thread.
///
/// A unit may be called more than once (tied embeddings): it is gathered for each call, and its gradients are added before
/// they are communicated.
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
    /// Of the calls.
    pub(crate) roles: Vec<Role>,
}

/// Names a unit of [`Units`] and the type of its module.
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

/// What a call in the middle of a forward returns.
pub struct Activation {
    /// What the next call gets.
    pub x: Tensor<3>,
    /// `[1]`: a loss of its own, which is added to the model's.
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

impl<B: 'static> Units<B> {
    /// No units yet.
    pub fn new() -> Self {
        Self { units: vec![], calls: vec![], roles: vec![] }
    }

    /// Adds a unit. Its parameters' values are read when it is sharded, so a lazily initialised module is made only then. All of them
    /// are trained, and in fp32, whatever the module's own settings are.
    pub fn add<M: Module + 'static>(&mut self, name: impl Into<String>, module: M) -> UnitId<M> {
        self.units.push(Box::new(ModuleUnit { name: name.into(), module }));
        UnitId { index: self.units.len() - 1, module: PhantomData }
    }

    /// The first call of a forward: from the batch to an activation.
    pub fn first<M: Module + 'static>(&mut self, unit: UnitId<M>, forward: impl Fn(&M, &B) -> Tensor<3> + 'static) {
        self.call(unit, Role::First, move |module, _x, batch| Output::Activation(forward(module, batch).into()));
    }

    /// The next call of a forward: from an activation to an activation, with or without a loss of its own.
    pub fn then<M: Module + 'static, A: Into<Activation>>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, Tensor<3>, &B) -> A + 'static,
    ) {
        self.call(unit, Role::Middle, move |module, x, batch| {
            Output::Activation(forward(module, expect(x), batch).into())
        });
    }

    /// The last call of a forward: from an activation to the batch's mean loss, `[1]`, in fp32.
    pub fn last<M: Module + 'static>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, Tensor<3>, &B) -> Tensor<1> + 'static,
    ) {
        self.call(unit, Role::Last, move |module, x, batch| Output::Loss(forward(module, expect(x), batch), None));
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

/// A module whose type is forgotten.
pub(crate) trait AnyUnit {
    fn name(&self) -> &str;

    /// Names and shapes of its parameters in the order of visits.
    fn params(&self) -> Vec<(String, Vec<usize>)>;

    /// The parameters' values, flat; the module gives them up.
    fn take_values(&mut self) -> Vec<Option<Tensor<1>>>;

    /// The module with its parameters being views of `flat`, at these places; `tracked`: each the leaf of a graph.
    fn bind(&self, places: &[ParamLayout], flat: &Tensor<1>, tracked: bool) -> Box<dyn Bound>;
}

/// A module with values.
pub(crate) trait Bound {
    fn module(&self) -> &dyn Any;

    /// The parameters' gradients, flat; none where the loss does not depend on one.
    fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>>;
}

struct ModuleUnit<M> {
    name: String,
    module: M,
}

struct BoundModule<M>(M);

impl<M: Module + 'static> AnyUnit for ModuleUnit<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> Vec<(String, Vec<usize>)> {
        crate::layout::params(&self.module)
    }

    fn take_values(&mut self) -> Vec<Option<Tensor<1>>> {
        let mut values = Values { gradients: None, flat: vec![] };
        self.module.visit(&mut values);
        self.module = self.module.clone().map(&mut Release);
        values.flat
    }

    fn bind(&self, places: &[ParamLayout], flat: &Tensor<1>, tracked: bool) -> Box<dyn Bound> {
        Box::new(BoundModule(self.module.clone().map(&mut Bind { places: places.iter(), flat, tracked })))
    }
}

impl<M: Module + 'static> Bound for BoundModule<M> {
    fn module(&self) -> &dyn Any {
        &self.0
    }

    fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        let mut values = Values { gradients: Some(gradients), flat: vec![] };
        self.0.visit(&mut values);
        values.flat
    }
}

/// Parameters, or their gradients, flat in the order of visits.
struct Values<'a> {
    gradients: Option<&'a mut Gradients>,
    flat: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = match &mut self.gradients {
            None => Some(param.val()),
            Some(gradients) => param.val().grad_remove(gradients),
        };
        self.flat.push(value.map(|value| {
            let len = value.shape().num_elements();
            value.reshape([len])
        }));
    }
}

/// Replaces values by empty ones, so that a module at rest holds no memory.
struct Release;

impl ModuleMapper for Release {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let device = param.lazy_device();
        Param::initialized(param.id, Tensor::empty([0; D], &device))
    }
}

struct Bind<'a> {
    places: std::slice::Iter<'a, ParamLayout>,
    flat: &'a Tensor<1>,
    tracked: bool,
}

impl ModuleMapper for Bind<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.places.next().expect("the layout was made from this module");
        let shape: [usize; D] = place.shape.as_slice().try_into().expect("the layout was made from this module");
        let value = self.flat.clone().slice(place.offset..place.offset + place.len()).reshape(shape);
        let value = if self.tracked { value.autodiff().require_grad() } else { value };
        Param::initialized(param.id, value)
    }
}
