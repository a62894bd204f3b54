//! Prediction targets of a rank's rows.

use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// The tokens to predict from a rank's rows of sequences.
#[derive(Debug, Clone)]
pub struct Targets {
    /// Flat indices, over all rows, of the positions that have a target; `None` means all.
    pub(crate) places_n: Option<Tensor<1, Int>>,
    /// The target tokens, `[n]`.
    pub(crate) tokens_n: Tensor<1, Int>,
    /// Factor on the mean over the n targets.
    pub(crate) share: f64,
}

/// Whole rows of tokens, the same on every rank, from which the targets are derived.
#[derive(Debug, Clone)]
pub struct TokenRows<'a> {
    /// `x_0 .. x_{t-1}` of each row.
    pub inputs: &'a [i32],
    /// The token that follows each position, `x_1 .. x_t`.
    pub targets: &'a [i32],
    /// Positions per row.
    pub t: usize,
    /// Positions of a row that are on this rank. Those from `t` on are padding and have no target.
    pub here: Vec<Range<usize>>,
    /// The token that ends a document, if there is one.
    pub end_of_text: Option<i32>,
    /// Whether documents are masked from each other; the end of a document then has no next token.
    pub documents_apart: bool,
    /// All positions of the step, including padding, divided by those with a next token; a loss is the mean over the
    /// latter.
    pub scale: f64,
}

impl Targets {
    /// The next token of every position, `[b, t]`.
    pub fn all(targets_bt: Tensor<2, Int>) -> Self {
        let [b, t] = targets_bt.dims();
        Self { places_n: None, tokens_n: targets_bt.reshape([b * t]), share: 1.0 }
    }

    /// The next tokens of these rows. If there are none, the loss is 0.
    pub fn next(rows: &TokenRows<'_>, device: &Device) -> Self {
        if !rows.documents_apart && rows.here.iter().all(|here| here.end <= rows.t) {
            let of_row = |targets: &[i32]| rows.here.iter().cloned().flatten().map(|i| targets[i]).collect::<Vec<_>>();
            let tokens = rows.targets.chunks_exact(rows.t).flat_map(of_row).collect();
            return Self { places_n: None, tokens_n: ints(tokens, device), share: rows.scale };
        }
        let none = || Self { places_n: Some(ints(vec![0], device)), tokens_n: ints(vec![0], device), share: 0.0 };
        Self::ahead(rows, 0, device).unwrap_or_else(none)
    }

    /// The tokens `k` after the next ones: `x_{i+k+1}` at position `i`. Returns `None` if no position has one.
    ///
    /// A position has a target if the row is long enough and none of the tokens `x_{i+1} .. x_{i+k}` ends a document.
    /// If token `i` itself ends a document, the next document follows it, unless documents are masked from each other.
    pub(crate) fn ahead(rows: &TokenRows<'_>, k: usize, device: &Device) -> Option<Self> {
        let here = rows.here.iter().map(Range::len).sum::<usize>();
        let (mut places, mut tokens) = (vec![], vec![]);
        for (row, (inputs, targets)) in
            rows.inputs.chunks_exact(rows.t).zip(rows.targets.chunks_exact(rows.t)).enumerate()
        {
            for (at, i) in rows.here.iter().cloned().flatten().enumerate() {
                let Some(target) = targets.get(i + k) else { continue };
                let ends = |token: &i32| rows.end_of_text == Some(*token);
                if targets[i..i + k].iter().any(ends) || rows.documents_apart && ends(&inputs[i]) {
                    continue;
                }
                places.push((row * here + at) as i32);
                tokens.push(*target);
            }
        }
        let (n, positions) = (tokens.len(), rows.inputs.len() / rows.t * here);
        let share = rows.scale * n as f64 / positions as f64;
        (n > 0).then(|| Self { places_n: Some(ints(places, device)), tokens_n: ints(tokens, device), share })
    }
}

fn ints(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), device)
}
