//! Compares the kernels with the plain Rust, on CubeCL's CPU runtime with one and two units per cube: indices exactly,
//! numbers up to rounding.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device, Tensor};
use fused::cube::launch::set_cpu_units;
use fused::cube::testing;
use fused::silu_mul;
use moe::ScoreFunc;
use moe::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::reroute::{RerouteRule, reroute};
use moe::kernels::route::{GateRule, Noise, SelectRule, count, gates, scores, select};
use test_kit::Random;
use test_kit::kernels::{self, Output, Scale};
use test_kit::{float, int, ints};

/// Checks that the outputs on the test device equal those on flex.
#[track_caller]
fn agree(case: &str, run: impl Fn(&Device) -> Vec<Output>) {
    kernels::agree(case, Scale::Number, run);
}

/// Draws the first `k` of the shuffled experts for each of `n` tokens: `[k, n]`. One in `holes` is -1.
fn draw_experts(random: &mut Random, k: usize, n: usize, e: usize, holes: usize) -> Vec<i32> {
    let mut experts = vec![-1; k * n];
    for token in 0..n {
        let mut all: Vec<i32> = (0..e as i32).collect();
        for j in 0..k {
            all.swap(j, j + random.below(e - j));
            experts[j * n + token] = if random.below(holes) == 0 { -1 } else { all[j] };
        }
    }
    experts
}

const NO_HOLES: usize = usize::MAX;

fn f32s<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    float(values, shape, DType::F32, device)
}

/// Multiplies `y` by numbers made from `weight`. Burn's bf16 product does not compile on every CPU.
fn weighted(weight: &[f32], y: Tensor<2>) -> Tensor<2> {
    silu_mul(float(weight, y.dims(), y.dtype(), &y.device()), y)
}

#[test]
fn scores_and_their_gradients_agree() {
    let mut random = Random(1);
    for [n, e] in [[0, 4], [1, 1], [1, 8], [67, 5], [9, 256]] {
        let (logits, weight) = (random.floats(n * e, 64), random.floats(n * e, 64));
        for func in [ScoreFunc::Softmax, ScoreFunc::Sigmoid] {
            agree(&format!("scores {func:?} n={n} e={e}"), |device| {
                let logits = f32s(&logits, [n, e], &device.clone().autodiff()).require_grad();
                let scores = scores(logits.clone(), func);
                let weighted = scores.clone() * f32s(&weight, [n, e], &device.clone().autodiff());
                vec![Output::floats(scores), Output::floats(logits.grad(&weighted.backward()).unwrap())]
            });
        }
    }
}

fn plain(candidates: usize) -> SelectRule {
    SelectRule { candidates, n_group: 1, topk_group: 1, group_best: 1, mask: 0.0, noise: None }
}

/// With few `steps`, scores and biases have ties.
fn choices_agree(n: usize, e: usize, steps: usize, rule: SelectRule) {
    let mut random = Random((n * e + rule.candidates) as u64);
    let (scores, bias) = (random.floats(n * e, steps), random.floats(e, steps));
    agree(&format!("select n={n} e={e} {rule:?}"), |device| {
        vec![Output::ints(select(f32s(&scores, [n, e], device), f32s(&bias, [e], device), rule))]
    });
}

#[test]
fn choices_agree_with_many_equal_scores() {
    for candidates in 1..=8 {
        choices_agree(33, 8, 2, plain(candidates));
    }
    for n in [0, 1, 70] {
        choices_agree(n, 1, 2, plain(1));
        choices_agree(n, 16, 1, plain(16));
        choices_agree(n, 256, 4, plain(8));
    }
}

#[test]
fn choices_inside_groups_agree() {
    for (group_best, mask) in [(1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY), (2, 0.0), (1, 0.0)] {
        let rule = SelectRule { n_group: 4, topk_group: 2, group_best, mask, ..plain(6) };
        choices_agree(40, 16, 2, rule);
        choices_agree(5, 256, 64, rule);
        // More than the chosen groups have: the rest are masked experts, lowest numbers first.
        choices_agree(21, 8, 2, rule);
        choices_agree(9, 4, 2, SelectRule { candidates: 3, ..rule });
    }
}

#[test]
fn choices_by_noise_agree() {
    let noise = Noise { amplitude: 1.3, key: 0xdead_beef, first_row: u32::MAX - 1, seq_len: 7 };
    for (e, amplitude) in [(256, 1.3), (64, 1e-3), (8, 0.37)] {
        let rule = SelectRule { noise: Some(Noise { amplitude, ..noise }), ..plain(8) };
        choices_agree(35, e, 2, rule);
        choices_agree(
            35,
            e,
            2,
            SelectRule { n_group: 4, topk_group: 2, group_best: 2, mask: f32::NEG_INFINITY, ..rule },
        );
    }
}

#[test]
fn gates_and_their_gradients_agree() {
    let mut random = Random(2);
    for ([k, n, e], holes) in [
        ([1, 1, 1], NO_HOLES),
        ([2, 33, 8], NO_HOLES),
        ([8, 70, 8], 5),
        ([8, 5, 256], 3),
        ([3, 4, 3], 1),
        ([2, 0, 4], NO_HOLES),
    ] {
        let experts = draw_experts(&mut random, k, n, e, holes);
        let scores: Vec<f32> = random.floats(n * e, 64).iter().map(|x| x.abs() + 0.1).collect();
        let weight = random.floats(n * k, 64);
        for normalise in [true, false] {
            agree(&format!("gates k={k} n={n} e={e} normalise={normalise}"), |device| {
                let ad = device.clone().autodiff();
                let scores = f32s(&scores, [n, e], &ad).require_grad();
                let gates = gates(scores.clone(), int(&experts, [k, n], &ad), GateRule { normalise, scale: 2.5 });
                let weighted = gates.clone() * f32s(&weight, [k, n], &ad);
                vec![Output::floats(gates), Output::floats(scores.grad(&weighted.backward()).unwrap())]
            });
        }
    }
}

#[test]
fn counts_agree() {
    let mut random = Random(3);
    for ([k, n, e], groups) in [([1, 1, 1], 1), ([2, 24, 8], 3), ([8, 40, 256], 1), ([3, 70, 7], 70), ([2, 0, 4], 2)] {
        let experts = draw_experts(&mut random, k, n, e, 6);
        agree(&format!("count k={k} n={n} e={e} groups={groups}"), |device| {
            vec![Output::ints(count(int(&experts, [k, n], device), groups, e))]
        });
    }
}

/// The CPU rejects such numbers. A device cannot reject them without reading them back, but it must not write outside
/// of its tables.
#[test]
fn numbers_that_no_expert_has_count_for_nobody() {
    let device = testing::device();
    for &units in testing::units() {
        let _held = set_cpu_units(units);
        let experts = || int(&[1 << 20, 2, -7, 4, 1, 2], [1, 6], &device);
        assert_eq!(ints(count(experts(), 1, 4)), [0, 1, 2, 0]);
        let rule = DispatchRule {
            experts: 4,
            groups: 1,
            capacity: None,
            order: Order::Token,
            layout: RowLayout::Sorted { tile: 1 },
        };
        let Dispatched { row_of_kn, .. } = dispatch(experts(), rule);
        let row_of = ints(row_of_kn);
        assert_eq!([0, 2, 3].map(|token| row_of[token]), [-1; 3]);
        assert_eq!([4, 1, 5].map(|token| row_of[token]), [0, 1, 2], "expert 1, then expert 2 in the order of tokens");
        let candidates = int(&[-1, 1 << 20, 3, 2, 2, 1], [2, 3], &device);
        let rule = RerouteRule { top_k: 1, experts: 4, groups: 1, capacity: 1, order: Order::Token };
        assert_eq!(ints(reroute(candidates, rule)), [2, -1, 3], "the first token's reserve is taken");
    }
}

#[test]
fn rerouting_agrees() {
    let mut random = Random(4);
    for ([top_k, c, n, experts], groups, capacity) in [
        ([1, 1, 1, 1], 1, 1),
        ([1, 3, 12, 3], 1, 4),
        ([2, 6, 24, 8], 3, 2),
        ([2, 2, 24, 8], 2, 1),
        ([8, 16, 40, 256], 2, 1),
        ([4, 8, 30, 8], 1, 11),
        ([2, 4, 10, 8], 1, 0),
        ([2, 4, 10, 8], 1, usize::MAX),
        ([2, 4, 0, 8], 2, 3),
        ([3, 5, 66, 5], 66, 1),
    ] {
        let candidates = draw_experts(&mut random, c, n, experts, NO_HOLES);
        for order in [Order::Choice, Order::Token] {
            let rule = RerouteRule { top_k, experts, groups, capacity, order };
            agree(&format!("reroute n={n} c={c} {rule:?}"), |device| {
                vec![Output::ints(reroute(int(&candidates, [c, n], device), rule))]
            });
        }
    }
}

#[test]
fn rows_agree() {
    let mut random = Random(5);
    for ([k, n, experts], groups, holes) in [
        ([1, 1, 1], 1, NO_HOLES),
        ([1, 0, 1], 1, NO_HOLES),
        ([2, 0, 8], 3, NO_HOLES),
        ([1, 200, 1], 2, NO_HOLES),
        ([2, 3, 3], 1, NO_HOLES),
        ([8, 90, 8], 3, 7),
        ([2, 600, 5], 1, NO_HOLES),
        ([2, 36, 8], 36, 4),
        ([8, 70, 256], 2, NO_HOLES),
        ([2, 1400, 300], 1, 9),
        ([2, 60, 512], 2, NO_HOLES),
        ([6, 36, 2048], 1, 5),
        ([3, 20, 7], 1, 1),
    ] {
        let chosen = draw_experts(&mut random, k, n, experts, holes);
        for order in [Order::Choice, Order::Token] {
            let tokens = n / groups;
            let capacities = [Some(0), Some(1), Some((tokens * k).div_ceil(experts)), Some(tokens * k + 3)];
            for (capacity, layout) in capacities
                .into_iter()
                .flat_map(|capacity| {
                    [RowLayout::Capacity, RowLayout::Sorted { tile: 4 }].map(|layout| (capacity, layout))
                })
                .chain([RowLayout::Sorted { tile: 1 }, RowLayout::Sorted { tile: 128 }].map(|layout| (None, layout)))
            {
                let rule = DispatchRule { experts, groups, capacity, order, layout };
                agree(&format!("dispatch k={k} n={n} {rule:?}"), |device| {
                    let placed = dispatch(int(&chosen, [k, n], device), rule);
                    vec![
                        Output::ints(placed.row_of_kn),
                        Output::ints(placed.assignment_of_r),
                        Output::ints(placed.expert_offsets),
                        Output::ints(placed.kept_e),
                    ]
                });
            }
        }
    }
}

#[test]
fn rows_of_tokens_and_their_gradients_agree() {
    let mut random = Random(6);
    for ([k, n, experts, d], capacity, dtypes) in [
        ([1, 1, 1, 1], None, &[DType::F32][..]),
        ([2, 33, 8, 3], Some(3), &[DType::F32]),
        ([2, 33, 8, 48], Some(9), &[DType::F32, DType::BF16, DType::F16]),
        ([8, 20, 8, 64], None, &[DType::F32, DType::BF16]),
        ([3, 17, 5, 200], None, &[DType::F32, DType::BF16]),
        ([2, 9, 4, 16], Some(0), &[DType::F32]),
        ([2, 0, 4, 16], None, &[DType::F32]),
    ] {
        let chosen = draw_experts(&mut random, k, n, experts, 9);
        let layout = RowLayout::Sorted { tile: 4 };
        let rule = DispatchRule { experts, groups: 1, capacity, order: Order::Choice, layout };
        let r = rule.rows(n, k);
        let (x, y, gates) = (random.floats(n * d, 32), random.floats(r * d, 32), random.floats(k * n, 32));
        let (row_weight, token_weight) = (random.floats(r * d, 32), random.floats(n * d, 32));
        for dtype in dtypes {
            let case = format!("permute k={k} n={n} d={d} r={r} {dtype:?}");
            if !testing::computes_in(*dtype, &case) {
                continue;
            }
            agree(&case, |device| {
                let ad = &device.clone().autodiff();
                let to: Dispatched = dispatch(int(&chosen, [k, n], ad), rule);
                let x = float(&x, [n, d], *dtype, ad).require_grad();
                let rows = permute(x.clone(), &to);
                let d_x = x.grad(&weighted(&row_weight, rows.clone()).backward()).unwrap();

                let y = float(&y, [r, d], *dtype, ad).require_grad();
                let gates = f32s(&gates, [k, n], ad).require_grad();
                let tokens = unpermute(y.clone(), gates.clone(), &to);
                let gradients = weighted(&token_weight, tokens.clone()).backward();
                let (d_y, d_gates) = (y.grad(&gradients).unwrap(), gates.grad(&gradients).unwrap());
                assert_eq!(d_gates.dtype(), DType::F32);
                vec![
                    Output::floats(rows),
                    Output::floats(d_x),
                    Output::floats(tokens),
                    Output::floats(d_y),
                    Output::floats(d_gates),
                ]
            });
        }
    }
}

/// A launch has at most 65,536 cubes, so cubes loop over several rows, groups or tokens.
#[test]
fn more_rows_than_cubes_agree() {
    let mut random = Random(9);
    let n = 70_000;
    let (chosen, x, weight) = (draw_experts(&mut random, 1, n, 2, 9), random.floats(n, 64), random.floats(n, 64));
    let layout = RowLayout::Sorted { tile: 1 };
    let rule = DispatchRule { experts: 2, groups: 1, capacity: None, order: Order::Choice, layout };
    agree("70000 tokens", |device| {
        let ad = &device.clone().autodiff();
        let placed = dispatch(int(&chosen, [1, n], ad), rule);
        let (x, g) = (f32s(&x, [n, 1], ad).require_grad(), f32s(&weight, [1, n], ad).require_grad());
        let y = unpermute(permute(x.clone(), &placed), g.clone(), &placed);
        let gradients = y.clone().backward();
        vec![
            Output::ints(count(int(&chosen, [1, n], device), n, 2)),
            Output::floats(scores(f32s(&weight, [n, 1], device), ScoreFunc::Sigmoid)),
            Output::ints(placed.row_of_kn),
            Output::floats(y),
            Output::floats(x.grad(&gradients).unwrap()),
            Output::floats(g.grad(&gradients).unwrap()),
        ]
    });
}

#[test]
fn inputs_that_are_not_contiguous_agree() {
    let mut random = Random(8);
    let ([k, n, e, d], rule) = ([2, 12, 4, 8], plain(2));
    let (scores, x, chosen) =
        (random.floats(n * e, 64), random.floats(n * d, 64), draw_experts(&mut random, k, n, e, 5));
    let layout = RowLayout::Sorted { tile: 1 };
    let to = DispatchRule { experts: e, groups: 1, capacity: None, order: Order::Token, layout };
    agree("transposed and sliced inputs", |device| {
        let scores_ne = f32s(&scores, [e, n], device).transpose();
        let experts_kn = int(&chosen, [n, k], device).transpose();
        let x_nd = f32s(&x, [d, n], device).transpose();
        let placed = dispatch(experts_kn.clone(), to);
        let half = f32s(&x, [n, d], device).slice([3..7, 0..d]);
        vec![
            Output::ints(select(scores_ne.clone(), Tensor::zeros([e], device), rule)),
            Output::floats(gates(scores_ne, experts_kn, GateRule { normalise: false, scale: 1.0 })),
            Output::floats(permute(x_nd, &placed)),
            Output::floats(silu_mul(half.clone(), half)),
        ]
    });
}
