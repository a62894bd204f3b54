//! The state of a model that a run saves: parameters and the optimizer's moments, a part on each rank.

use crate::{Copies, FsdpError};
use burn::tensor::Tensor;
use checkpoint::Region;
use std::ops::Range;

/// What one rank must save so that all ranks together save everything once.
#[derive(Debug, Clone)]
pub struct State {
    /// This rank's parts of parameters.
    pub parts: Vec<StatePart>,
    /// The progress, which is the same on every rank.
    pub progress: Progress,
    /// What other ranks hold too; compare it before the state counts as saved.
    pub copies: Copies,
}

/// The progress of the optimizer, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Number of AdamW steps, without skipped ones.
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
/// The tensors share memory with the model until its next step, which creates new ones. They may move to another thread
/// ([`comm::hand_over`]).
#[derive(Debug, Clone)]
pub struct StatePart {
    /// The part.
    pub of: Part,
    /// Values, f32.
    pub param: Tensor<1>,
    /// AdamW's running means of gradients and of their squares, f32; `None` before the first step.
    pub moments: Option<[Tensor<1>; 2]>,
}

/// The values of a [`Part`]; each list has its length.
#[derive(Debug, Clone)]
pub struct PartValues {
    /// Values of the parameter.
    pub param: Vec<f32>,
    /// AdamW's running means of gradients and of their squares; `None` means those before the first step.
    pub moments: Option<[Vec<f32>; 2]>,
}

/// The source of values for [`Unloaded::load_state`](crate::Unloaded::load_state). An error is a message for the user.
pub type ReadPart<'a> = dyn FnMut(&Part) -> Result<PartValues, String> + 'a;

/// The values of a whole shard, assembled from parts.
pub(crate) struct ShardValues {
    pub param: Vec<f32>,
    pub moments: Option<[Vec<f32>; 2]>,
}

impl ShardValues {
    pub fn new(len: usize, with_moments: bool) -> Self {
        let zeros = || vec![0.0; len];
        Self { param: zeros(), moments: with_moments.then(|| [zeros(), zeros()]) }
    }

    /// Stores the values of a part at `at`.
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
