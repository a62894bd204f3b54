//! What a module holds, without initializing its parameters.

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// Name and shape of a parameter.
pub(crate) type NamedShape = (String, Vec<usize>);

/// A parameter of a module.
#[derive(Debug, Clone)]
pub(crate) struct ModuleParam {
    /// Path of fields from the module; in a unit, it follows the unit's name and a dot.
    pub name: String,
    pub shape: Vec<usize>,
    /// Whether the module wants its gradient, as [`Module::freeze`] and [`Module::unfreeze`] set it.
    pub requires_grad: bool,
}

impl ModuleParam {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn named_shape(self) -> NamedShape {
        (self.name, self.shape)
    }
}

/// A parameter of a module, which may have clones.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Path of fields from the module.
    pub name: String,
    pub shape: Vec<usize>,
    /// Clones of a module share the ids of its parameters.
    pub id: ParamId,
}

/// Returns a module's parameters in visiting order.
pub(crate) fn params<M: Module>(module: &M) -> Vec<ModuleParam> {
    let mut gradients = Gradients(vec![]);
    module.visit(&mut gradients);
    let param = |(Identity { name, shape, .. }, requires_grad)| ModuleParam { name, shape, requires_grad };
    identities(module).into_iter().zip(gradients.0).map(param).collect()
}

/// Returns a module's parameters in visiting order, in much less time than [`params`].
pub(crate) fn identities<M: Module>(module: &M) -> Vec<Identity> {
    Content::of(module).params
}

/// Returns the paths of layers that draw random numbers in training, such as Burn's `Dropout`.
pub(crate) fn random_layers<M: Module>(module: &M) -> Vec<String> {
    Content::of(module).random_layers
}

/// Returns the paths of buffers, which a forward in training changes: [`RunningState`](burn::module::RunningState)s, as
/// in Burn's `BatchNorm`.
///
/// Burn presents a buffer as a parameter, but one that keeps its id whatever a mapper returns.
pub(crate) fn buffers<M: Module>(module: &M) -> Vec<String> {
    let (before, after) = (identities(module), identities(&module.clone().map(&mut NewIds)));
    let both = before.into_iter().zip(after);
    both.filter(|(before, after)| before.id == after.id).map(|(buffer, _)| buffer.name).collect()
}

#[derive(Default)]
struct Content {
    path: Vec<String>,
    params: Vec<Identity>,
    random_layers: Vec<String>,
}

impl Content {
    fn of<M: Module>(module: &M) -> Self {
        let mut content = Self::default();
        module.visit(&mut content);
        content
    }
}

impl ModuleVisitor for Content {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (name, shape) = (self.path.join("."), param.lazy_shape().to_vec());
        self.params.push(Identity { name, shape, id: param.id });
    }

    /// Burn's layers with such a flag draw random numbers, except for `BatchNorm`, which has buffers.
    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if flag.val().is_enabled() {
            let (_flag, layer) = self.path.split_last().expect("a flag is a field");
            self.random_layers.push(layer.join("."));
        }
    }
}

/// Whether the module wants the gradient of each parameter.
struct Gradients(Vec<bool>);

impl ModuleVisitor for Gradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(requires_grad(param));
    }
}

/// Burn has no accessor for this, but a parameter that is loaded keeps it.
fn requires_grad<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let device = param.lazy_device().without_autodiff();
    let loaded = empty(param).map(|_| Tensor::empty([0; D], &device));
    loaded.train().is_require_grad()
}

/// Returns a parameter that holds no memory, with all other properties of `param`.
pub(crate) fn empty<const D: usize>(param: &Param<Tensor<D>>) -> Param<Tensor<D>> {
    let nothing = Tensor::empty([0; D], &param.lazy_device().without_autodiff());
    param.clone().transform_for_load(nothing.clone(), param.id).map(|_| nothing)
}

struct NewIds;

impl ModuleMapper for NewIds {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // A buffer takes the value, and is initialized.
        let value = if param.is_initialized() { param.base() } else { Tensor::empty([0; D], &param.lazy_device()) };
        Param::initialized(ParamId::new(), value)
    }
}
