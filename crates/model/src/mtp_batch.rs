//! What multi-token prediction reads and predicts.

use crate::{Targets, TokenRows};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// The input and the targets of one multi-token prediction module for a batch.
///
/// Positions without a target are computed like all others and count toward the load of the experts; padding does not.
#[derive(Debug, Clone)]
pub struct MtpBatch {
    /// `x_{i+k}` at position `i`, `[b, t]`; 0 past the end of a row.
    pub tokens_bt: Tensor<2, Int>,
    /// The targets `x_{i+k+1}`; `None` if there are none.
    pub targets: Option<Targets>,
}

impl MtpBatch {
    /// The batches of modules 1 to `depth` for some positions of rows.
    pub fn of_rows(rows: &TokenRows<'_>, depth: usize, device: &Device) -> Vec<Self> {
        let (b, here) = (rows.targets.len() / rows.t, rows.here.iter().map(Range::len).sum::<usize>());
        (1..=depth)
            .map(|k| {
                let of_row = |next: &'_ [i32]| {
                    let ahead = |i: usize| next.get(i + k - 1).copied().unwrap_or(0);
                    rows.here.iter().cloned().flatten().map(ahead).collect::<Vec<_>>()
                };
                let tokens: Vec<i32> = rows.targets.chunks_exact(rows.t).flat_map(of_row).collect();
                let tokens_bt = Tensor::from_data(TensorData::new(tokens, [b, here]), device);
                Self { tokens_bt, targets: Targets::ahead(rows, k, device) }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ints<const D: usize>(tensor: &Tensor<D, Int>) -> Vec<i32> {
        tensor.clone().into_data().iter::<i32>().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// For a row `x_0 .. x_t`, module `k` reads `x_{i+k}` and predicts `x_{i+k+1}` if no document ends in `x_{i+1}
        /// .. x_{i+k}`.
        #[test]
        fn targets_stay_in_their_row_and_cross_no_end_of_a_document(
            rows in prop::collection::vec(prop::collection::vec(0..4i32, 7), 1..4), depth in 0..8usize, end in prop::option::of(0..4i32), apart: bool,
        ) {
            let t = 6;
            let inputs: Vec<i32> = rows.iter().flat_map(|row| row[..t].to_vec()).collect();
            let targets: Vec<i32> = rows.iter().flat_map(|row| row[1..].to_vec()).collect();
            let here = std::iter::once(0..t).collect();
            let documents_apart = apart && end.is_some();
            let of_rows = TokenRows { inputs: &inputs, targets: &targets, t, here, end_of_text: end, documents_apart, scale: 1.0 };
            let batches = MtpBatch::of_rows(&of_rows, depth, &Device::flex());
            prop_assert_eq!(batches.len(), depth);
            for (k, batch) in (1..).zip(&batches) {
                let places = (0..rows.len()).flat_map(|row| (0..t).map(move |i| (row, i)));
                let read = places.clone().map(|(row, i)| rows[row].get(i + k).copied().unwrap_or(0)).collect::<Vec<_>>();
                prop_assert_eq!(ints(&batch.tokens_bt), read);
                let has_target = |(row, i): &(usize, usize)| {
                    let from = if documents_apart { *i } else { i + 1 };
                    i + k < t && rows[*row][from..=i + k].iter().all(|token| Some(*token) != end)
                };
                let expected: Vec<_> = places.filter(has_target).collect();
                prop_assert_eq!(batch.targets.is_some(), !expected.is_empty());
                if let Some(Targets { places_n: Some(at), tokens_n: wanted, share }) = &batch.targets {
                    prop_assert_eq!(*share, expected.len() as f64 / (rows.len() * t) as f64);
                    prop_assert_eq!(ints(at), expected.iter().map(|(row, i)| (row * t + i) as i32).collect::<Vec<_>>());
                    prop_assert_eq!(ints(wanted), expected.iter().map(|(row, i)| rows[*row][i + k + 1]).collect::<Vec<_>>());
                }
            }
        }
    }
}
