use burn::tensor::Tensor;
use fused::DropoutKey;
use std::ops::Range;

/// Where a micro-batch stands in a run: with it a forward drops elements and routes with noise, as its model's configuration says;
/// without it (evaluation, generation) it does neither.
///
/// Masks and noise are functions of these numbers and of each element's place, so they are the same in any layout, on any number of ranks,
/// and when the forward is run again for its activations; see [`fused::dropout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// Which sequence of the step's global batch the micro-batch's first one is.
    pub first_row: u64,
}

/// What is dropped, in nanoGPT's order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Embedding,
    Attention,
    AttentionOutput,
    MlpOutput,
}

/// Dropout with probability `p` in one layer; none in evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerDropout {
    pub dropout: Option<MicroBatch>,
    pub p: f64,
    pub layer: usize,
}

impl LayerDropout {
    /// With which probability elements are dropped at a place, and which, where any are.
    pub fn key(self, place: Place) -> Option<(f64, DropoutKey)> {
        let MicroBatch { seed, step, first_row } = self.dropout.filter(|_| self.p > 0.0)?;
        let key = DropoutKey::derive(seed, step, self.layer as u64, place as u64);
        Some((self.p, key.at_row(first_row)))
    }

    /// Whether nothing is dropped.
    pub fn is_none(self) -> bool {
        self.dropout.is_none() || self.p == 0.0
    }

    /// Drops elements of `x_bsd`, which are these rows of each sequence.
    pub fn apply(self, x_bsd: Tensor<3>, place: Place, rows: &[Range<usize>]) -> Tensor<3> {
        let (Some((p, key)), d) = (self.key(place), x_bsd.dims()[2]) else { return x_bsd };
        if let [rows] = rows {
            return fused::dropout(x_bsd, p, key.at_index(rows.start * d));
        }
        let mut end = 0;
        let dropped = rows.iter().map(|rows| {
            end += rows.len();
            let x = x_bsd.clone().slice_dim(1, end - rows.len()..end);
            fused::dropout(x, p, key.at_index(rows.start * d))
        });
        Tensor::cat(dropped.collect(), 1)
    }
}
