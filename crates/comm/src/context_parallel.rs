//! Context parallelism: the rows of a sequence that each rank holds, and how ranks exchange them.

use crate::ops::{move_rows, reorder};
use crate::{CommError, Communicator, FirstError, Kind, RankGroup};
use burn::tensor::Tensor;
use std::ops::{Deref, Range};

/// The ranks that each hold a part of every sequence's rows, through all layers; by default this rank alone.
///
/// A sequence of `t` rows has 2 N chunks, and rank i of N holds chunks i and 2 N - 1 - i, in this order. Causal
/// attention is then the same amount of work on every rank (Llama 3, arXiv 2407.21783, section 3.3).
///
/// ```text
/// N = 2     rows    0 1   2 3   4 5   6 7
///           rank    0     1     1     0
/// ```
#[derive(Clone, Default)]
pub struct ContextParallel(RankGroup);

impl ContextParallel {
    /// Creates the ranks of `comm`. Failures in forwards and backwards are kept in `first_error`.
    pub fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self(RankGroup::new(comm, first_error))
    }

    /// Returns the rows of sequences of `t` rows that rank `rank` holds, in the order in which it holds them: one range
    /// if the rank is alone, else two.
    pub fn chunks_of(&self, rank: usize, t: usize) -> Vec<Range<usize>> {
        match self.size() {
            1 => std::iter::once(0..t).collect(),
            n => [rank, 2 * n - 1 - rank].map(|chunk| chunk * t / (2 * n)..(chunk + 1) * t / (2 * n)).into(),
        }
    }

    /// Returns [`chunks_of`](Self::chunks_of) this rank.
    pub fn chunks(&self, t: usize) -> Vec<Range<usize>> {
        self.chunks_of(self.rank(), t)
    }

    /// Selects this rank's rows of whole sequences along dimension `dim`.
    pub fn own<const D: usize, K: Kind>(&self, x: Tensor<D, K>, dim: usize) -> Tensor<D, K> {
        if self.is_alone() {
            return x;
        }
        let chunks = self.chunks(x.dims()[dim]).into_iter().map(|rows| x.clone().slice_dim(dim, rows));
        Tensor::cat(chunks.collect(), dim)
    }

    /// Gathers all rows of the sequences in order: `[b, t / N, d]` becomes `[b, t, d]`. The backward treats gradients
    /// of the result as partial sums.
    pub fn gather(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let Some((comm, first_error)) = self.0.ranks().cloned() else { return x_btd };
        let t = x_btd.dims()[1] * comm.world_size();
        move_rows(comm, first_error, x_btd, t, gather, scatter)
    }

    /// Sends `x` to the next rank (the last rank sends to the first one) and returns at once.
    pub fn send(&self, x_n: Tensor<1>) {
        if let Some((comm, first_error)) = self.0.ranks() {
            first_error.run(|| comm.send(x_n, (comm.rank() + 1) % comm.world_size()), || ());
        }
    }

    /// Receives what the previous rank [`send`](Self::send)s, in order: as many tensors as `like` has. If receiving fails,
    /// they are zeros of the shapes in `like`. A single rank receives nothing.
    pub fn recv(&self, like: &[&Tensor<1>]) -> Vec<Tensor<1>> {
        let Some((comm, first_error)) = self.0.ranks() else { return vec![] };
        let from = (comm.rank() + comm.world_size() - 1) % comm.world_size();
        let receive = || like.iter().map(|_| comm.recv(from)).collect();
        first_error.run(receive, || like.iter().map(|like| like.zeros_like()).collect())
    }
}

impl Deref for ContextParallel {
    type Target = RankGroup;

    fn deref(&self) -> &RankGroup {
        &self.0
    }
}

/// Returns the rank that holds chunk `chunk` of a sequence on `n` ranks, and which of its two chunks that is.
fn holder(chunk: usize, n: usize) -> (usize, usize) {
    if chunk < n { (chunk, 0) } else { (2 * n - 1 - chunk, 1) }
}

/// Turns each rank's rows of `b` sequences into all rows of each sequence.
fn gather(comm: &Communicator, x: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let n = comm.world_size();
    let held = |sequence, (rank, half)| 2 * (rank * b + sequence) + half;
    let order = (0..b).flat_map(|sequence| (0..2 * n).map(move |chunk| held(sequence, holder(chunk, n))));
    Ok(reorder(comm.all_gather(x)?, order))
}

/// Turns all rows of `b` sequences into this rank's rows of their sum over the ranks.
fn scatter(comm: &Communicator, y: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let n = comm.world_size();
    let pairs = (0..n).flat_map(|rank| (0..b).map(move |sequence| (rank, sequence)));
    let order = pairs.flat_map(|(rank, sequence)| [rank, 2 * n - 1 - rank].map(|chunk| 2 * n * sequence + chunk));
    comm.reduce_scatter(reorder(y, order))
}
