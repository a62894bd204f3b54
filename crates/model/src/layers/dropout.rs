//! Dropout at the four places where GPT-2 applies it.

use crate::StepContext;
use burn::tensor::Tensor;
use fused::DropoutKey;
use std::ops::Range;

/// Where elements are dropped, in nanoGPT's order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Site {
    Embedding,
    Attention,
    AttentionOutput,
    MlpOutput,
}

/// Dropout with probability `p` in one layer; off in evaluation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerDropout {
    pub dropout: Option<StepContext>,
    pub p: f64,
    pub layer: usize,
}

impl LayerDropout {
    /// The probability and the random key of a site; `None` if it drops nothing.
    pub fn key(self, site: Site) -> Option<(f64, DropoutKey)> {
        let StepContext { seed, step, first_row } = self.dropout.filter(|_| self.p > 0.0)?;
        let key = DropoutKey::derive(seed, step, self.layer as u64, site as u64);
        Some((self.p, key.at_row(first_row)))
    }

    /// Whether nothing is dropped.
    pub fn is_none(self) -> bool {
        self.dropout.is_none() || self.p == 0.0
    }

    /// Drops elements of `x_bsd`, which holds these rows of each sequence.
    pub fn apply(self, x_bsd: Tensor<3>, site: Site, rows: &[Range<usize>]) -> Tensor<3> {
        let (Some((p, key)), d) = (self.key(site), x_bsd.dims()[2]) else { return x_bsd };
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
