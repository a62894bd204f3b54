//! The gradient of queries: a cube takes a tile of them and loops over the keys that they see.
//!
//! ```text
//!  for each tile of keys:   p = exp(scale q k^T - l),  ds = scale p (dy v^T - delta)      dq += ds k
//! ```

use super::super::rows::{Rule, Strides, first_key, stage_statistics};
use super::{Corner, SimtShape, Sum, clear, multiply, probabilities, put, stage, turn};
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub fn attention_dq<F: Float, N: Size>(
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
    d_q: &mut [Vector<F, N>],
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    k_rope_strides: Strides,
    y_strides: Strides,
    d_q_strides: Strides,
    rule: Rule,
    #[comptime] shape: SimtShape,
    #[define(F)] _dtype: ElemType,
) {
    let (tile, widths) = comptime!((shape.tile, shape.widths));
    let [qk_len, v_len] = comptime!(shape.tiles());
    let mut q_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut k_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut d_q_tile = Shared::<[f32]>::new_slice(qk_len);
    let mut v_tile = Shared::<[f32]>::new_slice(v_len);
    let mut d_y_tile = Shared::<[f32]>::new_slice(v_len);
    let mut p = Shared::<[f32]>::new_slice(comptime!(tile * shape.scores()));
    let mut d_s = Shared::<[f32]>::new_slice(comptime!(tile * shape.scores()));
    let mut statistics = Shared::<[f32]>::new_slice(comptime!(2 * tile));

    let head = CUBE_POS_Y as usize;
    let kv_head = head / rule.group;
    let query = rule.first_query_here(tile);
    stage(q, &q_strides, head, query, rule.t, &mut q_tile, comptime!(shape.whole(widths.qk())));
    stage(d_y, &y_strides, head, query, rule.t, &mut d_y_tile, comptime!(shape.whole(widths.v)));
    stage_statistics(l, delta, &mut statistics, head, query, &rule, tile);
    clear(&mut d_q_tile, qk_len);
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
        multiply(&q_tile, &k_tile, &mut p, &q_tile, comptime!(shape.scores_of(widths.qk())));
        multiply(&d_y_tile, &v_tile, &mut d_s, &d_y_tile, comptime!(shape.scores_of(widths.v)));
        sync_cube();
        probabilities(&mut p, &mut d_s, &statistics, Corner { query, key }, first_keys, &rule, start, shape);
        sync_cube();
        multiply(&d_s, &k_tile, &mut d_q_tile, &p, comptime!(shape.times_scores(widths.qk(), false, Sum::Add)));
        sync_cube();
        key += tile;
    }

    sync_cube(); // in case there was no tile of keys
    if comptime!(widths.rope > 0) {
        turn(&mut d_q_tile, cos, sin, query, rule.t, comptime!(shape.rope()), true);
        sync_cube();
    }
    put(&d_q_tile, d_q, &d_q_strides, head, query, rule.t, comptime!(shape.whole(widths.qk())));
}
