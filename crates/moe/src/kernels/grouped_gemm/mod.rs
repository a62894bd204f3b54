//! `grouped_gemm`: each expert's rows times its own matrix.
//!
//! ```text
//! forward    y[r, :]    = x[r, :] W[e]                   for the rows r of expert e: segments[e] <= r < segments[e + 1]
//! backward   dx[r, :]   = dy[r, :] W[e]^T                the same product with the matrix read transposed
//!            dW[e]      = sum over the rows r of expert e of x[r, :]^T dy[r, :]
//! ```
//!
//! ```text
//!   x_rp                W_epq            y_rq
//!  +------+ segments[0]  +----+         +----+
//!  |  e0  |        x     | W0 |    =    |    |
//!  +------+ segments[1]  +----+         +----+      an expert without rows: nothing to do, dW[e] = 0
//!  |  e1  |        x     | W1 |    =    |    |      rows from the last segment's end on: y = 0
//!  +------+ segments[2]  +----+         +----+
//! ```
//!
//! Sums are made in f32 whatever the dtype and rounded once. A row's result depends on that row and its expert's matrix alone.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

#[cfg(feature = "cubecl")]
pub use cube::{Tier, force_tier};

use crate::ops::MoeOps;
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use fused::gemm::{Matrix, Product, products};
use fused::{Element, written};
use std::mem::MaybeUninit;

/// `x_rp` times each segment's matrix of `weight_epq`: `[r, q]`. Of `segments`, see [`dispatch`](super::dispatch).
///
/// # Panics
/// If widths or the number of experts do not agree.
pub fn grouped_gemm(x_rp: Tensor<2>, weight_epq: Tensor<3>, segments: &Tensor<1, Int>) -> Tensor<2> {
    let ([_, p], [e, w, _], [ends]) = (x_rp.dims(), weight_epq.dims(), segments.dims());
    assert!(p == w && ends == e + 1, "grouped_gemm: rows of {p} by {e} matrices with {w} rows, {ends} segment borders");
    let segments = segments.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm(x_rp.into_dispatch(), weight_epq.into_dispatch(), segments, false))
}

/// The gradient of the rows, `[r, p]`: the product of [`grouped_gemm`]'s backward by itself. Carries no gradients on.
pub fn rows_gradient(d_y_rq: Tensor<2>, weight_epq: Tensor<3>, segments: &Tensor<1, Int>) -> Tensor<2> {
    let (d_y, weight) = (d_y_rq.inner().into_dispatch(), weight_epq.inner().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm(d_y, weight, segments.clone().inner().into_dispatch(), true))
}

/// The gradient of the matrices, `[e, p, q]`: the sum of [`grouped_gemm`]'s backward by itself. Carries no gradients on.
pub fn weight_gradient(x_rp: Tensor<2>, d_y_rq: Tensor<2>, segments: &Tensor<1, Int>) -> Tensor<3> {
    let (x, d_y) = (x_rp.inner().into_dispatch(), d_y_rq.inner().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm_weight(x, d_y, segments.clone().inner().into_dispatch()))
}

/// The number of rows to pad segments to on the device of `x`, so that no tile of a GPU's kernels is half empty.
pub fn tile_rows<const D: usize>(x: &Tensor<D>) -> usize {
    #[cfg(feature = "cuda")]
    if x.clone().inner().try_into_primitive::<burn::backend::Flex>().is_err() {
        return cube::TILE;
    }
    let _ = x;
    1
}

/// The shape of the matrices of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Width of `x`.
    pub p: usize,
    /// Width of `y`.
    pub q: usize,
}

/// `y[r, q]`; where `transposed`, the matrices are `[e, q, p]`.
pub(crate) fn grouped_gemm_host<T: Element>(
    x: &[T],
    weight: &[T],
    segments: &[i32],
    Shape { p, q }: Shape,
    transposed: bool,
) -> Vec<T> {
    assert_eq!(segments[0], 0, "grouped_gemm: the first segment begins at row 0");
    let write = |y: &mut [MaybeUninit<T>]| {
        let mut rest = y;
        let mut list = vec![];
        for (expert, borders) in segments.windows(2).enumerate() {
            let (from, m) = (borders[0] as usize, (borders[1] - borders[0]) as usize);
            let c;
            (c, rest) = rest.split_at_mut(m * q);
            let weight = &weight[expert * p * q..][..p * q];
            let b = if transposed { Matrix::new(weight, p).transposed() } else { Matrix::new(weight, q) };
            list.push(Product { m, n: q, k: p, a: Matrix::new(&x[from * p..][..m * p], p), b, c });
        }
        products(list);
        rest.fill(MaybeUninit::new(T::from_f32(0.0)));
    };
    // SAFETY: `products` sets the rows of all segments, which begin at 0 and follow each other; `fill` those behind.
    unsafe { written(x.len() / p * q, write) }
}

/// `dW[e, p, q]`
pub(crate) fn grouped_gemm_weight_host<T: Element>(
    x: &[T],
    d_y: &[T],
    segments: &[i32],
    Shape { p, q }: Shape,
) -> Vec<T> {
    let write = |d_weight: &mut [MaybeUninit<T>]| {
        let list = segments.windows(2).zip(d_weight.chunks_mut(p * q)).map(|(borders, c)| {
            let (from, k) = (borders[0] as usize, (borders[1] - borders[0]) as usize);
            let (x, d_y) = (&x[from * p..][..k * p], &d_y[from * q..][..k * q]);
            Product { m: p, n: q, k, a: Matrix::new(x, p).transposed(), b: Matrix::new(d_y, q), c }
        });
        products(list.collect());
    };
    // SAFETY: `products` sets the matrix of every expert.
    unsafe { written((segments.len() - 1) * p * q, write) }
}
