use crate::kernels::dispatch::{DispatchRule, Dispatched, Layout, Order, dispatch};
use crate::kernels::grouped_gemm;
use crate::kernels::permute::{permute, unpermute};
use crate::ops::Exchange;
use crate::{MoeLayer, MoeOutput, NoiseKey};
use burn::module::{Param, ParamId};
use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::{CommError, Communicator};
use std::ops::Range;

/// A layer whose routed experts are spread over the ranks of a communicator; router and shared experts are on every rank.
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
/// Rank i of N has the experts from `i e / N` to `(i + 1) e / N`. The counts are read back to the host, which the sizes of the exchange need;
/// the local layer reads nothing. A rank sends and receives at most `k n d` elements each way, and the backward as much again.
pub struct ExpertParallel {
    layer: MoeLayer,
    comm: Communicator,
}

/// Why a layer cannot be spread, or was not computed.
#[derive(Debug, thiserror::Error)]
pub enum ParallelError {
    /// There are more ranks than experts.
    #[error(
        "{experts} experts (moe.num_experts) cannot be spread over {world_size} ranks: give at most {experts} ranks"
    )]
    TooManyRanks {
        /// The number of ranks.
        world_size: usize,
        /// The number of experts.
        experts: usize,
    },
    /// The exchange failed.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl ExpertParallel {
    /// Takes a whole layer, the same on every rank, and keeps this rank's experts.
    ///
    /// # Errors
    /// If there are more ranks than experts.
    pub fn new(mut layer: MoeLayer, comm: Communicator) -> Result<Self, ParallelError> {
        let (experts, world_size) = (layer.config.num_experts, comm.world_size());
        if world_size > experts {
            return Err(ParallelError::TooManyRanks { world_size, experts });
        }
        let mine = experts_of(comm.rank(), experts, world_size);
        for weight in [&mut layer.experts.gate_proj, &mut layer.experts.up_proj, &mut layer.experts.down_proj] {
            let whole = weight.val();
            let tracked = whole.is_require_grad();
            // In memory of its own: a slice would keep the whole.
            let part = whole.inner().slice([mine.clone()]);
            let part = part.zeros_like() + part;
            let part = if tracked { Tensor::from_inner(part).require_grad() } else { part };
            *weight = Param::initialized(ParamId::new(), part);
        }
        Ok(Self { layer, comm })
    }

    /// The layer with this rank's experts.
    pub fn layer(&self) -> &MoeLayer {
        &self.layer
    }

    /// [`MoeLayer::forward`] of this rank's sequences. A collective: every rank calls it, if need be with no sequence, and runs
    /// the backward.
    ///
    /// # Panics
    /// In the backward, if the exchange fails: there is no other way out of it.
    pub fn forward(&self, x_btd: Tensor<3>, noise: Option<NoiseKey>) -> Result<MoeOutput, ParallelError> {
        let mut failure = None;
        let experts = |x_rd: Tensor<2>, placed: &Dispatched| {
            self.experts(x_rd.clone(), placed).unwrap_or_else(|error| {
                failure = Some(error);
                x_rd
            })
        };
        let capacity = self.layer.config.capacity(x_btd.dims()[1]);
        let output = self.layer.forward_with(x_btd, noise, capacity, 1, Box::new(experts));
        failure.map_or(Ok(output), |error| Err(error.into()))
    }

    /// The rows of `x_rd` through their experts, wherever those are.
    fn experts(&self, x_rd: Tensor<2>, placed: &Dispatched) -> Result<Tensor<2>, CommError> {
        let [r, d] = x_rd.dims();
        let (ranks, experts) = (self.comm.world_size(), self.layer.config.num_experts);
        let kept: Vec<i32> = placed.kept_e.clone().into_data().iter::<i32>().collect();
        let (arriving, sent) = self.exchange_counts(&kept)?;
        let arrived: Vec<usize> = arriving.iter().map(|counts| counts.iter().sum()).collect();

        // Rows that nothing fills lie behind all others and stay. (An empty slice would not be tracked, and this rank not take part in the
        // backward; without tokens nothing is cut.)
        let full = sent.iter().sum::<usize>();
        let exchange = Exchange::new(self.comm.clone(), sent, arrived);
        let x_ad = exchange.forward(if r == full { x_rd.clone() } else { x_rd.clone().narrow(0, 0, full) })?;

        let mine = experts_of(self.comm.rank(), experts, ranks).len();
        let by_expert = arrived_by_expert(&arriving, mine, &x_ad);
        let gates = Tensor::ones([1, x_ad.dims()[0]], &x_ad.device());
        let y_rd = self.layer.experts.forward(permute(x_ad, &by_expert), &by_expert.segments);
        let y_ad = unpermute(y_rd, gates, &by_expert);

        let y_sd = exchange.reversed().forward(y_ad)?;
        let rest = Tensor::zeros([r - full, d], (&x_rd.device(), x_rd.dtype()));
        Ok(if r == full { y_sd } else { Tensor::cat(vec![y_sd, rest], 0) })
    }

    /// For each rank how many rows of each of this rank's experts it sends; and how many rows this rank sends to each.
    fn exchange_counts(&self, kept: &[i32]) -> Result<(Vec<Vec<usize>>, Vec<usize>), CommError> {
        let (ranks, device) = (self.comm.world_size(), self.comm.device());
        let ranges: Vec<Range<usize>> = (0..ranks).map(|rank| experts_of(rank, kept.len(), ranks)).collect();
        let widths: Vec<usize> = ranges.iter().map(Range::len).collect();
        let counts = Tensor::<1, Int>::from_data(TensorData::new(kept.to_vec(), [kept.len()]), (device, DType::I32));
        let (found, _) = self.comm.all_to_all(counts, &widths)?;
        let found: Vec<usize> = found.into_data().iter::<i32>().map(|count| count as usize).collect();
        let sent = ranges.into_iter().map(|range| kept[range].iter().map(|count| *count as usize).sum()).collect();
        Ok((found.chunks(widths[self.comm.rank()]).map(<[usize]>::to_vec).collect(), sent))
    }
}

/// The experts of a rank.
fn experts_of(rank: usize, experts: usize, world_size: usize) -> Range<usize> {
    rank * experts / world_size..(rank + 1) * experts / world_size
}

/// Where rows that came by rank and then by expert go to lie by expert alone.
fn arrived_by_expert(arriving: &[Vec<usize>], experts: usize, x_ad: &Tensor<2>) -> Dispatched {
    let expert_of_row = |counts: &Vec<usize>| -> Vec<i32> {
        counts.iter().enumerate().flat_map(|(expert, count)| vec![expert as i32; *count]).collect()
    };
    let experts_of_rows: Vec<i32> = arriving.iter().flat_map(expert_of_row).collect();
    let rows = experts_of_rows.len();
    let experts_1a = Tensor::from_data(TensorData::new(experts_of_rows, [1, rows]), (&x_ad.device(), DType::I32));
    let layout = Layout::Sorted { tile: grouped_gemm::tile_rows(x_ad) };
    dispatch(experts_1a, DispatchRule { experts, groups: 1, capacity: None, order: Order::Token, layout })
}
