//! Both directions composed of Burn's operations.

use crate::kernels::dispatch::Dispatched;
use crate::kernels::elsewhere::indices;
use burn::tensor::{Int, Tensor};
use fused::widened;

pub(super) fn permute(x_nd: Tensor<2>, to: &Dispatched) -> Tensor<2> {
    let ([n, d], [r]) = (x_nd.dims(), to.assignment_of_r.dims());
    if n == 0 || r == 0 {
        return Tensor::zeros([r, d], (&x_nd.device(), x_nd.dtype())); // there is nothing to select from
    }
    let token_r = indices(to.assignment_of_r.clone()).remainder_scalar(n as i64);
    selected(x_nd, token_r, to.assignment_of_r.clone())
}

pub(super) fn unpermute(y_rd: Tensor<2>, gates_kn: Tensor<2>, from: &Dispatched) -> Tensor<2> {
    let ([r, d], [k, n], dtype) = (y_rd.dims(), gates_kn.dims(), y_rd.dtype());
    if n == 0 || r == 0 {
        return Tensor::zeros([n, d], (&y_rd.device(), dtype));
    }
    let row_of_p = from.row_of_kn.clone().reshape([k * n]);
    let y_pd = selected(widened(y_rd), indices(row_of_p.clone()), row_of_p);
    (y_pd * gates_kn.reshape([k * n, 1])).reshape([k, n, d]).sum_dim(0).reshape([n, d]).cast(dtype)
}

/// Selects rows of `x`; a row whose place is -1 becomes 0.
fn selected(x: Tensor<2>, rows: Tensor<1, Int>, places: Tensor<1, Int>) -> Tensor<2> {
    let ([_, d], [len]) = (x.dims(), rows.dims());
    let none = places.lower_elem(0).reshape([len, 1]).expand([len, d]);
    x.select(0, rows).mask_fill(none, 0.0)
}
