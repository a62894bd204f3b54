//! Resuming from a checkpoint of a model with different parameters: those that match are taken.

use crate::format::count;
use checkpoint::{Checkpoint, CheckpointError, Parameter};
use fsdp::{MOMENTS, OptimizerState, Part, PartValues};
use model::Initial;
use std::collections::{HashMap, HashSet};

/// Maximum number of names in a line for the user.
const NAMED: usize = 12;

/// Which parameters of a model a checkpoint has, by name and shape.
#[derive(Debug)]
pub(crate) struct Partial {
    taken: HashSet<String>,
    /// Parameters of the model that the checkpoint does not have in this shape.
    new: Vec<Parameter>,
    /// Parameters of the checkpoint that the model does not have in this shape.
    left: Vec<Parameter>,
}

impl Partial {
    /// Matches the parameters of a checkpoint with those of a model.
    ///
    /// # Errors
    /// If none match.
    pub fn new(checkpoint: &Checkpoint, model: &[Parameter]) -> Result<Self, CheckpointError> {
        let kept = &checkpoint.index().parameters;
        let of_checkpoint: HashMap<&str, &Parameter> = kept.iter().map(|of| (of.name.as_str(), of)).collect();
        let (taken, new): (Vec<_>, Vec<_>) =
            model.iter().cloned().partition(|of| of_checkpoint.get(of.name.as_str()).is_some_and(|kept| *kept == of));
        let taken: HashSet<String> = taken.into_iter().map(|of| of.name).collect();
        let left = kept.iter().filter(|of| !taken.contains(&of.name)).cloned().collect();
        if taken.is_empty() {
            let reason = "none of its parameters has name and shape of one of the model's".into();
            return Err(CheckpointError::OtherModel { path: checkpoint.path().into(), reason });
        }
        Ok(Self { taken, new, left })
    }

    /// Whether this parameter is taken from the checkpoint.
    pub fn takes(&self, name: &str) -> bool {
        self.taken.contains(name)
    }

    /// Lines on what is taken and what is not; `all` lists every name, for a log.
    pub fn lines(&self, all: bool) -> Vec<String> {
        let named = if all { usize::MAX } else { NAMED };
        let list = |parameters: &[Parameter]| {
            let name = |of: &Parameter| format!("{} {:?}", of.name, of.shape);
            let names: Vec<String> = parameters.iter().take(named).map(name).collect();
            let more = parameters.len().saturating_sub(named);
            names.join(", ") + &if more > 0 { format!(" and {more} more (logs/rank-0.txt)") } else { String::new() }
        };
        let mut lines = vec![format!("{} of the checkpoint fit and are taken", count(self.taken.len(), "parameter"))];
        if !self.new.is_empty() {
            lines.push(format!("new, with initial values and without moments: {}", list(&self.new)));
        }
        if !self.left.is_empty() {
            lines.push(format!("of the checkpoint, but not taken: {}", list(&self.left)));
        }
        lines
    }
}

/// The initial values of a part; AdamW's moments are 0, as before the first step.
pub(super) fn initial_values(initial: &Initial, wanted: &Part, has_moments: bool) -> PartValues {
    let runs: Vec<_> = wanted.region.runs(&wanted.shape, wanted.range.clone()).collect();
    let param = initial.values(&wanted.name, &runs);
    let zeros = |moment: &str| (moment.to_string(), vec![0.0; param.len()]);
    let tensors = MOMENTS.iter().filter(|_| has_moments).map(|moment| zeros(moment)).collect();
    PartValues { optimizer: OptimizerState { tensors, ..OptimizerState::default() }, param }
}
