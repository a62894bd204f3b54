//! The products composed of Burn's operations: one product of a batch of `e` matrices.
//!
//! The segments of all experts are padded to the longest one. If loads are uneven, that computes and stores up to `e`
//! times as many rows, but the gradients need no loop over experts, in which each would add zeros of all matrices.

use super::check_expert_offsets;
use burn::tensor::{Device, Int, Tensor, TensorData};

pub(super) fn grouped_gemm(x_rp: Tensor<2>, weight_epq: Tensor<3>, expert_offsets: &Tensor<1, Int>) -> Tensor<2> {
    let ([r, p], [e, _, q], device) = (x_rp.dims(), weight_epq.dims(), x_rp.device());
    let padding = Padding::new(expert_offsets, r);
    let (longest, filled) = (padding.longest, padding.place_of_row.len());
    let zeros = |rows| Tensor::zeros([rows, q], (&device, x_rp.dtype()));
    if filled == 0 {
        return zeros(r);
    }
    // The contents of unfilled places do not matter: no row of the result comes from them.
    let row_of_place = padding.row_of_place.into_iter().map(|row| row.unwrap_or(0)).collect();
    let x_elp = x_rp.clone().select(0, indices(row_of_place, &device)).reshape([e, longest, p]);
    let y_elq = x_elp.matmul(weight_epq);
    let y_rq = y_elq.reshape([e * longest, q]).select(0, indices(padding.place_of_row, &device));
    if filled == r { y_rq } else { Tensor::cat(vec![y_rq, zeros(r - filled)], 0) }
}

pub(super) fn weight_gradient(x_rp: Tensor<2>, d_y_rq: Tensor<2>, expert_offsets: &Tensor<1, Int>) -> Tensor<3> {
    let ([r, p], [_, q], e, device) = (x_rp.dims(), d_y_rq.dims(), expert_offsets.dims()[0] - 1, x_rp.device());
    let Padding { longest, row_of_place, .. } = Padding::new(expert_offsets, r);
    if longest == 0 {
        return Tensor::zeros([e, p, q], (&device, x_rp.dtype()));
    }
    // Unfilled places contain a row of zeros.
    let x_rp = Tensor::cat(vec![x_rp.clone(), Tensor::zeros([1, p], (&device, x_rp.dtype()))], 0);
    let d_y_rq = Tensor::cat(vec![d_y_rq.clone(), Tensor::zeros([1, q], (&device, d_y_rq.dtype()))], 0);
    let rows = indices(row_of_place.into_iter().map(|row| row.unwrap_or(r)).collect(), &device);
    let x_elp = x_rp.select(0, rows.clone()).reshape([e, longest, p]);
    x_elp.swap_dims(1, 2).matmul(d_y_rq.select(0, rows).reshape([e, longest, q]))
}

/// The places of the segments' rows if all segments are padded to the longest.
struct Padding {
    longest: usize,
    /// The row in each place, if it is filled: `longest` places for each expert.
    row_of_place: Vec<Option<usize>>,
    /// The place of each row of a segment.
    place_of_row: Vec<usize>,
}

impl Padding {
    /// Reads the offsets, for which the device waits.
    fn new(expert_offsets: &Tensor<1, Int>, r: usize) -> Self {
        let offsets: Vec<i32> = expert_offsets.clone().into_data().iter::<i32>().collect();
        check_expert_offsets(&offsets, r);
        let segments = || offsets.windows(2).map(|borders| borders[0] as usize..borders[1] as usize);
        let longest = segments().map(|rows| rows.len()).max().unwrap_or(0);
        let row = |rows: std::ops::Range<usize>| (0..longest).map(move |i| rows.clone().nth(i));
        let place =
            |(expert, rows): (usize, std::ops::Range<usize>)| (0..rows.len()).map(move |i| expert * longest + i);
        Self {
            longest,
            row_of_place: segments().flat_map(row).collect(),
            place_of_row: segments().enumerate().flat_map(place).collect(),
        }
    }
}

/// Indices in the device's own type of integers.
fn indices(values: Vec<usize>, device: &Device) -> Tensor<1, Int> {
    let (len, values) = (values.len(), values.into_iter().map(|value| value as i64).collect::<Vec<_>>());
    Tensor::from_data(TensorData::new(values, [len]), device)
}
