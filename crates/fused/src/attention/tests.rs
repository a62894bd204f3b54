use super::*;
use burn::tensor::{Device, Distribution};
use proptest::prelude::*;

fn random(shape: [usize; 4]) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn floats(tensor: Tensor<4>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Output, and gradients of the inputs for a cotangent.
fn run(attention: impl Fn([Tensor<4>; 3]) -> Tensor<4>, inputs: &[Tensor<4>; 3], dy: &Tensor<4>) -> [Vec<f32>; 4] {
    let inputs = inputs.each_ref().map(|input| input.clone().autodiff().require_grad());
    let y = attention(inputs.clone());
    let gradients = (y.clone() * dy.clone().autodiff()).sum().backward();
    let [q, k, v] = inputs.map(|input| floats(input.grad(&gradients).unwrap()));
    [floats(y.inner()), q, k, v]
}

/// In f64, one number after another: output, and the gradients by their formulas.
fn naive([b, h, t, d, dv]: [usize; 5], inputs: &[Tensor<4>; 3], dy: &Tensor<4>, scale: f64) -> [Vec<f64>; 4] {
    let wide = |tensor: &Tensor<4>| tensor.clone().into_data().iter::<f32>().map(f64::from).collect::<Vec<f64>>();
    let [q, k, v] = inputs.each_ref().map(wide);
    let dy = wide(dy);
    let mut y = vec![0.0; b * t * h * dv];
    let [mut dq, mut dk, mut d_v] = [vec![0.0; b * h * t * d], vec![0.0; b * h * t * d], vec![0.0; b * h * t * dv]];
    for head in 0..b * h {
        let out = |i: usize| ((head / h * t + i) * h + head % h) * dv;
        let at = |i: usize, width: usize| (head * t + i) * width;
        for i in 0..t {
            let s: Vec<f64> =
                (0..=i).map(|j| scale * (0..d).map(|c| q[at(i, d) + c] * k[at(j, d) + c]).sum::<f64>()).collect();
            let most = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = s.iter().map(|s| (s - most).exp()).sum();
            let p: Vec<f64> = s.iter().map(|s| (s - most).exp() / total).collect();
            let dp: Vec<f64> = (0..=i).map(|j| (0..dv).map(|c| dy[out(i) + c] * v[at(j, dv) + c]).sum()).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for j in 0..=i {
                let ds = scale * p[j] * (dp[j] - mean);
                for c in 0..dv {
                    y[out(i) + c] += p[j] * v[at(j, dv) + c];
                    d_v[at(j, dv) + c] += p[j] * dy[out(i) + c];
                }
                for c in 0..d {
                    dq[at(i, d) + c] += ds * k[at(j, d) + c];
                    dk[at(j, d) + c] += ds * q[at(i, d) + c];
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
        h in 1usize..4,
        t in prop_oneof![1usize..10, 60usize..70, 125usize..132, 250usize..300],
        d in prop_oneof![Just(1usize), Just(8), Just(24), 1usize..40],
        dv in prop_oneof![Just(8usize), 1usize..40],
        lies_by_position in any::<bool>(),
    ) {
        // As they come of a projection, heads side by side, or each head by itself.
        let input = |width| match lies_by_position {
            true => random([b, t, h, width]).swap_dims(1, 2),
            false => random([b, h, t, width]),
        };
        let (inputs, dy, scale) = ([input(d), input(d), input(dv)], random([b, t, h, dv]), 0.7);
        let found = run(|[q, k, v]| causal_attention(q, k, v, scale), &inputs, &dy);
        let expected = naive([b, h, t, d, dv], &inputs, &dy, scale);
        for (what, (found, expected)) in ["y", "dq", "dk", "dv"].iter().zip(found.iter().zip(&expected)) {
            prop_assert_eq!(found.len(), expected.len());
            let most = expected.iter().fold(1.0f64, |most, value| most.max(value.abs()));
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                prop_assert!((f64::from(*found) - expected).abs() < 2e-5 * most, "{}[{}]: {}, not {}", what, i, found, expected);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_and_before_any_end() {
    let [q, k, v] = [0; 3].map(|_| random([3, 2, 200, 16]));
    let all = causal_attention(q.clone(), k.clone(), v.clone(), 0.25);
    for (row, end) in [(1, 200), (2, 130), (0, 70), (1, 1)] {
        let part = |x: &Tensor<4>| x.clone().slice([row..row + 1, 0..2, 0..end, 0..16]);
        let alone = causal_attention(part(&q), part(&k), part(&v), 0.25);
        assert_eq!(
            floats(alone),
            floats(all.clone().slice([row..row + 1, 0..end, 0..2, 0..16])),
            "sequence {row} up to {end}"
        );
    }
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let inputs = [random([1, 1, 70, 8]) * 1e3, random([1, 1, 70, 8]) * 10.0, random([1, 1, 70, 8])];
    let found = run(|[q, k, v]| causal_attention(q, k, v, 1.0), &inputs, &random([1, 70, 1, 8]));
    assert!(found.iter().flatten().all(|value| value.is_finite()));
}

#[test]
fn without_sequences_there_is_nothing() {
    let none = || Tensor::<4>::zeros([0, 2, 5, 4], &Device::flex());
    assert_eq!(causal_attention(none(), none(), none(), 1.0).dims(), [0, 5, 2, 4]);
}

/// One product of all three, against three.
#[test]
fn attention_of_one_product_is_that_of_its_three_parts() {
    let ([b, t, heads, d], device) = ([3, 70, 4, 8], Device::flex());
    let random = |shape: [usize; 3]| Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let (x, dy) = (random([b, t, 16]), random([b, t, heads * d]));
    let (weight, bias) = (random([1, 16, 3 * heads * d]).squeeze::<2>(), random([1, 1, 3 * heads * d]).flatten(0, 2));
    let run = |together: bool| {
        let leaves = (x.clone().autodiff().require_grad(), weight.clone().autodiff().require_grad());
        let (x, weight) = leaves.clone();
        let bias: Tensor<1> = bias.clone().autodiff().require_grad();
        let y = if together {
            causal_self_attention(x, weight, Some(bias.clone()), heads, 0.3)
        } else {
            let qkv = linear(x, weight, Some(bias.clone())).reshape([b, t, 3 * heads, d]).swap_dims(1, 2);
            let [q, k, v] = [0, 1, 2].map(|i| qkv.clone().slice([0..b, i * heads..(i + 1) * heads]));
            causal_attention(q, k, v, 0.3).reshape([b, t, heads * d])
        };
        let gradients = (y.clone() * dy.clone().autodiff()).sum().backward();
        let flat = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<f32>>();
        [
            flat(y.inner().flatten(0, 2)),
            flat(leaves.0.grad(&gradients).unwrap().flatten(0, 2)),
            flat(leaves.1.grad(&gradients).unwrap().flatten(0, 1)),
            flat(bias.grad(&gradients).unwrap()),
        ]
    };
    assert_eq!(run(true), run(false), "the same numbers, added up in the same order");
}
