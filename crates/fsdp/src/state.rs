//! What a run keeps of a model: parameters and the optimizer's moments, each rank its part.

use crate::{Copies, FsdpError};
use burn::tensor::Tensor;
use std::ops::Range;

/// What one rank has to keep so that all of them together keep everything once.
#[derive(Debug, Clone)]
pub struct State {
    /// This rank's parts of parameters.
    pub parts: Vec<StatePart>,
    /// What is the same on every rank.
    pub progress: Progress,
    /// What other ranks hold too: to be compared before the state counts as kept.
    pub copies: Copies,
}

/// How far the optimizer is, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Steps of AdamW, without those that were skipped.
    pub optimizer_steps: u64,
    /// Of fp16 losses; none without fp16.
    pub loss_scale: Option<LossScale>,
}

/// The factor by which losses are multiplied so that fp16 gradients do not vanish.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// The factor.
    pub factor: f64,
    /// Steps since it was last changed.
    pub good_steps: u64,
}

/// A part of a parameter: elements `range`, flat, of a box of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Name of the unit, a dot, and the path of fields in its module.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The shape, of as many elements, in which it is seen as one that has the box: its own, but where several blocks
    /// of columns are cut alike.
    pub view: Vec<usize>,
    /// Where the box begins in each dimension: all of the parameter, or the experts or columns of a rank.
    pub start: Vec<usize>,
    /// How large it is.
    pub size: Vec<usize>,
    /// Which of the box's elements.
    pub range: Range<usize>,
}

/// A part that a rank keeps.
///
/// The tensors share memory with the model until its next step, which then makes new ones. They may go to another
/// thread ([`comm::hand_over`]).
#[derive(Debug, Clone)]
pub struct StatePart {
    /// Of what.
    pub of: Part,
    /// Values, f32.
    pub param: Tensor<1>,
    /// AdamW's running means of gradients and of their squares, f32; none before the first step.
    pub moments: Option<[Tensor<1>; 2]>,
}

/// The values of a [`Part`], each list of its length.
#[derive(Debug, Clone)]
pub struct PartValues {
    /// Of the parameter.
    pub param: Vec<f32>,
    /// AdamW's running means of gradients and of their squares; none: as before the first step.
    pub moments: Option<[Vec<f32>; 2]>,
}

/// Where [`Unloaded::load_state`](crate::Unloaded::load_state) gets values from. An error is a message for the user.
pub type ReadPart<'a> = dyn FnMut(&Part) -> Result<PartValues, String> + 'a;

/// Values of a whole shard, put together from parts.
pub(crate) struct ShardValues {
    pub param: Vec<f32>,
    pub moments: Option<[Vec<f32>; 2]>,
}

impl ShardValues {
    pub fn new(len: usize, with_moments: bool) -> Self {
        let zeros = || vec![0.0; len];
        Self { param: zeros(), moments: with_moments.then(|| [zeros(), zeros()]) }
    }

    /// Puts the values of a part at `at`.
    pub fn put(&mut self, at: usize, wanted: &Part, values: &PartValues) -> Result<(), FsdpError> {
        let len = wanted.range.len();
        let put = |into: &mut Vec<f32>, from: &[f32]| {
            if from.len() != len {
                return Err(FsdpError::State(format!("{}: {} values for a part of {len}", wanted.name, from.len())));
            }
            into[at..at + len].copy_from_slice(from);
            Ok(())
        };
        put(&mut self.param, &values.param)?;
        match (&mut self.moments, &values.moments) {
            (Some(into), Some(from)) => into.iter_mut().zip(from).try_for_each(|(into, from)| put(into, from)),
            (None, _) => Ok(()),
            (Some(_), None) => Err(FsdpError::State(format!("{}: it has no moments of AdamW", wanted.name))),
        }
    }
}
