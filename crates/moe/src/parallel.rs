use crate::exchange::Exchange;
use crate::kernels::dispatch::{DispatchRule, Dispatched, Layout, Order, dispatch};
use crate::kernels::grouped_gemm;
use crate::kernels::permute::{permute, unpermute};
use crate::{MoeLayer, MoeOutput, NoiseKey};
use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::{CommError, Communicator, FirstError, Gathered, SequenceRanks};
use fused::Rows;

/// The ranks that have a layer's routed experts together; router and shared experts are on every rank.
///
/// ```text
///           rank 0: experts 0 1                      rank 1: experts 2 3
/// route     rows  | 0 0 1 | 2 3 3 |                  rows  | 1 | 2 2 3 |           sorted by expert, no padding
/// counts    of rows, a number an expert, to its rank, first
/// rows      |0 0 1|---'      `----------------.      |1|---'   `-------.
///           all_to_all                         `---------------------. |
/// arrive    | 0 0 1 | 1 |  of rank 0, of rank 1      | 2 3 3 | 2 2 3 |
/// permute   | 0 0 | 1 1 |  expert by expert          | 2 2 2 | 3 3 3 |
/// experts, then the same way back; each rank weighs its tokens' rows by its gates
/// ```
///
/// Rank i of N has the experts from `i e / N` to `(i + 1) e / N`, and a layer on it has no others: `layer.experts` are these, while its
/// configuration counts all. The counts are read back to the host, which the sizes of the exchange need; a layer on one rank reads nothing. A
/// rank sends and receives at most `k n d` elements each way, and the backward as much again.
///
/// [`forward`](Self::forward) and [`evaluate`](Self::evaluate) are collectives: every rank calls them, if need be with no sequence, and runs
/// the backward. They return no error, nor do they panic if a rank is lost: what failed is in the `first_error`, and the
/// numbers of the graph mean nothing.
#[derive(Clone)]
pub struct ExpertParallel {
    comm: Communicator,
    first_error: FirstError,
}

impl ExpertParallel {
    /// Over the ranks of `comm`, whose number divides that of the experts. What fails in forwards and backwards goes into `first_error`.
    pub fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self { comm, first_error }
    }

    /// [`MoeLayer::forward_over`] of this rank's sequences, or its rows of them.
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

    /// [`MoeLayer::evaluate_over`], likewise.
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
            self.first_error.run(|| self.experts(layer, x_rd.clone(), placed), || x_rd.clone())
        };
        layer.forward_with(x_bsd, noise, capacity, 1, ranks, Box::new(experts))
    }

    /// The rows of `x_rd` through their experts, wherever those are.
    fn experts(&self, layer: &MoeLayer, x_rd: Tensor<2>, placed: &Dispatched) -> Result<Tensor<2>, CommError> {
        let r = x_rd.dims()[0];
        let kept: Vec<i32> = placed.kept_e.clone().into_data().iter::<i32>().collect();
        let mine = kept.len() / self.comm.world_size();
        let arriving = self.exchange_counts(&kept, mine)?;
        let rows = |counts: &[i32]| counts.iter().map(|count| *count as usize).sum::<usize>();
        let [sent, arrived] = [&kept, &arriving].map(|counts| counts.chunks(mine).map(rows).collect::<Vec<_>>());

        // Rows that nothing fills lie behind all others and stay.
        let exchange = Exchange::new(self.comm.clone(), self.first_error.clone(), r, sent, arrived);
        let x_ad = exchange.forward(x_rd)?;

        let by_expert = arrived_by_expert(&arriving, mine, &x_ad);
        let gates = Tensor::ones([1, x_ad.dims()[0]], &x_ad.device());
        let y_rd = layer.experts.forward(permute(x_ad, &by_expert), &by_expert.segments);
        let y_ad = unpermute(y_rd, gates, &by_expert);

        exchange.reversed().forward(y_ad)
    }

    /// From how many rows each expert gets of this rank to how many each of this rank's experts gets of each rank, in the order of ranks.
    fn exchange_counts(&self, kept: &[i32], mine: usize) -> Result<Vec<i32>, CommError> {
        let counts = TensorData::new(kept.to_vec(), [kept.len()]);
        let counts = Tensor::<1, Int>::from_data(counts, (self.comm.device(), DType::I32));
        let (found, _) = self.comm.all_to_all(counts, &vec![mine; self.comm.world_size()])?;
        Ok(found.into_data().iter::<i32>().collect())
    }
}

/// Where rows that came by rank and then by expert go to lie by expert alone.
fn arrived_by_expert(arriving: &[i32], experts: usize, x_ad: &Tensor<2>) -> Dispatched {
    let places = arriving.iter().enumerate();
    let experts_of_rows: Vec<i32> =
        places.flat_map(|(place, count)| vec![(place % experts) as i32; *count as usize]).collect();
    let rows = experts_of_rows.len();
    let experts_1a = Tensor::from_data(TensorData::new(experts_of_rows, [1, rows]), (&x_ad.device(), DType::I32));
    let layout = Layout::Sorted { tile: grouped_gemm::tile_rows(x_ad) };
    dispatch(experts_1a, DispatchRule { experts, groups: 1, capacity: None, order: Order::Token, layout })
}

/// Gathered rows for a product, which does not keep them.
pub fn gathered_rows(x: &Gathered) -> Rows<3> {
    match x.again() {
        Some(again) => Rows::not_kept(x.x_btd.clone(), again),
        None => x.x_btd.clone().into(),
    }
}
