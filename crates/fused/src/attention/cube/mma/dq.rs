//! The gradient of queries on tensor cores; see [`simt`](super::super::simt).

use super::super::rows::{Rule, Strides, first_key, probability};
use super::{
    CHUNK, Eight, MmaShape, Operand, SIDE, TILE, Two, add_product, lane_place, plane_row, scores, stage, turn, zeros,
};
use crate::cube::rounded;
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_dq<F: Float>(
    q: &[Eight<F>],
    k: &[Eight<F>],
    v: &[Eight<F>],
    k_rope: &[Eight<F>],
    cos: &[f32],
    sin: &[f32],
    first_keys: &[i32],
    d_y: &[Eight<F>],
    l: &[f32],
    delta: &[f32],
    d_q: &mut [Two<F>],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    d_q_strides: Strides,
    rule: Rule,
    #[comptime] shape: MmaShape,
    #[define(F)] _dtype: ElemType,
) {
    let widths = comptime!(shape.widths);
    let [qk_len, v_len] = comptime!(shape.tiles());
    let mut q_tile = Shared::<[Eight<F>]>::new_aligned_slice(qk_len, 16usize);
    let mut k_tile = Shared::<[Eight<F>]>::new_aligned_slice(qk_len, 16usize);
    let mut v_tile = Shared::<[Eight<F>]>::new_aligned_slice(v_len, 16usize);
    let mut d_y_tile = Shared::<[Eight<F>]>::new_aligned_slice(v_len, 16usize);

    let head = CUBE_POS_Y as usize;
    let kv_head = head / rule.group;
    let query = rule.first_query_here(TILE);
    stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole()));
    stage(d_y, &y_strides, head, query, rule.t, &mut d_y_tile, comptime!(shape.values()));
    if comptime!(widths.rope > 0) {
        sync_cube();
        turn(&mut q_tile, cos, sin, query, rule.t, comptime!(shape.rope()));
    }

    let (lane_row, lane_column) = lane_place();
    let row = query + plane_row() + lane_row;
    let at = rule.statistics_of(head) + row;
    let mut statistics = Array::<f32>::new(4usize);
    #[unroll]
    for half in 0..2usize {
        statistics[half] = 0.0f32;
        statistics[comptime!(2 + half)] = 0.0f32;
        if row + comptime!(8 * half) < rule.t {
            statistics[half] = l[at + comptime!(8 * half)];
            statistics[comptime!(2 + half)] = delta[at + comptime!(8 * half)];
        }
    }
    let mut sums = zeros(comptime!(shape.padded()[0]));

    let start = rule.start(head);
    let keys = rule.keys(query + TILE);
    let mut key = first_key(first_keys, query, &rule, comptime!(shape.documents)) / TILE * TILE;
    while key < keys {
        stage(k, &k_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.nope()));
        stage(v, &v_strides, kv_head, key, rule.s, &mut v_tile, comptime!(shape.values()));
        if comptime!(widths.rope > 0) {
            stage(k_rope, &k_rope_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.rope()));
            sync_cube();
            turn(&mut k_tile, cos, sin, key, rule.s, comptime!(shape.rope()));
        }
        sync_cube();
        // Covers the keys up to the last one that the plane's last query sees.
        let end = min(TILE, max(rule.keys(query + plane_row() + SIDE), key) - key);
        let mut from = 0usize.runtime();
        while from < end {
            let s = scores(&q_tile, plane_row(), &k_tile, from, CHUNK, comptime!(shape.whole()));
            let d_p = scores(&d_y_tile, plane_row(), &v_tile, from, CHUNK, comptime!(shape.values()));
            let mut d_s = Operand::<F>::new(comptime!(CHUNK / 4));
            #[unroll]
            for i in 0..comptime!(CHUNK / 4) {
                let half = comptime!(i % 2);
                let first = first_key(first_keys, row + comptime!(8 * half), &rule, comptime!(shape.documents));
                let (first, behind) = rule.seen(row + comptime!(8 * half), first, key + from + lane_column);
                let mut of_pair = Two::<f32>::empty();
                #[unroll]
                for e in 0..2usize {
                    let column = key + from + lane_column + comptime!(i / 2 * 8 + e);
                    let (_, of_score) = probability(
                        s[i].extract(e),
                        d_p[i].extract(e),
                        first <= comptime!(i / 2 * 8 + e) && behind > comptime!(i / 2 * 8 + e),
                        row + comptime!(8 * half),
                        column,
                        statistics[half],
                        statistics[comptime!(2 + half)],
                        &rule,
                        start,
                        comptime!(shape.dropout),
                    );
                    of_pair.insert(e, of_score);
                }
                d_s[i] = Vector::cast_from(of_pair);
            }
            add_product(&d_s, &k_tile, from, &mut sums, CHUNK, comptime!(shape.whole()));
            from += CHUNK;
        }
        sync_cube();
        key += TILE;
    }

    #[unroll]
    for half in 0..2usize {
        let row = row + comptime!(8 * half);
        if row < rule.t {
            let to = (d_q_strides.of(head) + row * d_q_strides.row + lane_column) / 2;
            #[unroll]
            for n in 0..comptime!(widths.qk() / 8) {
                let mut values = sums[comptime!(2 * n + half)];
                if comptime!(8 * n >= widths.nope) {
                    let angle =
                        row * comptime!(widths.rope / 2) + lane_column / 2 + comptime!((8 * n - widths.nope) / 2);
                    let (a, b) = (values.extract(0usize), values.extract(1usize));
                    values.insert(0usize, a * cos[angle] + b * sin[angle]);
                    values.insert(1usize, b * cos[angle] - a * sin[angle]);
                }
                d_q[to + comptime!(4 * n)] = rounded(values);
            }
        }
    }
}
