//! Tensor and sequence parallelism: the collectives around layers whose heads or columns are spread over ranks.

use crate::ops::{self, flat, move_rows, run};
use crate::{CommError, Communicator, FirstError, Reduce};
use burn::tensor::Tensor;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ranks that compute a layer's heads or columns together, a part each, and keep of each sequence's rows a part
/// each between such layers (Megatron, arXiv 1909.08053, with sequence parallelism, arXiv 2205.05198); by default this
/// rank alone.
///
/// ```text
///              rank 0      rank 1
/// x_bsd        rows 0 1    rows 2 3        s = t / 2 rows of each of b sequences
/// gather       0 1 2 3     0 1 2 3         x_btd on both
/// columns      heads A     heads B         W1 by columns, W2 by rows: the products are partial sums
/// scatter      rows 0 1    rows 2 3        their sum, [b, s, d]
/// ```
///
/// A rank receives (N - 1) / N of `b t d` numbers in each of both, and in the backward of each as much again. What
/// every rank computes of its own rows alone (norms, routers, the bias behind a sum) has a gradient that is to be
/// summed over the ranks, as in data parallelism.
#[derive(Clone, Default)]
pub struct TensorParallel {
    ranks: Option<(Communicator, FirstError)>,
}

impl TensorParallel {
    /// Over the ranks of `comm`; what fails in forwards and backwards goes into `first_error`.
    pub fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self { ranks: (comm.world_size() > 1).then_some((comm, first_error)) }
    }

    /// Whether this rank has all of the layers.
    pub fn is_alone(&self) -> bool {
        self.ranks.is_none()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.ranks.as_ref().map_or(1, |(comm, _)| comm.world_size())
    }

    /// This rank's number among them.
    pub fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |(comm, _)| comm.rank())
    }

    /// This rank's part of `n` things that are dealt out in order, none of them to two ranks; parts differ by one at
    /// most.
    pub fn part(&self, n: usize) -> Range<usize> {
        part(n, self.rank(), self.size())
    }

    /// Rows of all ranks: `[b, s, d]` to `[b, t, d]`. Gradients of the result are taken for partial sums.
    pub fn gather(&self, x_bsd: Tensor<3>) -> Tensor<3> {
        let Some((comm, first_error)) = self.ranks.clone() else { return x_bsd };
        let t = x_bsd.dims()[1] * comm.world_size();
        move_rows(comm, first_error, x_bsd, t, gather, scatter)
    }

    /// [`gather`](Self::gather), and how to have the rows again: what reads them need not keep them.
    pub fn gather_again(&self, x_bsd: Tensor<3>) -> Gathered {
        let Some((comm, first_error)) = self.ranks.clone() else { return Gathered { x_btd: x_bsd, again: None } };
        let again = Arc::new(Again { comm, first_error, x_bsd: x_bsd.clone().inner(), state: Mutex::default() });
        Gathered { x_btd: self.gather(x_bsd), again: Some(again) }
    }

    /// The sum over ranks, of which each gets its rows: `[b, t, d]` to `[b, s, d]`.
    ///
    /// # Panics
    /// If the ranks do not divide `t`.
    pub fn scatter(&self, y_btd: Tensor<3>) -> Tensor<3> {
        let Some((comm, first_error)) = self.ranks.clone() else { return y_btd };
        let (t, n) = (y_btd.dims()[1], comm.world_size());
        assert!(t.is_multiple_of(n), "tensor parallelism: {t} rows of a sequence on {n} ranks");
        move_rows(comm, first_error, y_btd, t / n, scatter, gather)
    }

    /// The sum over the ranks, on each of them. Gradients of the result are taken for partial sums.
    pub fn sum<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.ranks.clone() {
            Some((comm, first_error)) => ops::sum(comm, first_error, x),
            None => x,
        }
    }

    /// The combination of the ranks' numbers, in no graph.
    pub fn all_reduce(&self, x_n: Tensor<1>, how: Reduce) -> Tensor<1> {
        let Some((comm, first_error)) = &self.ranks else { return x_n };
        let len = x_n.dims()[0];
        run(first_error, x_n, len, |x_n| comm.all_reduce(x_n, how))
    }
}

/// All rows of some sequences, of which each rank has some.
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
    state: Mutex<Held>,
}

/// Who will still ask for the rows, and the rows from the first time to the last.
#[derive(Default)]
struct Held {
    askers: usize,
    x_btd: Option<Tensor<3>>,
}

impl Gathered {
    /// What gives the rows again, in no graph, when it is called, once: the first one that calls gathers them for all
    /// that were made. None on a rank alone, which has them. Every rank makes and calls as many, in the same order
    /// among its other collectives.
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

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Along which dimension ranks have parts of a tensor, which differ by one in width at most.
///
/// ```text
/// Cut::COLUMNS             Cut::columns_of(3)
/// . . . . . .              q q k k v v
/// 0 0 0 1 1 1              0 1 0 1 0 1       of each of three blocks of columns a part
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The dimension.
    pub dim: usize,
    /// Blocks in it, one after another and equally wide, each of which is cut.
    pub blocks: usize,
}

impl Cut {
    /// Along the first dimension: rows, experts, elements of a vector.
    pub const ROWS: Self = Self { dim: 0, blocks: 1 };
    /// Along the second one.
    pub const COLUMNS: Self = Self { dim: 1, blocks: 1 };

    /// Along the second one, of so many blocks.
    pub const fn columns_of(blocks: usize) -> Self {
        Self { dim: 1, blocks }
    }
}

/// Part `rank` of `n` things that are dealt out to `ranks` ranks in order.
pub fn part(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * n / ranks..(rank + 1) * n / ranks
}

/// Each rank's rows of `b` sequences to all rows of each.
fn gather(comm: &Communicator, x: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let (n, len) = (comm.world_size(), x.dims()[0]);
    Ok(comm.all_gather(x)?.reshape([n, b, len / b]).swap_dims(0, 1).reshape([n * len]))
}

/// All rows of `b` sequences to this rank's rows of their sum.
fn scatter(comm: &Communicator, y: Tensor<1>, b: usize) -> Result<Tensor<1>, CommError> {
    let (n, len) = (comm.world_size(), y.dims()[0]);
    comm.reduce_scatter(y.reshape([b, n, len / b / n]).swap_dims(0, 1).reshape([len]))
}
