//! Compares the attention kernels with the plain Rust, on CubeCL's CPU runtime with one and two units per cube.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device, Int, Tensor};
use fused::cube::testing;
use fused::{AttentionPart, DropoutKey, RopeTable, causal_attention, causal_self_attention, latent_attention};
use test_kit::kernels::{self, Output, Scale};
use test_kit::{float, floats, int};

type Outputs = Vec<Vec<f32>>;

/// Pseudorandom numbers between -1 and 1.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn input<const D: usize>(shape: [usize; D], seed: u64, dtype: DType, device: &Device) -> Tensor<D> {
    float(&numbers(shape.iter().product(), seed), shape, dtype, device)
}

/// Returns the result, and the gradients of the inputs for a cotangent that is a function of the result.
fn gradients<const D: usize, const I: usize>(y: Tensor<D>, inputs: [Tensor<I>; 3]) -> Outputs {
    // Burn's product in bf16 does not compile on every CPU; `silu_mul` is Kiln's.
    let len = y.shape().num_elements();
    let flat: Tensor<2> = y.clone().reshape([1, len]);
    let dtype = y.dtype();
    let weight = input([1, len], 77, dtype, &y.device());
    let gradients = fused::silu_mul(weight, flat).backward();
    let mut outputs = vec![floats(y)];
    outputs.extend(inputs.into_iter().filter_map(|input| input.grad(&gradients)).map(floats));
    outputs
}

/// Checks that the outputs on the test device equal those on flex, if the device computes in the dtype.
#[track_caller]
fn agree(case: &str, dtype: DType, run: impl Fn(&Device) -> Outputs) {
    if testing::computes_in(dtype, case) {
        kernels::agree(case, Scale::Output, |device| {
            run(device).into_iter().map(|values| Output::Floats(values, dtype)).collect()
        });
    }
}

/// Checks queries, keys and values of sizes `[b, heads, t, s, d, dv, offset]`, laid out by head or by position.
fn separate_agree(sizes: [usize; 7], by_position: bool, dtype: DType) {
    grouped_agree(sizes, 1, None, by_position, dtype);
}

/// The same where groups of query heads share keys and values, and a query sees at most `window` keys.
fn grouped_agree(
    [b, heads, t, s, d, dv, offset]: [usize; 7],
    group: usize,
    window: Option<usize>,
    by_position: bool,
    dtype: DType,
) {
    let case = format!(
        "b={b} heads={heads} t={t} s={s} d={d} dv={dv} offset={offset} group={group} window={window:?} \
        by_position={by_position} {dtype:?}"
    );
    agree(&case, dtype, |device| {
        let tracked = device.clone().autodiff();
        let make = |heads: usize, rows: usize, width: usize, seed: u64| match by_position {
            true => input([b, rows, heads, width], seed, dtype, &tracked).require_grad().swap_dims(1, 2),
            false => input([b, heads, rows, width], seed, dtype, &tracked).require_grad(),
        };
        let first_keys = window.map(|window| {
            let row = (0..t).map(|i| (offset + i + 1).saturating_sub(window) as i32);
            let rows: Vec<i32> = (0..b).flat_map(|_| row.clone()).collect();
            int(&rows, [b, t], device)
        });
        let kv_heads = heads / group;
        let inputs = [make(heads, t, d, 1), make(kv_heads, s, d, 2), make(kv_heads, s, dv, 3)];
        let [q, k, v] = inputs.clone();
        gradients(causal_attention(q, k, v, 0.8, offset, first_keys.as_ref()), inputs)
    });
}

#[test]
fn separate_queries_keys_and_values_agree() {
    separate_agree([2, 3, 37, 37, 8, 8, 0], true, DType::F32);
    separate_agree([1, 2, 33, 33, 5, 7, 0], false, DType::F32);
}

#[test]
fn queries_behind_keys_that_are_there_already_agree() {
    separate_agree([1, 2, 5, 41, 16, 8, 36], false, DType::F32);
    separate_agree([1, 2, 1, 18, 8, 16, 17], true, DType::F32);
    // There are fewer keys than the last query could see.
    separate_agree([1, 1, 20, 30, 4, 4, 13], true, DType::F32);
}

#[test]
fn wide_heads_agree() {
    separate_agree([1, 1, 35, 35, 64, 64, 0], true, DType::F32);
    separate_agree([1, 1, 20, 20, 192, 128, 0], true, DType::F32);
}

#[test]
fn grouped_heads_agree() {
    for (heads, group) in [(4, 2), (3, 3), (6, 3)] {
        grouped_agree([2, heads, 37, 37, 8, 8, 0], group, None, true, DType::F32);
        grouped_agree([1, heads, 33, 33, 5, 7, 0], group, None, false, DType::F32);
        grouped_agree([1, heads, 21, 21, 16, 16, 0], group, None, true, DType::BF16);
        grouped_agree([1, heads, 21, 21, 8, 16, 0], group, None, false, DType::BF16);
    }
}

#[test]
fn grouped_heads_with_a_window_or_an_offset_agree() {
    for (dtype, by_position) in [(DType::F32, true), (DType::BF16, false)] {
        grouped_agree([2, 4, 39, 39, 8, 8, 0], 2, Some(11), by_position, dtype);
        grouped_agree([1, 6, 5, 41, 16, 8, 36], 3, None, by_position, dtype);
        grouped_agree([1, 4, 7, 25, 8, 8, 18], 2, Some(9), !by_position, dtype);
    }
    // Several tiles of queries and of keys.
    grouped_agree([1, 6, 140, 140, 16, 16, 0], 3, None, true, DType::BF16);
    grouped_agree([1, 4, 140, 140, 16, 16, 0], 2, Some(50), false, DType::BF16);
}

#[test]
fn short_floats_agree() {
    separate_agree([1, 2, 21, 21, 16, 16, 0], true, DType::BF16);
    separate_agree([1, 2, 21, 21, 12, 16, 0], true, DType::F16);
}

#[test]
fn one_product_agrees_with_and_without_dropout() {
    let [b, t, heads, d] = [2, 39, 3, 8];
    for (dtype, dropout) in [(DType::F32, false), (DType::F32, true), (DType::BF16, true)] {
        agree(&format!("qkv {dtype:?} dropout {dropout}"), dtype, |device| {
            let qkv = input([b, t, 3 * heads * d], 1, dtype, &device.clone().autodiff()).require_grad();
            let dropout = dropout.then(|| (0.3, DropoutKey::derive(1, 2, 3, 4).at_row(5)));
            let y = causal_self_attention(qkv.clone(), heads, 0.8, dropout, None);
            gradients(y, [qkv.clone(), qkv.clone(), qkv])
        });
    }
}

#[test]
fn latent_attention_agrees() {
    for (dtype, [b, t, heads, nope, rope, v]) in
        [(DType::F32, [2, 37, 3, 8, 4, 6]), (DType::F32, [1, 18, 2, 5, 2, 3]), (DType::BF16, [1, 37, 2, 16, 8, 16])]
    {
        agree(&format!("latent {dtype:?} t={t} nope={nope}"), dtype, |device| {
            let device = device.clone().autodiff();
            let q = input([b, t, heads * (nope + rope)], 1, dtype, &device).require_grad();
            let kv = input([b, t, heads * (nope + v)], 2, dtype, &device).require_grad();
            let k_rope = input([b, t, rope], 3, dtype, &device).require_grad();
            let table = RopeTable::new((0..t * rope / 2).map(|i| i as f64 * 0.37), 1.1, rope / 2, &device);
            let y = latent_attention(q.clone(), kv.clone(), k_rope.clone(), &table, heads, 0.4, None);
            gradients(y, [q, kv, k_rope])
        });
    }
}

/// The starts of three documents in each of two rows of 39.
fn first_keys(device: &Device) -> Tensor<2, Int> {
    let rows = [[0..13, 13..14, 14..39], [0..17, 17..35, 35..39]];
    let first_keys: Vec<i32> = rows.into_iter().flatten().flat_map(|place| vec![place.start; place.len()]).collect();
    // Transposed, so that rows are not contiguous, as on a device that pads rows.
    int(&first_keys, [2, 39], device).transpose().reshape([78]).reshape([39, 2]).transpose()
}

#[test]
fn documents_agree() {
    let [b, t, heads, d] = [2, 39, 3, 8];
    for (dtype, dropout) in [(DType::F32, None), (DType::BF16, Some((0.3, DropoutKey::derive(1, 2, 3, 4))))] {
        agree(&format!("documents, qkv {dtype:?}"), dtype, |device| {
            let qkv = input([b, t, 3 * heads * d], 1, dtype, &device.clone().autodiff()).require_grad();
            let y = causal_self_attention(qkv.clone(), heads, 0.8, dropout, Some(&first_keys(device)));
            gradients(y, [qkv.clone(), qkv.clone(), qkv])
        });
    }
    let [nope, rope, v] = [8, 4, 6];
    agree("documents, latent", DType::F32, |device| {
        let tracked = device.clone().autodiff();
        let q = input([b, t, heads * (nope + rope)], 1, DType::F32, &tracked).require_grad();
        let kv = input([b, t, heads * (nope + v)], 2, DType::F32, &tracked).require_grad();
        let k_rope = input([b, t, rope], 3, DType::F32, &tracked).require_grad();
        let table = RopeTable::new((0..t * rope / 2).map(|i| i as f64 * 0.37), 1.1, rope / 2, &tracked);
        let y = latent_attention(q.clone(), kv.clone(), k_rope.clone(), &table, heads, 0.4, Some(&first_keys(device)));
        gradients(y, [q, kv, k_rope])
    });
}

/// Some of the later queries see none of the earlier keys. `group` query heads share keys and values.
fn part_agrees([heads, group]: [usize; 2], dropout: bool, dtype: DType) {
    let [b, t, d] = [2, 39, 8];
    agree(&format!("a part of documents, {heads} heads by {group}, dropout {dropout}, {dtype:?}"), dtype, |device| {
        let shapes = [[b, heads, t, d], [b, heads / group, t, d], [b, heads / group, t, d]];
        let [q, k, v] = [0, 1, 2].map(|i| input(shapes[i], i as u64 + 1, dtype, device));
        let first_keys = first_keys(device).slice_dim(1, 20..t);
        let dropout = dropout.then(|| (0.3, DropoutKey::derive(1, 2, 3, 4), 1, t));
        let part = AttentionPart { first: [20, 0], scale: 0.8, dropout };
        let [q, k, v] = [q.slice_dim(2, 20..t), k.slice_dim(2, 0..20), v.slice_dim(2, 0..20)];
        let (y, l) = part.forward([q.clone(), k.clone(), v.clone()], Some(first_keys.clone()));
        // As if there were no other keys; for queries that see none here, as if the others had some log-sum-exp.
        let (d_y, l) = (input([b, t - 20, heads, d], 4, dtype, device), l.clamp_min(-5.0));
        let [d_q, d_k, d_v] = part.backward([q, k, v], [y.clone(), d_y], l.clone(), Some(first_keys));
        [y, l.unsqueeze_dim(3), d_q, d_k, d_v].map(floats).to_vec()
    });
}

#[test]
fn parts_of_documents_agree() {
    part_agrees([2, 1], false, DType::F32);
    for group in [2, 3] {
        part_agrees([2 * group, group], false, DType::F32);
        part_agrees([2 * group, group], true, DType::F32);
        part_agrees([2 * group, group], true, DType::BF16);
    }
}
