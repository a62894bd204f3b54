//! Embedding and loss with the vocabulary sharded over tensor-parallel ranks (Megatron, arXiv 1909.08053, section 3).

use crate::Targets;
use burn::tensor::{Bool, DType, Int, Tensor};
use comm::ops::with_gradient;
use comm::{Reduce, TensorParallel};
use fused::{Losses, embedding, linear, linear_cross_entropy, linear_cross_entropy_transposed, linear_transposed};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Looks up tokens, `[b, t]`, and returns this rank's rows `[b, s, d]`. `table_vd` holds this rank's part of `vocab`
/// tokens.
///
/// A token in another rank's part contributes row 0 times 0, so the sum over ranks is the token's row.
pub(crate) fn embed(tp: &TensorParallel, table_vd: Tensor<2>, tokens_bt: Tensor<2, Int>, vocab: usize) -> Tensor<3> {
    if tp.is_alone() {
        return embedding(table_vd, tokens_bt);
    }
    let (part, [b, t], dtype) = (tp.part(vocab), tokens_bt.dims(), table_vd.dtype());
    let (ids_bt, is_mine_bt) = own(tokens_bt, &part);
    let y_btd = embedding(table_vd, ids_bt) * is_mine_bt.float().cast(dtype).reshape([b, t, 1]);
    tp.scatter(y_btd)
}

/// Token indices relative to a part of the vocabulary, 0 for tokens outside it, and a mask of the tokens inside it.
fn own<const D: usize>(tokens: Tensor<D, Int>, part: &Range<usize>) -> (Tensor<D, Int>, Tensor<D, Bool>) {
    let is_mine =
        tokens.clone().greater_equal_elem(part.start as i64).bool_and(tokens.clone().lower_elem(part.end as i64));
    ((tokens - part.start as i64).mask_fill(is_mine.clone().bool_not(), 0), is_mine)
}

/// An output head, `[d, vocab]` or `[vocab, d]` if `transposed`; a rank holds its part of the vocabulary dimension.
#[derive(Clone)]
pub struct VocabularyHead {
    /// The matrix, or this rank's part of it.
    pub weight: Tensor<2>,
    /// Whether it is `[vocab, d]`.
    pub transposed: bool,
    /// Size of the vocabulary over all ranks.
    pub vocab: usize,
}

impl VocabularyHead {
    /// This rank's share of the losses of these tokens, from its rows `[b, s, d]`; the shares add up to the losses.
    pub fn losses(self, tp: &TensorParallel, x_bsd: Tensor<3>, targets: Targets, z_loss_coef: f64) -> Losses {
        let share = targets.share;
        let losses = self.means(tp, x_bsd, targets, z_loss_coef);
        match share == 1.0 {
            true => losses,
            false => Losses { cross_entropy: losses.cross_entropy * share, z_loss: losses.z_loss * share },
        }
    }

    /// The losses as means over the targets, before scaling by `targets.share`.
    fn means(self, tp: &TensorParallel, x_bsd: Tensor<3>, targets: Targets, z_loss_coef: f64) -> Losses {
        let Targets { places_n, tokens_n: targets_n, .. } = targets;
        let x = tp.gather_again(x_bsd);
        let [b, t, d] = x.x_btd.dims();
        let chosen = move |x_btd: Tensor<3>| {
            let all_nd = x_btd.reshape([b * t, d]);
            places_n.iter().fold(all_nd, |all_nd, places_n| all_nd.select(0, places_n.clone()))
        };
        let x_nd = chosen(x.x_btd.clone());
        match (x.again(), self.transposed) {
            (Some(again), _) => self.losses_of_parts(tp, x_nd, move || chosen(again()), targets_n, z_loss_coef),
            (None, true) => linear_cross_entropy_transposed(x_nd, self.weight, targets_n, z_loss_coef),
            (None, false) => linear_cross_entropy(x_nd, self.weight, targets_n, z_loss_coef),
        }
    }

    /// The ranks combine the `log(sum(exp))` of their own columns, and a target's logit comes from the rank that holds
    /// it: three numbers per row are reduced over ranks.
    ///
    /// A rank computes the gradient of the whole loss with respect to its own columns; the backward of the gather sums
    /// the gradients of the rows over ranks. The gathered rows are not kept but gathered again.
    fn losses_of_parts(
        self,
        tp: &TensorParallel,
        x_nd: Tensor<2>,
        again: impl Fn() -> Tensor<2> + Send + Sync + 'static,
        targets_n: Tensor<1, Int>,
        z_loss_coef: f64,
    ) -> Losses {
        let ([n, _], head, dtype) = (x_nd.dims(), self.weight.clone(), x_nd.dtype());
        let part = tp.part(self.vocab);
        let columns =
            Columns { head: Self { weight: self.weight.inner(), ..self }, targets: own(targets_n, &part), z_loss_coef };
        let (own_lse_n, target_n) = columns.statistics(&x_nd.clone().inner());
        let highest_n = tp.all_reduce(own_lse_n.clone(), Reduce::Max);
        let sums = tp.all_reduce(Tensor::cat(vec![(own_lse_n - highest_n.clone()).exp(), target_n], 0), Reduce::Sum);
        let lse_n = sums.clone().slice(0..n).log() + highest_n;
        let share = 1.0 / (n * tp.size()) as f64;
        let cross_entropy = sum_in_pieces(lse_n.clone() - sums.slice(n..2 * n)) * share;
        let z_loss = sum_in_pieces(lse_n.clone().powi_scalar(2)) * (share * z_loss_coef);

        let scaled = move |gradient: Tensor<2>, d_y: Tensor<1>| {
            let len = gradient.shape().num_elements();
            (gradient.reshape([len]) * (d_y.cast(DType::F32) / n as f64)).cast(dtype)
        };
        let none = Tensor::zeros([1], &cross_entropy.device());
        let make = move || columns.gradients(&again(), &lse_n);
        let gradients = Arc::new(Later { make: Box::new(make), made: Mutex::default() });
        let of_head = gradients.clone();
        let by_x = with_gradient(x_nd, cross_entropy, move |d_y| scaled(gradients.take(0), d_y));
        let by_head = with_gradient(head, none, move |d_y| scaled(of_head.take(1), d_y));
        Losses { cross_entropy: by_x + by_head, z_loss: Tensor::from_inner(z_loss) }
    }
}

/// Sums many numbers in f32: first within pieces, then the pieces, so that no partial sum is much larger than what is
/// added to it.
fn sum_in_pieces(x_n: Tensor<1>) -> Tensor<1> {
    let pieces: Vec<Tensor<1>> = x_n.split(ROWS, 0).into_iter().map(|piece| piece.sum()).collect();
    Tensor::cat(pieces, 0).sum()
}

/// Rows whose logits are in memory at once.
const ROWS: usize = 256;

/// A rank's columns of the logits, detached from the graph.
struct Columns {
    head: VocabularyHead,
    /// Local columns of the targets, and a mask of those this rank holds.
    targets: (Tensor<1, Int>, Tensor<1, Bool>),
    z_loss_coef: f64,
}

impl Columns {
    /// Yields each chunk of rows with its logits in f32 and a one-hot mask of the targets this rank holds.
    fn chunks(&self, x_nd: &Tensor<2>) -> impl Iterator<Item = (Range<usize>, Tensor<2>, Tensor<2>)> {
        let VocabularyHead { weight, transposed, .. } = &self.head;
        let (ids_n, is_mine_n) = &self.targets;
        let n = x_nd.dims()[0];
        let columns = weight.dims()[usize::from(!transposed)];
        let column_1v = Tensor::<1, Int>::arange(0..columns as i64, &weight.device()).reshape([1, columns]);
        (0..n).step_by(ROWS).map(move |first| {
            let rows = first..n.min(first + ROWS);
            let x = x_nd.clone().slice(rows.clone());
            let logits = match transposed {
                true => linear_transposed(x, weight.clone()),
                false => linear(x, weight.clone(), None),
            };
            let ids_r1 = ids_n.clone().slice(rows.clone()).reshape([rows.len(), 1]);
            let is_mine_r1 = is_mine_n.clone().slice(rows.clone()).reshape([rows.len(), 1]);
            let at_target =
                ids_r1.equal(column_1v.clone().cast(ids_n.dtype())).bool_and(is_mine_r1.expand([rows.len(), columns]));
            (rows, logits.cast(DType::F32), at_target.float().cast(DType::F32))
        })
    }

    /// Returns for each row the `log(sum(exp))` of this rank's columns, and the target's logit or 0 if another rank
    /// holds it.
    fn statistics(&self, x_nd: &Tensor<2>) -> (Tensor<1>, Tensor<1>) {
        let of_chunk = |(rows, logits_rv, at_target_rv): (Range<usize>, Tensor<2>, Tensor<2>)| {
            let highest_r1 = logits_rv.clone().max_dim(1);
            let sum_r1 = (logits_rv.clone() - highest_r1.clone()).exp().sum_dim(1);
            let target_r1 = (logits_rv * at_target_rv).sum_dim(1);
            [sum_r1.log() + highest_r1, target_r1].map(|of_rows| of_rows.reshape([rows.len()]))
        };
        let (lse, target) =
            self.chunks(x_nd).map(of_chunk).map(|[lse, target]| (lse, target)).unzip::<_, _, Vec<_>, Vec<_>>();
        (Tensor::cat(lse, 0), Tensor::cat(target, 0))
    }

    /// The gradients of `x_nd` and of the head for an upstream gradient of n, in f32.
    fn gradients(&self, x_nd: &Tensor<2>, lse_n: &Tensor<1>) -> [Tensor<2>; 2] {
        let VocabularyHead { weight, transposed, .. } = &self.head;
        let (mut d_x, mut d_head) = (vec![], None::<Tensor<2>>);
        for (rows, logits_rv, at_target_rv) in self.chunks(x_nd) {
            let lse_r1 = lse_n.clone().slice(rows.clone()).reshape([rows.len(), 1]);
            let p_rv = (logits_rv - lse_r1.clone()).exp() * (lse_r1 * (2.0 * self.z_loss_coef) + 1.0);
            let d_logits = (p_rv - at_target_rv).cast(weight.dtype());
            let x = x_nd.clone().slice(rows);
            let (d_x_rd, d_weight) = match transposed {
                true => (linear(d_logits.clone(), weight.clone(), None), linear(d_logits.transpose(), x, None)),
                false => (linear_transposed(d_logits.clone(), weight.clone()), linear(x.transpose(), d_logits, None)),
            };
            d_x.push(d_x_rd.cast(DType::F32));
            let d_weight = d_weight.cast(DType::F32);
            d_head = Some(d_head.map_or(d_weight.clone(), |sum| sum + d_weight));
        }
        [Tensor::cat(d_x, 0), d_head.expect("there are rows")]
    }
}

/// Two gradients that are computed together when the first one is requested.
struct Later {
    make: Box<dyn Fn() -> [Tensor<2>; 2] + Send + Sync>,
    made: Mutex<Option<[Tensor<2>; 2]>>,
}

impl Later {
    fn take(&self, which: usize) -> Tensor<2> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match made.take() {
            Some(both) => both[which].clone(),
            None => made.insert((self.make)())[which].clone(),
        }
    }
}
