//! The ranks that share sequences: where their rows lie, and what is padding.

use std::ops::Range;

use burn::tensor::{Element, Tensor};

use crate::{ContextParallel, Kind, Reduce, TensorParallel};

/// The ranks that compute the same sequences: some have parts of the context, and of each of these some have parts of
/// its rows between their layers.
#[derive(Clone, Default)]
pub struct SequenceRanks {
    /// Those that have heads, columns and the vocabulary together.
    pub tp: TensorParallel,
    /// Those that have the context together.
    pub cp: ContextParallel,
    /// Rows at the end of each sequence that only make it one that the ranks divide; see [`divisor`](Self::divisor).
    pub padding: usize,
}

impl SequenceRanks {
    /// Whether this rank has whole sequences.
    pub fn is_alone(&self) -> bool {
        self.tp.is_alone() && self.cp.is_alone()
    }

    /// How many ranks share a sequence.
    pub fn size(&self) -> usize {
        self.tp.size() * self.cp.size()
    }

    /// What divides the length of sequences, padding included, that `tp` x `cp` ranks share: each has as many rows, and
    /// of a context two chunks.
    pub fn divisor(tp: usize, cp: usize) -> usize {
        cp * if cp > 1 && !tp.is_multiple_of(2) { 2 * tp } else { tp }
    }

    /// The same ranks, for sequences with so much padding.
    pub fn padded(&self, padding: usize) -> Self {
        Self { padding, ..self.clone() }
    }

    /// Length, without padding, of sequences of which `s` rows each are here.
    pub fn whole(&self, s: usize) -> usize {
        s * self.size() - self.padding
    }

    /// How many rows are here of each sequence of `t`.
    pub fn here(&self, t: usize) -> usize {
        (t + self.padding) / self.size()
    }

    /// How many of the `s` rows here of each sequence are real; padding comes behind them.
    pub fn filled(&self, s: usize) -> usize {
        let t = self.whole(s);
        self.rows(s).into_iter().map(|rows| rows.end.min(t).saturating_sub(rows.start)).sum()
    }

    /// The same with `value` in the rows that are padding. Dimension `dim` has this rank's rows of a sequence.
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

    /// All rows of the sequences but padding, in their order: `[b, s, d]` to `[b, t, d]`. Gradients of the result are
    /// taken for partial sums.
    pub fn gather(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let (t, all) = (self.whole(x_bsd.dims()[1]), self.cp.gather(self.tp.gather(x_bsd)));
        if self.padding == 0 { all } else { all.slice_dim(1, 0..t) }
    }

    /// The sum over the ranks, on each of them. Gradients of the result are taken for partial sums.
    pub fn sum<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.cp.sum(self.tp.sum(x))
    }

    /// The largest of the ranks' numbers, in no graph.
    pub fn max(&self, x_n: Tensor<1>) -> Tensor<1> {
        self.cp.all_reduce(self.tp.all_reduce(x_n, Reduce::Max), Reduce::Max)
    }

    /// This rank's rows, along dimension `dim`, of whole sequences with their padding.
    pub fn own<const D: usize, K: Kind>(&self, x: Tensor<D, K>, dim: usize) -> Tensor<D, K> {
        let of_context = self.cp.own(x, dim);
        let rows = self.tp.part(of_context.dims()[dim]);
        if self.tp.is_alone() { of_context } else { of_context.slice_dim(dim, rows) }
    }

    /// Where in their sequences the `s` rows of each lie that are here, as ranges in the order of the rows.
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
