//! Tests of attention on the CPU against naive sums, in layouts, parts and documents.

use super::*;
use burn::tensor::{DType, Device, Distribution, TensorData};
use proptest::prelude::*;
use test_kit::{assert_close, floats, largest};

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// Returns the output, and the gradients of the inputs for a cotangent.
fn run(attention: impl Fn([Tensor<4>; 3]) -> Tensor<4>, inputs: &[Tensor<4>; 3], dy: &Tensor<4>) -> [Vec<f32>; 4] {
    let inputs = inputs.each_ref().map(|input| input.clone().autodiff().require_grad());
    let y = attention(inputs.clone());
    let gradients = (y.clone() * dy.clone().autodiff()).sum().backward();
    let [q, k, v] = inputs.map(|input| floats(input.grad(&gradients).unwrap()));
    [floats(y.inner()), q, k, v]
}

/// Computes the output, and the gradients by their formulas, in f64, one number at a time. A group of `n` query heads
/// shares keys and values, and a query sees the `window` keys up to its own.
fn naive(
    [b, h, n, t, d, dv]: [usize; 6],
    inputs: &[Tensor<4>; 3],
    dy: &Tensor<4>,
    scale: f64,
    window: usize,
) -> [Vec<f64>; 4] {
    let wide = |tensor: &Tensor<4>| tensor.clone().into_data().iter::<f32>().map(f64::from).collect::<Vec<f64>>();
    let [q, k, v] = inputs.each_ref().map(wide);
    let dy = wide(dy);
    let mut y = vec![0.0; b * t * h * dv];
    let kv = b * h / n;
    let [mut dq, mut dk, mut d_v] = [vec![0.0; b * h * t * d], vec![0.0; kv * t * d], vec![0.0; kv * t * dv]];
    for head in 0..b * h {
        let out = |i: usize| ((head / h * t + i) * h + head % h) * dv;
        let of_query = |i: usize| (head * t + i) * d;
        let at = |j: usize, width: usize| (head / n * t + j) * width;
        for i in 0..t {
            let from = (i + 1).saturating_sub(window);
            let score = |j| scale * (0..d).map(|c| q[of_query(i) + c] * k[at(j, d) + c]).sum::<f64>();
            let s: Vec<f64> = (from..=i).map(score).collect();
            let most = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = s.iter().map(|s| (s - most).exp()).sum();
            let p: Vec<f64> = s.iter().map(|s| (s - most).exp() / total).collect();
            let dp: Vec<f64> = (from..=i).map(|j| (0..dv).map(|c| dy[out(i) + c] * v[at(j, dv) + c]).sum()).collect();
            let delta: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for (j, (p, dp)) in (from..=i).zip(p.iter().zip(&dp)) {
                let ds = scale * p * (dp - delta);
                for c in 0..dv {
                    y[out(i) + c] += p * v[at(j, dv) + c];
                    d_v[at(j, dv) + c] += p * dy[out(i) + c];
                }
                for c in 0..d {
                    dq[of_query(i) + c] += ds * k[at(j, d) + c];
                    dk[at(j, d) + c] += ds * q[of_query(i) + c];
                }
            }
        }
    }
    [y, dq, dk, d_v]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn output_and_gradients_are_those_of_a_naive_one_in_f64(
        b in 1usize..3,
        [h, n] in prop_oneof![(1usize..4).prop_map(|h| [h, 1]), Just([4, 2]), Just([3, 3]), Just([6, 2])],
        window in prop_oneof![Just(None), (1usize..300).prop_map(Some)],
        t in prop_oneof![1usize..10, 60usize..70, 125usize..132, 250usize..300],
        d in prop_oneof![Just(1usize), Just(8), Just(24), 1usize..40],
        dv in prop_oneof![Just(8usize), 1usize..40],
        by_position in any::<bool>(),
    ) {
        // Laid out as by a projection, with heads side by side, or head by head.
        let input = |h, width| match by_position {
            true => random([b, t, h, width]).swap_dims(1, 2),
            false => random([b, h, t, width]),
        };
        let (inputs, dy, scale) = ([input(h, d), input(h / n, d), input(h / n, dv)], random([b, t, h, dv]), 0.7);
        let first_keys = window.map(|window| {
            let row = (0..t).map(|i| (i + 1).saturating_sub(window) as i32);
            let rows = TensorData::new((0..b).flat_map(|_| row.clone()).collect::<Vec<_>>(), [b, t]);
            Tensor::<2, Int>::from_data(rows, &Device::flex())
        });
        // With y rounded to bf16, delta = y dy is off by up to 2^-9 |y| |dy|, and dq and dk by that times the scale and a
        // key or a query.
        for (dtype, tolerances) in [(DType::F32, [2e-5; 4]), (DType::BF16, [0.01, 0.1, 0.1, 0.01])] {
            let inputs = inputs.each_ref().map(|input| input.clone().cast(dtype));
            let dy = dy.clone().cast(dtype);
            let found = run(|[q, k, v]| causal_attention(q, k, v, scale, 0, first_keys.as_ref()), &inputs, &dy);
            let inputs = inputs.map(|input| input.cast(DType::F32));
            let expected = naive([b, h, n, t, d, dv], &inputs, &dy.cast(DType::F32), scale, window.unwrap_or(t));
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{} in {dtype:?}", ["y", "dq", "dk", "dv"][i]);
                assert_close(&what, found, expected, tolerances[i] * largest(expected, 1.0));
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_and_before_any_end() {
    for dtype in [DType::F32, DType::BF16] {
        let [q, k, v] = [0; 3].map(|_| random([3, 2, 200, 16]).cast(dtype));
        let all = causal_attention(q.clone(), k.clone(), v.clone(), 0.25, 0, None);
        for (row, end) in [(1, 200), (2, 130), (0, 70), (1, 1)] {
            let part = |x: &Tensor<4>| x.clone().slice([row..row + 1, 0..2, 0..end, 0..16]);
            let alone = causal_attention(part(&q), part(&k), part(&v), 0.25, 0, None);
            let expected = all.clone().slice([row..row + 1, 0..end, 0..2, 0..16]);
            assert_eq!(floats(alone), floats(expected), "{dtype:?}, sequence {row} up to {end}");
        }
    }
}

/// The second document begins within a tile, whose size depends on the length of the row. There are many values, because
/// rounding to bf16 hides most differences.
#[test]
fn a_row_has_the_same_bits_after_the_same_documents() {
    let [heads, d] = [32, 64];
    for dtype in [DType::F32, DType::BF16] {
        let qkv = random([2, 200, 3 * heads * d]).cast(dtype);
        let up_to = |end: usize| {
            let first_keys = starts_of(&[vec![33, end - 33], vec![9, 61, end - 70]]);
            let y = causal_self_attention(qkv.clone().slice([0..2, 0..end]), heads, 0.25, None, Some(&first_keys));
            floats(y.slice([0..2, 0..100]))
        };
        assert!(up_to(100) == up_to(200), "{dtype:?}");
    }
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let inputs = [random([1, 1, 70, 8]) * 1e3, random([1, 1, 70, 8]) * 10.0, random([1, 1, 70, 8])];
    let found = run(|[q, k, v]| causal_attention(q, k, v, 1.0, 0, None), &inputs, &random([1, 70, 1, 8]));
    assert!(found.iter().flatten().all(|value| value.is_finite()));
}

#[test]
fn without_sequences_there_is_nothing() {
    let none = || Tensor::<4>::zeros([0, 2, 5, 4], &Device::flex());
    assert_eq!(causal_attention(none(), none(), none(), 1.0, 0, None).dims(), [0, 5, 2, 4]);
}

/// The queries are the end of a sequence, and some keys precede all queries.
#[test]
fn an_offset_moves_queries_to_later_keys() {
    let [q, k, v] = [0; 3].map(|_| random([2, 2, 150, 16]));
    let all = causal_attention(q.clone(), k.clone(), v.clone(), 0.25, 0, None);
    for from in [1, 100, 149] {
        let last = q.clone().slice([0..2, 0..2, from..150]);
        let found = causal_attention(last, k.clone(), v.clone(), 0.25, from, None);
        assert_eq!(floats(found), floats(all.clone().slice([0..2, from..150])), "queries from {from} on");
    }
    // Every query sees every key: the result is that of softmax without a mask.
    let found = causal_attention(q.clone(), k.clone(), v.clone(), 0.25, 150, None);
    let p = burn::tensor::activation::softmax(q.matmul(k.swap_dims(2, 3)) * 0.25, 3);
    let expected = floats(p.matmul(v).swap_dims(1, 2));
    assert!(floats(found).iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-6));
}

/// Returns the output, and the gradients of the inputs for a cotangent.
fn gradients(op: impl Fn([Tensor<3>; 3]) -> Tensor<3>, inputs: &[Tensor<3>; 3], dy: &Tensor<3>) -> [Vec<f32>; 4] {
    let inputs = inputs.each_ref().map(|input| input.clone().autodiff().require_grad());
    let y = op(inputs.clone());
    let gradients = (y.clone() * dy.clone().autodiff()).sum().backward();
    // An operation may ignore an input.
    let [a, b, c] = inputs.map(|input| input.grad(&gradients).map(floats).unwrap_or_default());
    [floats(y.inner()), a, b, c]
}

/// Compares one product with three parts, and with dropout by the scores' positions.
#[test]
fn attention_of_one_product_is_that_of_its_three_parts() {
    let [b, t, heads, d] = [3, 70, 4, 8];
    let inputs = [random([b, t, 3 * heads * d]), random([1, 1, 1]), random([1, 1, 1])];
    let dy = random([b, t, heads * d]);
    let low = |x: &Tensor<3>| x.clone().cast(DType::BF16);
    let parts = |qkv: Tensor<3>| {
        let qkv = qkv.reshape([b, t, 3 * heads, d]).swap_dims(1, 2);
        [0, 1, 2].map(|i| qkv.clone().slice([0..b, i * heads..(i + 1) * heads]))
    };
    let together = gradients(|[qkv, ..]| causal_self_attention(qkv, heads, 0.3, None, None), &inputs, &dy);
    let three = |[qkv, ..]: [Tensor<3>; 3]| {
        let [q, k, v] = parts(qkv);
        causal_attention(q, k, v, 0.3, 0, None).reshape([b, t, heads * d])
    };
    assert_eq!(together, gradients(three, &inputs, &dy), "the same numbers, added up in the same order");
    let (of_inputs, of_dy) = (inputs.each_ref().map(low), low(&dy));
    let together = gradients(|[qkv, ..]| causal_self_attention(qkv, heads, 0.3, None, None), &of_inputs, &of_dy);
    assert_eq!(together, gradients(three, &of_inputs, &of_dy), "the same in bf16");

    let key = DropoutKey::derive(1, 2, 3, 4).at_row(5);
    let found = gradients(|[qkv, ..]| causal_self_attention(qkv, heads, 0.3, Some((0.2, key)), None), &inputs, &dy);
    let composed = |[qkv, ..]: [Tensor<3>; 3]| {
        let [q, k, v] = parts(qkv);
        let future = Tensor::<2, burn::tensor::Bool>::tril_mask([t, t], 0, &q.device()).unsqueeze();
        let scores = (q.matmul(k.swap_dims(2, 3)) * 0.3).mask_fill(future, f32::NEG_INFINITY);
        let p = crate::dropout(burn::tensor::activation::softmax(scores, 3), 0.2, key);
        p.matmul(v).swap_dims(1, 2).reshape([b, t, heads * d])
    };
    near(&found, &gradients(composed, &inputs, &dy), 1e-5);
}

#[track_caller]
fn near(found: &[Vec<f32>; 4], expected: &[Vec<f32>; 4], tolerance: f64) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_close(&format!("output or gradient {i}"), found, expected, tolerance * largest(expected, 1.0));
    }
}

/// Compares with parts that are sliced, rotated, repeated for every head and concatenated.
#[test]
fn latent_attention_is_that_of_whole_queries_and_keys() {
    let [b, t, heads, nope, rope, dv] = [2, 140, 3, 8, 4, 6];
    let inputs = [random([b, t, heads * (nope + rope)]), random([b, t, heads * (nope + dv)]), random([b, t, rope])];
    let dy = random([b, t, heads * dv]);
    let table = RopeTable::new((0..t * rope / 2).map(|i| i as f64 * 0.37), 1.1, rope / 2, &Device::flex());
    let latent = |[q, kv, k_rope]: [Tensor<3>; 3]| latent_attention(q, kv, k_rope, &table, heads, 0.3, None);
    let whole = |[q, kv, k_rope]: [Tensor<3>; 3]| {
        let cut = |x: &Tensor<3>, width: usize, columns: std::ops::Range<usize>| {
            x.clone().reshape([b, t, heads, width]).slice([0..b, 0..t, 0..heads, columns]).swap_dims(1, 2)
        };
        let k_rope = crate::rope(k_rope.unsqueeze_dim(1), &table).repeat_dim(1, heads);
        let q_rope = crate::rope(cut(&q, nope + rope, nope..nope + rope), &table);
        let q = Tensor::cat(vec![cut(&q, nope + rope, 0..nope), q_rope], 3);
        let k = Tensor::cat(vec![cut(&kv, nope + dv, 0..nope), k_rope], 3);
        causal_attention(q, k, cut(&kv, nope + dv, nope..nope + dv), 0.3, 0, None).reshape([b, t, heads * dv])
    };
    let expected = gradients(whole, &inputs, &dy);
    near(&gradients(latent, &inputs, &dy), &expected, 1e-5);
    // In bf16 the inputs, the factors of products and the results are rounded.
    let inputs = inputs.map(|input| input.cast(DType::BF16));
    let found = gradients(latent, &inputs, &dy.cast(DType::BF16));
    near(&found, &expected, 0.03);
}

/// The first keys of rows of documents with these lengths, `[b, t]`.
fn starts_of(rows: &[Vec<usize>]) -> Tensor<2, Int> {
    let of_row = |row: &Vec<usize>| {
        let mut start = 0;
        let document = |len: &usize| {
            start += len;
            vec![(start - len) as i32; *len]
        };
        row.iter().flat_map(document).collect::<Vec<i32>>()
    };
    let first_keys: Vec<i32> = rows.iter().flat_map(of_row).collect();
    let shape = [rows.len(), first_keys.len() / rows.len()];
    Tensor::from_data(burn::tensor::TensorData::new(first_keys, shape), (&Device::flex(), DType::I32))
}

/// Applies `op` to each document separately, `[1, len, width]` with its positions, and concatenates the results.
fn apart(
    rows: &[Vec<usize>],
    inputs: [Tensor<3>; 3],
    op: impl Fn([Tensor<3>; 3], std::ops::Range<usize>) -> Tensor<3>,
) -> Tensor<3> {
    let of_row = |(i, row): (usize, &Vec<usize>)| {
        let mut end = 0;
        let documents = row.iter().map(|len| {
            end += len;
            let positions = end - len..end;
            op(inputs.each_ref().map(|x| x.clone().slice([i..i + 1, positions.clone()])), positions)
        });
        Tensor::cat(documents.collect(), 1)
    };
    Tensor::cat(rows.iter().enumerate().map(of_row).collect(), 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn documents_in_a_row_are_as_each_by_itself(lens in prop::collection::vec(1..150usize, 1..7)) {
        // Both rows hold the same documents, one of them in reverse order.
        let rows = [lens.clone(), lens.iter().rev().copied().collect()];
        let (t, first_keys) = (lens.iter().sum::<usize>(), starts_of(&rows));
        let [heads, d] = [2, 8];
        let (inputs, dy) = ([3 * heads * d, 1, 1].map(|width| random([2, t, width])), random([2, t, heads * d]));
        let together = |[qkv, ..]: [Tensor<3>; 3]| causal_self_attention(qkv, heads, 0.3, None, Some(&first_keys));
        let alone = |inputs| apart(&rows, inputs, |[qkv, ..], _| causal_self_attention(qkv, heads, 0.3, None, None));
        near(&gradients(together, &inputs, &dy), &gradients(alone, &inputs, &dy), 1e-5);

        let [nope, rope, dv] = [6, 4, 5];
        let inputs = [heads * (nope + rope), heads * (nope + dv), rope].map(|width| random([2, t, width]));
        let dy = random([2, t, heads * dv]);
        let table = RopeTable::new((0..t * rope / 2).map(|i| i as f64 * 0.37), 1.1, rope / 2, &Device::flex());
        let together = |[q, kv, k_rope]: [Tensor<3>; 3]| latent_attention(q, kv, k_rope, &table, heads, 0.3, Some(&first_keys));
        let alone = |inputs| apart(&rows, inputs, |[q, kv, k_rope], positions| {
            latent_attention(q, kv, k_rope, &table.at(&positions.collect::<Vec<_>>()), heads, 0.3, None)
        });
        near(&gradients(together, &inputs, &dy), &gradients(alone, &inputs, &dy), 1e-5);

        // Dropout depends on a score's position in the whole row.
        let key = DropoutKey::derive(1, 2, 3, 4);
        let qkv = random([2, t, 3 * heads * d]);
        let whole = causal_self_attention(qkv.clone(), heads, 0.3, Some((0.3, key)), None);
        let masked = causal_self_attention(qkv, heads, 0.3, Some((0.3, key)), Some(&first_keys));
        let first = lens[0].min(lens[lens.len() - 1]);
        let of_first = |y: Tensor<3>| floats(y.slice([0..2, 0..first]));
        prop_assert_eq!(of_first(whole), of_first(masked));
    }

    /// The keys come in two parts, and queries of later documents see none of some of them.
    #[test]
    fn parts_of_documents_make_the_whole(lens in prop::collection::vec(1..60usize, 1..6), at in 0.1..0.9f64) {
        let t = lens.iter().sum::<usize>() + 1;
        let rows = [[lens.clone(), vec![1]].concat(), [vec![1], lens].concat()];
        let (first_keys, middle) = (starts_of(&rows), ((t as f64 * at) as usize).clamp(1, t - 1));
        let [q, k, v] = [8, 8, 6].map(|width| random([2, 3, t, width]));
        let d_y = random([2, t, 3, 6]);
        let of = |x: &Tensor<4>, rows: std::ops::Range<usize>| x.clone().slice_dim(2, rows);
        let all = AttentionPart { first: [0, 0], scale: 0.4, dropout: None };
        let (y, l) = all.forward([q.clone(), k.clone(), v.clone()], Some(first_keys.clone()));
        let expected = all.backward([q.clone(), k.clone(), v.clone()], [y.clone(), d_y.clone()], l.clone(), Some(first_keys.clone()));

        // The later queries, with the earlier keys and with their own.
        let later = middle..t;
        let parts = [(0, 0..middle), (middle, later.clone())].map(|(first, keys)| {
            (AttentionPart { first: [middle, first], ..all }, [of(&q, later.clone()), of(&k, keys.clone()), of(&v, keys)])
        });
        let first_keys = first_keys.slice_dim(1, later.clone());
        let [(y_0, l_0), (y_1, l_1)] = parts.clone().map(|(part, qkv)| part.forward(qkv, Some(first_keys.clone())));
        let weight = burn::tensor::activation::sigmoid(l_1.clone() - l_0.clone()).swap_dims(1, 2).unsqueeze_dim(3);
        let merged = y_0.clone() + (y_1 - y_0) * weight;
        let close = |found: Vec<f32>, expected: Vec<f32>| {
            found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-5 * (1.0 + b.abs()))
        };
        prop_assert!(close(floats(merged), floats(y.clone().slice_dim(1, later.clone()))));
        let (ahead, l_later) = ((l_1.clone() - l_0.clone()).abs(), l.slice_dim(2, later.clone()));
        let of_both = l_0.max_pair(l_1) + (-ahead).exp().log1p();
        prop_assert!(close(floats(of_both), floats(l_later.clone())));

        let outputs = [y, d_y].map(|x| x.slice_dim(1, later.clone()));
        let [mut found_q, mut found_keys] = [vec![], vec![]];
        for (part, qkv) in parts {
            let [d_q, d_k, _] = part.backward(qkv, outputs.clone(), l_later.clone(), Some(first_keys.clone()));
            found_q.push(d_q);
            found_keys.push(d_k);
        }
        let d_q = found_q.into_iter().reduce(|sum, d_q| sum + d_q).unwrap();
        prop_assert!(close(floats(d_q), floats(of(&expected[0], later.clone()))));
        prop_assert!(close(floats(found_keys.remove(1)), floats(of(&expected[1], later))));
    }
}
