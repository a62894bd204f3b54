//! A model as a list of calls, each with the part of the model that computes it.

use crate::api::activations::Activations;
use crate::api::call::{CallOutput, Function, Loss, Output, Role, in_a_row, of_first, of_last, of_middle};
use crate::api::inspect::{self, Identity};
use crate::api::units::Units;

use burn::module::Module;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The calls of a model's forward, in order; `M` is the model and `B` the batch.
///
/// A call names a part of the model and gives the function that computes with it. [`run`](Self::run) applies the list
/// to a whole model on one device. [`into_units`](Self::into_units) prepares the same list for sharded training: each
/// part becomes a unit. The functions obey the rules of [`Units`].
///
/// ```
/// use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
///
/// #[derive(Module, Debug)]
/// struct Mlp { layers: Vec<Linear>, head: Linear }
///
/// let device = Device::flex();
/// let layers = vec![LinearConfig::new(4, 4).init(&device)];
/// let model = Mlp { layers, head: LinearConfig::new(4, 1).init(&device) };
///
/// let mut calls = fsdp::Calls::<Mlp, Tensor<3>>::new();
/// calls.first("layers.0", |mlp| &mlp.layers[0], |linear, batch| linear.forward(batch.clone()));
/// calls.last("head", |mlp| &mlp.head, |linear, x: Tensor<3>, _batch| linear.forward(x).mean());
///
/// let loss = calls.run(&model, &Tensor::ones([1, 2, 4], &device)).loss;
/// let units = calls.into_units(model); // for Fsdp::new
/// # assert_eq!(loss.dims(), [1]);
/// # drop(units);
/// ```
pub struct Calls<M, B>(Vec<PartCall<M, B>>);

struct PartCall<M, B> {
    /// Path of the part in the model, which is also the name of its unit.
    path: String,
    part: Box<dyn Fn(&M) -> &dyn Any>,
    params: Box<ParamsOf<M>>,
    add: Box<AddUnit<M, B>>,
    role: Role,
    forward: Function<B>,
}

/// Returns the parameters of a model's part, by their paths in the part.
type ParamsOf<M> = dyn Fn(&M) -> Vec<Identity>;

/// Adds the unit of a model's part, and returns its index.
type AddUnit<M, B> = dyn Fn(&M, &mut Units<B>) -> usize;

impl<M: 'static, B: 'static> Calls<M, B> {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self(vec![])
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the first call: from the batch to an activation. `path` is the path of fields to the part.
    pub fn first<P: Module + 'static, X: Activations>(
        &mut self,
        path: impl Into<String>,
        part: impl Fn(&M) -> &P + Clone + 'static,
        forward: impl Fn(&P, &B) -> X + 'static,
    ) {
        self.push(path, part, Role::First, of_first(forward));
    }

    /// Adds the next call: from an activation to an activation, with or without an auxiliary loss.
    pub fn then<P: Module + 'static, X: Activations, Y: CallOutput>(
        &mut self,
        path: impl Into<String>,
        part: impl Fn(&M) -> &P + Clone + 'static,
        forward: impl Fn(&P, X, &B) -> Y + 'static,
    ) {
        self.push(path, part, Role::Middle, of_middle(forward));
    }

    /// Adds the last call: from an activation to the batch's mean loss, `[1]`, in fp32.
    pub fn last<P: Module + 'static, X: Activations, L: Into<Loss>>(
        &mut self,
        path: impl Into<String>,
        part: impl Fn(&M) -> &P + Clone + 'static,
        forward: impl Fn(&P, X, &B) -> L + 'static,
    ) {
        self.push(path, part, Role::Last, of_last(forward));
    }

    fn push<P: Module + 'static>(
        &mut self,
        path: impl Into<String>,
        part: impl Fn(&M) -> &P + Clone + 'static,
        role: Role,
        forward: Function<B>,
    ) {
        let path = path.into();
        let (name, of, params_of) = (path.clone(), part.clone(), part.clone());
        self.0.push(PartCall {
            path,
            part: Box::new(move |model| part(model)),
            params: Box::new(move |model| inspect::identities(params_of(model))),
            add: Box::new(move |model, units| units.add(name.clone(), of(model).clone()).index),
            role,
            forward,
        });
    }

    /// Applies the first `end` calls to a whole model. Returns the last call's activation; auxiliary losses are
    /// dropped.
    ///
    /// # Panics
    /// If one of the calls returns the model's loss, if the last one returns other tensors, if `end` is 0, or if there
    /// are fewer calls.
    pub fn activation<X: Activations>(&self, model: &M, end: usize, batch: &B) -> X {
        match Self::apply(&self.0[..end], model, batch) {
            Output::Activation(activation) => activation.x.typed(),
            Output::Loss(_) => panic!("one of the first {end} calls returns the loss"),
        }
    }

    /// Applies all calls to a whole model. Returns the last call's loss and the sum of all auxiliary losses, `[1]`
    /// each.
    ///
    /// # Panics
    /// If the list does not end with the call of a loss.
    pub fn run(&self, model: &M, batch: &B) -> Loss {
        match Self::apply(&self.0, model, batch) {
            Output::Loss(loss) => loss,
            Output::Activation(_) => panic!("the last call returns no loss"),
        }
    }

    fn apply(calls: &[PartCall<M, B>], model: &M, batch: &B) -> Output {
        in_a_row(calls.iter().map(|call| (&call.forward, (call.part)(model))), None, batch)
    }

    /// Prepares a model for sharded training: the parts become units, in the order of their first calls.
    ///
    /// # Panics
    /// If a part is not the module at its path, or if a parameter of the model belongs to no part. Two modules count as
    /// one if their parameters have the same ids, as those of clones have.
    pub fn into_units(self, model: M) -> Units<B>
    where
        M: Module,
    {
        let (mut units, mut ids) = (Units::new(), HashMap::new());
        let mut of_model: HashMap<String, Identity> =
            inspect::identities(&model).into_iter().map(|param| (param.name.clone(), param)).collect();
        let mut of_calls = HashSet::new();
        for PartCall { path, params, add, role, forward, .. } in self.0 {
            for param in params(&model) {
                let name = format!("{path}.{}", param.name);
                let at_path = of_model.get(&name);
                assert!(
                    at_path.is_some_and(|of| of.id == param.id),
                    "a call of the part `{path}` gets a module whose parameter {} {:?} is not the model's {name}: give the \
                     call the path of its part",
                    param.name,
                    param.shape
                );
                of_calls.insert(name);
            }
            let unit = *ids.entry(path).or_insert_with(|| add(&model, &mut units));
            units.push(unit, role, forward);
        }
        of_model.retain(|name, _| !of_calls.contains(name));
        assert!(of_model.is_empty(), "no call has the model's {}: add the call of its part", some(of_model.keys()));
        units
    }
}

/// The first of some names in their order, and how many others there are.
fn some<'a>(names: impl Iterator<Item = &'a String> + Clone) -> String {
    let (first, others) = (names.clone().min(), names.count().saturating_sub(1));
    let first = first.map_or("none", String::as_str);
    if others == 0 { first.into() } else { format!("{first} and {others} more") }
}

impl<M: 'static, B: 'static> Default for Calls<M, B> {
    fn default() -> Self {
        Self::new()
    }
}

/// The paths of the parts, in the order of the calls.
impl<M, B> fmt::Debug for Calls<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|call| &call.path)).finish()
    }
}
