//! The gradients of keys and values: a cube takes a tile of keys of one head and loops over the queries that see it.
//!
//! ```text
//!  for each query head of the group:
//!    for each tile of queries:   p = exp(scale q k^T - l)   ds = scale p (dy v^T - delta)  dv += p^T dy  dk += ds^T q
//! ```
//!
//! One cube computes the whole sum of each gradient, over all query heads that share the keys, so nothing is added
//! between cubes. In latent attention all heads share the rotated key: the kernel writes its gradient per head, and
//! [`small`](super::super::small) sums them.

use super::super::rows::{Rule, Strides, first_key, stage_statistics};
use super::{Corner, SimtShape, Sum, clear, multiply, pitch, probabilities, put, stage, turn};
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_dkv<F: Float, N: Size>(
    q: &[Vector<F, N>],
    k: &[Vector<F, N>],
    v: &[Vector<F, N>],
    k_rope: &[Vector<F, N>],
    cos: &[f32],
    sin: &[f32],
    first_keys: &[i32],
    d_y: &[Vector<F, N>],
    l: &[f32],
    delta: &[f32],
    d_k: &mut [Vector<F, N>],
    d_v: &mut [Vector<F, N>],
    d_k_rope: &mut [f32],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    d_k_strides: Strides,
    d_v_strides: Strides,
    rule: Rule,
    #[comptime] shape: SimtShape,
    #[define(F)] _dtype: ElemType,
) {
    let (tile, widths) = comptime!((shape.tile, shape.widths));
    let [qk_len, v_len] = comptime!(shape.tiles());
    let mut q_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut k_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut d_k_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut v_tile = Shared::<[f32]>::new_slice(v_len);
    let mut d_v_tile = Shared::<[f32]>::new_slice(v_len);
    let mut d_y_tile = Shared::<[f32]>::new_slice(v_len);
    let mut p = Shared::<[f32]>::new_slice(comptime!(tile * shape.scores()));
    let mut d_s = Shared::<[f32]>::new_slice(comptime!(tile * shape.scores()));
    let mut statistics = Shared::<[f32]>::new_slice(comptime!(2 * tile));

    let kv_head = CUBE_POS_Y as usize;
    let key = CUBE_POS_X as usize * tile;
    stage(k, &k_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.nope()));
    stage(v, &v_strides, kv_head, key, rule.s, &mut v_tile, comptime!(shape.whole(widths.v)));
    clear(&mut d_k_tile, qk_len);
    clear(&mut d_v_tile, v_len);
    if comptime!(widths.rope > 0) {
        stage(k_rope, &k_rope_strides, kv_head, key, rule.s, &mut k_tile, comptime!(shape.rope()));
        sync_cube();
        turn(&mut k_tile, cos, sin, key, rule.s, comptime!(shape.rope()), false);
    }

    for member in 0..rule.group {
        let head = kv_head * rule.group + member;
        let start = rule.start(head);
        let mut query = rule.first_query(key) / tile * tile;
        while query < rule.t && first_key(first_keys, query, &rule, comptime!(shape.documents)) < key + tile {
            stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole(widths.qk())));
            stage(d_y, &y_strides, head, query, rule.t, &mut d_y_tile, comptime!(shape.whole(widths.v)));
            stage_statistics(l, delta, &mut statistics, head, query, &rule, tile);
            if comptime!(widths.rope > 0) {
                sync_cube();
                turn(&mut q_tile, cos, sin, query, rule.t, comptime!(shape.rope()), false);
            }
            sync_cube();
            multiply(&q_tile, &k_tile, &mut p, &q_tile, comptime!(shape.scores_of(widths.qk())));
            multiply(&d_y_tile, &v_tile, &mut d_s, &d_y_tile, comptime!(shape.scores_of(widths.v)));
            sync_cube();
            probabilities(&mut p, &mut d_s, &statistics, Corner { query, key }, first_keys, &rule, start, shape);
            sync_cube();
            multiply(&p, &d_y_tile, &mut d_v_tile, &p, comptime!(shape.times_scores(widths.v, true, Sum::Add)));
            multiply(&d_s, &q_tile, &mut d_k_tile, &p, comptime!(shape.times_scores(widths.qk(), true, Sum::Add)));
            sync_cube();
            query += tile;
        }
    }

    sync_cube();
    put(&d_k_tile, d_k, &d_k_strides, kv_head, key, rule.s, comptime!(shape.nope()));
    put(&d_v_tile, d_v, &d_v_strides, kv_head, key, rule.s, comptime!(shape.whole(widths.v)));
    if comptime!(widths.rope > 0) {
        let first = (CUBE_POS_Z as usize * CUBE_COUNT_Y as usize + kv_head) * rule.s;
        let mut i = UNIT_POS as usize;
        while i < comptime!(tile * widths.rope) {
            let (r, column) = (i / comptime!(widths.rope), i % comptime!(widths.rope));
            if key + r < rule.s {
                d_k_rope[(first + key + r) * widths.rope + column] =
                    d_k_tile[r * comptime!(pitch(widths.qk())) + comptime!(widths.nope) + column];
            }
            i += CUBE_DIM as usize;
        }
    }
}
