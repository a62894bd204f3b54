//! Compares every operation with a naive reference in f64, and every gradient with that reference's central
//! differences.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use proptest::prelude::*;
use test_kit::{Random, assert_close, largest};

/// The naive form of an operation: from flat inputs to the flat output.
type Naive<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>;

/// Compares output and gradients of `op` with `naive`, for inputs of these `shapes`. It does so for f32, and for bf16
/// and f16, whose results may be off by one rounding. All numbers are representable in bf16.
fn check(shapes: &[Vec<usize>], seed: u64, naive: Naive, op: &dyn Fn(&[Tensor<1>]) -> Tensor<1>) {
    let tolerances = [(DType::F32, 3e-5), (DType::BF16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-10))];
    check_for(&tolerances, shapes, seed, naive, op);
}

/// The same for these dtypes, each with its tolerance.
fn check_for(
    tolerances: &[(DType, f64)],
    shapes: &[Vec<usize>],
    seed: u64,
    naive: Naive,
    op: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
) {
    let mut random = Random(seed);
    let inputs: Vec<Vec<f64>> =
        shapes.iter().map(|shape| (0..shape.iter().product()).map(|_| draw(&mut random)).collect()).collect();
    let expected = naive(&inputs);
    let cotangent: Vec<f64> = expected.iter().map(|_| draw(&mut random)).collect();
    let objective = |inputs: &[Vec<f64>]| naive(inputs).iter().zip(&cotangent).map(|(y, c)| y * c).sum::<f64>();

    for &(dtype, tolerance) in tolerances {
        let tensor = |values: &[f64]| {
            Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), (&Device::flex(), DType::F64))
                .cast(dtype)
        };
        let leaves: Vec<Tensor<1>> = inputs.iter().map(|values| tensor(values).autodiff().require_grad()).collect();
        let output = op(&leaves);
        let gradients = (output.clone() * tensor(&cotangent).cast(output.dtype()).autodiff()).sum().backward();
        assert_near("output", &values(output), &expected, tolerance);
        for (i, leaf) in leaves.iter().enumerate() {
            let differences: Vec<f64> = (0..inputs[i].len())
                .map(|j| {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[i][j] += by;
                        objective(&inputs)
                    };
                    (moved(1e-5) - moved(-1e-5)) / 2e-5
                })
                .collect();
            let gradient = values(leaf.grad(&gradients).unwrap());
            assert_near(&format!("gradient of input {i}"), &gradient, &differences, tolerance);
        }
    }
}

fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_close(what, found, expected, tolerance * largest(expected, 1.0));
}

fn values(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Numbers in -2..2, truncated to what bf16 represents.
fn draw(random: &mut Random) -> f64 {
    let uniform = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0;
    f64::from(f32::from_bits((uniform as f32).to_bits() & 0xffff_0000))
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let len = tensor.shape().num_elements();
    tensor.reshape([len])
}

/// Large enough that a row of nearly equal values is not an exception: `1 / sqrt(var + EPSILON)`, by which rounding
/// errors grow, is at most 3.2.
const EPSILON: f64 = 0.1;

fn norm(x: &[f64], gain: &[f64], bias: Option<&Vec<f64>>, centred: bool) -> Vec<f64> {
    let width = gain.len();
    let row = |row: &[f64]| {
        let mean = if centred { row.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        let y = |(i, x): (usize, &f64)| {
            (x - mean) / (variance + EPSILON).sqrt() * gain[i] + bias.map_or(0.0, |bias| bias[i])
        };
        row.iter().enumerate().map(y).collect::<Vec<_>>()
    };
    x.chunks(width).flat_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gelu(n in 1usize..70, seed: u64) {
        let tanh_form = |x: &f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
        check(&[vec![n]], seed, &|x| x[0].iter().map(tanh_form).collect(), &|x| fused::gelu(x[0].clone()));
    }

    #[test]
    fn silu_mul(n in 1usize..70, seed: u64) {
        let naive = |x: &[Vec<f64>]| x[0].iter().zip(&x[1]).map(|(g, up)| g / (1.0 + (-g).exp()) * up).collect();
        check(&[vec![n], vec![n]], seed, &naive, &|x| fused::silu_mul(x[0].clone(), x[1].clone()));
    }

    /// Intermediate results are rounded to the inputs' dtype, so only f32 is as exact as the other operations; see
    /// `crates/model/tests/low_precision.rs` for the other dtypes.
    #[test]
    fn linear_cross_entropy(n in prop_oneof![1usize..5, 255usize..259], d in 1usize..5, vocab in 1usize..9, transposed: bool, z in prop_oneof![Just(0.0), Just(0.1)], seed: u64) {
        let targets: Vec<usize> = (0..n).map(|i| (seed as usize).wrapping_add(i * 7) % vocab).collect();
        let naive = |x: &[Vec<f64>]| {
            let weight = |j: usize, v: usize| x[1][if transposed { v * d + j } else { j * vocab + v }];
            let loss = |(row, target): (&[f64], &usize)| {
                let logit = |v: usize| row.iter().enumerate().map(|(j, x)| x * weight(j, v)).sum::<f64>();
                let log_sum_exp = (0..vocab).map(|v| logit(v).exp()).sum::<f64>().ln();
                log_sum_exp - logit(*target) + z * log_sum_exp.powi(2)
            };
            vec![x[0].chunks(d).zip(&targets).map(loss).sum::<f64>() / n as f64]
        };
        let ids: Vec<i64> = targets.iter().map(|target| *target as i64).collect();
        let fused = |x: &[Tensor<1>]| {
            let targets = Tensor::<1, Int>::from_data(TensorData::new(ids.clone(), [n]), &Device::flex());
            let rows = x[0].clone().reshape([n, d]);
            let losses = match transposed {
                true => fused::linear_cross_entropy_transposed(rows, x[1].clone().reshape([vocab, d]), targets, z),
                false => fused::linear_cross_entropy(rows, x[1].clone().reshape([d, vocab]), targets, z),
            };
            losses.cross_entropy + losses.z_loss
        };
        check_for(&[(DType::F32, 3e-5)], &[vec![n, d], vec![d, vocab]], seed, &naive, &fused);
    }

    #[test]
    fn embedding(vocab in 1usize..6, n in 1usize..40, d in 1usize..5, seed: u64) {
        let tokens: Vec<usize> = (0..n).map(|i| (seed as usize).wrapping_add(i * i * 7) % vocab).collect();
        let naive = |x: &[Vec<f64>]| tokens.iter().flat_map(|token| x[0][token * d..(token + 1) * d].to_vec()).collect();
        let ids: Vec<i64> = tokens.iter().map(|token| *token as i64).collect();
        let fused = |x: &[Tensor<1>]| {
            let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids.clone(), [1, n]), &Device::flex());
            flat(fused::embedding(x[0].clone().reshape([vocab, d]), tokens))
        };
        check(&[vec![vocab, d]], seed, &naive, &fused);
    }

    #[test]
    fn linear(n in 1usize..5, from in 1usize..6, to in 1usize..6, transposed: bool, seed: u64) {
        let naive = |x: &[Vec<f64>]| {
            let weight = |i: usize, j: usize| x[1][if transposed { j * from + i } else { i * to + j }];
            let y = |row: &[f64], j: usize| {
                (0..from).map(|i| row[i] * weight(i, j)).sum::<f64>() + if transposed { 0.0 } else { x[2][j] }
            };
            x[0].chunks(from).flat_map(|row| (0..to).map(move |j| y(row, j)).collect::<Vec<_>>()).collect()
        };
        let fused = |x: &[Tensor<1>]| {
            let rows = x[0].clone().reshape([n, from]);
            flat(match transposed {
                true => fused::linear_transposed(rows, x[1].clone().reshape([to, from])),
                false => fused::linear(rows, x[1].clone().reshape([from, to]), Some(x[2].clone())),
            })
        };
        let shapes = [vec![n, from], vec![from, to], vec![to]];
        check(if transposed { &shapes[..2] } else { &shapes }, seed, &naive, &fused);
    }

    #[test]
    fn rope(b in 1usize..3, heads in 1usize..3, t in 1usize..5, pairs in 1usize..20, halves: bool, seed: u64) {
        let angle = |position: usize, pair: usize| (position as f64 + 0.5) * (pair as f64 * -0.3).exp();
        // Pairs that are interleaved, in rows by head; pairs of halves, in rows by position.
        let shape = if halves { [b, t, heads, 2 * pairs] } else { [b, heads, t, 2 * pairs] };
        let naive = |x: &[Vec<f64>]| {
            let row = |(i, row): (usize, &[f64])| {
                let position = if halves { i / heads % t } else { i % t };
                let turn = |pair: usize| {
                    let (sin, cos) = angle(position, pair).sin_cos();
                    let (sin, cos) = (f64::from(sin as f32), f64::from(cos as f32));
                    let (first, second) = if halves { (pair, pair + pairs) } else { (2 * pair, 2 * pair + 1) };
                    (row[first] * cos - row[second] * sin, row[second] * cos + row[first] * sin)
                };
                (0..pairs).map(|pair| turn(pair).0).chain((0..pairs).map(|pair| turn(pair).1)).collect::<Vec<_>>()
            };
            x[0].chunks(2 * pairs).enumerate().flat_map(row).collect()
        };
        // As rows of a longer table.
        let angles = (0..(t + 3) * pairs).map(|i| angle(i / pairs, i % pairs));
        let table = fused::RopeTable::new(angles, 1.0, pairs, &Device::flex());
        for table in [table.first(t), table.at(&(0..t).collect::<Vec<_>>())] {
            let fused = |x: &[Tensor<1>]| {
                let x = x[0].clone().reshape(shape);
                flat(if halves { fused::rope_halves(x, &table) } else { fused::rope(x, &table) })
            };
            check(&[shape.to_vec()], seed, &naive, &fused);
        }
    }

    #[test]
    fn rms_norm(n in 1usize..4, d in 1usize..40, seed: u64) {
        let fused = |x: &[Tensor<1>]| flat(fused::rms_norm(x[0].clone().reshape([n, d]), x[1].clone(), EPSILON));
        check(&[vec![n, d], vec![d]], seed, &|x| norm(&x[0], &x[1], None, false), &fused);
    }

    #[test]
    fn layer_norm(n in 1usize..4, d in 2usize..40, seed: u64) {
        let fused = |x: &[Tensor<1>]| flat(fused::layer_norm(x[0].clone().reshape([n, d]), x[1].clone(), Some(x[2].clone()), EPSILON));
        check(&[vec![n, d], vec![d], vec![d]], seed, &|x| norm(&x[0], &x[1], Some(&x[2]), true), &fused);
        let fused = |x: &[Tensor<1>]| flat(fused::layer_norm(x[0].clone().reshape([n, d]), x[1].clone(), None, EPSILON));
        check(&[vec![n, d], vec![d]], seed, &|x| norm(&x[0], &x[1], None, true), &fused);
    }

    /// The sum is rounded to the inputs' dtype before its norm is taken, so only f32 is as exact as the other
    /// operations.
    #[test]
    fn linear_add_norms(n in 1usize..5, from in 1usize..6, to in 2usize..40, centred: bool, biased: bool, seed: u64) {
        let biases = usize::from(biased && centred);
        let naive = |x: &[Vec<f64>]| {
            let bias = |j: usize| if biases > 0 { x[4][j] } else { 0.0 };
            let h = |i: usize, j: usize| (0..from).map(|k| x[0][i * from + k] * x[1][k * to + j]).sum::<f64>() + bias(j);
            let h: Vec<f64> = (0..n * to).map(|at| x[2][at] + h(at / to, at % to)).collect();
            let y = norm(&h, &x[3], (biases > 0).then(|| &x[5]), centred);
            [h, y].concat()
        };
        let fused = |x: &[Tensor<1>]| {
            let (rows, matrix) = (x[0].clone().reshape([1, n, from]), x[1].clone().reshape([from, to]));
            let (residual, gain) = (x[2].clone().reshape([1, n, to]), x[3].clone());
            flat(Tensor::cat(match centred {
                true => fused::linear_add_layer_norm(rows, matrix, x.get(4).cloned(), residual, gain, x.get(5).cloned(), EPSILON),
                false => fused::linear_add_rms_norm(rows, matrix, residual, gain, EPSILON),
            }.into(), 0))
        };
        let shapes = [vec![n, from], vec![from, to], vec![n, to], vec![to], vec![to], vec![to]];
        check_for(&[(DType::F32, 3e-5)], &shapes[..4 + 2 * biases], seed, &naive, &fused);
    }

    #[test]
    fn adamw(n in prop_oneof![1usize..40, Just(40_000usize)], steps in 1usize..6, decayed in 0usize..50_000, seed: u64) {
        let decayed = decayed % (n + 1);
        let config = fused::FusedAdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
        let mut random = Random(seed);
        let mut p: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
        let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
        let tensor = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::<1>::from_data(TensorData::new(values, [n]), &Device::flex())
        };
        let mut fused_p = tensor(&p);
        let mut state = fused::AdamWState::new(&fused_p);
        for step in 1..=steps as i32 {
            let g: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
            let of_step = fused::AdamWStep { lr: 0.01, decayed, gradient_scale: 0.5, factor: None, copy: Some(DType::BF16) };
            let (stepped, copy) = fused::adamw(&config, &of_step, fused_p, tensor(&g), &mut state);
            prop_assert_eq!(copy.unwrap().into_data(), stepped.clone().cast(DType::BF16).into_data());
            fused_p = stepped;
            for i in 0..n {
                let g = 0.5 * g[i];
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                let (m_hat, v_hat) = (m[i] / (1.0 - 0.9f64.powi(step)), v[i] / (1.0 - 0.95f64.powi(step)));
                let decay = if i < decayed { 0.1 } else { 0.0 };
                p[i] -= 0.01 * decay * p[i] + 0.01 * m_hat / (v_hat.sqrt() + 1e-8);
            }
        }
        assert_near("parameter", &values(fused_p), &p, 2e-6);
    }
}

#[test]
fn rows_over_many_tasks_are_like_rows_alone() {
    // More elements than one task of any operation, and not a multiple of a task.
    let (rows, d) = (129, 201);
    let mut random = Random(1);
    let x: Vec<f32> = (0..rows * d).map(|_| draw(&mut random) as f32).collect();
    let gain = Tensor::<1>::ones([d], &Device::flex());
    let norm = |values: &[f32]| {
        let x = Tensor::<2>::from_data(TensorData::new(values.to_vec(), [values.len() / d, d]), &Device::flex());
        values_of(fused::rms_norm(fused::gelu(x), gain.clone(), EPSILON))
    };
    let alone: Vec<f64> = x.chunks(d).flat_map(norm).collect();
    assert_eq!(norm(&x), alone);
}

fn values_of(tensor: Tensor<2>) -> Vec<f64> {
    values(flat(tensor))
}

/// With many rows, a probability divided by their number underflows f16, and a loss scale overflows it.
#[test]
fn a_scaled_loss_of_many_rows_has_its_gradients_in_f16() {
    let (n, vocab) = (4096, 512);
    let tensor = |dtype, shape: [usize; 2], step: f32| {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i * 7 % 13) as f32 - 6.0) * step).collect();
        Tensor::<2>::from_data(TensorData::new(values, shape), (&Device::flex(), DType::F32)).cast(dtype)
    };
    let targets: Vec<i64> = (0..n).map(|i| i as i64 % 5).collect();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [n]), &Device::flex());
    let run = |dtype| {
        let leaves =
            [tensor(dtype, [n, 4], 0.25), tensor(dtype, [4, vocab], 0.125)].map(|leaf| leaf.autodiff().require_grad());
        let [x, head] = leaves.clone();
        let gradients =
            (fused::linear_cross_entropy(x, head, targets.clone(), 0.0).cross_entropy * 65_536.0).backward();
        leaves.map(|leaf| values(flat(leaf.grad(&gradients).unwrap())))
    };
    for (found, expected) in run(DType::F16).iter().zip(&run(DType::F32)) {
        assert_near("a gradient", found, expected, 2e-2); // logits are rounded to f16
        let kept = found.iter().zip(expected).filter(|(found, expected)| (**found == 0.0) != (**expected == 0.0));
        assert!(kept.count() < expected.len() / 100, "gradients that are not 0 have become 0");
    }
}
