//! Compares each operation and its gradients with plain loops in f64.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use fused::silu_mul;
use moe::ScoreFunc;
use moe::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use moe::kernels::grouped_gemm::grouped_gemm;
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::route::{GateRule, Noise, SelectRule, gates, scores, select};
use proptest::prelude::*;
use test_kit::{assert_close, int, largest, random};

/// A tracked tensor of a dtype, from numbers that it represents exactly.
fn tracked<const D: usize>(values: &[f64], shape: [usize; D], dtype: DType) -> Tensor<D> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), &Device::flex().autodiff()).cast(dtype).require_grad()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Numbers in [-1, 1) in steps that bf16 represents exactly.
fn numbers(seed: u64, len: usize) -> Vec<f64> {
    random(seed, len).into_iter().map(|value| (value * 64.0).round() / 64.0).collect()
}

fn indices(values: &[i32], shape: [usize; 2]) -> Tensor<2, Int> {
    int(values, shape, &Device::flex())
}

fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-5 } else { 1e-2 }
}

#[track_caller]
fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_close(what, found, expected, tolerance * largest(expected, 1.0));
}

/// Central differences of `sum(f(x) * cotangent)`.
fn differences(x: &[f64], cotangent: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let loss = |x: &[f64]| f(x).iter().zip(cotangent).map(|(y, c)| y * c).sum::<f64>();
    let at = |i: usize, step: f64| {
        let mut x = x.to_vec();
        x[i] += step;
        loss(&x)
    };
    (0..x.len()).map(|i| (at(i, 1e-4) - at(i, -1e-4)) / 2e-4).collect()
}

/// Returns the flat result of an operation, and the gradients for a cotangent.
fn run<const D: usize>(y: Tensor<D>, cotangent: &[f64]) -> (Vec<f64>, burn::tensor::Gradients) {
    let shape = y.dims();
    let cotangent: Vec<f32> = cotangent.iter().map(|value| *value as f32).collect();
    let cotangent =
        Tensor::<D>::from_data(TensorData::new(cotangent, shape), &Device::flex().autodiff()).cast(y.dtype());
    (floats(y.clone()), (y * cotangent).sum().backward())
}

fn gradient<const D: usize>(x: &Tensor<D>, gradients: &burn::tensor::Gradients) -> Vec<f64> {
    x.grad(gradients).map(floats).unwrap_or_else(|| vec![0.0; x.shape().num_elements()])
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16)]
}

/// Sizes, with the edge cases.
fn size(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 2 => Just(1), 6 => 2..=most]
}

/// Experts of `n` tokens, and the rule that places them.
#[derive(Debug, Clone)]
struct Placement {
    n: usize,
    k: usize,
    experts: Vec<i32>,
    rule: DispatchRule,
}

impl Placement {
    fn dispatched(&self) -> Dispatched {
        dispatch(indices(&self.experts, [self.k, self.n]), self.rule)
    }
}

fn placements() -> impl Strategy<Value = Placement> {
    let experts = prop_oneof![1 => Just(1usize), 6 => 2..=9usize, 1 => Just(256)];
    let layout = prop_oneof![Just(RowLayout::Capacity), (1..=4usize).prop_map(|tile| RowLayout::Sorted { tile })];
    let capacity = prop_oneof![Just(0usize), 1..=4usize, Just(40)];
    (size(9), experts, layout, capacity, any::<bool>(), any::<u64>()).prop_flat_map(
        |(n, e, layout, capacity, choice, seed)| {
            (1..=e.min(8)).prop_map(move |k| {
                let places = random(seed, n).into_iter().map(|value| ((value + 1.0) * 500.0) as usize);
                let first: Vec<usize> = places.collect();
                let experts = (0..k * n).map(|p| ((first[p % n] + p / n) % e) as i32).collect();
                let order = if choice { Order::Choice } else { Order::Token };
                let rule = DispatchRule { experts: e, groups: 1, capacity: Some(capacity), order, layout };
                Placement { n, k, experts, rule }
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn permutation_and_its_way_back(case in placements(), d in 1..=5usize, dtype in dtypes(), seed in any::<u64>()) {
        let Placement { n, k, .. } = case;
        let placed = case.dispatched();
        let row_of: Vec<i64> = placed.row_of_kn.clone().into_data().iter::<i64>().collect();
        let r = placed.assignment_of_r.dims()[0];
        let (x, y, g) = (numbers(seed, n * d), numbers(seed ^ 1, r * d), numbers(seed ^ 2, k * n));

        let permuted = |x: &[f64]| {
            let mut rows = vec![0.0; r * d];
            for (p, row) in row_of.iter().enumerate().filter(|(_, row)| **row >= 0) {
                rows[*row as usize * d..][..d].copy_from_slice(&x[p % n * d..][..d]);
            }
            rows
        };
        let (x_nd, cotangent) = (tracked(&x, [n, d], dtype), numbers(seed ^ 3, r * d));
        let (found, gradients) = run(permute(x_nd.clone(), &placed), &cotangent);
        prop_assert_eq!(found, permuted(&x), "copies are exact");
        assert_near("dx", &gradient(&x_nd, &gradients), &differences(&x, &cotangent, permuted), tolerance(dtype));

        let unpermuted = |y: &[f64], g: &[f64]| {
            let mut tokens = vec![0.0; n * d];
            for (p, row) in row_of.iter().enumerate().filter(|(_, row)| **row >= 0) {
                (0..d).for_each(|i| tokens[p % n * d + i] += g[p] * y[*row as usize * d + i]);
            }
            tokens
        };
        let (y_rd, gates_kn) = (tracked(&y, [r, d], dtype), tracked(&g, [k, n], DType::F32));
        let cotangent = numbers(seed ^ 4, n * d);
        let (found, gradients) = run(unpermute(y_rd.clone(), gates_kn.clone(), &placed), &cotangent);
        assert_near("y", &found, &unpermuted(&y, &g), tolerance(dtype));
        let d_y = differences(&y, &cotangent, |y| unpermuted(y, &g));
        assert_near("dy", &gradient(&y_rd, &gradients), &d_y, tolerance(dtype));
        let d_gates = differences(&g, &cotangent, |g| unpermuted(&y, g));
        assert_near("dgates", &gradient(&gates_kn, &gradients), &d_gates, 1e-5);
    }

    #[test]
    fn every_row_is_multiplied_by_the_matrix_of_its_expert(
        rows in prop::collection::vec(size(6), 1..=5), spare in 0..=3usize, p in 1..=5usize, q in 1..=5usize,
        dtype in dtypes(), seed in any::<u64>(),
    ) {
        let e = rows.len();
        let ends: Vec<usize> = rows.iter().scan(0, |end, rows| { *end += rows; Some(*end) }).collect();
        let r = ends[e - 1] + spare;
        let expert_offsets: Vec<i32> = [0].into_iter().chain(ends.iter().map(|end| *end as i32)).collect();
        let expert_offsets = int(&expert_offsets, [e + 1], &Device::flex());
        let product = |x: &[f64], w: &[f64]| {
            let mut y = vec![0.0; r * q];
            for row in 0..ends[e - 1] {
                let expert = ends.iter().position(|end| row < *end).unwrap();
                for j in 0..q {
                    y[row * q + j] = (0..p).map(|i| x[row * p + i] * w[(expert * p + i) * q + j]).sum();
                }
            }
            y
        };
        let (x, w, cotangent) = (numbers(seed, r * p), numbers(seed ^ 1, e * p * q), numbers(seed ^ 2, r * q));
        let (x_rp, w_epq) = (tracked(&x, [r, p], dtype), tracked(&w, [e, p, q], dtype));
        let (found, gradients) = run(grouped_gemm(x_rp.clone(), w_epq.clone(), &expert_offsets), &cotangent);
        assert_near("y", &found, &product(&x, &w), tolerance(dtype));
        let d_x = differences(&x, &cotangent, |x| product(x, &w));
        assert_near("dx", &gradient(&x_rp, &gradients), &d_x, tolerance(dtype));
        let d_w = differences(&w, &cotangent, |w| product(&x, w));
        assert_near("dw", &gradient(&w_epq, &gradients), &d_w, tolerance(dtype));
    }

    #[test]
    fn swiglu_is_silu_of_the_gate_times_up(r in size(7), h in 1..=40usize, dtype in dtypes(), seed in any::<u64>()) {
        let y = |gate: &[f64], up: &[f64]| -> Vec<f64> {
            gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
        };
        let wide = |seed| numbers(seed, r * h).into_iter().map(|value| value * 8.0).collect::<Vec<f64>>();
        let (gate, up, cotangent) = (wide(seed), wide(seed ^ 1), numbers(seed ^ 2, r * h));
        let (gate_rh, up_rh) = (tracked(&gate, [r, h], dtype), tracked(&up, [r, h], dtype));
        let (found, gradients) = run(silu_mul(gate_rh.clone(), up_rh.clone()), &cotangent);
        assert_near("y", &found, &y(&gate, &up), tolerance(dtype));
        let d_gate = differences(&gate, &cotangent, |gate| y(gate, &up));
        assert_near("dgate", &gradient(&gate_rh, &gradients), &d_gate, tolerance(dtype));
        let d_up = differences(&up, &cotangent, |up| y(&gate, up));
        assert_near("dup", &gradient(&up_rh, &gradients), &d_up, tolerance(dtype));
    }

    #[test]
    fn scores_and_gates(
        n in size(6), e in prop_oneof![Just(1usize), 2..=9usize], sigmoid in any::<bool>(), normalise in any::<bool>(),
        missing in any::<bool>(), seed in any::<u64>(),
    ) {
        let func = if sigmoid { ScoreFunc::Sigmoid } else { ScoreFunc::Softmax };
        let score = |logits: &[f64]| -> Vec<f64> {
            let row = |row: &[f64]| {
                let total: f64 = row.iter().map(|x| x.exp()).sum();
                row.iter().map(|x| if sigmoid { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / total }).collect::<Vec<_>>()
            };
            logits.chunks(e).flat_map(row).collect()
        };
        let logits: Vec<f64> = numbers(seed, n * e).into_iter().map(|value| value * 4.0).collect();
        let (logits_ne, cotangent) = (tracked(&logits, [n, e], DType::F32), numbers(seed ^ 1, n * e));
        let (found, gradients) = run(scores(logits_ne.clone(), func), &cotangent);
        assert_near("scores", &found, &score(&logits), 1e-6);
        let d_logits = differences(&logits, &cotangent, score);
        assert_near("dlogits", &gradient(&logits_ne, &gradients), &d_logits, 1e-5);

        let k = e.min(1 + seed as usize % 8);
        let expert = |p: usize| (p % n + p / n) % e;
        let experts: Vec<i32> = (0..k * n).map(|p| if missing && p % 3 == 1 { -1 } else { expert(p) as i32 }).collect();
        let gate = |scores: &[f64]| -> Vec<f64> {
            let of = |p: usize| if experts[p] < 0 { 0.0 } else { scores[p % n * e + experts[p] as usize] };
            let total = |t: usize| if normalise { (0..k).map(|j| of(j * n + t)).sum::<f64>() + 1e-20 } else { 1.0 };
            (0..k * n).map(|p| 2.5 * of(p) / total(p % n)).collect()
        };
        // Scores away from 0, like those of a softmax or a sigmoid.
        let s: Vec<f64> = numbers(seed ^ 2, n * e).into_iter().map(|value| (value + 1.2) / 2.2).collect();
        let (scores_ne, cotangent) = (tracked(&s, [n, e], DType::F32), numbers(seed ^ 3, k * n));
        let rule = GateRule { normalise, scale: 2.5 };
        let (found, gradients) = run(gates(scores_ne.clone(), indices(&experts, [k, n]), rule), &cotangent);
        assert_near("gates", &found, &gate(&s), 1e-5);
        let d_scores = differences(&s, &cotangent, gate);
        assert_near("dscores", &gradient(&scores_ne, &gradients), &d_scores, 2e-5);
    }

    /// Scores take few different values, so that there are ties: the lower number wins.
    #[test]
    fn the_best_experts_of_the_best_groups_are_chosen(
        n in size(5), g in 1..=4usize, per_group in prop_oneof![2..=5usize, Just(64)], group_best in 1..=2usize, zero in any::<bool>(),
        noisy in any::<bool>(), seed in any::<u64>(),
    ) {
        let e = g * per_group;
        let topk_group = 1 + seed as usize % g;
        let candidates = (topk_group * per_group).min(1 + seed as usize / 7 % 16);
        let coarse = |seed, len| random(seed, len).into_iter().map(|value| (value * 4.0).round() as f32 / 4.0).collect::<Vec<_>>();
        let (scores, bias): (Vec<f32>, Vec<f32>) = (coarse(seed, n * e), coarse(seed ^ 1, e));
        let noise = Noise { amplitude: 0.5, key: seed as u32, first_row: 3, seq_len: 2 };
        let mask = if zero { 0.0 } else { f32::NEG_INFINITY };
        let rule = SelectRule { candidates, n_group: g, topk_group, group_best, mask, noise: noisy.then_some(noise) };
        let scores_ne = Tensor::from_data(TensorData::new(scores.clone(), [n, e]), &Device::flex());
        let bias_e = Tensor::from_data(TensorData::new(bias.clone(), [e]), &Device::flex());
        let found: Vec<i64> = select(scores_ne, bias_e, rule).into_data().iter::<i64>().collect();

        let ranked = |values: &[f32]| {
            let mut places: Vec<usize> = (0..values.len()).collect();
            places.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
            places
        };
        for token in 0..n {
            let mut choice: Vec<f32> = (0..e).map(|i| {
                let noise = if noisy { noise_at(&noise, token, i, e) } else { 0.0 };
                scores[token * e + i] + bias[i] + noise
            }).collect();
            let of_group = |group: usize| {
                let members = &choice[group * per_group..][..per_group];
                let best = ranked(members);
                if group_best == 2 { members[best[0]] + members[best[1]] } else { members[best[0]] }
            };
            let groups: Vec<f32> = (0..g).map(of_group).collect();
            let open = &ranked(&groups)[..topk_group];
            (0..e).filter(|i| !open.contains(&(i / per_group))).for_each(|i| choice[i] = mask);
            let expected = &ranked(&choice)[..candidates];
            let found: Vec<usize> = (0..candidates).map(|j| found[j * n + token] as usize).collect();
            prop_assert_eq!(&found, expected, "token {}", token);
        }
    }
}

/// The definition of the noise, in 64-bit words.
fn noise_at(noise: &Noise, token: usize, expert: usize, e: usize) -> f32 {
    let mix = |x: u64| {
        let x = ((x ^ (x >> 16)) * 0x7feb_352d) & 0xffff_ffff;
        let x = ((x ^ (x >> 15)) * 0x846c_a68b) & 0xffff_ffff;
        x ^ (x >> 16)
    };
    let gamma = 0x9e37_79b9u64;
    let (row, position) = ((token / noise.seq_len) as u64, (token % noise.seq_len) as u64);
    let start = mix(noise.key as u64 ^ mix((noise.first_row as u64 + row + gamma) & 0xffff_ffff));
    let index = (position * e as u64 + expert as u64) & 0xffff_ffff;
    let number = mix((start + index * gamma) & 0xffff_ffff);
    noise.amplitude * ((number >> 8) as f32 / 8_388_608.0 - 1.0)
}

#[test]
fn noise_is_even_and_of_its_size_and_depends_on_the_place_in_the_global_batch() {
    let (n, e) = (512, 8);
    let chosen = |noise: Noise, from: usize, to: usize| -> Vec<i64> {
        let scores = Tensor::<2>::zeros([to - from, e], &Device::flex());
        let rule =
            SelectRule { candidates: 1, n_group: 1, topk_group: 1, group_best: 1, mask: 0.0, noise: Some(noise) };
        select(scores, Tensor::zeros([e], &Device::flex()), rule).into_data().iter::<i64>().collect()
    };
    let noise = Noise { amplitude: 0.1, key: 7, first_row: 0, seq_len: 16 };
    let whole = chosen(noise, 0, n);
    for expert in 0..e as i64 {
        let share = whole.iter().filter(|chosen| **chosen == expert).count() as f64 / n as f64;
        assert!((share - 1.0 / e as f64).abs() < 0.05, "expert {expert} is chosen by {share}");
    }
    assert_eq!(chosen(Noise { first_row: 4, ..noise }, 64, n), whole[64..], "alone or in a batch");
    assert_ne!(chosen(Noise { key: 8, ..noise }, 0, n), whole);
    let amplitudes: Vec<f32> =
        (0..n).flat_map(|t| (0..e).map(move |i| (t, i))).map(|(t, i)| noise_at(&noise, t, i, e)).collect();
    assert!(amplitudes.iter().all(|noise| noise.abs() <= 0.1) && amplitudes.iter().any(|noise| noise.abs() > 0.099));
}
