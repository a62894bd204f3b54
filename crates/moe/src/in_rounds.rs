//! Expert parallelism in rounds, for loads that are too uneven to be computed at once.

use crate::Experts;
use crate::experts::{experts, experts_backward};
use crate::kernels::dispatch::Dispatched;
use crate::kernels::permute::{permute, unpermute};
use crate::parallel::by_expert;
use crate::rounds::Rounds;
use burn::tensor::{DType, Tensor};
use comm::ops::{flat, with_gradients};
use comm::{CommError, Communicator, FirstError};
use fused::widened;
use std::ops::Range;

/// The exchanges and products of all rounds, as one step of the graph.
///
/// ```text
/// forward     for each round   dispatch x, experts, return y
/// backward    for each round   dispatch x, dispatch dy, experts again and their backward, return dx
/// ```
///
/// Between the two, a rank keeps only the rows of its own tokens and none that it received. So it never holds more rows
/// of other ranks than one round has, whatever the loads are. Each row is bitwise the same as in a single exchange.
/// Weight gradients are summed round by round, in f32 even for 16-bit weights. They are complete after the step's
/// backward: they are not [deferred](fused::deferred).
#[derive(Clone)]
pub(crate) struct InRounds {
    pub comm: Communicator,
    /// Takes the first error of the backward.
    pub first_error: FirstError,
    pub rounds: Rounds,
}

impl InRounds {
    /// Applies the experts, which are spread over the ranks, to `x_rd`, whose first rows are sorted by expert. The
    /// remaining rows become 0.
    pub fn forward(self, x_rd: Tensor<2>, experts: &Experts) -> Result<Tensor<2>, CommError> {
        let (weights, x) = (experts.weights(), x_rd.clone().inner());
        let plain = weights.clone().map(Tensor::inner);
        let y = self.forward_plain(&x, &plain)?;
        let [gate, up, down] = weights.map(flat);
        let shape = x.dims();
        let back = move |d_y: Tensor<1>| {
            let zeros = |like: Tensor<1>| like.zeros_like();
            let none =
                || [flat(x.clone()), flat(plain[0].clone()), flat(plain[1].clone()), flat(plain[2].clone())].map(zeros);
            self.first_error.run(|| self.backward_plain(&x, d_y.clone().reshape(shape), &plain), none)
        };
        Ok(with_gradients([flat(x_rd), gate, up, down], y, back))
    }

    fn forward_plain(&self, x: &Tensor<2>, weights: &[Tensor<3>; 3]) -> Result<Tensor<2>, CommError> {
        let mut parts = vec![];
        for round in 0..self.rounds.len() {
            let x_ad = self.there(x, round)?;
            let placed = self.placed(&x_ad, round);
            let y_rd = experts(permute(x_ad, &placed), weights, &placed.expert_offsets);
            parts.push(self.back(in_order_of_arrival(y_rd, &placed), round)?);
        }
        Ok(self.joined(parts, x))
    }

    /// Returns the gradients of `x` and of the weights, all flat.
    fn backward_plain(
        &self,
        x: &Tensor<2>,
        d_y: Tensor<2>,
        weights: &[Tensor<3>; 3],
    ) -> Result<[Tensor<1>; 4], CommError> {
        let (mut parts, mut sums) = (vec![], None);
        for round in 0..self.rounds.len() {
            let (x_ad, d_y_ad) = (self.there(x, round)?, self.there(&d_y, round)?);
            let placed = self.placed(&x_ad, round);
            let [x_rd, d_y_rd] = [x_ad, d_y_ad].map(|arrived| permute(arrived, &placed));
            let (d_x_rd, d_weights) = experts_backward(x_rd, d_y_rd, weights, &placed.expert_offsets);
            parts.push(self.back(in_order_of_arrival(d_x_rd, &placed), round)?);
            let d_weights = d_weights.map(widened);
            sums = Some(match sums {
                None => d_weights,
                Some(sums) => add(sums, d_weights),
            });
        }
        let [gate, up, down] = sums.expect("there is a round").map(|sum: Tensor<3>| flat(sum.cast(x.dtype())));
        Ok([flat(self.joined(parts, x)), gate, up, down])
    }

    /// Sends a round's rows of `x` to the ranks of their experts; returns those that this rank receives.
    fn there(&self, x: &Tensor<2>, round: usize) -> Result<Tensor<2>, CommError> {
        let (d, parts) = (x.dims()[1], self.rounds.sent(round));
        let counts: Vec<usize> = parts.iter().map(|rows| rows.len() * d).collect();
        let rows = concatenated(parts.into_iter().map(|rows| (x, rows)), x);
        let (arrived, _) = self.comm.all_to_all(flat(rows), &counts)?;
        let length = arrived.dims()[0];
        Ok(arrived.reshape([length / d, d]))
    }

    /// Returns a round's results to the ranks that sent the rows; the result covers this rank's rows of the round.
    fn back(&self, y_ad: Tensor<2>, round: usize) -> Result<Tensor<2>, CommError> {
        let d = y_ad.dims()[1];
        let counts: Vec<usize> = self.rounds.arriving(round).into_iter().map(|rows| rows * d).collect();
        let (back, _) = self.comm.all_to_all(flat(y_ad), &counts)?;
        let length = back.dims()[0];
        Ok(back.reshape([length / d, d]))
    }

    fn placed(&self, x_ad: &Tensor<2>, round: usize) -> Dispatched {
        let counts = self.rounds.arriving_by_expert(round);
        by_expert(&counts, counts.len() / self.comm.world_size(), x_ad)
    }

    /// Puts the rows of all rounds into the order of `x`, with zeros after them.
    fn joined(&self, rounds: Vec<Tensor<2>>, x: &Tensor<2>) -> Tensor<2> {
        let sent: Vec<Vec<Range<usize>>> = (0..rounds.len()).map(|round| self.rounds.sent(round)).collect();
        let mut starts = vec![0; rounds.len()];
        let mut parts = vec![];
        for to in 0..self.comm.world_size() {
            for ((rows, sent), start) in rounds.iter().zip(&sent).zip(&mut starts) {
                let end = *start + sent[to].len();
                parts.push((rows, *start..end));
                *start = end;
            }
        }
        let ([length, d], filled) = (x.dims(), starts.iter().sum::<usize>());
        let behind = Tensor::zeros([length - filled, d], (&x.device(), x.dtype()));
        parts.push((&behind, 0..length - filled));
        concatenated(parts.into_iter(), x)
    }
}

/// Puts rows that are sorted by expert into the order in which they arrived.
fn in_order_of_arrival(y_rd: Tensor<2>, placed: &Dispatched) -> Tensor<2> {
    let gates = Tensor::ones([1, placed.row_of_kn.dims()[1]], (&y_rd.device(), DType::F32));
    unpermute(y_rd, gates, placed)
}

/// Concatenates these rows of these tensors; `like` has their width.
fn concatenated<'a>(parts: impl Iterator<Item = (&'a Tensor<2>, Range<usize>)>, like: &Tensor<2>) -> Tensor<2> {
    let parts = parts.filter(|(_, rows)| !rows.is_empty()).map(|(x, rows)| x.clone().slice_dim(0, rows));
    let parts: Vec<Tensor<2>> = parts.collect();
    match parts.is_empty() {
        true => Tensor::zeros([0, like.dims()[1]], (&like.device(), like.dtype())),
        false => Tensor::cat(parts, 0),
    }
}

fn add(sums: [Tensor<3>; 3], more: [Tensor<3>; 3]) -> [Tensor<3>; 3] {
    let [a, b, c] = sums;
    let [d, e, f] = more;
    [a + d, b + e, c + f]
}
