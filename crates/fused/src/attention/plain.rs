//! Attention in plain Rust: one task per head of a sequence; in the backward, one per key-value head.
//!
//! `T` is the type of the tensors. `E` is that of the factors of products: `T` or f32.

use super::head::{Head, row};
use super::{AttentionRule, LatentRule};
use crate::rope::{turn, turn_back};
use cpu::gemm::Matrix;
use cpu::heads::{Target, View};
use cpu::math::accumulate;
use cpu::{Element, Pieces, Room, overwritten, team, written};
use std::mem::MaybeUninit;

/// Sizes of queries, keys and values, separate or in one product.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub b: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    pub t: usize,
    pub s: usize,
    pub d: usize,
    pub dv: usize,
}

/// Which keys a query sees, and the scale of scores.
#[derive(Clone, Copy)]
pub(crate) struct Mask<'a> {
    pub rule: AttentionRule,
    /// The first key that each query sees, `[b, t]`. Empty if all queries see keys from the first on.
    pub first_keys: &'a [i32],
}

impl<'a> Mask<'a> {
    /// The first keys of a sequence of `t` queries.
    fn first_keys(&self, sequence: usize, t: usize) -> &'a [i32] {
        self.first_keys.get(sequence * t..(sequence + 1) * t).unwrap_or_default()
    }
}

/// A tensor's elements, and its strides from a sequence, a head and a position to the next.
pub(crate) type Lying<'a, T> = (&'a [T], [usize; 3]);

impl Sizes {
    fn head<'a, E>(&self, [q, k, v]: [Matrix<'a, E>; 3], mask: Mask<'a>, place: [usize; 2]) -> Head<'a, E, 1> {
        let Self { t, s, d, dv, .. } = *self;
        Head { t, s, q: [q], k: [k], d: [d], v, dv, rule: mask.rule, first_keys: mask.first_keys(place[0], t), place }
    }

    /// Query heads that share a key-value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Strides of `[b, rows, heads, width]` from a sequence, a head and a position to the next.
fn by_position(rows: usize, heads: usize, width: usize) -> [usize; 3] {
    [rows * heads * width, width, heads * width]
}

/// Returns `y`, `[b, t, heads, dv]`, and `l_bht`.
pub(super) fn attention_cpu<T: Element, E: Element>(
    sizes: Sizes,
    [q, k, v]: [Lying<'_, T>; 3],
    mask: Mask<'_>,
) -> (Vec<T>, Vec<f32>) {
    let Sizes { b, heads, t, s, d, dv, .. } = sizes;
    let (q, k, v) = (View::new(q.0, q.1, d), View::new(k.0, k.1, d), View::new(v.0, v.1, dv));
    let mut l = vec![0.0; b * heads * t];
    let write = |y: &mut [MaybeUninit<T>]| {
        // SAFETY: the memory holds exactly these rows, by position and head.
        let to_y = unsafe { Target::new(y.as_mut_ptr().cast::<T>(), by_position(t, heads, dv), dv) };
        let l = Pieces::new(&mut l);
        team::for_each(if t == 0 { 0 } else { b * heads }, |i| {
            let (place, mut rooms, mut wide_y) = ([i / heads, i % heads], <[Vec<E>; 3]>::default(), Vec::new());
            let kv_place = [place[0], place[1] / sizes.group()];
            let [room_q, room_k, room_v] = &mut rooms;
            // SAFETY: each task takes its head's part.
            let l = unsafe { l.part(i, t) };
            let rows = [q.rows(place, t, room_q), k.rows(kv_place, s, room_k), v.rows(kv_place, s, room_v)];
            let head = sizes.head(rows, mask, place);
            // SAFETY: there are `t` rows of `dv`.
            unsafe { head.forward(to_y.rows(place, t, &mut wide_y), l) };
            to_y.put(place, &wide_y);
        });
    };
    // SAFETY: each head sets its rows.
    let y = unsafe { written(b * t * heads * dv, write) };
    (y, l)
}

/// Returns the gradients by position: `[b, t, heads, d]`, `[b, s, kv_heads, d]`, `[b, s, kv_heads, dv]`.
pub(super) fn attention_backward_cpu<T: Element, E: Element>(
    sizes: Sizes,
    inputs: [Lying<'_, T>; 3],
    outputs: [Lying<'_, T>; 2],
    l: &[f32],
    mask: Mask<'_>,
) -> [Vec<T>; 3] {
    let Sizes { b, heads, kv_heads, t, s, d, dv } = sizes;
    let shapes = [(t, heads, d), (s, kv_heads, d), (s, kv_heads, dv)];
    if t == 0 {
        // Without queries there are no tasks; keys that no query sees have gradients of 0.
        return shapes.map(|(rows, heads, width)| vec![T::from_f32(0.0); b * rows * heads * width]);
    }
    let [mut d_q, mut d_k, mut d_v] = shapes.map(|(rows, heads, width)| Room::<T>::new(b * rows * heads * width));
    let to = |room: &mut Room<T>, (rows, heads, width)| {
        // SAFETY: the memory holds exactly these rows, by position and head.
        unsafe { Target::new(room.elements().as_mut_ptr().cast(), by_position(rows, heads, width), width) }
    };
    let targets = [to(&mut d_q, shapes[0]), to(&mut d_k, shapes[1]), to(&mut d_v, shapes[2])];
    backward::<T, E>(sizes, inputs, outputs, l, mask, targets);
    // SAFETY: each head has set its rows.
    unsafe { [d_q.set(), d_k.set(), d_v.set()] }
}

/// Maps `[b, t, 3 heads d]` to `y`, `[b, t, heads, d]`, and `l_bht`.
pub(super) fn self_attention_cpu<T: Element, E: Element>(
    sizes: Sizes,
    qkv: &[T],
    mask: Mask<'_>,
) -> (Vec<T>, Vec<f32>) {
    attention_cpu::<T, E>(sizes, three(sizes, qkv), mask)
}

/// Returns the gradient of `qkv`, `[b, t, 3 heads d]`.
pub(super) fn self_attention_backward_cpu<T: Element, E: Element>(
    sizes: Sizes,
    qkv: &[T],
    [y, dy]: [&[T]; 2],
    l: &[f32],
    mask: Mask<'_>,
) -> Vec<T> {
    let Sizes { heads, t, d, .. } = sizes;
    let by_position = by_position(t, heads, d);
    let write = |gradient: &mut [MaybeUninit<T>]| {
        let first = gradient.as_mut_ptr().cast::<T>();
        let strides = [3 * by_position[0], d, 3 * by_position[2]];
        // SAFETY: the three parts are side by side in each row of `3 heads d`.
        let targets = [0, 1, 2].map(|i| unsafe { Target::new(first.wrapping_add(i * heads * d), strides, d) });
        backward::<T, E>(sizes, three(sizes, qkv), [(y, by_position), (dy, by_position)], l, mask, targets);
    };
    // SAFETY: each head sets its rows of the three parts.
    unsafe { written(qkv.len(), write) }
}

/// Queries, keys and values in `[b, t, 3, heads, d]`.
fn three<T>(sizes: Sizes, qkv: &[T]) -> [Lying<'_, T>; 3] {
    let Sizes { heads, t, d, .. } = sizes;
    let strides = [3 * t * heads * d, d, 3 * heads * d];
    [0, 1, 2].map(|i| (&qkv[(i * heads * d).min(qkv.len())..], strides))
}

fn backward<T: Element, E: Element>(
    sizes: Sizes,
    [q, k, v]: [Lying<'_, T>; 3],
    [y, dy]: [Lying<'_, T>; 2],
    l: &[f32],
    mask: Mask<'_>,
    [to_q, to_k, to_v]: [Target<T>; 3],
) {
    let Sizes { b, heads, kv_heads, t, s, d, dv } = sizes;
    let (q, k, v) = (View::new(q.0, q.1, d), View::new(k.0, k.1, d), View::new(v.0, v.1, dv));
    let (y, dy) = (View::new(y.0, y.1, dv), View::new(dy.0, dy.1, dv));
    team::for_each(if t == 0 { 0 } else { b * kv_heads }, |i| {
        let kv_place = [i / kv_heads, i % kv_heads];
        let (mut rooms, mut wide) = (<[Vec<E>; 5]>::default(), <[Vec<f32>; 3]>::default());
        let ([room_q, room_k, room_v, room_y, room_dy], [wide_q, wide_k, wide_v]) = (&mut rooms, &mut wide);
        let [k, v] = [k.rows(kv_place, s, room_k), v.rows(kv_place, s, room_v)];
        let (d_k, d_v) = (to_k.rows(kv_place, s, wide_k), to_v.rows(kv_place, s, wide_v));
        // The heads of a group add to the same gradients, one after the other.
        for member in 0..sizes.group() {
            let place = [kv_place[0], kv_place[1] * sizes.group() + member];
            let head = place[0] * heads + place[1];
            let outputs = [y.rows(place, t, room_y), dy.rows(place, t, room_dy)];
            let d_q = to_q.rows(place, t, wide_q);
            let head_of = sizes.head([q.rows(place, t, room_q), k, v], mask, place);
            // SAFETY: the targets have rows for all gradients.
            unsafe { head_of.backward(outputs, &l[head * t..(head + 1) * t], [d_q], ([d_k], d_v), member > 0) };
            to_q.put(place, wide_q);
        }
        to_k.put(kv_place, wide_k);
        to_v.put(kv_place, wide_v);
    });
}

/// The inputs of a latent attention: queries `[b, t, heads (nope + rope)]`, keys and values `[b, t, heads (nope + v)]`,
/// keys to rotate `[b, t, rope]`, and the table's cosines and sines.
#[derive(Clone, Copy)]
pub(crate) struct Latent<'a, T> {
    pub b: usize,
    pub t: usize,
    pub q: &'a [T],
    pub kv: &'a [T],
    pub k_rope: &'a [T],
    pub table: [&'a [f32]; 2],
    /// The same as in [`Mask`].
    pub first_keys: &'a [i32],
    pub rule: LatentRule,
}

/// The parts of queries, keys and values of a latent attention, each with its width, in memory order.
struct Parts<V> {
    q_nope: V,
    q_rope: V,
    k_nope: V,
    v: V,
}

impl<'a, T: Element> Latent<'a, T> {
    /// Strides from a sequence, a head and a position to the next, for rows with `width` elements per head.
    fn strides(&self, width: usize) -> [usize; 3] {
        [self.t * self.rule.heads * width, width, self.rule.heads * width]
    }

    fn parts(&self) -> Parts<View<'a, T>> {
        let LatentRule { nope, rope, v, .. } = self.rule;
        let (q, kv) = (self.strides(nope + rope), self.strides(nope + v));
        Parts {
            q_nope: View::new(self.q, q, nope),
            q_rope: View::new(&self.q[nope.min(self.q.len())..], q, rope),
            k_nope: View::new(self.kv, kv, nope),
            v: View::new(&self.kv[nope.min(self.kv.len())..], kv, v),
        }
    }

    /// Returns a head's rows, rotated by the angles of their positions: `[t, rope]`.
    fn turned<E: Element>(&self, rows: View<'_, T>, place: [usize; 2]) -> Vec<E> {
        let (rope, mut room) = (self.rule.rope, Vec::new());
        let (pairs, rows) = (rope / 2, rows.rows::<E>(place, self.t, &mut room));
        let mut turned = vec![E::from_f32(0.0); self.t * rope];
        for (i, to) in turned.chunks_exact_mut(rope.max(1)).enumerate() {
            let angles = self.table.map(|table| &table[i * pairs..(i + 1) * pairs]);
            // SAFETY: `turn` sets the row.
            turn(row(&rows, i, rope), angles, unsafe { overwritten(to) });
        }
        turned
    }

    /// Rotates row `i` of a gradient back.
    fn turned_back(&self, i: usize, row: &[f32]) -> Vec<f32> {
        let (pairs, mut turned) = (self.rule.rope / 2, vec![0.0; row.len()]);
        let angles = self.table.map(|table| &table[i * pairs..(i + 1) * pairs]);
        // SAFETY: `turn_back` sets the row.
        turn_back(row, angles, unsafe { overwritten(&mut turned) });
        turned
    }

    fn head<'m, E>(
        &self,
        q: [Matrix<'m, E>; 2],
        k: [Matrix<'m, E>; 2],
        v: Matrix<'m, E>,
        place: [usize; 2],
    ) -> Head<'m, E, 2>
    where
        'a: 'm,
    {
        let LatentRule { nope, rope, v: dv, attention: rule, .. } = self.rule;
        let (t, mask) = (self.t, Mask { rule, first_keys: self.first_keys });
        Head { t, s: t, q, k, d: [nope, rope], v, dv, rule, first_keys: mask.first_keys(place[0], t), place }
    }
}

/// Returns `y`, `[b, t, heads v]`, and `l_bht`.
pub(super) fn latent_attention_cpu<T: Element, E: Element>(latent: Latent<'_, T>) -> (Vec<T>, Vec<f32>) {
    let Latent { b, t, rule: LatentRule { heads, rope, v, .. }, .. } = latent;
    let (parts, k_rope) = (latent.parts(), View::new(latent.k_rope, [t * rope, 0, rope], rope));
    let mut l = vec![0.0; b * heads * t];
    let write = |y: &mut [MaybeUninit<T>]| {
        // SAFETY: the memory holds exactly these rows, by position and head.
        let to_y = unsafe { Target::new(y.as_mut_ptr().cast::<T>(), latent.strides(v), v) };
        let l = Pieces::new(&mut l);
        team::for_each(if t == 0 { 0 } else { b * heads }, |i| {
            let (place, mut rooms, mut wide_y) = ([i / heads, i % heads], <[Vec<E>; 3]>::default(), Vec::new());
            let [room_q, room_k, room_v] = &mut rooms;
            // SAFETY: each task takes its head's part.
            let l = unsafe { l.part(i, t) };
            let [q_rope, k_rope] = [parts.q_rope, k_rope].map(|rows| latent.turned::<E>(rows, place));
            let q = [parts.q_nope.rows(place, t, room_q), Matrix::new(&q_rope, rope)];
            let k = [parts.k_nope.rows(place, t, room_k), Matrix::new(&k_rope, rope)];
            let head = latent.head(q, k, parts.v.rows(place, t, room_v), place);
            // SAFETY: there are `t` rows of `v`.
            unsafe { head.forward(to_y.rows(place, t, &mut wide_y), l) };
            to_y.put(place, &wide_y);
        });
    };
    // SAFETY: each head sets its rows.
    let y = unsafe { written(b * t * heads * v, write) };
    (y, l)
}

/// Returns the gradients of `q`, `kv` and `k_rope`.
pub(super) fn latent_attention_backward_cpu<T: Element, E: Element>(
    latent: Latent<'_, T>,
    [y, dy]: [&[T]; 2],
    l: &[f32],
) -> [Vec<T>; 3] {
    let Latent { b, t, rule: LatentRule { heads, nope, rope, v, .. }, .. } = latent;
    let (parts, k_rope) = (latent.parts(), View::new(latent.k_rope, [t * rope, 0, rope], rope));
    let [y, dy] = [y, dy].map(|rows| View::new(rows, latent.strides(v), v));
    let (q_strides, kv_strides) = (latent.strides(nope + rope), latent.strides(nope + v));
    let (mut dq, mut dkv) = (Room::<T>::new(latent.q.len()), Room::<T>::new(latent.kv.len()));
    // Each head's gradient of the rotated key; they are summed afterwards, in the order of heads.
    let mut of_heads = vec![0.0f32; l.len() * rope];
    // SAFETY: the parts of a head are side by side in each row.
    let to = unsafe {
        let (q, kv) = (dq.elements().as_mut_ptr().cast::<T>(), dkv.elements().as_mut_ptr().cast::<T>());
        Parts {
            q_nope: Target::new(q, q_strides, nope),
            q_rope: Target::new(q.wrapping_add(nope), q_strides, rope),
            k_nope: Target::new(kv, kv_strides, nope),
            v: Target::new(kv.wrapping_add(nope), kv_strides, v),
        }
    };
    let to_heads = Pieces::new(&mut of_heads);
    team::for_each(if t == 0 { 0 } else { b * heads }, |i| {
        // SAFETY: each task takes its head's part.
        let (l, d_k_rope) = (&l[i * t..(i + 1) * t], unsafe { to_heads.part(i, t * rope) });
        let place = [i / heads, i % heads];
        let (mut rooms, mut wide) = (<[Vec<E>; 5]>::default(), <[Vec<f32>; 3]>::default());
        let ([room_q, room_k, room_v, room_y, room_dy], [wide_q, wide_k, wide_v]) = (&mut rooms, &mut wide);
        let [q_rope, k_rope] = [parts.q_rope, k_rope].map(|rows| latent.turned::<E>(rows, place));
        let q = [parts.q_nope.rows(place, t, room_q), Matrix::new(&q_rope, rope)];
        let k = [parts.k_nope.rows(place, t, room_k), Matrix::new(&k_rope, rope)];
        let outputs = [y.rows(place, t, room_y), dy.rows(place, t, room_dy)];
        let mut d_q_rope = vec![0.0f32; t * rope];
        let to_q = [to.q_nope.rows(place, t, wide_q), (d_q_rope.as_mut_ptr(), rope)];
        let to_k = [to.k_nope.rows(place, t, wide_k), (d_k_rope.as_mut_ptr(), rope)];
        let head = latent.head(q, k, parts.v.rows(place, t, room_v), place);
        // SAFETY: the targets have rows for all gradients.
        unsafe { head.backward(outputs, l, to_q, (to_k, to.v.rows(place, t, wide_v)), false) };
        to.q_nope.put(place, wide_q);
        to.k_nope.put(place, wide_k);
        to.v.put(place, wide_v);
        for (i, row) in d_q_rope.chunks_exact(rope.max(1)).enumerate() {
            to.q_rope.put_row(place, i, &latent.turned_back(i, row));
        }
    });
    // SAFETY: each head has set its rows.
    let (dq, dkv) = unsafe { (dq.set(), dkv.set()) };
    [dq, dkv, sum_heads(latent, &of_heads)]
}

/// Sums `[b, heads, t, rope]` over heads and rotates back: `[b, t, rope]`.
fn sum_heads<T: Element>(latent: Latent<'_, T>, of_heads: &[f32]) -> Vec<T> {
    let Latent { t, rule: LatentRule { heads, rope, .. }, .. } = latent;
    let row = |row: usize| {
        let (b, i) = (row / t, row % t);
        let mut sum = vec![0.0f32; rope];
        for head in 0..heads {
            accumulate(&mut sum, &of_heads[((b * heads + head) * t + i) * rope..][..rope]);
        }
        latent.turned_back(i, &sum).into_iter().map(T::from_f32)
    };
    (0..latent.b * t).flat_map(row).collect()
}
