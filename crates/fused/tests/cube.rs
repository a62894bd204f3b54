//! Compares the kernels with the plain Rust, on CubeCL's CPU runtime with one and two units per cube. Gradients are
//! those of a user's call.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use fused::cube::launch::set_cpu_units;
use fused::cube::testing;
use fused::{
    AdamWState, AdamWStep, ClipRule, DropoutKey, FusedAdamW, LinearCrossEntropyConfig, Losses, RopeTable, adamw,
    add_sum_of_squares, clip_factor, dropout, embedding, flatten, gelu, layer_norm, linear_add_layer_norm,
    linear_add_rms_norm, linear_cross_entropy, linear_cross_entropy_transposed, rms_norm, rope, rope_halves, silu_mul,
    sum_of_squares,
};
use test_kit::Random;
use test_kit::kernels::{self, Output, Scale};
use test_kit::{float, floats};

const ALL: &[DType] = &[DType::F32, DType::BF16, DType::F16];
/// Burn's bf16 products, which the cotangent of a loss needs, do not compile for every CPU.
const NOT_BF16: &[DType] = &[DType::F32, DType::F16];

/// Checks that the outputs on the test device equal those on flex, up to rounding.
#[track_caller]
fn agree(case: &str, run: impl Fn(&Device) -> Vec<Output>) {
    kernels::agree(case, Scale::Output, run);
}

fn random_tokens(random: &mut Random, len: usize, vocab: usize) -> Vec<i64> {
    // Every second token is a frequent one.
    let token = |_| match random.below(2) {
        0 => random.below(vocab.min(2)) as i64,
        _ => random.below(vocab) as i64,
    };
    (0..len).map(token).collect()
}

fn tokens<const D: usize>(values: &[i64], shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), (device, dtype))
}

/// Multiplies `y` by numbers made from `weight`, so that cotangents differ.
fn weighted<const D: usize>(weight: &[f32], y: Tensor<D>) -> Tensor<D> {
    silu_mul(float(weight, y.dims(), y.dtype(), &y.device()), y)
}

/// Checks output and gradients of an operation on tensors of these shapes and dtypes.
fn check<const N: usize, const D: usize>(
    case: &str,
    shapes: [&[usize]; N],
    dtypes: [DType; N],
    op: impl Fn([Tensor<1>; N]) -> Tensor<D>,
) {
    let mut random = Random(3);
    let values = shapes.map(|shape| random.floats(shape.iter().product(), 32));
    let case = format!("{case} {shapes:?} {dtypes:?}");
    if !dtypes.iter().all(|dtype| testing::computes_in(*dtype, &case)) {
        return;
    }
    agree(&case, |device| {
        let ad = &device.clone().autodiff();
        let leaves: [Tensor<1>; N] =
            std::array::from_fn(|i| float(&values[i], [values[i].len()], dtypes[i], ad).require_grad());
        let y = op(leaves.clone());
        let mut random = Random(4);
        let gradients = weighted(&random.floats(y.shape().num_elements(), 32), y.clone()).backward();
        let gradients = leaves.iter().map(|leaf| Output::floats(leaf.grad(&gradients).unwrap()));
        std::iter::once(Output::floats(y)).chain(gradients).collect()
    });
}

#[test]
fn elementwise_operations_agree() {
    for shape in [[1, 1, 1], [3, 1, 5], [7, 2, 48]] {
        for dtype in ALL {
            check("gelu", [&shape], [*dtype], |[x]| gelu(x.reshape(shape)));
            check("silu_mul", [&shape; 2], [*dtype; 2], |[gate, up]| silu_mul(gate.reshape(shape), up.reshape(shape)));
            for p in [0.3, 0.999] {
                let key = DropoutKey::derive(5, u64::MAX, 7, 9).at_row(u64::MAX - 1);
                check("dropout", [&shape], [*dtype], |[x]| dropout(x.reshape(shape), p, key));
            }
        }
    }
}

#[test]
fn rotations_agree() {
    let table = |t: usize, d: usize, x: &Tensor<1>| {
        let angles = (0..t * d / 2).map(|i| i as f64 * 0.37);
        RopeTable::new(angles, 1.25, d / 2, &x.device())
    };
    for [b, heads, t, d] in [[1, 1, 1, 2], [2, 3, 5, 6], [1, 2, 4, 64]] {
        for dtype in ALL {
            let shape = [b, heads, t, d];
            check("rope", [&shape], [*dtype], |[x]| rope(x.clone().reshape(shape), &table(t, d, &x)));
            let shape = [b, t, heads, d];
            check("rope_halves", [&shape], [*dtype], |[x]| rope_halves(x.clone().reshape(shape), &table(t, d, &x)));
        }
    }
}

#[test]
fn norms_agree() {
    for [rows, d] in [[1, 3], [3, 5], [6, 200], [7, 48], [1100, 8]] {
        for dtype in ALL {
            let (shapes, dtypes) = ([&[rows, d][..], &[d], &[d]], [*dtype, DType::F32, DType::F32]);
            check("layer_norm", shapes, dtypes, |[x, gain, bias]| {
                layer_norm(x.reshape([rows, d]), gain, Some(bias), 1e-5)
            });
            let (shapes, dtypes) = ([shapes[0], shapes[1]], [*dtype, DType::F32]);
            check("layer_norm without bias", shapes, dtypes, |[x, gain]| {
                layer_norm(x.reshape([1, rows, d]), gain, None, 1e-5)
            });
            check("rms_norm", shapes, dtypes, |[x, gain]| rms_norm(x.reshape([rows, d]), gain, 1e-5));
        }
    }
}

/// In 16 bits a device rounds the product once more than the CPU, so it is small beside the residual here.
#[test]
fn products_added_and_normed_agree() {
    for [rows, from, to] in [[1, 2, 3], [6, 5, 200], [7, 32, 48]] {
        for dtype in NOT_BF16 {
            let (matrix, sum) = ([from, to], [rows, to]);
            check(
                "linear_add_layer_norm",
                [&[rows, from], &matrix, &[to], &sum, &[to], &[to]],
                [*dtype; 6],
                |[x, weight, bias, residual, gain, norm_bias]| {
                    let (x, weight) = (x.reshape([rows, from]), weight.reshape(matrix) * 0.0078125);
                    let residual = residual.reshape(sum);
                    let bias = (Some(bias), Some(norm_bias));
                    Tensor::cat(linear_add_layer_norm(x, weight, bias.0, residual, gain, bias.1, 1e-5).into(), 0)
                },
            );
            check(
                "linear_add_rms_norm",
                [&[rows, from], &matrix, &sum, &[to]],
                [*dtype; 4],
                |[x, weight, residual, gain]| {
                    let (x, weight) = (x.reshape([rows, from]), weight.reshape(matrix) * 0.0078125);
                    Tensor::cat(linear_add_rms_norm(x, weight, residual.reshape(sum), gain, 1e-5).into(), 0)
                },
            );
        }
    }
}

/// 300 rows make two chunks on the CPU runtime, and a vocabulary of 128 is not padded.
#[test]
fn cross_entropy_agrees() {
    let mut random = Random(11);
    let sum = |of: Losses| of.cross_entropy + of.z_loss * 10.0;
    for [n, d, vocab] in [[1, 1, 1], [5, 3, 7], [300, 16, 48], [4, 3, 128], [4, 3, 130]] {
        let targets = random_tokens(&mut random, n, vocab);
        for (i, dtype) in NOT_BF16.iter().enumerate() {
            let int = [DType::I32, DType::I64][i];
            check("cross entropy", [&[n, d], &[d, vocab]], [*dtype; 2], |[x, head]| {
                let targets = tokens(&targets, [n], int, &x.device());
                sum(linear_cross_entropy(x.reshape([n, d]), head.reshape([d, vocab]), targets, 0.1))
            });
            check("cross entropy, transposed", [&[n, d], &[vocab, d]], [*dtype; 2], |[x, head]| {
                let targets = tokens(&targets, [n], int, &x.device());
                sum(linear_cross_entropy_transposed(x.reshape([n, d]), head.reshape([vocab, d]), targets, 0.1))
            });
        }
    }
}

#[test]
fn cross_entropy_with_ignored_targets_agrees() {
    let mut random = Random(13);
    for ([n, d, vocab], pads) in [([1, 1, 1], vec![0]), ([5, 3, 7], vec![0]), ([300, 16, 48], vec![0, 5])] {
        let targets = random_tokens(&mut random, n, vocab);
        let loss = LinearCrossEntropyConfig::new().with_pad_tokens(Some(pads)).init();
        for (i, dtype) in NOT_BF16.iter().enumerate() {
            let int = [DType::I32, DType::I64][i];
            check("cross entropy, pads", [&[n, d], &[d, vocab]], [*dtype; 2], |[x, head]| {
                let targets = tokens(&targets, [n], int, &x.device());
                loss.forward(x.reshape([n, d]), head.reshape([d, vocab]), targets)
            });
            check("cross entropy, pads, transposed", [&[n, d], &[vocab, d]], [*dtype; 2], |[x, head]| {
                let targets = tokens(&targets, [n], int, &x.device());
                loss.forward_transposed(x.reshape([n, d]), head.reshape([vocab, d]), targets)
            });
        }
    }
}

/// A device cannot panic as the CPU does.
#[test]
fn a_target_beyond_the_vocabulary_makes_the_loss_no_number() {
    let device = &testing::device();
    let [x, head] = [[2, 3], [3, 4]].map(|shape| Tensor::<2>::ones(shape, (device, DType::F32)));
    for target in [4, -1] {
        let loss = linear_cross_entropy(x.clone(), head.clone(), tokens(&[1, target], [2], DType::I32, device), 0.0);
        assert!(loss.cross_entropy.into_scalar::<f32>().is_nan());
        let rows = embedding(head.clone(), tokens(&[1, target], [1, 2], DType::I32, device));
        let rows = floats(rows);
        assert!(rows[..4].iter().all(|x| *x == 1.0) && rows[4..].iter().all(|x| x.is_nan()), "{rows:?}");
    }
}

/// 1,300 tokens make several chunks of the sort.
#[test]
fn embeddings_agree() {
    let mut random = Random(12);
    for ([b, t], vocab, d) in [([1, 1], 1, 1), ([2, 7], 5, 3), ([2, 650], 600, 24), ([1, 40], 9, 64)] {
        let of = random_tokens(&mut random, b * t, vocab);
        for (i, dtype) in ALL.iter().enumerate() {
            let int = [DType::I32, DType::I64, DType::I32][i];
            check("embedding", [&[vocab, d]], [*dtype], |[weight]| {
                let device = weight.device();
                embedding(weight.reshape([vocab, d]), tokens(&of, [b, t], int, &device))
            });
        }
    }
}

/// Bit for bit: parts of 64 places in order, then the remaining places.
#[test]
fn a_row_of_an_embedding_adds_up_its_places_in_one_order() {
    const PART: usize = 64;
    let mut random = Random(14);
    let (n, vocab, d) = (1500, 40, 8);
    let of = random_tokens(&mut random, n, vocab);
    let cotangent: Vec<f32> = (0..n * d).map(|_| (random.below(1 << 20) as f32 + 0.1).recip()).collect();
    let mut expected = vec![];
    for row in 0..vocab as i64 {
        let places: Vec<usize> = (0..n).filter(|place| of[*place] == row).collect();
        for column in 0..d {
            let add = |sum: f32, place: &usize| sum + cotangent[place * d + column];
            let (parts, rest) = places.as_chunks::<PART>();
            let parts = parts.iter().map(|part| part.iter().fold(0.0, add)).fold(0.0, |sum, part| sum + part);
            expected.push(rest.iter().fold(parts, add));
        }
    }
    for &units in testing::units() {
        let _held = set_cpu_units(units);
        let device = &testing::device().autodiff();
        let weight = Tensor::<2>::zeros([vocab, d], (device, DType::F32)).require_grad();
        let y = embedding(weight.clone(), tokens(&of, [1, n], DType::I32, device));
        let gradients = (y * float(&cotangent, [1, n, d], DType::F32, device)).sum().backward();
        let found = floats(weight.grad(&gradients).expect("a gradient of the table"));
        assert_eq!(found, expected, "{units} units");
    }
}

#[test]
fn steps_of_adamw_agree() {
    let mut random = Random(13);
    for len in [1, 7, 4096] {
        let (parameter, gradient) = (random.floats(len, 32), random.floats(len, 32));
        let fp16 = testing::computes_in(DType::F16, "adamw along a gradient in f16");
        agree(&format!("adamw of {len}"), |device| {
            let tensor = |values: &[f32]| float(values, [len], DType::F32, device);
            let mut parameter = tensor(&parameter);
            let (held, mut state, mut copy) = (parameter.clone(), AdamWState::new(&parameter), None);
            // The last factor skips the step.
            for (step, factor) in [None, Some(0.25), Some(2.0), Some(-1.0)].into_iter().enumerate() {
                let gradient = tensor(&gradient) * (1 + step) as f32;
                let gradient = if fp16 && step == 1 { gradient.cast(DType::F16) } else { gradient };
                let factor = factor.map(|factor| Tensor::from_floats([factor], device));
                let of_step =
                    AdamWStep { lr: 0.01, decayed: len / 2, gradient_scale: 0.5, factor, copy: Some(DType::F16) };
                let stepped = adamw(&FusedAdamW::default(), &of_step, parameter, gradient, &mut state);
                (parameter, copy) = (stepped.0, stepped.1);
            }
            [parameter, copy.expect("a copy"), held, state.mean, state.square].map(Output::floats).into()
        });
    }
}

#[test]
fn flattened_parts_agree() {
    let mut random = Random(17);
    // Whole vectors back to back; then odd lengths with gaps, two dtypes, and more parts than one launch takes.
    for lens in [&[256, 512, 64][..], &[1, 7, 300, 8, 64, 5, 12, 40, 3, 9, 100]] {
        let values: Vec<Vec<f32>> = lens.iter().map(|len| random.floats(*len, 32)).collect();
        for (case, gap, other) in [("together", 0, DType::F32), ("apart", 3, DType::F16)] {
            if !testing::computes_in(other, case) {
                continue;
            }
            agree(&format!("{lens:?} {case}"), |device| {
                let mut end = 0;
                let parts = values.iter().enumerate().map(|(i, values)| {
                    let start = end;
                    end += values.len() + gap;
                    (start, float(values, [values.len()], if i % 2 == 0 { DType::F32 } else { other }, device))
                });
                let parts: Vec<_> = parts.collect();
                [DType::F32, other].map(|dtype| Output::floats(flatten(parts.clone(), end, dtype, device))).into()
            });
        }
    }
}

#[test]
fn factors_of_clipping_agree() {
    for totals in [[1.0, 2.0, 16.0, 9.0], [f32::NAN, 2.0, 16.0, 9.0], [1.0, f32::INFINITY, 16.0, 9.0]] {
        for limit in [None, Some(1.25), Some(10.0)] {
            agree(&format!("{totals:?} clipped to {limit:?}"), |device| {
                vec![Output::floats(clip_factor(Tensor::from_floats(totals, device), ClipRule { count: 2.0, limit }))]
            });
        }
    }
}

#[test]
fn sums_of_squares_agree() {
    for len in [0, 1, 65_535, 65_537, 200_008] {
        let values: Vec<f32> = (0..len).map(|i| 0.5 + (i % 7) as f32 * 0.01).collect();
        for dtype in ALL {
            let case = format!("sum of squares of {len} {dtype:?}");
            if !testing::computes_in(*dtype, &case) {
                continue;
            }
            agree(&case, |device| {
                let x = || float(&values, [len], *dtype, device);
                let mean = sum_of_squares(x()) / len.max(1) as f64;
                let sum = (0..3).fold(Tensor::zeros([2], device), |sum, _| add_sum_of_squares(sum, x(), 0.25));
                let parts = floats(sum);
                let of_three = (f64::from(parts[0]) + f64::from(parts[1])) / len.max(1) as f64;
                vec![Output::Floats(vec![mean as f32, of_three as f32], DType::F32)]
            });
        }
    }
}
