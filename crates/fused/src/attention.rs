//! Causal attention whose scores are never all in memory.
//!
//! ```text
//! y[i] = sum over j <= i of p[i, j] v[j],   p[i, j] = exp(scale q[i] k[j] - l[i]),   l[i] = log(sum over j <= i of exp(scale q[i] k[j]))
//! ```
//!
//! A task is one head of one sequence. It goes through the queries in tiles, each with the keys up to its last query:
//!
//! ```text
//!            keys ->
//! queries  | s .       |      forward   s = q k^T, p = softmax, y = p v                              one tile of s at a time
//!          | s s .     |      backward  s again, p = exp(s - l); dv += p^T dy, ds = p (dy v^T - sum(dy y)) scale,
//!          | s s s .   |                dq = ds k, dk += ds^T q
//! ```
//!
//! Kept for the backward are the inputs, the output and `l`, the log-sum-exp of each row (FlashAttention, arXiv 2205.14135 and 2307.08691). A row's result
//! depends on its own query and the keys up to it, whatever else is in the batch, to the last bit.

mod ops;
#[cfg(test)]
mod tests;

use crate::gemm::{Matrix, product_here};
use crate::kernel::runs_on;
use crate::math::{exp, max, sum, sum2};
use crate::{causal_softmax, linear};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};
use multiversion::multiversion;
use ops::AttentionOps;
use rayon::prelude::*;

/// `softmax(mask(q k^T * scale)) v`, each head on its own; see the module's page.
///
/// # Shapes
/// `q`, `k`: `[b, heads, t, d]`; `v`: `[b, heads, t, dv]`; the result: `[b, t, heads, dv]`. Of f32 tensors on the CPU nothing is copied whose last dimension
/// lies together. On other devices and of other types it is composed, with scores of `[b, heads, t, t]`.
pub fn causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64) -> Tensor<4> {
    if runs_on(&q) && q.dims().iter().all(|size| *size > 0) {
        let scale = scale as f32;
        let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
        return Tensor::from_dispatch(<Dispatch as AttentionOps>::causal_attention(q, k, v, scale));
    }
    causal_softmax(q.matmul(k.swap_dims(2, 3)), scale).matmul(v).swap_dims(1, 2)
}

/// [`causal_attention`] of queries, keys and values that are one product of `x`, `[b, t, from]`: `weight` is `[from, 3 heads d]`, the three side by side, and in
/// each the heads. Returns `[b, t, heads d]`. (GPT-2's `c_attn`.)
///
/// Of f32 on the CPU it is one product, and its parts are read where they lie; elsewhere they are [`query_key_value`]'s.
pub fn causal_self_attention(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    heads: usize,
    scale: f64,
) -> Tensor<3> {
    let ([b, t, _], width) = (x.dims(), weight.dims()[1] / 3);
    if runs_on(&x) && b * t > 0 {
        let qkv = linear(x, weight, bias).into_dispatch();
        return Tensor::from_dispatch(<Dispatch as AttentionOps>::causal_self_attention(qkv, heads, scale as f32));
    }
    let [q, k, v] = query_key_value(x, weight, bias, heads);
    causal_attention(q, k, v, scale).reshape([b, t, width])
}

/// The three parts of `x W + b`, each `[b, heads, t, d]`, of an `x` of `[b, t, from]` and a `W` of `[from, 3 heads d]`. They are cut out of the matrix, not out of
/// its product: the gradient of a slice is as large as what it was cut from.
pub fn query_key_value(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>, heads: usize) -> [Tensor<4>; 3] {
    let ([b, t, from], width) = (x.dims(), weight.dims()[1] / 3);
    [0, 1, 2].map(|i| {
        let columns = i * width..(i + 1) * width;
        let bias = bias.clone().map(|bias| bias.slice(columns.clone()));
        let part = linear(x.clone(), weight.clone().slice([0..from, columns]), bias);
        part.reshape([b, t, heads, width / heads]).swap_dims(1, 2)
    })
}

/// Queries of a tile: so many rows repay packing all keys before them.
fn tile(t: usize) -> usize {
    if t <= 128 { 64 } else { 128 }
}

/// A `[b, heads, t, width]` tensor as it lies, rows of `width` together.
#[derive(Clone, Copy)]
struct View<'a> {
    data: &'a [f32],
    strides: [usize; 3],
    width: usize,
}

impl<'a> View<'a> {
    fn of(tensor: &'a FloatTensor<Flex>) -> Self {
        let layout = tensor.layout();
        let strides = [0, 1, 2].map(|dim| layout.strides()[dim] as usize);
        Self { data: &tensor.storage::<f32>()[layout.start_offset()..], strides, width: layout.shape()[3] }
    }

    /// Queries, keys and values of a `[b, t, 3, heads, width]` that lies together.
    fn three(data: &'a [f32], [t, heads, width]: [usize; 3]) -> [Self; 3] {
        let strides = [3 * t * heads * width, width, 3 * heads * width];
        [0, 1, 2].map(|i| Self { data: &data[i * heads * width..], strides, width })
    }

    /// Rows of a head from `row` on.
    fn rows(&self, b: usize, head: usize, row: usize) -> Matrix<'a, f32> {
        let start = b * self.strides[0] + head * self.strides[1] + row * self.strides[2];
        Matrix { data: &self.data[start..], row_stride: self.strides[2], col_stride: 1 }
    }

    fn row(&self, b: usize, head: usize, row: usize) -> &'a [f32] {
        &self.rows(b, head, row).data[..self.width]
    }
}

/// The tensor, with the elements of a row together.
fn rows_together(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
    let strides = tensor.layout().strides();
    if strides[3] == 1 && strides.iter().all(|stride| *stride >= 0) { tensor } else { tensor.to_contiguous() }
}

/// Results of each sequence, position and head, of which each task writes its head's rows.
#[derive(Clone, Copy)]
struct Target {
    values: *mut f32,
    /// From a sequence, a head, a position to the next.
    strides: [usize; 3],
}

// SAFETY: tasks write rows of different heads.
unsafe impl Sync for Target {}

impl Target {
    /// `[b, t, heads, width]`.
    fn of(values: &mut [f32], [t, heads, width]: [usize; 3]) -> Self {
        assert!(values.len().is_multiple_of(t * heads * width));
        Self { values: values.as_mut_ptr(), strides: [t * heads * width, width, heads * width] }
    }

    /// Parts of `[b, t, 3, heads, width]`.
    fn three(values: &mut [f32], [t, heads, width]: [usize; 3]) -> [Self; 3] {
        assert!(values.len().is_multiple_of(3 * t * heads * width));
        let strides = [3 * t * heads * width, width, 3 * heads * width];
        let first = values.as_mut_ptr();
        // SAFETY: there are three rows of all heads at least.
        [0, 1, 2].map(|i| Self { values: unsafe { first.add(i * heads * width) }, strides })
    }

    fn stride(&self) -> usize {
        self.strides[2]
    }

    fn row(&self, b: usize, head: usize, row: usize) -> *mut f32 {
        // SAFETY: the place is inside of the values.
        unsafe { self.values.add(b * self.strides[0] + head * self.strides[1] + row * self.strides[2]) }
    }
}

/// What is the same for all heads.
#[derive(Clone, Copy)]
struct Shape {
    b: usize,
    heads: usize,
    t: usize,
    d: usize,
    dv: usize,
    scale: f32,
}

impl Shape {
    /// Of `[b, heads, t, width]` tensors.
    fn of(q: &FloatTensor<Flex>, v: &FloatTensor<Flex>, scale: f32) -> Self {
        let [b, heads, t, d] = [0, 1, 2, 3].map(|dim| q.shape()[dim]);
        Self { b, heads, t, d, dv: v.shape()[3], scale }
    }

    /// Of a `[b, t, 3 heads width]` tensor.
    fn of_three(qkv: &FloatTensor<Flex>, heads: usize, scale: f32) -> Self {
        let [b, t, d] = [0, 1, 2].map(|dim| qkv.shape()[dim]);
        let width = d / 3 / heads;
        Self { b, heads, t, d: width, dv: width, scale }
    }

    /// Each head of each sequence, on all cores.
    fn for_each(&self, task: impl Fn(usize, usize) + Sync + Send) {
        let heads = self.heads;
        (0..self.b * heads).into_par_iter().for_each(|i| task(i / heads, i % heads));
    }

    /// The tiles: first query, and one behind the last, which is the number of their keys.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> {
        let (t, rows) = (self.t, tile(self.t));
        (0..t).step_by(rows).map(move |first| (first, (first + rows).min(t)))
    }
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FloatTensor<Flex> {
    Flex::float_from_data(TensorData::new(values, shape), &Default::default())
}

/// Output `[b, t, heads, dv]` and log-sum-exp, `[b, heads, t]`.
fn forward(shape: Shape, [q, k, v]: [View<'_>; 3]) -> (Vec<f32>, Vec<f32>) {
    let Shape { b, heads, t, d, dv, scale } = shape;
    let (mut y, mut l) = (vec![0.0; b * t * heads * dv], vec![0.0; b * heads * t]);
    let to_y = Target::of(&mut y, [t, heads, dv]);
    let to_l = Target::of(&mut l, [1, heads, t]);
    shape.for_each(|b, head| {
        let mut scores = vec![0.0f32; tile(t).min(t) * t];
        for (first, end) in shape.tiles() {
            let rows = end - first;
            // SAFETY: the scores are this task's, as are the rows of its head.
            unsafe {
                let k_t = k.rows(b, head, 0).transposed();
                product_here([rows, end, d], q.rows(b, head, first), k_t, scores.as_mut_ptr(), end, false);
                let l = std::slice::from_raw_parts_mut(to_l.row(b, head, 0).add(first), rows);
                softmax(first, end, scale, &mut scores[..rows * end], l);
                let p = Matrix::new(&scores, end);
                product_here([rows, dv, end], p, v.rows(b, head, 0), to_y.row(b, head, first), to_y.stride(), false);
            }
        }
    });
    (y, l)
}

/// Scores of queries `first..` become probabilities; `l` gets their log-sum-exp.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn softmax(first: usize, keys: usize, scale: f32, scores: &mut [f32], l: &mut [f32]) {
    for (i, (row, l)) in scores.chunks_exact_mut(keys).zip(l).enumerate() {
        let (row, future) = row.split_at_mut(first + i + 1);
        future.fill(0.0);
        let largest = max(row);
        row.iter_mut().for_each(|s| *s = exp(scale * (*s - largest)));
        let total = sum(row, |p| p);
        let inverse = 1.0 / total;
        row.iter_mut().for_each(|p| *p *= inverse);
        *l = scale * largest + total.ln();
    }
}

/// Adds the gradients of queries, keys and values to what is there.
fn backward(
    shape: Shape,
    [q, k, v]: [View<'_>; 3],
    [y, dy]: [View<'_>; 2],
    l: &[f32],
    [to_q, to_k, to_v]: [Target; 3],
) {
    let Shape { heads, t, d, dv, scale, .. } = shape;
    shape.for_each(|b, head| {
        let len = tile(t).min(t) * t;
        let (mut p, mut ds) = (vec![0.0f32; len], vec![0.0f32; len]);
        for (first, end) in shape.tiles() {
            let rows = end - first;
            let (q_rows, dy_rows) = (q.rows(b, head, first), dy.rows(b, head, first));
            let (k_rows, v_rows) = (k.rows(b, head, 0), v.rows(b, head, 0));
            let l = &l[(b * heads + head) * t + first..][..rows];
            let of_row = |i: usize| sum2(y.row(b, head, first + i), dy.row(b, head, first + i), |y, dy| y * dy);
            let mean: Vec<f32> = (0..rows).map(of_row).collect();
            // SAFETY: scores and their gradients are this task's, as are the rows of its head.
            unsafe {
                product_here([rows, end, d], q_rows, k_rows.transposed(), p.as_mut_ptr(), end, false);
                product_here([rows, end, dv], dy_rows, v_rows.transposed(), ds.as_mut_ptr(), end, false);
                probabilities(first, end, scale, &mut p[..rows * end], &mut ds[..rows * end], [l, &mean]);
                let (p, ds) = (Matrix::new(&p[..rows * end], end), Matrix::new(&ds[..rows * end], end));
                product_here([rows, d, end], ds, k_rows, to_q.row(b, head, first), to_q.stride(), true);
                product_here([end, d, rows], ds.transposed(), q_rows, to_k.row(b, head, 0), to_k.stride(), true);
                product_here([end, dv, rows], p.transposed(), dy_rows, to_v.row(b, head, 0), to_v.stride(), true);
            }
        }
    });
}

/// Scores become probabilities `p`, and the gradients of probabilities those of scores: `scale p (dp - mean)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn probabilities(first: usize, keys: usize, scale: f32, p: &mut [f32], ds: &mut [f32], [l, mean]: [&[f32]; 2]) {
    for (i, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
        let (p, p_future) = p.split_at_mut(first + i + 1);
        let (ds, ds_future) = ds.split_at_mut(first + i + 1);
        p_future.fill(0.0);
        ds_future.fill(0.0);
        for (p, ds) in p.iter_mut().zip(ds) {
            *p = exp(scale * *p - l[i]);
            *ds = scale * *p * (*ds - mean[i]);
        }
    }
}
