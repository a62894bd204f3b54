//! The ranks that share sequences: the location of their rows, and padding.

use std::ops::Range;

use burn::tensor::{Element, Tensor};

use crate::{ContextParallel, Kind, Reduce, TensorParallel};

/// The ranks that compute the same sequences. `cp` splits the context into parts, and `tp` splits the rows of each part
/// between layers.
#[derive(Clone, Default)]
pub struct SequenceRanks {
    /// The ranks that share heads, columns and the vocabulary.
    pub tp: TensorParallel,
    /// The ranks that share the context.
    pub cp: ContextParallel,
    /// Padding rows at the end of each sequence, which make its length divisible by the ranks; see
    /// [`divisor`](Self::divisor).
    pub padding: usize,
}

impl SequenceRanks {
    /// Returns whether this rank holds whole sequences.
    pub fn is_alone(&self) -> bool {
        self.tp.is_alone() && self.cp.is_alone()
    }

    /// Returns the number of ranks that share a sequence.
    pub fn size(&self) -> usize {
        self.tp.size() * self.cp.size()
    }

    /// Returns the number that must divide the padded length of sequences shared by `tp` x `cp` ranks: all ranks hold
    /// the same number of rows, and with `cp` > 1 a context has two chunks per `cp` rank.
    pub fn divisor(tp: usize, cp: usize) -> usize {
        cp * if cp > 1 && !tp.is_multiple_of(2) { 2 * tp } else { tp }
    }

    /// Returns the same ranks for sequences with `padding` rows of padding.
    pub fn padded(&self, padding: usize) -> Self {
        Self { padding, ..self.clone() }
    }

    /// Returns the unpadded length of sequences that are split into `s` rows per rank.
    pub fn whole(&self, s: usize) -> usize {
        s * self.size() - self.padding
    }

    /// Returns the number of rows that this rank holds of each sequence of `t` rows.
    pub fn here(&self, t: usize) -> usize {
        (t + self.padding) / self.size()
    }

    /// Returns how many of the `s` rows held here of each sequence are not padding; padding rows come last.
    pub fn filled(&self, s: usize) -> usize {
        let t = self.whole(s);
        self.rows(s).into_iter().map(|rows| rows.end.min(t).saturating_sub(rows.start)).sum()
    }

    /// Writes `value` into the padding rows. Dimension `dim` has this rank's rows of a sequence.
    pub fn fill_padding<const D: usize, K: Kind>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        value: impl Element,
    ) -> Tensor<D, K> {
        let mut padding = x.dims().map(|length| 0..length);
        padding[dim].start = self.filled(padding[dim].end);
        if padding[dim].is_empty() { x } else { x.slice_fill(padding, value) }
    }

    /// Gathers all rows of the sequences in order, without padding: `[b, s, d]` becomes `[b, t, d]`. The backward
    /// treats gradients of the result as partial sums.
    pub fn gather(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let (t, all) = (self.whole(x_bsd.dims()[1]), self.cp.gather(self.tp.gather(x_bsd)));
        if self.padding == 0 { all } else { all.slice_dim(1, 0..t) }
    }

    /// Returns the sum over the ranks, on each of them. The backward treats gradients of the result as partial sums.
    pub fn sum<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.cp.sum(self.tp.sum(x))
    }

    /// Returns the largest of the ranks' numbers, outside any graph.
    pub fn max(&self, x_n: Tensor<1>) -> Tensor<1> {
        self.cp.all_reduce(self.tp.all_reduce(x_n, Reduce::Max), Reduce::Max)
    }

    /// Selects this rank's rows of whole, padded sequences along dimension `dim`.
    pub fn own<const D: usize, K: Kind>(&self, x: Tensor<D, K>, dim: usize) -> Tensor<D, K> {
        let of_context = self.cp.own(x, dim);
        let rows = self.tp.part(of_context.dims()[dim]);
        if self.tp.is_alone() { of_context } else { of_context.slice_dim(dim, rows) }
    }

    /// Returns the positions in the sequence of the `s` rows held here, as ranges in the order of the rows.
    pub fn rows(&self, s: usize) -> Vec<Range<usize>> {
        let of_context = s * self.tp.size();
        let mine = self.tp.part(of_context);
        let mut before = 0;
        let overlap = |chunk: Range<usize>| {
            let [from, to] = [mine.start, mine.end].map(|row| row.clamp(before, before + chunk.len()) - before);
            before += chunk.len();
            chunk.start + from..chunk.start + to
        };
        let rows = self.cp.chunks(of_context * self.cp.size()).into_iter().map(overlap);
        rows.filter(|rows| !rows.is_empty()).collect()
    }
}
