//! The batch of a training forward, and what a forward knows about its micro-batch besides the tokens.

use crate::{MtpBatch, Targets};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use comm::ContextParallel;

/// A micro-batch on a device. If the rows are spread over ranks, it holds this rank's part of them.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Tokens, `[b, t]`.
    pub inputs_bt: Tensor<2, Int>,
    /// The tokens to predict.
    pub targets: Targets,
    /// Its position in the run, in training, and its documents, if they are masked from each other.
    pub micro: MicroBatch,
    /// One per multi-token prediction module; empty in evaluation, which computes only the main loss.
    pub mtp: Vec<MtpBatch>,
}

impl Batch {
    /// A batch of whole rows in evaluation.
    pub fn new(inputs_bt: Tensor<2, Int>, targets: Targets) -> Self {
        Self { inputs_bt, targets, micro: MicroBatch::default(), mtp: vec![] }
    }
}

/// What a forward knows about its micro-batch besides the tokens. The default is evaluation on whole rows.
#[derive(Debug, Clone, Default)]
pub struct MicroBatch {
    /// Position in the run. If it is set, the forward applies the dropout and router noise of the model's
    /// configuration; without it (evaluation, generation) it applies neither.
    pub step: Option<StepContext>,
    /// The documents of the rows; `None` treats each row as one document.
    pub documents: Option<Documents>,
    /// Positions at the end of each row that only make its length divisible among the ranks of its sequences. No other
    /// position attends to them, they have no target, and routing ignores them.
    pub padding: usize,
}

/// The position of a micro-batch in a run.
///
/// Masks and noise are functions of these numbers and of each element's index. They are therefore the same in any
/// layout, on any number of ranks, and when the forward is recomputed for activation checkpointing; see
/// [`fused::dropout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepContext {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// Index of the micro-batch's first sequence in the step's global batch.
    pub first_row: u64,
}

/// Documents that share rows: none attends to another, and learned positions restart in each.
///
/// Rotary positions do not restart: only their differences matter, and those are the same within a document.
///
/// ```text
/// row         a b c . d e . f        . ends a document
/// first_keys  0 0 0 0 4 4 4 7        the first position that each attends to
/// positions   0 1 2 3 0 1 2 0
/// ```
#[derive(Debug, Clone)]
pub struct Documents {
    /// This rank's part of the first keys, `[b, t]`, i32, as positions of whole rows.
    pub(crate) first_keys_bt: Tensor<2, Int>,
    /// Positions within the document, `[b, t]`.
    pub(crate) positions_bt: Tensor<2, Int>,
}

impl From<StepContext> for MicroBatch {
    /// A training micro-batch of whole rows.
    fn from(step: StepContext) -> Self {
        Self { step: Some(step), ..Self::default() }
    }
}

impl MicroBatch {
    /// The first position that each position attends to, `[b, t]`, i32, for [`fused::causal_attention`]; `None` if that is
    /// position 0 everywhere.
    pub fn first_keys(&self) -> Option<&Tensor<2, Int>> {
        Some(&self.documents.as_ref()?.first_keys_bt)
    }

    /// [`first_keys`](Self::first_keys) of `b` rows at these positions, for attention to the `window` tokens up to a
    /// position.
    pub(crate) fn first_keys_within(
        &self,
        window: Option<usize>,
        positions: &[usize],
        b: usize,
        device: &Device,
    ) -> Option<Tensor<2, Int>> {
        let first_keys = self.first_keys().cloned();
        let Some(window) = window.filter(|window| positions.iter().any(|at| at >= window)) else { return first_keys };
        let of_window = window_first_keys(window, positions.iter().copied(), b, device);
        Some(first_keys.map_or(of_window.clone(), |first_keys| first_keys.max_pair(of_window)))
    }
}

/// The first of the `window` positions up to each of these, the same for all `b` rows: `[b, positions]`, i32.
pub(crate) fn window_first_keys(
    window: usize,
    positions: impl Iterator<Item = usize>,
    b: usize,
    device: &Device,
) -> Tensor<2, Int> {
    let row: Vec<i32> = positions.map(|at| (at + 1).saturating_sub(window) as i32).collect();
    let (rows, shape) = (row.repeat(b), [b, row.len()]);
    Tensor::from_data(TensorData::new(rows, shape), (&device.clone().inner(), DType::I32))
}

impl Documents {
    /// Creates the documents of whole rows of `t` positions. `first_keys` gives, for each position, where its document
    /// begins in the row. Ranks of a `context` keep their part.
    ///
    /// # Panics
    /// If `first_keys` does not consist of whole rows, or if a document begins before the row, after its position, or
    /// before the document of the position before.
    pub fn new(first_keys: Vec<i32>, t: usize, context: &ContextParallel, device: &Device) -> Self {
        let b = first_keys.len() / t;
        for row in first_keys.chunks(t) {
            let fits = row.iter().enumerate().all(|(at, first)| (0..=at as i32).contains(first)) && row.is_sorted();
            assert!(fits, "first keys of a row: {row:?}: give each position the start of its document in the row");
        }
        let positions = first_keys.iter().enumerate().map(|(i, start)| (i % t) as i32 - start).collect();
        let own = |values: Vec<i32>| {
            context.own(Tensor::<2, Int>::from_data(TensorData::new(values, [b, t]), (device, DType::I32)), 1)
        };
        Self { positions_bt: own(positions), first_keys_bt: own(first_keys) }
    }
}
