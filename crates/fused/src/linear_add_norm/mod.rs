//! A product added to a residual, and the norm of the sum: the operation between the two halves of a transformer block.
//!
//! ```text
//! h = residual + x W + b,   y = norm(h)          returns both: h is the residual stream, y is the next layer's input
//!
//! CPU:     the product's last step adds b and the residual; the norm reads rows that were just written
//! device:  the product, then one kernel that reads it and the residual, and writes h and y
//! ```
//!
//! As separate kernels on a device, the product, the addition of `b`, that of the residual and the norm would read and
//! write rows of `d` 4 times each; this operation reads 2 times and writes 3 times. On the tape it is a product, a sum
//! and a [`norm`](crate::norm), which keep `x`, `W`, `h` and the gain.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use crate::linear::{self, LinearOps};
use crate::norm::{self, NormOps, NormRule};
use crate::precision::widened;
use crate::rows::{from_rows, to_rows};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};

/// Computes `h = residual + x W + b` and [`layer_norm`](crate::layer_norm)`(h)`.
///
/// # Shapes
/// `x`: `[.., from]`; `weight`: `[from, to]`; `bias`, `gain` and `norm_bias`: `[to]`; `residual` and both results:
/// `[.., to]`.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16; gain and norm bias may differ), or if a
/// width is 0.
pub fn linear_add_layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    residual: Tensor<D>,
    gain: Tensor<1>,
    norm_bias: Option<Tensor<1>>,
    epsilon: f64,
) -> [Tensor<D>; 2] {
    let rule = NormRule { epsilon: epsilon as f32, centred: true };
    linear_add_norm(Call("linear_add_layer_norm"), [x, residual], weight, bias, (gain, norm_bias, rule))
}

/// Computes `h = residual + x W` and [`rms_norm`](crate::rms_norm)`(h)`.
///
/// # Shapes
/// `x`: `[.., from]`; `weight`: `[from, to]`; `gain`: `[to]`; `residual` and both results: `[.., to]`.
///
/// # Panics
/// If the arguments do not have these shapes and one type (f32, bf16 or f16; the gain may differ), or if a width is 0.
pub fn linear_add_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    residual: Tensor<D>,
    gain: Tensor<1>,
    epsilon: f64,
) -> [Tensor<D>; 2] {
    let rule = NormRule { epsilon: epsilon as f32, centred: false };
    linear_add_norm(Call("linear_add_rms_norm"), [x, residual], weight, None, (gain, None, rule))
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait LinearAddNormOps: Backend {
    /// Computes `h = residual + x W + b` and its norm: maps `x_np`, `weight_pq`, `bias_q` and `residual_nq` to `h_nq`,
    /// and that with `gain_q` and `norm_bias_q` to `y_nq`. Empty biases are none.
    #[fusion(meta = |_, _, _, residual, _, _, _| (residual.clone(), residual.clone()))]
    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl LinearAddNormOps for Flex {
    fn fused_linear_add_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        norm_bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let h = Self::fused_linear_add(x, weight, bias, residual);
        (h.clone(), Self::fused_norm(h, gain, norm_bias, rule))
    }
}

fn linear_add_norm<const D: usize>(
    call: Call,
    [x, residual]: [Tensor<D>; 2],
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    (gain, norm_bias, rule): (Tensor<1>, Option<Tensor<1>>, NormRule),
) -> [Tensor<D>; 2] {
    let shape = linear::check(call, &x, &weight, bias.as_ref(), false);
    call.dtype("residual", residual.dtype(), x.dtype());
    call.shape("residual", residual.dims(), shape);
    norm::check(call, shape[D - 1], &gain, ("norm_bias", norm_bias.as_ref()));
    let none = |dtype| Tensor::empty([0], (&x.device(), dtype));
    let bias = bias.unwrap_or_else(|| none(x.dtype())).into_dispatch();
    let norm_bias = norm_bias.map_or_else(|| none(DType::F32), widened).into_dispatch();
    let (x, residual) = (to_rows(x).into_dispatch(), to_rows(residual).into_dispatch());
    let (weight, gain) = (weight.into_dispatch(), widened(gain).into_dispatch());
    let (h, y) = Dispatch::fused_linear_add_norm(x, weight, bias, residual, gain, norm_bias, rule);
    [h, y].map(|rows| from_rows(Tensor::from_dispatch(rows), shape))
}
