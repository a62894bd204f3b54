//! A model as its user defines it: units, and the calls that a forward makes to them.

use crate::api::activations::Activations;
use crate::api::bound::{AnyUnit, ModuleUnit};
use crate::api::call::{Call, CallOutput, Function, Loss, Role, of_first, of_last, of_middle};
use crate::api::inspect::ModuleParam;
use crate::groups::plan::Class;
use crate::{FloatType, FsdpConfig};
use burn::module::Module;
use comm::{FirstError, TensorShard};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

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
/// units.last(output, |linear: &Linear, x: Tensor<3>, _batch| linear.forward(x).mean());
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

/// Returns how tensor-parallel ranks split a parameter, by its name.
type TensorShardOf = dyn Fn(&str) -> Option<TensorShard>;

/// Selects, by name, the parameters that are kept differently.
pub(crate) struct ParameterRules {
    is_expert: Box<dyn Fn(&str) -> bool>,
    is_fp32: Box<dyn Fn(&str) -> bool>,
    is_adjusted: Box<dyn Fn(&str) -> bool>,
    tensor_shard: Box<TensorShardOf>,
}

/// How a parameter is kept.
pub(crate) struct Kept {
    pub class: Class,
    pub tensor_shard: Option<TensorShard>,
    /// Whether it is kept with a gradient and moments.
    pub is_trained: bool,
}

impl ParameterRules {
    /// Returns how a parameter is kept.
    pub fn kept(&self, config: &FsdpConfig) -> impl Fn(&ModuleParam) -> Kept {
        let (spread, splits, rounds) = (config.ep > 1, config.tp > 1, config.precision.param != FloatType::Fp32);
        move |ModuleParam { name, requires_grad, .. }| {
            let (class, tensor_shard) = match (self.tensor_shard)(name).filter(|_| splits) {
                _ if spread && (self.is_expert)(name) => (Class::Expert, Some(TensorShard::ROWS)),
                Some(shard) => (Class::Tensor, Some(shard)),
                None if rounds && (self.is_fp32)(name) => (Class::Fp32, None),
                None => (Class::Dense, None),
            };
            Kept { class, tensor_shard, is_trained: *requires_grad || (self.is_adjusted)(name) }
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

impl<M> fmt::Debug for UnitId<M> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("UnitId").field(&self.index).finish()
    }
}

/// The names of the units.
impl<B> fmt::Debug for Units<B> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(self.units.iter().map(|unit| unit.name())).finish()
    }
}

impl<M> Clone for UnitId<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for UnitId<M> {}

impl<B: 'static> Units<B> {
    /// Creates a model without units.
    pub fn new() -> Self {
        let rules = ParameterRules {
            is_expert: Box::new(|_: &str| false),
            is_fp32: Box::new(|_: &str| false),
            is_adjusted: Box::new(|_: &str| false),
            tensor_shard: Box::new(|_: &str| None),
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

    /// Splits the matrices and vectors for whose names `tensor_shard` returns a split. Each of
    /// [`FsdpConfig::tp`](crate::FsdpConfig) ranks holds a part, and the function of a call gets that part and returns
    /// values for this rank's rows. Losses that it returns are this rank's shares, which add up.
    pub fn tensor_parallel(&mut self, tensor_shard: impl Fn(&str) -> Option<TensorShard> + 'static) {
        self.rules.tensor_shard = Box::new(tensor_shard);
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

    /// Keeps the parameters whose names satisfy `is_adjusted` with the trained ones although the module wants no
    /// gradient of them, because [`Fsdp::add_to_parameter`](crate::Fsdp::add_to_parameter) changes them often. Other
    /// frozen parameters are gathered separately. Their gradient is 0. Kiln's AdamW leaves vectors with such a gradient
    /// as they are; an optimizer of Burn in their group must not decay them.
    pub fn adjusted(&mut self, is_adjusted: impl Fn(&str) -> bool + 'static) {
        self.rules.is_adjusted = Box::new(is_adjusted);
    }

    /// Adds a unit. Its parameter values are read when it is sharded, so a lazily initialized module is created only
    /// then. Masters are fp32 whatever the module's type.
    ///
    /// Parameters that are frozen ([`Module::freeze`], or the base of [`Module::apply_lora`]) are sharded and gathered
    /// like others. They have no gradient, no moments and no weight decay.
    pub fn add<M: Module + 'static>(&mut self, name: impl Into<String>, module: M) -> UnitId<M> {
        self.units.push(Box::new(ModuleUnit::new(name.into(), module)));
        UnitId { index: self.units.len() - 1, module: PhantomData }
    }

    /// Adds the first call of a forward: from the batch to an activation.
    pub fn first<M: Module + 'static, X: Activations>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, &B) -> X + 'static,
    ) {
        self.push(unit.index, Role::First, of_first(forward));
    }

    /// Adds the next call of a forward: from an activation to an activation, with or without an auxiliary loss.
    pub fn then<M: Module + 'static, X: Activations, Y: CallOutput>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, X, &B) -> Y + 'static,
    ) {
        self.push(unit.index, Role::Middle, of_middle(forward));
    }

    /// Adds the last call of a forward: from an activation to the batch's mean loss, `[1]`, in fp32.
    pub fn last<M: Module + 'static, X: Activations, L: Into<Loss>>(
        &mut self,
        unit: UnitId<M>,
        forward: impl Fn(&M, X, &B) -> L + 'static,
    ) {
        self.push(unit.index, Role::Last, of_last(forward));
    }

    /// Adds a call of the unit with this index.
    pub(crate) fn push(&mut self, unit: usize, role: Role, forward: Function<B>) {
        self.calls.push(Call::new(unit, forward));
        self.roles.push(role);
    }
}

impl<B: 'static> Default for Units<B> {
    fn default() -> Self {
        Self::new()
    }
}
