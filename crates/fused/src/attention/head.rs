//! Attention of one head of one sequence, on one thread.

use super::{AttentionRule, NO_KEY, ScoreDropout};
use cpu::gemm::{Matrix, product_here};
use cpu::math::{exp, max, sum, sum2};
use cpu::{Element, vectorised};
use std::ops::Range;

/// The inputs of a head, as `E`, the type of all factors of products. Queries and keys come in parts, such as an
/// unrotated and a rotated one, whose products are added.
pub(super) struct Head<'a, E, const P: usize> {
    pub t: usize,
    pub s: usize,
    pub q: [Matrix<'a, E>; P],
    pub k: [Matrix<'a, E>; P],
    /// Widths of the parts.
    pub d: [usize; P],
    pub v: Matrix<'a, E>,
    pub dv: usize,
    pub rule: AttentionRule,
    /// The first key that each query of this sequence sees. Empty if all queries see keys from the first on.
    pub first_keys: &'a [i32],
    /// Indices of the sequence and the head, on which dropout depends.
    pub place: [usize; 2],
}

/// Destination of a matrix: its first element and the stride of its rows.
pub(super) type To = (*mut f32, usize);

/// As many values of `k` as one instruction of AMX adds up; see the order of summation of [`cpu::gemm`].
const GROUP: usize = 32;

/// Queries per tile; this many rows amortize packing all keys before them.
fn tile(t: usize) -> usize {
    if t <= 128 { 64 } else { 128 }
}

impl<E: Element, const P: usize> Head<'_, E, P> {
    /// The tiles, last one first: the first query of each and its exclusive end.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> {
        let (t, rows) = (self.t, tile(self.t));
        (0..t.div_ceil(rows)).rev().map(move |i| (i * rows, ((i + 1) * rows).min(t)))
    }

    /// Keys that the tile of queries `first..end` sees. Its first query sees the earliest of them. The tile begins with a
    /// whole group, so within a block of the order of summation, a sum does not depend on where the tile begins.
    fn keys(&self, first: usize, end: usize) -> Range<usize> {
        let last = (end + self.rule.offset).min(self.s);
        let start = self.first_keys.get(first).map_or(0, |start| *start as usize);
        if start < last { start - start % GROUP..last } else { last..last }
    }

    /// Allocates a tile's scores.
    fn scores(&self) -> Vec<f32> {
        vec![0.0; tile(self.t).min(self.t) * self.s]
    }

    /// Computes `q k^T` of a tile.
    ///
    /// # Safety
    /// `scores` must have room for it.
    unsafe fn product(&self, tile: Tile<'_>, rows: usize, scores: *mut f32) {
        let n = tile.keys.len();
        for part in 0..P {
            let (q, k) = (from_row(self.q[part], tile.first), from_row(self.k[part], tile.keys.start));
            // SAFETY: the caller guarantees it.
            unsafe { product_here([rows, n, self.d[part]], q, k.transposed(), scores, n, part > 0) }
        }
    }

    fn tile(&self, first: usize, end: usize) -> Tile<'_> {
        let first_keys = self.first_keys.get(first..end).unwrap_or_default();
        Tile { first, keys: self.keys(first, end), rule: self.rule, first_keys, place: self.place }
    }

    /// Computes `y` and the log-sum-exp `l` of each query.
    ///
    /// # Safety
    /// `y` must have room for `[t, dv]`.
    pub unsafe fn forward(&self, y: To, l: &mut [f32]) {
        let (mut scores, mut room) = (self.scores(), Vec::new());
        for (first, end) in self.tiles() {
            let (rows, tile) = (end - first, self.tile(first, end));
            let n = tile.keys.len();
            if n == 0 {
                l[first..end].fill(NO_KEY);
                // SAFETY: there are rows for these queries.
                unsafe { clear(y, first..end, self.dv) };
                continue;
            }
            // SAFETY: the scores have room for a tile, and `y` for its rows.
            unsafe {
                self.product(tile.clone(), rows, scores.as_mut_ptr());
                let v = from_row(self.v, tile.keys.start);
                softmax(tile, &mut scores[..rows * n], &mut l[first..end]);
                let p = Matrix::new(rounded::<E>(&scores[..rows * n], &mut room), n);
                product_here([rows, self.dv, n], p, v, y.0.add(first * y.1), y.1, false);
            }
        }
    }

    /// Sets the gradients of queries and keys, part by part, and of values; those of keys and values are added to the
    /// old values if `add`.
    ///
    /// # Safety
    /// The destinations must have room for them.
    pub unsafe fn backward(
        &self,
        [y, dy]: [Matrix<'_, E>; 2],
        l: &[f32],
        to_q: [To; P],
        (to_k, to_v): ([To; P], To),
        add: bool,
    ) {
        let (mut p, mut ds, mut rooms) = (self.scores(), self.scores(), [Vec::new(), Vec::new()]);
        if !self.first_keys.is_empty() && !add {
            // SAFETY: there are rows for all keys.
            to_k.iter().zip(self.d).for_each(|(to, width)| unsafe { clear(*to, 0..self.s, width) });
            unsafe { clear(to_v, 0..self.s, self.dv) };
        }
        // The last tile comes first. Without first keys it sees all keys, so it sets their gradients and the others add
        // to them.
        for (first, end) in self.tiles() {
            let (rows, tile) = (end - first, self.tile(first, end));
            let add = add || end < self.t || !self.first_keys.is_empty();
            let (n, keys) = (tile.keys.len(), tile.keys.clone());
            if n == 0 {
                // SAFETY: there are rows for these queries.
                to_q.iter().zip(self.d).for_each(|(to, width)| unsafe { clear(*to, first..end, width) });
                continue;
            }
            let dy_rows = from_row(dy, first);
            let delta: Vec<f32> =
                (first..end).map(|i| sum2(row(&y, i, self.dv), row(&dy, i, self.dv), |y, dy| y * dy)).collect();
            // SAFETY: the scores have room for a tile, and the gradients for its rows.
            unsafe {
                self.product(tile.clone(), rows, p.as_mut_ptr());
                let v_t = from_row(self.v, keys.start).transposed();
                product_here([rows, n, self.dv], dy_rows, v_t, ds.as_mut_ptr(), n, false);
                let (p, ds) = (&mut p[..rows * n], &mut ds[..rows * n]);
                probabilities(tile, p, ds, [&l[first..end], &delta]);
                let [room_p, room_ds] = &mut rooms;
                let (p, ds) = (rounded::<E>(p, room_p), rounded::<E>(ds, room_ds));
                let (p, ds) = (Matrix::new(p, n), Matrix::new(ds, n));
                for part in 0..P {
                    let (d, (q, q_stride), (k, k_stride)) = (self.d[part], to_q[part], to_k[part]);
                    let k_rows = from_row(self.k[part], keys.start);
                    product_here([rows, d, n], ds, k_rows, q.add(first * q_stride), q_stride, false);
                    let (q_rows, k) = (from_row(self.q[part], first), k.add(keys.start * k_stride));
                    product_here([n, d, rows], ds.transposed(), q_rows, k, k_stride, add);
                }
                let to_v = (to_v.0.add(keys.start * to_v.1), to_v.1);
                product_here([n, self.dv, rows], p.transposed(), dy_rows, to_v.0, to_v.1, add);
            }
        }
    }
}

fn from_row<E>(matrix: Matrix<'_, E>, row: usize) -> Matrix<'_, E> {
    Matrix { data: &matrix.data[row * matrix.row_stride..], ..matrix }
}

/// Sets rows of this width to 0.
///
/// # Safety
/// There must be room for them.
unsafe fn clear((to, stride): To, rows: Range<usize>, width: usize) {
    for row in rows {
        // SAFETY: the caller guarantees it.
        unsafe { to.add(row * stride).write_bytes(0, width) };
    }
}

pub(super) fn row<'a, E>(matrix: &Matrix<'a, E>, row: usize, width: usize) -> &'a [E] {
    &matrix.data[row * matrix.row_stride..][..width]
}

/// Returns a tile as `E`: in place, or rounded into `room`.
fn rounded<'a, E: Element>(tile: &'a [f32], room: &'a mut Vec<E>) -> &'a [E] {
    vectorised! {
        fn round<E: Element>(from: &[f32], to: &mut [E]) {
            E::narrow(from, to)
        }
    }
    if let Some(tile) = f32::as_elements(tile) {
        return tile;
    }
    room.resize(room.len().max(tile.len()), E::from_f32(0.0));
    round(tile, &mut room[..tile.len()]);
    &room[..tile.len()]
}

/// A tile of scores, `[rows, keys]`.
#[derive(Clone)]
struct Tile<'a> {
    /// The tile's first query.
    first: usize,
    keys: Range<usize>,
    rule: AttentionRule,
    /// The first keys of the tile's rows.
    first_keys: &'a [i32],
    place: [usize; 2],
}

impl Tile<'_> {
    /// The keys of the tile that row `i` sees.
    #[inline(always)]
    fn seen(&self, i: usize) -> Range<usize> {
        let end = (self.first + i + self.rule.offset + 1).clamp(self.keys.start, self.keys.end) - self.keys.start;
        let start = self.first_keys.get(i).map_or(0, |start| (*start as usize).max(self.keys.start) - self.keys.start);
        start.min(end)..end
    }

    /// The dropout factors of the scores of row `i`, from key `from` of the tile on.
    #[inline(always)]
    fn factors(&self, dropout: &ScoreDropout, i: usize, from: usize) -> impl Fn(usize) -> f32 {
        let query = self.place[1] * dropout.of_head + (self.first + i) * dropout.of_query;
        dropout.rule.factors(self.place[0], query + self.keys.start + from)
    }
}

/// Returns the scores of a row that its query sees, and sets the others to 0.
#[inline(always)]
fn seen_of(row: &mut [f32], seen: Range<usize>) -> &mut [f32] {
    let (past, rest) = row.split_at_mut(seen.start);
    let (seen, future) = rest.split_at_mut(seen.len());
    past.fill(0.0);
    future.fill(0.0);
    seen
}

vectorised! {
    /// Turns scores into probabilities, 0 where dropped, and sets `l` to their log-sum-exp.
    fn softmax(tile: Tile<'_>, scores: &mut [f32], l: &mut [f32]) {
        let scale = tile.rule.scale;
        for (i, (row, l)) in scores.chunks_exact_mut(tile.keys.len()).zip(l).enumerate() {
            let seen = tile.seen(i);
            let row = seen_of(row, seen.clone());
            if seen.is_empty() {
                *l = NO_KEY;
                continue;
            }
            let largest = max(row);
            row.iter_mut().for_each(|s| *s = exp(scale * (*s - largest)));
            let total = sum(row, |p| p);
            let inverse = 1.0 / total;
            match tile.rule.dropout {
                None => row.iter_mut().for_each(|p| *p *= inverse),
                Some(dropout) => {
                    let factor = tile.factors(&dropout, i, seen.start);
                    row.iter_mut().enumerate().for_each(|(j, p)| *p *= inverse * factor(j));
                }
            }
            *l = scale * largest + total.ln();
        }
    }
}

vectorised! {
    /// Turns scores into probabilities `p`, and the gradients of probabilities into those of scores,
    /// `scale p (dp - delta)`. With factors `f` of dropout, the results are `p f` and `scale p (f dp - delta)`.
    fn probabilities(tile: Tile<'_>, p: &mut [f32], ds: &mut [f32], of_rows: [&[f32]; 2]) {
        let [l, delta] = of_rows;
        let (scale, n) = (tile.rule.scale, tile.keys.len());
        for (i, (p, ds)) in p.chunks_exact_mut(n).zip(ds.chunks_exact_mut(n)).enumerate() {
            let seen = tile.seen(i);
            let (p, ds) = (seen_of(p, seen.clone()), seen_of(ds, seen.clone()));
            match tile.rule.dropout {
                None => {
                    for (p, ds) in p.iter_mut().zip(ds) {
                        *p = exp(scale * *p - l[i]);
                        *ds = scale * *p * (*ds - delta[i]);
                    }
                }
                Some(dropout) => {
                    let factor = tile.factors(&dropout, i, seen.start);
                    for (j, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
                        let (whole, factor) = (exp(scale * *p - l[i]), factor(j));
                        *ds = scale * whole * (factor * *ds - delta[i]);
                        *p = whole * factor;
                    }
                }
            }
        }
    }
}
