//! Products with a weight, all rows at once.
//!
//! ```text
//! y = x W + b,   dx = dy W^T,   dW = x^T dy,   db = sum over rows of dy
//! ```
//!
//! Burn's own `linear` may keep leading dimensions as a batch of small products, each of which reads and packs all of `W` again. On the CPU the products are
//! [`gemm`](crate::gemm)'s; on devices they are Burn's, which run on tensor cores, and its fusion adds the bias. Kept are `x` and `W`; the gradient of a `W` that
//! is a leaf can be put off, see [`deferred`](crate::deferred).

mod host;

use crate::ops::FusedOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata};
use burn::tensor::Tensor;
pub(crate) use host::{backward_host, forward_host};

/// `x W + b`: `[.., from]` to `[.., to]`, with `W: [from, to]` and `b: [to]`. On the CPU a row's result has the same bits whatever other rows there are.
///
/// # Panics
/// If the widths differ.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let [from, to] = weight.dims();
    product(x, weight, bias, [from, to], false)
}

/// `x W^T`: `[.., from]` to `[.., to]`, with `W: [to, from]`, such as a head that is the token embedding. `W` is read as it lies.
///
/// # Panics
/// If the widths differ.
pub fn linear_transposed<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let [to, from] = weight.dims();
    product(x, weight, None, [from, to], true)
}

fn product<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    [from, to]: [usize; 2],
    transposed: bool,
) -> Tensor<D> {
    let mut shape = x.dims();
    let rows = shape[..D - 1].iter().product::<usize>();
    assert_eq!(shape[D - 1], from, "linear: rows of {} by a matrix for rows of {from}", shape[D - 1]);
    shape[D - 1] = to;
    let bias = bias.unwrap_or_else(|| Tensor::empty([0], (&x.device(), x.dtype())));
    let (x, weight, bias) = (x.reshape([rows, from]).into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::<2>::from_dispatch(Dispatch::fused_linear(x, weight, bias, transposed)).reshape(shape)
}

/// The product by the backend's own operations.
pub(crate) fn composed<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    transposed: bool,
) -> FloatTensor<B> {
    let y = B::float_matmul(x, if transposed { B::float_transpose(weight) } else { weight });
    match bias.shape().num_elements() {
        0 => y,
        to => B::float_add(y, B::float_reshape(bias, [1, to].into())),
    }
}

/// The gradients by the backend's own operations.
pub(crate) fn composed_backward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    d_y: FloatTensor<B>,
    transposed: bool,
    [of_x, of_weight, of_bias]: [bool; 3],
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let d_x = if of_x {
        B::float_matmul(d_y.clone(), if transposed { weight } else { B::float_transpose(weight) })
    } else {
        weight
    };
    let d_weight = match (of_weight, transposed) {
        (false, _) => x,
        (true, false) => B::float_matmul(B::float_transpose(x), d_y.clone()),
        (true, true) => B::float_matmul(B::float_transpose(d_y.clone()), x),
    };
    let to = d_y.shape()[1];
    let d_bias = if of_bias { B::float_reshape(B::float_sum_dim(d_y, 0), [to].into()) } else { d_y };
    (d_x, d_weight, d_bias)
}
