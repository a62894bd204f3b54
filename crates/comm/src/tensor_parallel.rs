//! Tensor and sequence parallelism: the collectives around layers whose heads or columns are split over ranks.

use crate::ops::{flat, move_rows, reorder, run};
use crate::{CommError, Communicator, FirstError, RankGroup};
use burn::tensor::Tensor;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ranks that each compute a part of a layer's heads or columns, and between such layers hold a part of each
/// sequence's rows (Megatron, arXiv 1909.08053, with sequence parallelism, arXiv 2205.05198); by default this rank
/// alone.
///
/// ```text
///              rank 0      rank 1
/// x_bsd        rows 0 1    rows 2 3        s = t / 2 rows of each of b sequences
/// gather       0 1 2 3     0 1 2 3         x_btd on both ranks
/// columns      heads A     heads B         W1 by columns, W2 by rows: the products are partial sums
/// scatter      rows 0 1    rows 2 3        sum of both, [b, s, d]
/// ```
///
/// A rank receives (N - 1) / N of `b t d` numbers in each of gather and scatter, and the same amount again in the
/// backward of each. Parameters that every rank applies to its own rows alone (norms, routers, the bias after a sum)
/// have gradients that must be summed over the ranks, as in data parallelism.
#[derive(Clone, Default)]
pub struct TensorParallel(RankGroup);

impl TensorParallel {
    /// Creates the ranks of `comm`. Failures in forwards and backwards are kept in `first_error`.
    pub fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self(RankGroup::new(comm, first_error))
    }

    /// Returns this rank's part of `n` items, which are distributed in order without overlap; parts differ by at most
    /// one item.
    pub fn part(&self, n: usize) -> Range<usize> {
        part(n, self.rank(), self.size())
    }

    /// Gathers the rows of all ranks: `[b, s, d]` becomes `[b, t, d]`. The backward treats gradients of the result as
    /// partial sums.
    pub fn gather(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let Some((comm, first_error)) = self.0.ranks().cloned() else { return x_bsd };
        let t = x_bsd.dims()[1] * comm.world_size();
        move_rows(comm, first_error, x_bsd, t, gather, scatter)
    }

    /// Does the same as [`gather`](Self::gather), and lets users of the rows gather them again instead of keeping them.
    pub fn gather_again(&self, x_bsd: Tensor<3>) -> Gathered {
        let Some((comm, first_error)) = self.0.ranks().cloned() else { return Gathered { x_btd: x_bsd, again: None } };
        let again = Arc::new(Again { comm, first_error, x_bsd: x_bsd.clone().inner(), state: Mutex::default() });
        Gathered { x_btd: self.gather(x_bsd), again: Some(again) }
    }

    /// Sums over the ranks and returns this rank's rows: `[b, t, d]` becomes `[b, s, d]`.
    ///
    /// # Panics
    /// Panics if the number of ranks does not divide `t`.
    pub fn scatter(&self, y_btd: Tensor<3>) -> Tensor<3> {
        let Some((comm, first_error)) = self.0.ranks().cloned() else { return y_btd };
        let (t, n) = (y_btd.dims()[1], comm.world_size());
        assert!(t.is_multiple_of(n), "tensor parallelism: {t} rows of a sequence on {n} ranks");
        move_rows(comm, first_error, y_btd, t / n, scatter, gather)
    }
}

impl Deref for TensorParallel {
    type Target = RankGroup;

    fn deref(&self) -> &RankGroup {
        &self.0
    }
}

/// All rows of sequences whose rows are split over the ranks.
pub struct Gathered {
    /// `[b, t, d]`
    pub x_btd: Tensor<3>,
    again: Option<Arc<Again>>,
}

struct Again {
    comm: Communicator,
    first_error: FirstError,
    /// This rank's rows.
    x_bsd: Tensor<3>,
    state: Mutex<GatherState>,
}

/// The number of pending requests for the rows; the rows are kept from the first request to the last.
#[derive(Default)]
struct GatherState {
    askers: usize,
    x_btd: Option<Tensor<3>>,
}

impl Gathered {
    /// Returns a function that gathers the rows again, outside any graph; call it once. The first such function to be
    /// called gathers the rows for all of them. Returns `None` on a single rank, which has the rows. Every rank creates
    /// and calls the same number of these functions, in the same order among its other collectives.
    pub fn again(&self) -> Option<impl Fn() -> Tensor<3> + Send + Sync + 'static> {
        let again = self.again.clone()?;
        again.lock().askers += 1;
        Some(move || again.rows())
    }
}

impl Again {
    fn rows(&self) -> Tensor<3> {
        let mut held = self.lock();
        let x_btd = held.x_btd.take().unwrap_or_else(|| {
            let ([b, s, d], n) = (self.x_bsd.dims(), self.comm.world_size());
            let rows = run(&self.first_error, flat(self.x_bsd.clone()), b * s * n * d, |x| gather(&self.comm, x, b));
            rows.reshape([b, s * n, d])
        });
        held.askers = held.askers.saturating_sub(1);
        held.x_btd = (held.askers > 0).then(|| x_btd.clone());
        x_btd
    }

    fn lock(&self) -> MutexGuard<'_, GatherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The dimension along which a tensor is split over ranks; the parts' widths differ by at most one.
///
/// ```text
/// TensorShard::COLUMNS     TensorShard::columns_of(3)
/// . . . . . .              q q k k v v
/// 0 0 0 1 1 1              0 1 0 1 0 1       each of the three blocks of columns is split
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorShard {
    /// The dimension.
    pub dim: usize,
    /// The number of consecutive blocks of equal width in it, each of which is split.
    pub blocks: usize,
}

impl TensorShard {
    /// The first dimension: rows, experts, elements of a vector.
    pub const ROWS: Self = Self { dim: 0, blocks: 1 };
    /// The second dimension.
    pub const COLUMNS: Self = Self { dim: 1, blocks: 1 };

    /// The second dimension, in `blocks` blocks.
    pub const fn columns_of(blocks: usize) -> Self {
        Self { dim: 1, blocks }
    }
}

/// Returns part `rank` of `n` items that are distributed over `ranks` ranks in order.
pub fn part(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * n / ranks..(rank + 1) * n / ranks
}

/// Turns each rank's rows of `b` sequences into all rows of each sequence.
fn gather(comm: &Communicator, x: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let n = comm.world_size();
    let of_rank = |sequence, rank| rank * b + sequence;
    let order = (0..b).flat_map(|sequence| (0..n).map(move |rank| of_rank(sequence, rank)));
    Ok(reorder(comm.all_gather(x)?, order))
}

/// Turns all rows of `b` sequences into this rank's rows of their sum over the ranks.
fn scatter(comm: &Communicator, y: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let n = comm.world_size();
    let of_sequence = |rank, sequence| sequence * n + rank;
    let order = (0..n).flat_map(|rank| (0..b).map(move |sequence| of_sequence(rank, sequence)));
    comm.reduce_scatter(reorder(y, order))
}
