use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// The tokens to be predicted from a rank's rows of sequences.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The positions that have one, as they count through all rows; None: all.
    pub(crate) places_n: Option<Tensor<1, Int>>,
    /// `[n]`
    pub(crate) tokens_n: Tensor<1, Int>,
    /// What the mean over the n is multiplied with.
    pub(crate) share: f64,
}

/// Rows of tokens, whole on any rank, from which follows what is to be predicted where.
#[derive(Debug, Clone)]
pub struct TokenRows<'a> {
    /// `x_0 .. x_{t-1}` of each row.
    pub inputs: &'a [i32],
    /// The token that follows each, `x_1 .. x_t`.
    pub targets: &'a [i32],
    /// Positions of a row.
    pub t: usize,
    /// Those of them that are here; from `t` on they are padding, which has no target.
    pub here: Vec<Range<usize>>,
    /// The token that ends a document, if there is one.
    pub end_of_text: Option<i32>,
    /// Whether documents have nothing to do with each other: then nothing follows the end of one.
    pub documents_apart: bool,
    /// Positions of the step, padding included, divided by those of them that have a next token: of the latter a loss
    /// is the mean.
    pub scale: f64,
}

impl Targets {
    /// The next token of every position, `[b, t]`.
    pub fn all(targets_bt: Tensor<2, Int>) -> Self {
        let [b, t] = targets_bt.dims();
        Self { places_n: None, tokens_n: targets_bt.reshape([b * t]), share: 1.0 }
    }

    /// The next tokens of these rows. Where there is none, a loss is 0, whatever of.
    pub fn next(rows: &TokenRows<'_>, device: &Device) -> Self {
        if !rows.documents_apart && rows.here.iter().all(|here| here.end <= rows.t) {
            let of_row = |targets: &[i32]| rows.here.iter().cloned().flatten().map(|i| targets[i]).collect::<Vec<_>>();
            let tokens = rows.targets.chunks_exact(rows.t).flat_map(of_row).collect();
            return Self { places_n: None, tokens_n: ints(tokens, device), share: rows.scale };
        }
        let none = || Self { places_n: Some(ints(vec![0], device)), tokens_n: ints(vec![0], device), share: 0.0 };
        Self::ahead(rows, 0, device).unwrap_or_else(none)
    }

    /// The tokens `k` behind the next ones, None where no position has one: `x_{i+k+1}` at position `i`, if the row
    /// goes as far, and none of the tokens between them ends a document; at the end itself a document begins, unless
    /// documents are apart.
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
