//! Products with a weight matrix, all rows at once.
//!
//! ```text
//! y = x W + b, or its gelu, or its sum with a residual;   dx = dy W^T,   dW = x^T dy,   db = sum over rows of dy
//! ```
//!
//! Burn's `linear` may keep leading dimensions as a batch of small products, each of which reads and packs all of `W`
//! again. Here, products on the CPU are those of [`gemm`](cpu::gemm). On devices they are Burn's, which run on tensor
//! cores, and Burn's fusion adds the bias.
//!
//! The backward keeps `W` and `x`, except for [`Rows`] that can be recomputed. The gradient of a `W` that is a leaf can
//! be deferred; see [`deferred`](crate::deferred).

mod plain;
mod rows;

use crate::check::Call;
use crate::ops::FusedOps;
use crate::rows::{from_rows, to_rows};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;
pub(crate) use plain::{Weighted, backward_cpu};
pub use rows::{Again, Rows};

/// Computes `x W + b`: `[.., from]` to `[.., to]`, with `W: [from, to]` and `b: [to]`. On the CPU, the bits of a row's
/// result do not depend on other rows.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), or if a width is 0.
pub fn linear<const D: usize>(x: impl Into<Rows<D>>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let Rows { x, again } = x.into();
    let op = |x, weight, bias| Dispatch::fused_linear(x, weight, bias, false, again);
    by_rows(Call("linear"), x, weight, bias, false, op)
}

/// Computes `x W^T`: `[.., from]` to `[.., to]`, with `W: [to, from]`, such as a head that is the token embedding. `W`
/// is read in place.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), or if a width is 0.
pub fn linear_transposed<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let op = |x, weight, bias| Dispatch::fused_linear(x, weight, bias, true, None);
    by_rows(Call("linear_transposed"), x, weight, None, true, op)
}

/// Computes `gelu(x W + b)` in one pass, with the shapes of [`linear`]; see [`gelu`](crate::gelu). The backward keeps
/// `x`, `W` and `x W + b`.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), or if a width is 0.
pub fn linear_gelu<const D: usize>(x: impl Into<Rows<D>>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let Rows { x, again } = x.into();
    let op = |x, weight, bias| Dispatch::fused_linear_gelu(x, weight, bias, again).0;
    by_rows(Call("linear_gelu"), x, weight, bias, false, op)
}

/// Computes `residual + x W + b` in one pass, with the shapes of [`linear`].
///
/// # Panics
/// Like [`linear`], or if the residual does not have the shape and type of the result.
pub fn linear_add<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    residual: Tensor<D>,
) -> Tensor<D> {
    let call = Call("linear_add");
    call.dtype("residual", residual.dtype(), x.dtype());
    call.shape("residual", residual.dims(), check(call, &x, &weight, bias.as_ref(), false));
    let residual = to_rows(residual).into_dispatch();
    by_rows(call, x, weight, bias, false, |x, weight, bias| Dispatch::fused_linear_add(x, weight, bias, residual))
}

/// Applies `op` to all rows of `x`, the matrix (`[to, from]` if `transposed`) and the bias.
fn by_rows<const D: usize>(
    call: Call,
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    transposed: bool,
    op: impl FnOnce(DispatchTensor, DispatchTensor, DispatchTensor) -> DispatchTensor,
) -> Tensor<D> {
    let shape = check(call, &x, &weight, bias.as_ref(), transposed);
    let bias = bias.unwrap_or_else(|| Tensor::empty([0], (&x.device(), x.dtype())));
    let y = op(to_rows(x).into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    from_rows(Tensor::from_dispatch(y), shape)
}

/// Checks the arguments; returns the shape of `x W + b`.
pub(crate) fn check<const D: usize>(
    call: Call,
    x: &Tensor<D>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    transposed: bool,
) -> [usize; D] {
    let (mut shape, [from, to]) = (x.dims(), weight.dims());
    let (from, to) = if transposed { (to, from) } else { (from, to) };
    call.float("x", x.dtype());
    call.dtype("weight", weight.dtype(), x.dtype());
    call.not_empty("weight", &weight.dims());
    call.width("x", shape, from);
    if let Some(bias) = bias {
        call.dtype("bias", bias.dtype(), x.dtype());
        call.shape("bias", bias.dims(), [to]);
    }
    shape[D - 1] = to;
    shape
}

/// A product, plus the bias, composed of the backend's operations.
pub(crate) fn composed<B: FusedOps>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    transposed: bool,
) -> FloatTensor<B> {
    let y = B::fused_product(x, if transposed { B::float_transpose(weight) } else { weight });
    match bias.shape().num_elements() {
        0 => y,
        to => B::float_add(y, B::float_reshape(bias, [1, to].into())),
    }
}

/// The gradients of [`composed`].
pub(crate) fn composed_backward<B: FusedOps>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    d_y: FloatTensor<B>,
    transposed: bool,
    [of_x, of_weight, of_bias]: [bool; 3],
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let d_x = if of_x {
        B::fused_product(d_y.clone(), if transposed { weight } else { B::float_transpose(weight) })
    } else {
        weight
    };
    let d_weight = match (of_weight, transposed) {
        (false, _) => x,
        (true, false) => B::fused_product(B::float_transpose(x), d_y.clone()),
        (true, true) => B::fused_product(B::float_transpose(d_y.clone()), x),
    };
    let to = d_y.shape()[1];
    let d_bias = if of_bias { B::float_reshape(B::float_sum_dim(d_y, 0), [to].into()) } else { d_y };
    (d_x, d_weight, d_bias)
}
