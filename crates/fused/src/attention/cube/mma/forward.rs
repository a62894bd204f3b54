//! The forward of [`simt`](super::super::simt) on tensor cores: scores, probabilities and sums stay in registers.

use super::super::rows::{Rule, Strides, first_key, inverse, log_sum};
use super::{Eight, MmaShape, Operand, TILE, Two, add_product, lane_place, plane_row, scores, stage, turn, zeros};
use crate::cube::{plane, rounded};
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_forward<F: Float>(
    q: &[Eight<F>],
    k: &[Eight<F>],
    v: &[Eight<F>],
    k_rope: &[Eight<F>],
    cos: &[f32],
    sin: &[f32],
    first_keys: &[i32],
    y: &mut [Two<F>],
    l: &mut [f32],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    rule: Rule,
    #[comptime] shape: MmaShape,
    #[define(F)] _dtype: ElemType,
) {
    let widths = comptime!(shape.widths);
    let [qk_len, v_len] = comptime!(shape.tiles());
    let mut q_tile = Shared::<[Eight<F>]>::new_aligned_slice(qk_len, 16usize);
    let mut k_tile = Shared::<[Eight<F>]>::new_aligned_slice(qk_len, 16usize);
    let mut v_tile = Shared::<[Eight<F>]>::new_aligned_slice(v_len, 16usize);

    let head = CUBE_POS_Y as usize;
    let kv_head = head / rule.group;
    let query = rule.first_query_here(TILE);
    stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole()));
    if comptime!(widths.rope > 0) {
        sync_cube();
        turn(&mut q_tile, cos, sin, query, rule.t, comptime!(shape.rope()));
    }

    let (lane_row, lane_column) = lane_place();
    let mut sums = zeros(comptime!(shape.padded()[1]));
    // For this lane's two rows; until the end, the totals cover only the lane's own columns.
    let mut largest = Array::<f32>::new(2usize);
    let mut total = Array::<f32>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        largest[half] = f32::min_value();
        total[half] = 0.0f32;
    }

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
        let s = scores(&q_tile, plane_row(), &k_tile, 0usize.runtime(), TILE, comptime!(shape.whole()));
        let mut p = Operand::<F>::new(comptime!(TILE / 4));
        #[unroll]
        for half in 0..2usize {
            let row = query + plane_row() + lane_row + comptime!(8 * half);
            let first = first_key(first_keys, row, &rule, comptime!(shape.documents));
            let (first, behind) = rule.seen(row, first, key + lane_column);
            let mut most = largest[half];
            #[unroll]
            for n in 0..comptime!(TILE / 8) {
                #[unroll]
                for e in 0..2usize {
                    if first <= comptime!(8 * n + e) && behind > comptime!(8 * n + e) {
                        most = max(most, s[comptime!(2 * n + half)].extract(e));
                    }
                }
            }
            most = max(most, plane::exchanged(most, 1u32));
            most = max(most, plane::exchanged(most, 2u32));
            let factor = (rule.scale * (largest[half] - most)).exp();
            largest[half] = most;
            let mut sum = total[half] * factor;
            #[unroll]
            for n in 0..comptime!(TILE / 8) {
                let mut of_pair = Two::<f32>::new(0.0f32);
                #[unroll]
                for e in 0..2usize {
                    if first <= comptime!(8 * n + e) && behind > comptime!(8 * n + e) {
                        let mut of_score = (rule.scale * (s[comptime!(2 * n + half)].extract(e) - most)).exp();
                        sum += of_score;
                        if comptime!(shape.dropout) {
                            of_score *= rule.factor(start, row, key + lane_column + comptime!(8 * n + e));
                        }
                        of_pair.insert(e, of_score);
                    }
                }
                p[comptime!(2 * n + half)] = Vector::cast_from(of_pair);
            }
            total[half] = sum;
            #[unroll]
            for n in 0..comptime!(shape.padded()[1] / 8) {
                sums[comptime!(2 * n + half)] *= Vector::new(factor);
            }
        }
        add_product(&p, &v_tile, 0usize.runtime(), &mut sums, TILE, comptime!(shape.values()));
        sync_cube();
        key += TILE;
    }

    #[unroll]
    for half in 0..2usize {
        let row = query + plane_row() + lane_row + comptime!(8 * half);
        let mut sum = total[half];
        sum += plane::exchanged(sum, 1u32);
        sum += plane::exchanged(sum, 2u32);
        if row < rule.t {
            let inverse = inverse(sum);
            let to = (y_strides.of(head) + row * y_strides.row + lane_column) / 2;
            #[unroll]
            for n in 0..comptime!(widths.v / 8) {
                y[to + comptime!(4 * n)] = rounded(sums[comptime!(2 * n + half)] * Vector::new(inverse));
            }
            if lane_column == 0 {
                l[rule.statistics_of(head) + row] = log_sum(largest[half], sum, &rule);
            }
        }
    }
}
