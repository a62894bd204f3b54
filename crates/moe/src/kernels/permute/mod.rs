//! `permute` and `unpermute`: copy tokens into the rows of their experts, and combine the weighted outputs.
//!
//! ```text
//! permute    x[r]  = x[assignment_of[r] % n]                       0 if assignment_of[r] is -1
//! unpermute  y[t]  = sum over j of gates[j, t] y[row_of[j, t]]     without the j whose row is -1
//!
//! backward   dx[t] = sum over j of dx[row_of[j, t]]
//!            dy[r] = gates[assignment_of[r]] dy[assignment_of[r] % n],   dgates[j, t] = dy[t] . y[row_of[j, t]]
//! ```
//!
//! ```text
//!  tokens  0   1   2
//!          | \ |   |
//!  rows    0 1 2 3 -  (A A B C -)
//! ```
//!
//! Both directions gather: a row is copied from its token through `assignment_of`, and a token is summed from its rows
//! through `row_of`, in the order of choices. Nothing is scattered or added by atomics, so the result is reproducible
//! and every output is written once.
//!
//! Sums are in f32 and rounded once; gates and their gradient are f32.

mod autodiff;
mod composed;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use super::dispatch::Dispatched;
use super::route::check_indices;
use super::slices::dims;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};
use cpu::{Element, written};
use fused::check::Call;
#[cfg(feature = "cubecl")]
use fused::cube::specs::spec;
use fused::has_kernels;
use fused::slices::{contiguous, float, slice};
use fused::with_float;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Copies `x_nd` to the rows `[r, d]` of `to`.
///
/// # Panics
/// If `x` is not f32, bf16 or f16, if it has width 0, or if `to` is not i32 or has other tokens; on the CPU, if an
/// index of `to` is out of range.
pub fn permute(x_nd: Tensor<2>, to: &Dispatched) -> Tensor<2> {
    let (call, [n, _], [k, _]) = (Call("permute"), x_nd.dims(), to.row_of_kn.dims());
    check(call, ("x", &x_nd), to);
    call.shape("to.row_of", to.row_of_kn.dims(), [k, n]);
    if !has_kernels(&x_nd.device()) {
        return composed::permute(x_nd, to);
    }
    let (assignment_of, row_of) = (to.assignment_of_r.clone().into_dispatch(), to.row_of_kn.clone().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_permute(x_nd.into_dispatch(), assignment_of, row_of))
}

/// Sums the rows `y_rd` of `from` into tokens `[n, d]`, weighted by `gates_kn`.
///
/// # Panics
/// If `y` is not f32, bf16 or f16, if it has width 0, if the gates are not f32 or `from` is not i32, or if their rows
/// or tokens disagree; on the CPU, if an index of `from` is out of range.
pub fn unpermute(y_rd: Tensor<2>, gates_kn: Tensor<2>, from: &Dispatched) -> Tensor<2> {
    let (call, [r, d]) = (Call("unpermute"), y_rd.dims());
    check(call, ("y", &y_rd), from);
    call.shape("y", [r, d], [from.assignment_of_r.dims()[0], d]);
    call.dtype("gates", gates_kn.dtype(), DType::F32);
    call.shape("gates", gates_kn.dims(), from.row_of_kn.dims());
    if !has_kernels(&y_rd.device()) {
        return composed::unpermute(y_rd, gates_kn, from);
    }
    let (assignment_of, row_of) =
        (from.assignment_of_r.clone().into_dispatch(), from.row_of_kn.clone().into_dispatch());
    Tensor::from_dispatch(Dispatch::moe_unpermute(
        y_rd.into_dispatch(),
        gates_kn.into_dispatch(),
        assignment_of,
        row_of,
    ))
}

/// Both directions, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait PermuteOps: Backend {
    /// Maps `x_nd` to `x_rd`.
    #[fusion(meta = |x, assignment_of, _| spec([assignment_of.shape[0], x.shape[1]], x.dtype))]
    fn moe_permute(x: FloatTensor<Self>, assignment_of: IntTensor<Self>, row_of: IntTensor<Self>) -> FloatTensor<Self>;

    /// Maps `y_rd` and `gates_kn` to `y_nd`.
    #[fusion(meta = |y, _, _, row_of| spec([row_of.shape[1], y.shape[1]], y.dtype))]
    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        assignment_of: IntTensor<Self>,
        row_of: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Their gradients.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait PermuteBackwardOps: Backend {
    /// Maps the gradient of `x_rd` to that of `x_nd`.
    #[fusion(meta = |d_x, row_of| spec([row_of.shape[1], d_x.shape[1]], d_x.dtype))]
    fn moe_permute_backward(d_x: FloatTensor<Self>, row_of: IntTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of `y_rd` and `gates_kn`.
    #[fusion(meta = |y, gates, _, _, _| (y.clone(), gates.clone()))]
    fn moe_unpermute_backward(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        assignment_of: IntTensor<Self>,
        row_of: IntTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl PermuteOps for Flex {
    fn moe_permute(x: FloatTensor<Self>, assignment_of: IntTensor<Self>, row_of: IntTensor<Self>) -> FloatTensor<Self> {
        let ([n, d], [r]) = (dims(&x), dims(&assignment_of));
        let (x, assignment_of, row_of) = (contiguous(&x), contiguous(&assignment_of), contiguous(&row_of));
        check_places("permute", slice(&assignment_of), slice(&row_of));
        with_float!(x.dtype(), T => float(permute_cpu::<T>(slice(&x), slice(&assignment_of), n, d), [r, d]))
    }

    fn moe_unpermute(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        assignment_of: IntTensor<Self>,
        row_of: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let ([_, d], [_, n]) = (dims(&y), dims(&row_of));
        let (y, gates, assignment_of, row_of) =
            (contiguous(&y), contiguous(&gates), contiguous(&assignment_of), contiguous(&row_of));
        check_places("unpermute", slice(&assignment_of), slice(&row_of));
        with_float!(y.dtype(), T => {
            float(unpermute_cpu::<T>(slice(&y), Some(slice(&gates)), slice(&row_of), n, d), [n, d])
        })
    }
}

impl PermuteBackwardOps for Flex {
    fn moe_permute_backward(d_x: FloatTensor<Self>, row_of: IntTensor<Self>) -> FloatTensor<Self> {
        let ([_, d], [_, n]) = (dims(&d_x), dims(&row_of));
        let (d_x, row_of) = (contiguous(&d_x), contiguous(&row_of));
        with_float!(d_x.dtype(), T => float(unpermute_cpu::<T>(slice(&d_x), None, slice(&row_of), n, d), [n, d]))
    }

    fn moe_unpermute_backward(
        y: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        assignment_of: IntTensor<Self>,
        row_of: IntTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let ([r, d], [k, n]) = (dims(&y), dims(&row_of));
        let (y, gates, d_y) = (contiguous(&y), contiguous(&gates), contiguous(&d_y));
        let (assignment_of, row_of) = (contiguous(&assignment_of), contiguous(&row_of));
        with_float!(y.dtype(), T => {
            let (assignment_of, row_of) = (slice(&assignment_of), slice(&row_of));
            let (d_rows, d_gates) = unpermute_backward_cpu::<T>(slice(&y), slice(&gates), assignment_of, row_of, slice(&d_y), d);
            (float(d_rows, [r, d]), float(d_gates, [k, n]))
        })
    }
}

/// Checks rows of a width, and their places.
fn check(call: Call, (argument, rows): (&str, &Tensor<2>), places: &Dispatched) {
    call.float(argument, rows.dtype());
    call.that(rows.dims()[1] > 0, format_args!("{argument} has shape {:?}, expected a width", rows.dims()));
    call.dtype("row_of", places.row_of_kn.dtype(), DType::I32);
    call.dtype("assignment_of", places.assignment_of_r.dtype(), DType::I32);
}

/// On the CPU, checks that rows come from assignments, and that assignments go to rows.
///
/// # Panics
/// If an index is out of range.
fn check_places(function: &str, assignment_of: &[i32], row_of: &[i32]) {
    check_indices(function, "assignment_of", assignment_of, row_of.len());
    check_indices(function, "row_of", row_of, assignment_of.len());
}

/// Number of elements that justify a separate task.
const TASK: usize = 16 * 1024;

fn permute_cpu<T: Element>(x: &[T], assignment_of: &[i32], n: usize, d: usize) -> Vec<T> {
    let write = |rows: &mut [MaybeUninit<T>]| {
        rows.par_chunks_mut(d).zip(assignment_of).with_min_len(TASK / d).for_each(|(row, assignment)| {
            if *assignment >= 0 {
                row.write_copy_of_slice(&x[*assignment as usize % n * d..][..d]);
            } else {
                row.fill(MaybeUninit::new(T::from_f32(0.0)));
            }
        });
    };
    // SAFETY: every row is set.
    unsafe { written(assignment_of.len() * d, write) }
}

/// Without gates, all of them are 1: this is the backward of [`permute_cpu`].
fn unpermute_cpu<T: Element>(y: &[T], gates: Option<&[f32]>, row_of: &[i32], n: usize, d: usize) -> Vec<T> {
    let mut tokens = vec![T::from_f32(0.0); n * d];
    tokens.par_chunks_mut(d).enumerate().with_min_len(TASK / d).for_each_init(
        || vec![0.0f32; d],
        |sum, (t, token)| {
            sum.fill(0.0);
            for p in (t..row_of.len()).step_by(n).filter(|p| row_of[*p] >= 0) {
                let (row, gate) = (&y[row_of[p] as usize * d..][..d], gates.map_or(1.0, |gates| gates[p]));
                sum.iter_mut().zip(row).for_each(|(sum, y)| *sum += gate * y.to_f32());
            }
            token.iter_mut().zip(&*sum).for_each(|(token, sum)| *token = T::from_f32(*sum));
        },
    );
    tokens
}

/// Returns the gradients of rows and gates.
fn unpermute_backward_cpu<T: Element>(
    y: &[T],
    gates: &[f32],
    assignment_of: &[i32],
    row_of: &[i32],
    d_y: &[T],
    d: usize,
) -> (Vec<T>, Vec<f32>) {
    let n = d_y.len() / d;
    let write = |rows: &mut [MaybeUninit<T>]| {
        rows.par_chunks_mut(d).zip(assignment_of).with_min_len(TASK / d).for_each(|(row, assignment)| {
            if *assignment >= 0 {
                let (gate, token) = (gates[*assignment as usize], &d_y[*assignment as usize % n * d..][..d]);
                row.iter_mut().zip(token).for_each(|(row, dy)| _ = row.write(T::from_f32(gate * dy.to_f32())));
            } else {
                row.fill(MaybeUninit::new(T::from_f32(0.0)));
            }
        });
    };
    // SAFETY: every row is set.
    let d_rows = unsafe { written(assignment_of.len() * d, write) };
    let mut d_gates = vec![0.0; gates.len()];
    d_gates.par_iter_mut().zip(row_of).enumerate().with_min_len(TASK / d).for_each(|(p, (d_gate, row))| {
        if *row >= 0 {
            *d_gate = dot(&d_y[p % n * d..][..d], &y[*row as usize * d..][..d]);
        }
    });
    (d_rows, d_gates)
}

/// Uses 16 partial sums, which the compiler keeps in vectors.
fn dot<T: Element>(a: &[T], b: &[T]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        (0..16).for_each(|i| lanes[i] += a[i].to_f32() * b[i].to_f32());
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a.to_f32() * b.to_f32()).sum::<f32>()
}
