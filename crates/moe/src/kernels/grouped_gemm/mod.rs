//! `grouped_gemm`: multiplies each expert's rows by its matrix.
//!
//! ```text
//! forward    y[r, :]    = x[r, :] W[e]     for the rows r of expert e: expert_offsets[e] <= r < expert_offsets[e + 1]
//! backward   dx[r, :]   = dy[r, :] W[e]^T  the same product with the matrix read transposed
//!            dW[e]      = sum over the rows r of expert e of x[r, :]^T dy[r, :]
//! ```
//!
//! ```text
//!   x_rp                W_epq            y_rq
//!  +------+ offsets[0]   +----+         +----+
//!  |  e0  |        x     | W0 |    =    |    |
//!  +------+ offsets[1]   +----+         +----+      an expert without rows: no work, dW[e] = 0
//!  |  e1  |        x     | W1 |    =    |    |      rows from the last segment's end on: y = 0
//!  +------+ offsets[2]   +----+         +----+
//! ```
//!
//! Sums are in f32 for every dtype and are rounded once. A row's result depends only on that row and its expert's
//! matrix.

mod autodiff;
mod composed;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

#[cfg(feature = "cubecl")]
pub use cube::{Tier, force_tier};

use super::slices::dims;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Int, Tensor};
use cpu::gemm::{Matrix, Product, products};
use cpu::{Element, written};
use fused::check::Call;
#[cfg(feature = "cubecl")]
use fused::cube::specs::spec;
use fused::has_kernels;
use fused::slices::{contiguous, float, slice};
use fused::with_float;
use std::mem::MaybeUninit;

/// Multiplies `x_rp` by each segment's matrix of `weight_epq`: `[r, q]`.
///
/// Offsets (see [`dispatch`](super::dispatch)) begin at 0, never decrease, and end at `r` or before. On a device they
/// are not read back for a check: if they exceed the rows, nothing is read or written out of bounds, but the result is
/// meaningless.
///
/// # Panics
/// If `x` and the matrices do not have one type (f32, bf16 or f16), if the offsets are not i32, or if widths or numbers
/// of experts disagree or are 0; on the CPU, if the offsets are not borders of rows.
pub fn grouped_gemm(x_rp: Tensor<2>, weight_epq: Tensor<3>, expert_offsets: &Tensor<1, Int>) -> Tensor<2> {
    let [_, p, _] = weight_epq.dims();
    check(Call("grouped_gemm"), ("x", &x_rp, p), &weight_epq, expert_offsets);
    if !has_kernels(&x_rp.device()) {
        return composed::grouped_gemm(x_rp, weight_epq, expert_offsets);
    }
    let expert_offsets = expert_offsets.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm(
        x_rp.into_dispatch(),
        weight_epq.into_dispatch(),
        expert_offsets,
        false,
    ))
}

/// Returns the gradient of the rows, `[r, p]`: the product in the backward of [`grouped_gemm`], as a separate function.
/// The result is not tracked.
///
/// # Panics
/// Like [`grouped_gemm`].
pub fn rows_gradient(d_y_rq: Tensor<2>, weight_epq: Tensor<3>, expert_offsets: &Tensor<1, Int>) -> Tensor<2> {
    let [_, _, q] = weight_epq.dims();
    check(Call("rows_gradient"), ("d_y", &d_y_rq, q), &weight_epq, expert_offsets);
    if !has_kernels(&d_y_rq.device()) {
        return composed::grouped_gemm(d_y_rq.inner(), weight_epq.inner().swap_dims(1, 2), expert_offsets);
    }
    let (d_y, weight) = (d_y_rq.inner().into_dispatch(), weight_epq.inner().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm(d_y, weight, expert_offsets.clone().inner().into_dispatch(), true))
}

/// Returns the gradient of the matrices, `[e, p, q]`: the sum in the backward of [`grouped_gemm`], as a separate
/// function. The result is not tracked.
///
/// # Panics
/// Like [`grouped_gemm`].
pub fn weight_gradient(x_rp: Tensor<2>, d_y_rq: Tensor<2>, expert_offsets: &Tensor<1, Int>) -> Tensor<3> {
    let (call, [r, p], [_, q]) = (Call("weight_gradient"), x_rp.dims(), d_y_rq.dims());
    call.float("x", x_rp.dtype());
    call.dtype("d_y", d_y_rq.dtype(), x_rp.dtype());
    call.shape("d_y", d_y_rq.dims(), [r, q]);
    call.that(p > 0 && q > 0, format_args!("x and d_y have widths of {p} and {q}, expected at least 1"));
    call.dtype("expert_offsets", expert_offsets.dtype(), DType::I32);
    call.that(
        expert_offsets.dims()[0] > 1,
        format_args!("expert_offsets has shape {:?}, expected experts", expert_offsets.dims()),
    );
    if !has_kernels(&x_rp.device()) {
        return composed::weight_gradient(x_rp.inner(), d_y_rq.inner(), expert_offsets);
    }
    let (x, d_y) = (x_rp.inner().into_dispatch(), d_y_rq.inner().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_grouped_gemm_weight(x, d_y, expert_offsets.clone().inner().into_dispatch()))
}

/// The product, which the tape records, and that of its gradient with the matrices transposed.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait GroupedGemmOps: Backend {
    /// Maps `x_rp` and `weight_epq` (`weight_eqp` if `transposed`) to `y_rq`.
    #[fusion(meta = |x, weight, _, transposed| {
        spec([x.shape[0], weight.shape[if *transposed { 1 } else { 2 }]], x.dtype)
    })]
    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self>;
}

/// The gradient of the matrices.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait GroupedGemmBackwardOps: Backend {
    /// Maps `x_rp` and `d_y_rq` to the gradient of `weight_epq`.
    #[fusion(meta = |x, d_y, expert_offsets| spec([expert_offsets.shape[0] - 1, x.shape[1], d_y.shape[1]], x.dtype))]
    fn moe_grouped_gemm_weight(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// [`moe_grouped_gemm_weight`](Self::moe_grouped_gemm_weight), on a device in the memory of `flat` from element
    /// `start` on.
    #[fusion(meta = |x, d_y, expert_offsets, _, _| {
        spec([expert_offsets.shape[0] - 1, x.shape[1], d_y.shape[1]], x.dtype)
    })]
    fn moe_grouped_gemm_weight_into(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
        flat: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self>;
}

impl GroupedGemmOps for Flex {
    fn moe_grouped_gemm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
        transposed: bool,
    ) -> FloatTensor<Self> {
        let ([r, p], [_, rows, columns]) = (dims(&x), dims(&weight));
        let q = if transposed { rows } else { columns };
        let (x, weight, expert_offsets) = (contiguous(&x), contiguous(&weight), contiguous(&expert_offsets));
        with_float!(x.dtype(), T => {
            let y = grouped_gemm_cpu::<T>(slice(&x), slice(&weight), slice(&expert_offsets), GroupShape { p, q }, transposed);
            float(y, [r, q])
        })
    }
}

impl GroupedGemmBackwardOps for Flex {
    fn moe_grouped_gemm_weight(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let ([_, p], [_, q], [ends]) = (dims(&x), dims(&d_y), dims(&expert_offsets));
        let (x, d_y, expert_offsets) = (contiguous(&x), contiguous(&d_y), contiguous(&expert_offsets));
        with_float!(x.dtype(), T => {
            let d_weight = grouped_gemm_weight_cpu::<T>(slice(&x), slice(&d_y), slice(&expert_offsets), GroupShape { p, q });
            float(d_weight, [ends - 1, p, q])
        })
    }

    fn moe_grouped_gemm_weight_into(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        expert_offsets: IntTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        Self::moe_grouped_gemm_weight(x, d_y, expert_offsets)
    }
}

/// Checks rows of this width, matrices and offsets of one product.
fn check(
    call: Call,
    (argument, rows, width): (&str, &Tensor<2>, usize),
    weight_epq: &Tensor<3>,
    expert_offsets: &Tensor<1, Int>,
) {
    let shape = weight_epq.dims();
    call.float(argument, rows.dtype());
    call.dtype("weight", weight_epq.dtype(), rows.dtype());
    call.not_empty("weight", &shape);
    call.width(argument, rows.dims(), width);
    call.dtype("expert_offsets", expert_offsets.dtype(), DType::I32);
    call.shape("expert_offsets", expert_offsets.dims(), [shape[0] + 1]);
}

/// On the CPU, checks that the offsets are borders of `r` rows.
fn check_expert_offsets(expert_offsets: &[i32], r: usize) {
    let (first, last) = (expert_offsets.first(), expert_offsets.last());
    let borders = first == Some(&0) && expert_offsets.is_sorted() && last.is_some_and(|last| *last as usize <= r);
    assert!(
        borders,
        "grouped_gemm: expert_offsets go from {first:?} to {last:?}, expected borders of {r} rows that do not fall"
    );
}

/// The number of rows to which segments are padded on the device of `x`, so that no tile of a GPU kernel is half empty.
pub fn tile_rows<const D: usize>(x: &Tensor<D>) -> usize {
    #[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
    if x.clone().inner().try_into_primitive::<burn::backend::Flex>().is_err() && has_kernels(&x.device()) {
        return cube::TILE;
    }
    let _ = x;
    1
}

/// The shape of the matrices of a group.
#[derive(Debug, Clone, Copy)]
struct GroupShape {
    /// Width of `x`.
    pub p: usize,
    /// Width of `y`.
    pub q: usize,
}

/// Computes `y[r, q]`; if `transposed`, the matrices are `[e, q, p]`.
fn grouped_gemm_cpu<T: Element>(
    x: &[T],
    weight: &[T],
    expert_offsets: &[i32],
    GroupShape { p, q }: GroupShape,
    transposed: bool,
) -> Vec<T> {
    check_expert_offsets(expert_offsets, x.len() / p);
    let write = |y: &mut [MaybeUninit<T>]| {
        let mut rest = y;
        let mut list = vec![];
        for (expert, borders) in expert_offsets.windows(2).enumerate() {
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
    // SAFETY: `products` sets the rows of all segments, which are consecutive from 0 on; `fill` sets those after them.
    unsafe { written(x.len() / p * q, write) }
}

/// Computes `dW[e, p, q]`.
fn grouped_gemm_weight_cpu<T: Element>(
    x: &[T],
    d_y: &[T],
    expert_offsets: &[i32],
    GroupShape { p, q }: GroupShape,
) -> Vec<T> {
    check_expert_offsets(expert_offsets, x.len() / p);
    let write = |d_weight: &mut [MaybeUninit<T>]| {
        let list = expert_offsets.windows(2).zip(d_weight.chunks_mut(p * q)).map(|(borders, c)| {
            let (from, k) = (borders[0] as usize, (borders[1] - borders[0]) as usize);
            let (x, d_y) = (&x[from * p..][..k * p], &d_y[from * q..][..k * q]);
            Product { m: p, n: q, k, a: Matrix::new(x, p).transposed(), b: Matrix::new(d_y, q), c }
        });
        products(list.collect());
    };
    // SAFETY: `products` sets the matrix of every expert.
    unsafe { written((expert_offsets.len() - 1) * p * q, write) }
}
