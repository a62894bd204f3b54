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

#[cfg(test)]
mod tests;

use crate::gemm::{Matrix, product_here};
use crate::math::{exp, max, sum, sum2};
use crate::{causal_softmax, kernel::runs_on};
use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{
    Backend, Dispatch, Flex, TensorMetadata, backend_extension, ops::FloatTensorOps, tensor::FloatTensor,
};
use burn::tensor::{Tensor, TensorData};
use multiversion::multiversion;
use rayon::prelude::*;
use std::sync::Arc;

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

/// Queries of a tile: so many rows repay packing all keys before them.
fn tile(t: usize) -> usize {
    if t <= 128 { 64 } else { 128 }
}

/// A `[b, heads, t, width]` tensor as it lies, rows of `width` together.
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

/// Results of `[b, t, heads, width]`, of which each task writes its head's rows.
struct Target {
    values: *mut f32,
    t: usize,
    heads: usize,
    width: usize,
}

// SAFETY: tasks write rows of different heads.
unsafe impl Sync for Target {}

impl Target {
    fn of(values: &mut [f32], [t, heads, width]: [usize; 3]) -> Self {
        assert!(values.len().is_multiple_of(t * heads * width));
        Self { values: values.as_mut_ptr(), t, heads, width }
    }

    fn stride(&self) -> usize {
        self.heads * self.width
    }

    fn row(&self, b: usize, head: usize, row: usize) -> *mut f32 {
        // SAFETY: the place is inside of the values.
        unsafe { self.values.add(((b * self.t + row) * self.heads + head) * self.width) }
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
    fn of(q: &FloatTensor<Flex>, v: &FloatTensor<Flex>, scale: f32) -> Self {
        let [b, heads, t, d] = [0, 1, 2, 3].map(|dim| q.shape()[dim]);
        Self { b, heads, t, d, dv: v.shape()[3], scale }
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

    fn tensor(&self, values: Vec<f32>, width: usize) -> FloatTensor<Flex> {
        Flex::float_from_data(TensorData::new(values, [self.b, self.t, self.heads, width]), &Default::default())
    }
}

/// Output `[b, t, heads, dv]` and log-sum-exp, `[b, heads, t]`.
fn forward(
    q: &FloatTensor<Flex>,
    k: &FloatTensor<Flex>,
    v: &FloatTensor<Flex>,
    scale: f32,
) -> (FloatTensor<Flex>, Vec<f32>) {
    let shape = Shape::of(q, v, scale);
    let Shape { b, heads, t, d, dv, .. } = shape;
    let (q, k, v) = (View::of(q), View::of(k), View::of(v));
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
    (shape.tensor(y, dv), l)
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

/// What a backward needs.
#[derive(Debug, Clone)]
struct Saved {
    q: FloatTensor<Flex>,
    k: FloatTensor<Flex>,
    v: FloatTensor<Flex>,
    y: FloatTensor<Flex>,
    l: Arc<Vec<f32>>,
    scale: f32,
}

/// The gradients of `q`, `k` and `v`, of their shapes.
fn backward(saved: &Saved, dy: &FloatTensor<Flex>) -> [FloatTensor<Flex>; 3] {
    let shape = Shape::of(&saved.q, &saved.v, saved.scale);
    let Shape { b, heads, t, d, dv, scale } = shape;
    let (q, k, v) = (View::of(&saved.q), View::of(&saved.k), View::of(&saved.v));
    let by_head = |tensor: &FloatTensor<Flex>| rows_together(tensor.clone().permute(&[0, 2, 1, 3]));
    let (y, dy) = (by_head(&saved.y), by_head(dy));
    let (y, dy) = (View::of(&y), View::of(&dy));
    let [mut dq, mut dk, mut d_v] = [d, d, dv].map(|width| vec![0.0f32; b * t * heads * width]);
    let (to_q, to_k) = (Target::of(&mut dq, [t, heads, d]), Target::of(&mut dk, [t, heads, d]));
    let to_v = Target::of(&mut d_v, [t, heads, dv]);
    shape.for_each(|b, head| {
        let len = tile(t).min(t) * t;
        let (mut p, mut ds) = (vec![0.0f32; len], vec![0.0f32; len]);
        for (first, end) in shape.tiles() {
            let rows = end - first;
            let (q_rows, dy_rows) = (q.rows(b, head, first), dy.rows(b, head, first));
            let (k_rows, v_rows) = (k.rows(b, head, 0), v.rows(b, head, 0));
            let l = &saved.l[(b * heads + head) * t + first..][..rows];
            let of_row = |i: usize| sum2(y.row(b, head, first + i), dy.row(b, head, first + i), |y, dy| y * dy);
            let mean: Vec<f32> = (0..rows).map(of_row).collect();
            // SAFETY: scores and their gradients are this task's, as are the rows of its head.
            unsafe {
                product_here([rows, end, d], q_rows, k_rows.transposed(), p.as_mut_ptr(), end, false);
                product_here([rows, end, dv], dy_rows, v_rows.transposed(), ds.as_mut_ptr(), end, false);
                probabilities(first, end, scale, &mut p[..rows * end], &mut ds[..rows * end], [l, &mean]);
                let (p, ds) = (Matrix::new(&p[..rows * end], end), Matrix::new(&ds[..rows * end], end));
                product_here([rows, d, end], ds, k_rows, to_q.row(b, head, first), to_q.stride(), false);
                product_here([end, d, rows], ds.transposed(), q_rows, to_k.row(b, head, 0), to_k.stride(), true);
                product_here([end, dv, rows], p.transposed(), dy_rows, to_v.row(b, head, 0), to_v.stride(), true);
            }
        }
    });
    let gradient = |values, width| shape.tensor(values, width).permute(&[0, 2, 1, 3]);
    [gradient(dq, d), gradient(dk, d), gradient(d_v, dv)]
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

/// The operation behind [`causal_attention`].
#[backend_extension(Flex, Autodiff)]
pub trait AttentionOps: Backend {
    /// See [`causal_attention`].
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self>;
}

impl AttentionOps for Flex {
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        let [q, k, v] = [q, k, v].map(rows_together);
        forward(&q, &k, &v, scale).0
    }
}

impl<C: CheckpointStrategy> AttentionOps for Autodiff<Flex, C> {
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl Backward<Flex, 3> for Step {
            type State = Saved;

            fn backward(self, ops: Ops<Saved, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let dy = gradients.consume::<Flex>(&ops.node);
                for (parent, gradient) in ops.parents.iter().zip(backward(&ops.state, &dy)) {
                    if let Some(parent) = parent {
                        gradients.register::<Flex>(parent.id, gradient);
                    }
                }
            }
        }

        let inputs = [&q, &k, &v];
        let nodes = inputs.map(|input| input.node());
        let [q, k, v] = inputs.map(|input| rows_together(input.primitive().clone()));
        let (y, l) = forward(&q, &k, &v, scale);
        match Step.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(step) => {
                let saved = Saved { q, k, v, y: y.clone(), l: Arc::new(l), scale };
                step.finish(saved, y)
            }
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }
}
