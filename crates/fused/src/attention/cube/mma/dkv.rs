//! The gradients of keys and values on tensor cores; see [`simt`](super::super::simt). Here scores have one row per
//! key.

use super::super::rows::{Rule, Strides, first_key, probability, stage_statistics};
use super::{
    CHUNK, Eight, MmaShape, Operand, TILE, Two, add_product, lane_place, plane_row, scores, stage, turn, zeros,
};
use crate::cube::rounded;
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_dkv<F: Float>(
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
    d_k: &mut [Two<F>],
    d_v: &mut [Two<F>],
    d_k_rope: &mut [Two<f32>],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    d_k_strides: Strides,
    d_v_strides: Strides,
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
    let mut statistics = Shared::<[f32]>::new_slice(comptime!(2 * TILE));

    let kv_head = CUBE_POS_Y as usize;
    let key = CUBE_POS_X as usize * TILE;
    stage(k, &k_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.nope()));
    stage(v, &v_strides, kv_head, key, rule.s, &mut v_tile, comptime!(shape.values()));
    if comptime!(widths.rope > 0) {
        stage(k_rope, &k_rope_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.rope()));
        sync_cube();
        turn(&mut k_tile, cos, sin, key, rule.s, comptime!(shape.rope()));
    }

    let (lane_row, lane_column) = lane_place();
    let row = key + plane_row() + lane_row;
    let mut d_k_sums = zeros(comptime!(shape.padded()[0]));
    let mut d_v_sums = zeros(comptime!(shape.padded()[1]));

    for member in 0..rule.group {
        let head = kv_head * rule.group + member;
        let start = rule.start(head);
        let mut query = rule.first_query(key) / TILE * TILE;
        while query < rule.t && first_key(first_keys, query, &rule, comptime!(shape.documents)) < key + TILE {
            stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole()));
            stage(d_y, &y_strides, head, query, rule.t, &mut d_y_tile, comptime!(shape.values()));
            stage_statistics(l, delta, &mut statistics, head, query, &rule, TILE);
            if comptime!(widths.rope > 0) {
                sync_cube();
                turn(&mut q_tile, cos, sin, query, rule.t, comptime!(shape.rope()));
            }
            sync_cube();
            // Starts at the first query that sees the plane's first key.
            let mut from = (max(rule.first_query(key + plane_row()), query) - query) / CHUNK * CHUNK;
            while from < TILE {
                let s = scores(&k_tile, plane_row(), &q_tile, from, CHUNK, comptime!(shape.whole()));
                let d_p = scores(&v_tile, plane_row(), &d_y_tile, from, CHUNK, comptime!(shape.values()));
                let mut p = Operand::<F>::new(comptime!(CHUNK / 4));
                let mut d_s = Operand::<F>::new(comptime!(CHUNK / 4));
                #[unroll]
                for i in 0..comptime!(CHUNK / 4) {
                    let (first, behind) = rule.seeing(row + comptime!(i % 2 * 8), query + from + lane_column);
                    let mut p_pair = Two::<f32>::empty();
                    let mut d_s_pair = Two::<f32>::empty();
                    #[unroll]
                    for e in 0..2usize {
                        let column = from + lane_column + comptime!(i / 2 * 8 + e);
                        let first_key = first_key(first_keys, query + column, &rule, comptime!(shape.documents));
                        let (of_p, of_d_s) = probability(
                            s[i].extract(e),
                            d_p[i].extract(e),
                            first <= comptime!(i / 2 * 8 + e)
                                && behind > comptime!(i / 2 * 8 + e)
                                && first_key <= row + comptime!(i % 2 * 8),
                            query + column,
                            row + comptime!(i % 2 * 8),
                            statistics[column],
                            statistics[TILE + column],
                            &rule,
                            start,
                            comptime!(shape.dropout),
                        );
                        p_pair.insert(e, of_p);
                        d_s_pair.insert(e, of_d_s);
                    }
                    p[i] = Vector::cast_from(p_pair);
                    d_s[i] = Vector::cast_from(d_s_pair);
                }
                add_product(&p, &d_y_tile, from, &mut d_v_sums, CHUNK, comptime!(shape.values()));
                add_product(&d_s, &q_tile, from, &mut d_k_sums, CHUNK, comptime!(shape.whole()));
                from += CHUNK;
            }
            sync_cube();
            query += TILE;
        }
    }

    let head_of_all = CUBE_POS_Z as usize * CUBE_COUNT_Y as usize + kv_head;
    #[unroll]
    for half in 0..2usize {
        let row = row + comptime!(8 * half);
        if row < rule.s {
            let to_k = (d_k_strides.of(kv_head) + row * d_k_strides.row + lane_column) / 2;
            let to_v = (d_v_strides.of(kv_head) + row * d_v_strides.row + lane_column) / 2;
            let to_rope = ((head_of_all * rule.s + row) * widths.rope + lane_column) / 2;
            #[unroll]
            for n in 0..comptime!(widths.nope / 8) {
                d_k[to_k + comptime!(4 * n)] = rounded(d_k_sums[comptime!(2 * n + half)]);
            }
            #[unroll]
            for n in 0..comptime!(widths.rope / 8) {
                d_k_rope[to_rope + comptime!(4 * n)] = d_k_sums[comptime!(2 * (widths.nope / 8 + n) + half)];
            }
            #[unroll]
            for n in 0..comptime!(widths.v / 8) {
                d_v[to_v + comptime!(4 * n)] = rounded(d_v_sums[comptime!(2 * n + half)]);
            }
        }
    }
}
