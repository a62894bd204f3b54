//! The state of a model that a run saves: parameters and the optimizer's state, a part on each rank.

use crate::{Copies, FsdpError};
use burn::tensor::Tensor;
use checkpoint::Region;
use std::collections::BTreeMap;
use std::ops::Range;

/// What one rank must save so that all ranks together save everything once.
#[derive(Debug, Clone)]
pub struct State {
    /// This rank's parts of parameters.
    pub parts: Vec<StatePart>,
    /// The progress, which is the same on every rank.
    pub progress: Progress,
    /// What other ranks also hold; compare the copies before the state counts as saved.
    pub copies: Copies,
}

/// The progress of the optimizer, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Number of the optimizer's steps, without skipped ones.
    pub optimizer_steps: u64,
    /// The scale of fp16 losses; `None` without fp16.
    pub loss_scale: Option<LossScale>,
}

/// The factor of losses that keeps fp16 gradients from vanishing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// The factor.
    pub factor: f64,
    /// Steps since its last change.
    pub good_steps: u64,
}

/// A part of a parameter: flat elements `range` of a region of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Name of the unit, a dot, and the path of fields in its module.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The whole parameter, or the experts or columns of a rank.
    pub region: Region,
    /// The range of the region's elements.
    pub range: Range<usize>,
}

/// A part that a rank saves.
///
/// The tensors share memory with the model until its next step, which creates new ones; the state of an optimizer of
/// Burn is a copy. They may move to another thread ([`comm::hand_over`]).
#[derive(Debug, Clone)]
pub struct StatePart {
    /// The part.
    pub of: Part,
    /// Values, f32.
    pub param: Tensor<1>,
    /// The optimizer's state, f32; `None` before the first step, and for frozen parameters.
    pub optimizer: Option<OptimizerState<Tensor<1>>>,
}

impl StatePart {
    /// Whether another rank's part has bitwise the same values. This copies the values from their devices.
    pub fn is_same(&self, other: &Self) -> bool {
        let bytes = |tensor: &Tensor<1>| tensor.clone().into_data().as_bytes().to_vec();
        let tensors = |part: &Self| part.optimizer.clone().map_or(BTreeMap::new(), |state| state.tensors);
        let (mine, others) = (tensors(self), tensors(other));
        self.of == other.of
            && bytes(&self.param) == bytes(&other.param)
            && mine.keys().eq(others.keys())
            && mine.values().zip(others.values()).all(|(mine, other)| bytes(mine) == bytes(other))
    }
}

/// The state of an optimizer for some elements of a parameter: for Kiln's AdamW its running means of gradients and of
/// their squares, `exp_avg` and `exp_avg_sq`, and for an optimizer of Burn what its record has.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerState<T> {
    /// Tensors with one number per element.
    pub tensors: BTreeMap<String, T>,
    /// Other numbers, which are the same for all elements.
    pub numbers: BTreeMap<String, Number>,
}

impl<T> Default for OptimizerState<T> {
    /// No state.
    fn default() -> Self {
        Self { tensors: BTreeMap::new(), numbers: BTreeMap::new() }
    }
}

/// A number of an optimizer's state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A count.
    UInt(u64),
    /// An integer below 0.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// The values of a [`Part`]; each list has its length.
#[derive(Debug, Clone)]
pub struct PartValues {
    /// Values of the parameter.
    pub param: Vec<f32>,
    /// The optimizer's state; it is not read before the first step, or for a frozen parameter.
    pub optimizer: OptimizerState<Vec<f32>>,
}

/// The source of values for [`Unloaded::load_state`](crate::Unloaded::load_state). An error is a message for the user.
pub type ReadPart<'a> = dyn FnMut(&Part) -> Result<PartValues, String> + 'a;

impl Number {
    /// Converts a number of Burn's record to the type that fits.
    pub(crate) fn of<S: Copy>(scalar: S) -> Self
    where
        u64: TryFrom<S>,
        i64: TryFrom<S>,
        f64: TryFrom<S>,
        bool: TryFrom<S>,
    {
        let int = || i64::try_from(scalar).map(Self::Int);
        let float = || f64::try_from(scalar).map(Self::Float);
        let bool = || bool::try_from(scalar).map(Self::Bool);
        let found = u64::try_from(scalar).map(Self::UInt).ok().or(int().ok()).or(bool().ok()).or(float().ok());
        found.expect("a scalar is an integer, a floating-point number or a truth value")
    }

    /// Converts back.
    pub(crate) fn scalar<S: From<u64> + From<i64> + From<f64> + From<bool>>(self) -> S {
        match self {
            Self::UInt(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Float(value) => value.into(),
            Self::Bool(value) => value.into(),
        }
    }
}

/// The values of a whole shard, assembled from parts.
pub(crate) struct ShardValues {
    pub param: Vec<f32>,
    /// The optimizer's states, with the name and the start of the part that they belong to.
    states: Vec<(String, usize, OptimizerState<Vec<f32>>)>,
}

impl ShardValues {
    pub fn new(len: usize) -> Self {
        Self { param: vec![0.0; len], states: vec![] }
    }

    /// Stores the values of a part at `at`.
    pub fn put(&mut self, at: usize, wanted: &Part, values: PartValues) -> Result<(), FsdpError> {
        let len = wanted.range.len();
        let lists = values.optimizer.tensors.values().chain([&values.param]);
        if let Some(wrong) = lists.into_iter().find(|list| list.len() != len) {
            return Err(FsdpError::State(format!("{}: {} values for a part of {len}", wanted.name, wrong.len())));
        }
        self.param[at..at + len].copy_from_slice(&values.param);
        self.states.push((wanted.name.clone(), at, values.optimizer));
        Ok(())
    }

    /// Returns the state of a range of the shard; `None` if all of it is padding. Padding is 0, and so is the state of
    /// parameters that were frozen when it was saved.
    ///
    /// # Errors
    /// If its parts have states of different kinds.
    pub fn state_in(&self, range: &Range<usize>) -> Result<Option<OptimizerState<Vec<f32>>>, FsdpError> {
        let mut states = self.states.iter().filter(|(_, at, _)| range.contains(at)).peekable();
        let Some((first, _, like)) = states.peek() else { return Ok(None) };
        let is_empty = |state: &OptimizerState<Vec<f32>>| state.tensors.is_empty() && state.numbers.is_empty();
        let (first, like) =
            states.clone().find(|(.., state)| !is_empty(state)).map_or((first, like), |(name, _, state)| (name, state));
        let zeros = |name: &String| (name.clone(), vec![0.0; range.len()]);
        let mut tensors: BTreeMap<_, _> = like.tensors.keys().map(zeros).collect();
        for (name, at, state) in states.filter(|(.., state)| !is_empty(state)) {
            if !(state.tensors.keys().eq(like.tensors.keys()) && state.numbers == like.numbers) {
                return Err(FsdpError::State(format!(
                    "{first} and {name} were saved with different optimizers, and have the same one now: give the \
                     optimizers and groups that the state was saved with"
                )));
            }
            for (into, from) in tensors.values_mut().zip(state.tensors.values()) {
                into[at - range.start..][..from.len()].copy_from_slice(from);
            }
        }
        Ok(Some(OptimizerState { tensors, numbers: like.numbers.clone() }))
    }
}
