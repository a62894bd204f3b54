//! The optimizers of a model's parameters.

use burn::optim::{
    AdaGrad, Adam, AdamW, Adan, DynState, Lion, Optimizer, RecordState, RmsProp, Sgd, StateSink, StateSource,
};
use burn::tensor::{Device, Tensor};
use fused::FusedAdamW;
use std::fmt;
use std::sync::Arc;

/// An optimizer of Burn that updates each element independently, so a part of a parameter is updated as it would be
/// within the whole.
///
/// Of Burn's own optimizers, those listed here do so; `Adafactor`, `Lamb`, `LBFGS` and `Muon` combine a parameter's
/// elements, which are on several ranks. Implement it for your own optimizer only if [`Optimizer::step`] computes an
/// element's new value and state from that element's value, gradient and state alone, and if the tensors of its state
/// have the shape of the parameter.
pub trait Elementwise: Optimizer {}

impl Elementwise for AdaGrad {}
impl Elementwise for Adam {}
impl Elementwise for AdamW {}
impl Elementwise for Adan {}
impl Elementwise for Lion {}
impl Elementwise for RmsProp {}
impl Elementwise for Sgd {}

/// The optimizers of a model's parameters: one for all, or separate ones for some groups.
///
/// [`FusedAdamW`], the default, is Kiln's own: it makes a step in one pass, and applies weight decay to matrices only.
/// Burn's optimizers treat all parameters of their group alike.
///
/// ```
/// use burn::optim::{AdamWConfig, SgdConfig};
/// use fsdp::{FsdpConfig, Optimizers};
///
/// // Vectors are not decayed, and the embedding learns ten times slower.
/// let adamw = |decay| AdamWConfig::new().with_weight_decay(decay).build();
/// let optimizers = Optimizers::new(adamw(0.1))
///     .with_group(|_name, shape| shape.len() < 2, adamw(0.0), 1.0)
///     .with_group(|name, _shape| name.starts_with("embed."), SgdConfig::new().build(), 0.1);
/// let config = FsdpConfig { optimizers, ..FsdpConfig::default() };
/// # drop(config);
/// ```
#[derive(Clone)]
pub struct Optimizers {
    groups: Vec<Group>,
}

/// The parameters of one optimizer.
#[derive(Clone)]
pub(crate) struct Group {
    applies: Arc<Applies>,
    pub optimizer: AnyOptimizer,
    /// The factor of the step's learning rate.
    pub lr_factor: f64,
}

/// Returns whether a group has a parameter, by its name and shape.
type Applies = dyn Fn(&str, &[usize]) -> bool + Send + Sync;

/// Kiln's AdamW, or an optimizer of Burn.
#[derive(Clone)]
pub struct AnyOptimizer(Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Fused(FusedAdamW),
    Burn(Arc<dyn FlatOptimizer>),
}

impl From<FusedAdamW> for AnyOptimizer {
    fn from(adamw: FusedAdamW) -> Self {
        Self(Kind::Fused(adamw))
    }
}

impl<O: Elementwise> From<O> for AnyOptimizer {
    fn from(optimizer: O) -> Self {
        Self(Kind::Burn(Arc::new(optimizer)))
    }
}

impl AnyOptimizer {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }
}

impl Optimizers {
    /// Gives all parameters to one optimizer.
    pub fn new(optimizer: impl Into<AnyOptimizer>) -> Self {
        let all = Group { applies: Arc::new(|_, _| true), optimizer: optimizer.into(), lr_factor: 1.0 };
        Self { groups: vec![all] }
    }

    /// Gives the parameters for which `applies` returns `true` to another optimizer, which gets the learning rate of
    /// the step times `lr_factor`. The arguments of `applies` are a parameter's name (the unit's name, a dot, the path
    /// of fields) and its shape. If several groups apply, the one that was added last takes precedence.
    pub fn with_group(
        mut self,
        applies: impl Fn(&str, &[usize]) -> bool + Send + Sync + 'static,
        optimizer: impl Into<AnyOptimizer>,
        lr_factor: f64,
    ) -> Self {
        self.groups.push(Group { applies: Arc::new(applies), optimizer: optimizer.into(), lr_factor });
        self
    }

    /// Returns the number of a parameter's group.
    pub(crate) fn group_of(&self, name: &str, shape: &[usize]) -> usize {
        self.groups.iter().rposition(|group| (group.applies)(name, shape)).expect("the first group has all")
    }

    pub(crate) fn group(&self, number: usize) -> &Group {
        &self.groups[number]
    }

    /// Returns whether all of them can step before the host knows the factor of gradients.
    pub(crate) fn step_on_device(&self) -> bool {
        self.groups.iter().all(|group| matches!(group.optimizer.0, Kind::Fused(_)))
    }
}

impl Default for Optimizers {
    fn default() -> Self {
        Self::new(FusedAdamW::default())
    }
}

impl fmt::Debug for Optimizers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |group: &Group| match &group.optimizer.0 {
            Kind::Fused(adamw) => format!("{adamw:?}"),
            Kind::Burn(optimizer) => optimizer.name().into(),
        };
        f.debug_list().entries(self.groups.iter().map(name)).finish()
    }
}

/// An optimizer of Burn, of any type, for flat tensors.
pub(crate) trait FlatOptimizer: Send + Sync {
    fn name(&self) -> &'static str;

    /// Makes one step; see [`Optimizer::step`].
    fn step(&self, lr: f64, at: [Tensor<1>; 2], state: Option<DynState>) -> (Tensor<1>, Option<DynState>);

    /// Returns the tensors and numbers of a state.
    fn record(&self, state: &DynState) -> StateSink;

    /// Returns the state of a record, if it has everything.
    fn load(&self, record: &mut StateSource, device: &Device) -> Option<DynState>;
}

impl<O: Elementwise> FlatOptimizer for O {
    fn name(&self) -> &'static str {
        std::any::type_name::<O>()
    }

    fn step(
        &self,
        lr: f64,
        [value, gradient]: [Tensor<1>; 2],
        state: Option<DynState>,
    ) -> (Tensor<1>, Option<DynState>) {
        let (value, state) = Optimizer::step(self, lr, value, gradient, state.map(DynState::downcast::<O::State<1>>));
        (value, state.map(|state| DynState::create(state, 1)))
    }

    fn record(&self, state: &DynState) -> StateSink {
        let mut record = StateSink::default();
        state.downcast_ref::<O::State<1>>().state_flatten("", &mut record);
        record
    }

    fn load(&self, record: &mut StateSource, device: &Device) -> Option<DynState> {
        O::State::<1>::state_unflatten("", record, device).map(|state| DynState::create(state, 1))
    }
}
