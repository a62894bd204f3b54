//! Groups consecutive modules into units, and gives them values for computation.

use crate::api::bound::{AnyUnit, Bound, Value};
use crate::api::call::{Call, Role};
use crate::api::inspect::ModuleParam;
use crate::api::units::{Initializer, Kept, ParameterRules, ShapeOf, Units};
use crate::groups::placement::Stages;
use crate::groups::plan::Class;
use crate::shard::storage::device::Leaf;
use crate::shard::tensor_shard::Sliced;
use crate::{ActivationCheckpointing, FsdpConfig, FsdpError, Wrap};
use burn::tensor::{Gradients, Tensor};
use comm::{FirstError, TensorShard};
use fused::weight_gradients::{Destination, GradientBuffer};
use std::any::Any;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The modules that are kept, gathered and freed together: one, or several with [`Wrap::Size`].
pub(crate) struct Modules {
    members: Vec<Box<dyn AnyUnit>>,
}

/// A unit's parameters by their [`Class`].
pub(crate) struct Classes {
    /// The class (an index into `params`) of each parameter in visiting order, and its number there.
    pub places: Vec<(usize, usize)>,
    /// The classes that the unit has.
    pub params: Vec<ClassParams>,
}

/// The parameters of a unit that are kept together.
pub(crate) struct ClassParams {
    pub class: Class,
    pub is_trained: bool,
    pub params: Vec<Sliced>,
}

/// A unit's modules with values.
pub(crate) struct BoundModules(Vec<Box<dyn Bound>>);

/// Units of one or more modules, their calls, and the place of each module: its unit and its number there.
pub(crate) struct Wrapped<B> {
    pub units: Vec<Modules>,
    pub calls: Vec<Call<B>>,
    /// Number of calls in each chunk of the pipeline.
    pub calls_of_chunks: Vec<usize>,
    pub places: Vec<(usize, usize)>,
    /// The same as in [`Units`].
    pub initializer: Option<Box<Initializer>>,
    pub rules: ParameterRules,
    pub first_error: FirstError,
    pub shape: Option<Box<ShapeOf<B>>>,
}

/// Groups consecutive modules into units, and merges consecutive calls of one unit. In a pipeline, calls are merged
/// only within one chunk, and modules only if they are called in the same chunks.
pub(crate) fn wrap<B>(mut model: Units<B>, config: &FsdpConfig) -> Result<Wrapped<B>, FsdpError> {
    check_roles(&model.roles)?;
    check_activations(&model)?;
    check_unit_names(&model.units)?;
    model.units.iter().try_for_each(|unit| check_names(&**unit))?;
    model.units.iter().try_for_each(|unit| check_layers(&**unit, config))?;
    check_trained(&model.units)?;
    let min_params = match config.wrap {
        Wrap::Block => 0,
        Wrap::Size(min_params) => min_params,
    };
    let len = |module: &dyn AnyUnit| module.params().iter().map(ModuleParam::len).sum();
    let lens: Vec<usize> = model.units.iter().map(|module| len(&**module)).collect();
    let of_calls: Vec<usize> = model.calls.iter().map(|call| lens[call.unit]).collect();
    let mut calls_of_chunks = Stages::calls_of_chunks(&config.pipeline, &of_calls)?;
    let chunk_of_call = |(chunk, calls): (usize, &usize)| std::iter::repeat_n(chunk, *calls);
    let chunk_of_call: Vec<usize> = calls_of_chunks.iter().enumerate().flat_map(chunk_of_call).collect();
    let mut chunks = vec![BTreeSet::new(); lens.len()];
    for (call, chunk) in model.calls.iter().zip(&chunk_of_call) {
        chunks[call.unit].insert(*chunk);
    }

    let (mut units, mut places, mut params) = (Vec::<Modules>::new(), vec![], 0);
    for (i, module) in std::mem::take(&mut model.units).into_iter().enumerate() {
        if i == 0 || params >= min_params || chunks[i] != chunks[i - 1] {
            units.push(Modules { members: vec![] });
            params = 0;
        }
        let last = units.len() - 1;
        params += lens[i];
        units[last].members.push(module);
        places.push((last, units[last].members.len() - 1));
    }
    let (mut calls, mut before) = (Vec::<Call<B>>::new(), None);
    for (call, chunk) in std::mem::take(&mut model.calls).into_iter().zip(chunk_of_call) {
        let (unit, member) = places[call.unit];
        let call = call.moved(unit, member);
        match calls.last_mut() {
            Some(last) if matches!(config.wrap, Wrap::Size(_)) && before == Some((unit, chunk)) => {
                last.and_then(call);
                calls_of_chunks[chunk] -= 1;
            }
            _ => calls.push(call),
        }
        before = Some((unit, chunk));
    }
    match (0..units.len()).find(|unit| calls.iter().all(|call| call.unit != *unit)) {
        Some(unused) => Err(FsdpError::Calls(format!("no call is of the unit {}: add one", units[unused].name()))),
        None => {
            let Units { initializer, rules, first_error, shape, .. } = model;
            Ok(Wrapped { units, calls, calls_of_chunks, places, initializer, rules, first_error, shape })
        }
    }
}

fn check_roles(roles: &[Role]) -> Result<(), FsdpError> {
    match roles {
        [Role::First, middle @ .., Role::Last] if middle.iter().all(|role| *role == Role::Middle) => Ok(()),
        _ => Err(FsdpError::Calls(format!(
            "a forward needs one first call, then any number of others, then one last: the calls are {roles:?}"
        ))),
    }
}

/// Checks that each call takes what the one before it returns.
fn check_activations<B>(model: &Units<B>) -> Result<(), FsdpError> {
    let name = |call: &Call<B>| model.units[call.unit].name();
    let wrong = |pair: &&[Call<B>]| pair[0].returns() != pair[1].takes();
    match model.calls.windows(2).find(wrong) {
        Some([before, after]) => Err(FsdpError::Calls(format!(
            "the call of {} takes tensors of {:?} dimensions, and the call of {} before it returns {:?}",
            name(after),
            after.takes(),
            name(before),
            before.returns()
        ))),
        _ => Ok(()),
    }
}

fn check_trained(units: &[Box<dyn AnyUnit>]) -> Result<(), FsdpError> {
    match units.iter().any(|unit| unit.params().iter().any(|param| param.requires_grad)) {
        true => Ok(()),
        false => Err(FsdpError::Config("every parameter is frozen: call the module's `unfreeze()`".into())),
    }
}

/// Refuses two units of one name, by which a state finds them.
fn check_unit_names(units: &[Box<dyn AnyUnit>]) -> Result<(), FsdpError> {
    let mut names = BTreeSet::new();
    match units.iter().find(|unit| !names.insert(unit.name())) {
        Some(unit) => Err(FsdpError::Config(format!("two units are called {}: rename one", unit.name()))),
        None => Ok(()),
    }
}

/// Refuses names that checkpoints reserve.
fn check_names(unit: &dyn AnyUnit) -> Result<(), FsdpError> {
    match unit.params().iter().find(|param| param.name.contains('@')) {
        Some(param) => {
            Err(FsdpError::Config(format!("the parameter {} has an `@` in its name: rename it", param.name)))
        }
        None => Ok(()),
    }
}

/// Refuses layers whose forward would silently compute something different than on one device.
fn check_layers(unit: &dyn AnyUnit, config: &FsdpConfig) -> Result<(), FsdpError> {
    let name = |path: &String| format!("{}.{path}", unit.name());
    if let Some(buffer) = unit.buffers().first().map(name) {
        return Err(FsdpError::Config(format!(
            "{buffer} is a buffer (`RunningState`), and what a forward writes into it would be lost: take a layer \
            without running statistics, such as LayerNorm, RmsNorm or GroupNorm"
        )));
    }
    match unit.random_layers().first().map(name) {
        Some(layer) if config.activation_checkpointing != ActivationCheckpointing::None => {
            Err(FsdpError::Config(format!(
                "{layer} may draw random numbers, and the recomputation of its forward would draw different ones: take \
                activation checkpointing `none`, or a dropout that computes its numbers from a key, such as \
                `fused::dropout`; if its probability is 0, turn it off with `module.freeze_group(ParamGroup::from_predicate(..))` \
                for its path"
            )))
        }
        _ => Ok(()),
    }
}

impl Modules {
    /// Returns the name of the only member, or those of the first and the last one.
    pub fn name(&self) -> String {
        match self.members.as_slice() {
            [one] => one.name().into(),
            [first, .., last] => format!("{} to {}", first.name(), last.name()),
            [] => String::new(),
        }
    }

    /// Returns the parameters in visiting order.
    pub fn params(&self) -> Vec<ModuleParam> {
        self.members.iter().flat_map(|member| member.params()).cloned().collect()
    }

    /// Returns the number of parameter elements.
    pub fn len(&self) -> usize {
        self.params().iter().map(ModuleParam::len).sum()
    }

    /// Returns the parameters by class; `parts` is the number of parts into which those of a class are cut.
    ///
    /// # Errors
    /// Returns an error if a parameter cannot be cut into that many parts.
    pub fn classes(
        &self,
        parts: impl Fn(Class) -> usize,
        kept: &dyn Fn(&ModuleParam) -> Kept,
    ) -> Result<Classes, FsdpError> {
        let params: Vec<(Kept, ModuleParam)> = self.params().into_iter().map(|param| (kept(&param), param)).collect();
        let has = |of, trained| {
            params.iter().any(|(Kept { class, is_trained, .. }, _)| (*class, *is_trained) == (of, trained))
        };
        let mut classes = Classes { places: vec![], params: vec![] };
        for (class, is_trained) in Class::ALL.into_iter().flat_map(|class| [(class, true), (class, false)]) {
            // A unit without parameters has an empty dense buffer, so it takes part in all collectives.
            if has(class, is_trained) || params.is_empty() && (class, is_trained) == (Class::Dense, true) {
                classes.params.push(ClassParams { class, is_trained, params: vec![] });
            }
        }
        for (Kept { class, tensor_shard, is_trained }, ModuleParam { name, shape, .. }) in params {
            if let Some(TensorShard { dim, blocks }) = tensor_shard {
                check_parts(&name, class, shape.get(dim).copied().unwrap_or(1) / blocks, parts(class))?;
            }
            let is_its = |of: &ClassParams| (of.class, of.is_trained) == (class, is_trained);
            let place = classes.params.iter().position(is_its).expect("it is present");
            classes.places.push((place, classes.params[place].params.len()));
            classes.params[place].params.push(Sliced { name, shape, tensor_shard });
        }
        Ok(classes)
    }

    /// Passes the parameter values to `take`, flat and one at a time in visiting order; the modules release them.
    pub fn take_values(&mut self, take: &mut dyn FnMut(Tensor<1>)) {
        self.members.iter_mut().for_each(|member| member.take_values(take));
    }

    /// Releases the values, which may never have been created.
    pub fn release(&mut self) {
        self.members.iter_mut().for_each(|member| member.release());
    }

    /// Returns the modules with these parameters, given in visiting order; if `tracked`, each is the leaf of a graph.
    pub fn bind(&self, values: &mut dyn Iterator<Item = Value>, tracked: bool) -> BoundModules {
        BoundModules(self.members.iter().map(|member| member.bind(values, tracked)).collect())
    }
}

/// Checks that `width` experts or columns can be cut into `parts` parts. Parts of columns may differ by one; the model
/// knows what must be equal, such as heads.
fn check_parts(name: &str, class: Class, width: usize, parts: usize) -> Result<(), FsdpError> {
    let refused = match class {
        Class::Expert if !width.is_multiple_of(parts) => {
            format!("ep {parts} does not divide the {width} experts of {name}: take a divisor")
        }
        _ if width < parts => format!("tp {parts} is more than {name} can be cut into, which is {width}: take fewer"),
        _ => return Ok(()),
    };
    Err(FsdpError::Config(refused))
}

impl BoundModules {
    pub fn module(&self, member: usize) -> &dyn Any {
        self.0[member].module()
    }

    /// Returns the parameters that are on a device, in visiting order.
    pub fn leaves(&self) -> Vec<Leaf> {
        self.0.iter().flat_map(|member| member.leaves()).collect()
    }

    /// Returns where the parameters' gradients go on a device; `next` returns the buffer of each in visiting order, and
    /// its offset there.
    pub fn destinations(&self, mut next: impl FnMut() -> (Option<Rc<GradientBuffer>>, usize)) -> Vec<Destination> {
        let mut destinations = vec![];
        self.0.iter().for_each(|member| member.destinations(&mut next, &mut destinations));
        destinations
    }

    /// Returns the flat gradients of the parameters in visiting order; `None` if the loss does not depend on one.
    pub fn take_gradients(&self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        self.0.iter().flat_map(|member| member.take_gradients(gradients)).collect()
    }
}
