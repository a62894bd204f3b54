//! Products with a weight matrix, all rows at once.
//!
//! ```text
//! y = x W + b, or its gelu, or its sum with a residual;   dx = dy W^T,   dW = x^T dy,   db = sum over rows of dy
//! ```
//!
//! Burn's `linear` may keep leading dimensions as a batch of small products, each of which reads and packs all of `W`
//! again. Here, [`gemm`](cpu::gemm) computes the products on the CPU. On devices, Burn computes them on tensor cores,
//! and Burn's fusion adds the bias.
//!
//! The backward keeps `W` and `x`, except for [`Rows`] that can be recomputed. The gradient of a `W` that is a leaf can
//! be deferred; see [`deferred`](crate::deferred).

pub(crate) mod autodiff;
#[cfg(feature = "cubecl")]
mod cube;
mod flex;
mod rows;

use crate::backend::has_kernels;
use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::spec;
use crate::rows::{from_rows, to_rows};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
pub use rows::{Again, Rows};

/// Computes `x W + b`: `[.., from]` to `[.., to]`, with `W: [from, to]` and `b: [to]`. On the CPU, the result of a row
/// is bitwise independent of the other rows.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), or if a width is 0.
pub fn linear<const D: usize>(x: impl Into<Rows<D>>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let (call, Rows { x, again }) = (Call("linear"), x.into());
    if !has_kernels(&x.device()) {
        return composed(call, x, weight, bias, false);
    }
    let op = |x, weight, bias| Dispatch::fused_linear(x, weight, bias, false, again);
    by_rows(call, x, weight, bias, false, op)
}

/// Computes `x W^T`: `[.., from]` to `[.., to]`, with `W: [to, from]`, such as a head that is the token embedding. `W`
/// is read in place.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16), or if a width is 0.
pub fn linear_transposed<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let call = Call("linear_transposed");
    if !has_kernels(&x.device()) {
        return composed(call, x, weight, None, true);
    }
    let op = |x, weight, bias| Dispatch::fused_linear(x, weight, bias, true, None);
    by_rows(call, x, weight, None, true, op)
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
    if !has_kernels(&x.device()) {
        return composed(call, x, weight, bias, false) + residual;
    }
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

/// The product on a backend without kernels, composed of Burn's operations. The tape keeps `x`.
fn composed<const D: usize>(
    call: Call,
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    transposed: bool,
) -> Tensor<D> {
    let shape = check(call, &x, &weight, bias.as_ref(), transposed);
    if shape.contains(&0) {
        return Tensor::zeros(shape, (&x.device(), x.dtype())); // NdArray's product divides by the number of rows
    }
    let y = to_rows(x).matmul(if transposed { weight.transpose() } else { weight });
    let y = match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    };
    from_rows(y, shape)
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

/// Linear layers, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff)]
pub(crate) trait LinearOps: Backend {
    /// Computes `x W + b`: maps `x_np`, `weight_pq` (`weight_qp` if `transposed`) and `bias_q` (empty for none) to
    /// `y_nq`. The tape keeps `x`, or recomputes it with `again`.
    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        again: Option<Again>,
    ) -> FloatTensor<Self>;

    /// Computes `gelu(x W + b)` and `x W + b`.
    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        again: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `residual + x W + b`.
    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Products that the tape does not record, from which layers on a device and their gradients are composed.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub(crate) trait ProductOps: Backend {
    /// Computes `a_mk b_kn` in f32 and rounds once.
    #[fusion(meta = |a, b| spec([a.shape[0], b.shape[1]], a.dtype))]
    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;

    /// [`fused_product`](Self::fused_product), on a device in the memory of `flat` from element `start` on.
    #[fusion(meta = |a, b, _, _| spec([a.shape[0], b.shape[1]], a.dtype))]
    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self>;

    /// Returns the gradients of `x`, `weight` and `bias` that are `wanted`, and arbitrary tensors for the others.
    #[fusion(default)]
    fn fused_linear_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        transposed: bool,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        composed_backward::<Self>(x, weight, d_y, transposed, wanted)
    }
}

/// The gradients of a product, composed of the backend's operations.
fn composed_backward<B: ProductOps>(
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
