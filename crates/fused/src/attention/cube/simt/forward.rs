//! The forward: a cube takes a tile of queries and loops over the keys that they see.
//!
//! ```text
//!  m, total, y = -inf, 0, 0            for each tile of keys:   s  = q k^T
//!                                                               m' = max(m, s of the row)     p = exp(scale (s - m'))
//!                                                               a  = exp(scale (m - m'))      total = a total + sum p
//!  y / total,  l = scale m + ln(total)                          y  = a y + p v
//! ```
//!
//! (FlashAttention-2, arXiv 2307.08691, algorithm 1.) Dropout multiplies `p` by its factor in `p v`, but not in the
//! sum.

use super::super::rows::{Rule, Strides, first_key, inverse, log_sum};
use super::{Corner, PARTS, SimtShape, Sum, clear, multiply, pitch, put, stage, turn};
use cubecl::prelude::*;

/// The largest score of each row so far, the total of its exponentials, and the factor by which the last tile rescaled
/// it.
#[derive(CubeType)]
struct Statistics {
    largest: Shared<[f32]>,
    total: Shared<[f32]>,
    factor: Shared<[f32]>,
    /// The same for the parts of rows.
    parts_largest: Shared<[f32]>,
    parts_total: Shared<[f32]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_forward<F: Float, N: Size>(
    q: &[Vector<F, N>],
    k: &[Vector<F, N>],
    v: &[Vector<F, N>],
    k_rope: &[Vector<F, N>],
    cos: &[f32],
    sin: &[f32],
    first_keys: &[i32],
    y: &mut [Vector<F, N>],
    l: &mut [f32],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    rule: Rule,
    #[comptime] shape: SimtShape,
    #[define(F)] _dtype: ElemType,
) {
    let (tile, widths) = comptime!((shape.tile, shape.widths));
    let [qk_len, v_len] = comptime!(shape.tiles());
    let mut q_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut k_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut v_tile = Shared::<[f32]>::new_slice(v_len);
    let mut y_tile = Shared::<[f32]>::new_slice(v_len);
    let mut scores = Shared::<[f32]>::new_slice(comptime!(tile * shape.scores()));
    let mut statistics = Statistics {
        largest: Shared::<[f32]>::new_slice(tile),
        total: Shared::<[f32]>::new_slice(tile),
        factor: Shared::<[f32]>::new_slice(tile),
        parts_largest: Shared::<[f32]>::new_slice(comptime!(tile * PARTS)),
        parts_total: Shared::<[f32]>::new_slice(comptime!(tile * PARTS)),
    };

    let head = CUBE_POS_Y as usize;
    let kv_head = head / rule.group;
    let query = rule.first_query_here(tile);
    stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole(widths.qk())));
    clear(&mut y_tile, v_len);
    let mut i = UNIT_POS as usize;
    while i < tile {
        statistics.largest[i] = f32::min_value();
        statistics.total[i] = 0.0f32;
        i += CUBE_DIM as usize;
    }
    if comptime!(widths.rope > 0) {
        sync_cube();
        turn(&mut q_tile, cos, sin, query, rule.t, comptime!(shape.rope()), false);
    }

    let start = rule.start(head);
    let keys = rule.keys(query + tile);
    let mut key = first_key(first_keys, query, &rule, comptime!(shape.documents)) / tile * tile;
    while key < keys {
        stage(k, &k_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.nope()));
        stage(v, &v_strides, kv_head, key, rule.s, &mut v_tile, comptime!(shape.whole(widths.v)));
        if comptime!(widths.rope > 0) {
            stage(k_rope, &k_rope_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.rope()));
            sync_cube();
            turn(&mut k_tile, cos, sin, key, rule.s, comptime!(shape.rope()), false);
        }
        sync_cube();
        multiply(&q_tile, &k_tile, &mut scores, &q_tile, comptime!(shape.scores_of(widths.qk())));
        sync_cube();
        softmax(&mut scores, &mut statistics, Corner { query, key }, first_keys, &rule, start, shape);
        multiply(
            &scores,
            &v_tile,
            &mut y_tile,
            &statistics.factor,
            comptime!(shape.times_scores(widths.v, false, Sum::Scale)),
        );
        sync_cube();
        key += tile;
    }

    let mut i = UNIT_POS as usize;
    while i < tile {
        if query + i < rule.t {
            l[rule.statistics_of(head) + query + i] = log_sum(statistics.largest[i], statistics.total[i], &rule);
        }
        statistics.factor[i] = inverse(statistics.total[i]);
        i += CUBE_DIM as usize;
    }
    sync_cube();
    let mut i = UNIT_POS as usize;
    while i < comptime!(tile * widths.v) {
        let (r, column) = (i / comptime!(widths.v), i % comptime!(widths.v));
        y_tile[r * comptime!(pitch(widths.v)) + column] *= statistics.factor[r];
        i += CUBE_DIM as usize;
    }
    sync_cube();
    put(&y_tile, y, &y_strides, head, query, rule.t, comptime!(shape.whole(widths.v)));
}

/// Turns scores into `p`, 0 where dropped. [`PARTS`] units share a row; each takes every fourth column.
#[cube]
fn softmax(
    scores: &mut [f32],
    statistics: &mut Statistics,
    corner: Corner,
    first_keys: &[i32],
    rule: &Rule,
    start: u64,
    #[comptime] shape: SimtShape,
) {
    let tile = comptime!(shape.tile);
    let mut i = UNIT_POS as usize;
    while i < comptime!(tile * PARTS) {
        let (r, part) = (i / PARTS, i % PARTS);
        let first = first_key(first_keys, corner.query + r, rule, comptime!(shape.documents));
        let (first, behind) = rule.seen(corner.query + r, first, corner.key + part);
        let mut largest = f32::min_value();
        for step in 0..comptime!(tile / PARTS) {
            let c = step * PARTS + part;
            if first <= step * PARTS && step * PARTS < behind {
                largest = max(largest, scores[r * comptime!(shape.scores()) + c]);
            }
        }
        statistics.parts_largest[i] = largest;
        i += CUBE_DIM as usize;
    }
    sync_cube();

    let mut i = UNIT_POS as usize;
    while i < comptime!(tile * PARTS) {
        let (r, part) = (i / PARTS, i % PARTS);
        let largest = largest(&*statistics, r);
        let first = first_key(first_keys, corner.query + r, rule, comptime!(shape.documents));
        let (first, behind) = rule.seen(corner.query + r, first, corner.key + part);
        let mut total = 0.0f32;
        for step in 0..comptime!(tile / PARTS) {
            let c = step * PARTS + part;
            let at = r * comptime!(shape.scores()) + c;
            let mut p = 0.0f32;
            if first <= step * PARTS && step * PARTS < behind {
                p = (rule.scale * (scores[at] - largest)).exp();
                total += p;
                if comptime!(shape.dropout) {
                    p *= rule.factor(start, corner.query + r, corner.key + c);
                }
            }
            scores[at] = p;
        }
        statistics.parts_total[i] = total;
        i += CUBE_DIM as usize;
    }
    sync_cube();

    let mut r = UNIT_POS as usize;
    while r < tile {
        let largest = largest(&*statistics, r);
        let factor = (rule.scale * (statistics.largest[r] - largest)).exp();
        let mut total = statistics.total[r] * factor;
        #[unroll]
        for part in 0..PARTS {
            total += statistics.parts_total[r * PARTS + part];
        }
        statistics.largest[r] = largest;
        statistics.total[r] = total;
        statistics.factor[r] = factor;
        r += CUBE_DIM as usize;
    }
    sync_cube();
}

/// The largest score of row `r`, this tile included.
#[cube]
fn largest(statistics: &Statistics, r: usize) -> f32 {
    let mut largest = statistics.largest[r];
    #[unroll]
    for part in 0..PARTS {
        largest = max(largest, statistics.parts_largest[r * PARTS + part]);
    }
    largest
}
