use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use comm::ContextParallel;

/// What a forward knows of its micro-batch beside the tokens; by default that it is one of evaluation, of whole rows.
#[derive(Debug, Clone, Default)]
pub struct MicroBatch {
    /// Where it stands in the run: with it a forward drops elements and routes with noise, as its model's configuration
    /// says; without it (evaluation, generation) it does neither.
    pub place: Option<RunPlace>,
    /// The documents of its rows; without them a row is one.
    pub documents: Option<Documents>,
    /// Positions at the end of each row that only make it one that the ranks of its sequences divide. No other attends
    /// to them, they have no target, and routing does not see them.
    pub padding: usize,
}

/// Where a micro-batch stands in a run.
///
/// Masks and noise are functions of these numbers and of each element's place, so they are the same in any layout, on
/// any number of ranks, and when the forward is run again for its activations; see [`fused::dropout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlace {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// Which sequence of the step's global batch the micro-batch's first one is.
    pub first_row: u64,
}

/// Documents that share rows: none of them attends to another, and learned positions restart in each. Rotary positions
/// do not: they enter by differences alone, which within a document are the same.
///
/// ```text
/// row         a b c . d e . f        . ends a document
/// starts      0 0 0 0 4 4 4 7        the first position that each attends to
/// positions   0 1 2 3 0 1 2 0
/// ```
#[derive(Debug, Clone)]
pub struct Documents {
    /// `[b, t]`, i32, of this rank's part of the context, counted through whole rows.
    pub(crate) starts_bt: Tensor<2, Int>,
    /// `[b, t]`
    pub(crate) positions_bt: Tensor<2, Int>,
}

impl From<RunPlace> for MicroBatch {
    /// Of training, of whole rows.
    fn from(place: RunPlace) -> Self {
        Self { place: Some(place), ..Self::default() }
    }
}

impl MicroBatch {
    /// The first position that each attends to, where that is not the first of all.
    pub(crate) fn starts(&self) -> Option<&Tensor<2, Int>> {
        Some(&self.documents.as_ref()?.starts_bt)
    }
}

impl Documents {
    /// Of whole rows of `t` positions, for each of which `starts` says where in its row its document begins; on ranks
    /// of a `context`, their part of them.
    ///
    /// # Panics
    /// If these are not whole rows.
    pub fn new(starts: Vec<i32>, t: usize, context: &ContextParallel, device: &Device) -> Self {
        let b = starts.len() / t;
        let positions = starts.iter().enumerate().map(|(i, start)| (i % t) as i32 - start).collect();
        let own = |values: Vec<i32>| {
            context.own(Tensor::<2, Int>::from_data(TensorData::new(values, [b, t]), (device, DType::I32)), 1)
        };
        Self { positions_bt: own(positions), starts_bt: own(starts) }
    }
}
