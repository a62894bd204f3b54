//! One head of one sequence, on one thread.

use super::{AttentionRule, ScoreDropout};
use crate::gemm::{Matrix, product_here};
use crate::math::{exp, max, sum, sum2};
use multiversion::multiversion;

/// What a head reads: queries and keys in parts whose products are added, such as an unrotated and a rotated one.
pub(super) struct Head<'a, const P: usize> {
    pub t: usize,
    pub s: usize,
    pub q: [Matrix<'a, f32>; P],
    pub k: [Matrix<'a, f32>; P],
    /// Widths of the parts.
    pub d: [usize; P],
    pub v: Matrix<'a, f32>,
    pub dv: usize,
    pub rule: AttentionRule,
    /// Numbers of the sequence and of the head, of which dropout depends.
    pub place: [usize; 2],
}

/// Where a matrix goes: its first element, and from a row to the next.
pub(super) type To = (*mut f32, usize);

/// Queries of a tile: so many rows repay packing all keys before them.
fn tile(t: usize) -> usize {
    if t <= 128 { 64 } else { 128 }
}

impl<const P: usize> Head<'_, P> {
    /// First queries of the tiles, and one behind the last; the last tile first.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> {
        let (t, rows) = (self.t, tile(self.t));
        (0..t.div_ceil(rows)).rev().map(move |i| (i * rows, ((i + 1) * rows).min(t)))
    }

    /// Keys that a tile of queries before `end` sees.
    fn keys(&self, end: usize) -> usize {
        (end + self.rule.offset).min(self.s)
    }

    /// Room for a tile's scores.
    fn scores(&self) -> Vec<f32> {
        vec![0.0; tile(self.t).min(self.t) * self.s]
    }

    /// `q k^T` of a tile.
    ///
    /// # Safety
    /// `scores` has room for it.
    unsafe fn product(&self, first: usize, rows: usize, keys: usize, scores: *mut f32) {
        for part in 0..P {
            let (q, k_t) = (from_row(self.q[part], first), self.k[part].transposed());
            // SAFETY: the caller's promise.
            unsafe { product_here([rows, keys, self.d[part]], q, k_t, scores, keys, part > 0) }
        }
    }

    fn tile(&self, first: usize, keys: usize) -> Tile {
        Tile { first, keys, rule: self.rule, place: self.place }
    }

    /// # Safety
    /// `y` has room for `[t, dv]`.
    pub unsafe fn forward(&self, y: To, l: &mut [f32]) {
        let mut scores = self.scores();
        for (first, end) in self.tiles() {
            let (rows, keys) = (end - first, self.keys(end));
            // SAFETY: a tile has room in the scores, and its rows in `y`.
            unsafe {
                self.product(first, rows, keys, scores.as_mut_ptr());
                softmax(self.tile(first, keys), &mut scores[..rows * keys], &mut l[first..end]);
                let p = Matrix::new(&scores, keys);
                product_here([rows, self.dv, keys], p, self.v, y.0.add(first * y.1), y.1, false);
            }
        }
    }

    /// Sets the gradients of queries and keys, part by part, and of values.
    ///
    /// # Safety
    /// They have room for them.
    pub unsafe fn backward(&self, [y, dy]: [Matrix<'_, f32>; 2], l: &[f32], to_q: [To; P], to_k: [To; P], to_v: To) {
        let (mut p, mut ds) = (self.scores(), self.scores());
        // The last tile first: it sees all keys, so it sets their gradients, and the others add to them.
        for (first, end) in self.tiles() {
            let (rows, keys, add) = (end - first, self.keys(end), end < self.t);
            let dy_rows = from_row(dy, first);
            let mean: Vec<f32> =
                (first..end).map(|i| sum2(row(&y, i, self.dv), row(&dy, i, self.dv), |y, dy| y * dy)).collect();
            // SAFETY: a tile has room in the scores, and its rows in the gradients.
            unsafe {
                self.product(first, rows, keys, p.as_mut_ptr());
                product_here([rows, keys, self.dv], dy_rows, self.v.transposed(), ds.as_mut_ptr(), keys, false);
                let (p, ds) = (&mut p[..rows * keys], &mut ds[..rows * keys]);
                probabilities(self.tile(first, keys), p, ds, [&l[first..end], &mean]);
                let (p, ds) = (Matrix::new(p, keys), Matrix::new(ds, keys));
                for part in 0..P {
                    let (d, (q, q_stride), (k, k_stride)) = (self.d[part], to_q[part], to_k[part]);
                    product_here([rows, d, keys], ds, self.k[part], q.add(first * q_stride), q_stride, false);
                    let q_rows = from_row(self.q[part], first);
                    product_here([keys, d, rows], ds.transposed(), q_rows, k, k_stride, add);
                }
                product_here([keys, self.dv, rows], p.transposed(), dy_rows, to_v.0, to_v.1, add);
            }
        }
    }
}

fn from_row(matrix: Matrix<'_, f32>, row: usize) -> Matrix<'_, f32> {
    Matrix { data: &matrix.data[row * matrix.row_stride..], ..matrix }
}

fn row<'a>(matrix: &Matrix<'a, f32>, row: usize, width: usize) -> &'a [f32] {
    &matrix.data[row * matrix.row_stride..][..width]
}

/// A tile of scores, `[rows, keys]`.
#[derive(Clone, Copy)]
struct Tile {
    /// Its first query.
    first: usize,
    keys: usize,
    rule: AttentionRule,
    place: [usize; 2],
}

impl Tile {
    /// Keys that row `i` sees.
    #[inline(always)]
    fn seen(&self, i: usize) -> usize {
        (self.first + i + self.rule.offset + 1).min(self.keys)
    }

    /// What dropout makes of the scores of row `i`.
    #[inline(always)]
    fn factors(&self, dropout: &ScoreDropout, i: usize) -> impl Fn(usize) -> f32 {
        let index = self.place[1] * dropout.of_head + (self.first + i) * dropout.of_query;
        dropout.rule.factors(self.place[0], index)
    }
}

/// Scores become probabilities, and what is dropped of them 0; `l` gets their log-sum-exp.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn softmax(tile: Tile, scores: &mut [f32], l: &mut [f32]) {
    let scale = tile.rule.scale;
    for (i, (row, l)) in scores.chunks_exact_mut(tile.keys).zip(l).enumerate() {
        let (row, future) = row.split_at_mut(tile.seen(i));
        future.fill(0.0);
        let largest = max(row);
        row.iter_mut().for_each(|s| *s = exp(scale * (*s - largest)));
        let total = sum(row, |p| p);
        let inverse = 1.0 / total;
        match tile.rule.dropout {
            None => row.iter_mut().for_each(|p| *p *= inverse),
            Some(dropout) => {
                let factor = tile.factors(&dropout, i);
                row.iter_mut().enumerate().for_each(|(j, p)| *p *= inverse * factor(j));
            }
        }
        *l = scale * largest + total.ln();
    }
}

/// Scores become probabilities `p`, and the gradients of probabilities those of scores: `scale p (dp - mean)`. With dropout's factors `f`, `p f` and
/// `scale p (f dp - mean)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn probabilities(tile: Tile, p: &mut [f32], ds: &mut [f32], [l, mean]: [&[f32]; 2]) {
    let scale = tile.rule.scale;
    for (i, (p, ds)) in p.chunks_exact_mut(tile.keys).zip(ds.chunks_exact_mut(tile.keys)).enumerate() {
        let (p, p_future) = p.split_at_mut(tile.seen(i));
        let (ds, ds_future) = ds.split_at_mut(tile.seen(i));
        p_future.fill(0.0);
        ds_future.fill(0.0);
        match tile.rule.dropout {
            None => {
                for (p, ds) in p.iter_mut().zip(ds) {
                    *p = exp(scale * *p - l[i]);
                    *ds = scale * *p * (*ds - mean[i]);
                }
            }
            Some(dropout) => {
                let factor = tile.factors(&dropout, i);
                for (j, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
                    let (whole, factor) = (exp(scale * *p - l[i]), factor(j));
                    *ds = scale * whole * (factor * *ds - mean[i]);
                    *p = whole * factor;
                }
            }
        }
    }
}
