//! Expert parallelism: a layer whose routed experts are spread over ranks.

use crate::exchange::Exchange;
use crate::in_rounds::InRounds;
use crate::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use crate::kernels::grouped_gemm;
use crate::kernels::permute::{permute, unpermute};
use crate::rounds::Rounds;
use crate::{MoeLayer, MoeOutput, NoiseKey};
use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::{CommError, Communicator, FirstError, Gathered, SequenceRanks};
use fused::Rows;

/// An expert-parallel process group, over which a layer's routed experts are spread. Every rank has the router and the
/// shared experts.
///
/// ```text
///           rank 0: experts 0 1                      rank 1: experts 2 3
/// route     rows  | 0 0 1 | 2 3 3 |                  rows  | 1 | 2 2 3 |           sorted by expert, no padding
/// counts    one number per expert, all-gathered first
/// rows      |0 0 1|---'      `----------------.      |1|---'   `-------.
///           all_to_all                         `---------------------. |
/// arrive    | 0 0 1 | 1 |  from rank 0, rank 1       | 2 3 3 | 2 2 3 |
/// permute   | 0 0 | 1 1 |  sorted by expert          | 2 2 2 | 3 3 3 |
/// experts, then the same way back; each rank weights its tokens' rows by its gates
/// ```
///
/// Rank i of N has the experts from `i e / N` to `(i + 1) e / N`: `layer.experts` holds only these, while the
/// configuration counts all experts. The host reads the counts back, because it needs the sizes of the exchange; a
/// layer on a single rank reads nothing. A rank sends at most `k n d` elements each way, and the backward the same
/// amount.
///
/// The numbers of rows that arrive are as uneven as the choices. A rank takes at most
/// [`MoeConfig::max_rank_load`](crate::MoeConfig::max_rank_load) times the mean over all ranks at once, in training and
/// in evaluation. If any rank would get more, all ranks exchange rows in rounds. Rounds give the same numbers at a
/// lower speed: the backward exchanges the rows again and recomputes their products.
///
/// [`forward`](Self::forward) and [`evaluate`](Self::evaluate) are collectives: every rank calls them and runs the
/// backward. A rank with whole sequences may have none. If a rank is lost, they neither return an error nor panic:
/// `first_error` holds the failure, and the values of the graph are meaningless.
#[derive(Clone)]
pub struct ExpertParallel {
    comm: Communicator,
    first_error: FirstError,
}

impl ExpertParallel {
    /// An expert-parallel group of the ranks of `comm`, whose number divides that of the experts. Failures of forwards
    /// and backwards are stored in `first_error`.
    pub fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self { comm, first_error }
    }

    /// [`MoeLayer::forward_over`] for this rank's sequences, or its rows of them.
    pub fn forward(
        &self,
        layer: &MoeLayer,
        x_bsd: Tensor<3>,
        noise: Option<NoiseKey>,
        ranks: &SequenceRanks,
    ) -> MoeOutput {
        let capacity = layer.config.capacity(ranks.whole(x_bsd.dims()[1]));
        self.run(layer, x_bsd, noise, capacity, ranks)
    }

    /// [`MoeLayer::evaluate_over`] for this rank's sequences, or its rows of them.
    pub fn evaluate(&self, layer: &MoeLayer, x_bsd: Tensor<3>, ranks: &SequenceRanks) -> MoeOutput {
        self.run(layer, x_bsd, None, None, ranks)
    }

    fn run(
        &self,
        layer: &MoeLayer,
        x_bsd: Tensor<3>,
        noise: Option<NoiseKey>,
        capacity: Option<usize>,
        ranks: &SequenceRanks,
    ) -> MoeOutput {
        let experts = |x_rd: Tensor<2>, placed: &Dispatched| {
            self.first_error.run(|| self.experts(layer, x_rd.clone(), placed, ranks), || x_rd.clone())
        };
        layer.forward_with(x_bsd, noise, capacity, 1, ranks, Box::new(experts))
    }

    /// Applies the experts to the rows of `x_rd`, on whichever rank they are.
    fn experts(
        &self,
        layer: &MoeLayer,
        x_rd: Tensor<2>,
        placed: &Dispatched,
        ranks: &SequenceRanks,
    ) -> Result<Tensor<2>, CommError> {
        let (comm, first_error, r) = (self.comm.clone(), self.first_error.clone(), x_rd.dims()[0]);
        let counts = self.gather_counts(placed.kept_e.clone())?;
        let mut rounds = Rounds::new(comm.rank(), comm.world_size(), counts, layer.config.max_rank_load);
        if comm.world_size() < ranks.size() {
            let most = self.most_rounds(&rounds, ranks);
            rounds = rounds.at_least(most);
        }
        if rounds.len() > 1 {
            return InRounds { comm, first_error, rounds }.forward(x_rd, &layer.experts);
        }
        let sent = rounds.sent(0).into_iter().map(|rows| rows.len()).collect();
        // Unfilled rows come after all others and are not sent.
        let exchange = Exchange::new(comm, first_error, r, sent, rounds.arriving(0));
        let x_ad = exchange.forward(x_rd)?;

        let arriving = rounds.arriving_by_expert(0);
        let by_expert = by_expert(&arriving, arriving.len() / self.comm.world_size(), &x_ad);
        let gates = Tensor::ones([1, x_ad.dims()[0]], &x_ad.device());
        let y_rd = layer.experts.forward(permute(x_ad, &by_expert), &by_expert.expert_offsets);
        let y_ad = unpermute(y_rd, gates, &by_expert);

        exchange.reversed().forward(y_ad)
    }

    /// Returns the most rounds that any rank sharing these sequences needs, if the ranks belong to several expert
    /// groups. A backward traverses its graph by depth, and rounds have a different depth than a single exchange. Only
    /// if all ranks have the same graph do their collectives come in the same order.
    fn most_rounds(&self, rounds: &Rounds, ranks: &SequenceRanks) -> usize {
        let mine = Tensor::<1>::from_floats([rounds.len() as f32], self.comm.device());
        ranks.max(mine).into_data().iter::<f32>().fold(1.0, f32::max) as usize
    }

    /// All-gathers the number of rows that each expert gets from this rank; the result is ordered by rank, then by
    /// expert.
    fn gather_counts(&self, kept_e: Tensor<1, Int>) -> Result<Vec<usize>, CommError> {
        let kept: Vec<i32> = kept_e.into_data().iter::<i32>().collect();
        let len = kept.len();
        let counts = Tensor::<1, Int>::from_data(TensorData::new(kept, [len]), (self.comm.device(), DType::I32));
        Ok(self.comm.all_gather(counts)?.into_data().iter::<i32>().map(|count| count as usize).collect())
    }
}

/// Sorts rows that arrived by rank and then by expert, in the numbers of `arriving`, by expert alone.
pub(crate) fn by_expert(arriving: &[usize], experts: usize, x_ad: &Tensor<2>) -> Dispatched {
    let places = arriving.iter().enumerate();
    let experts_of_rows: Vec<i32> = places.flat_map(|(place, count)| vec![(place % experts) as i32; *count]).collect();
    let rows = experts_of_rows.len();
    let experts_1a = Tensor::from_data(TensorData::new(experts_of_rows, [1, rows]), (&x_ad.device(), DType::I32));
    let layout = RowLayout::Sorted { tile: grouped_gemm::tile_rows(x_ad) };
    dispatch(experts_1a, DispatchRule { experts, groups: 1, capacity: None, order: Order::Token, layout })
}

/// The gathered rows as input of a product that does not keep them.
pub fn gathered_rows(x: &Gathered) -> Rows<3> {
    match x.again() {
        Some(again) => Rows::not_kept(x.x_btd.clone(), again),
        None => x.x_btd.clone().into(),
    }
}
