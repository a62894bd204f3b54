//! Deferred weight gradients: together with the gradients of inputs they equal those of a whole backward, on the CPU
//! and in kernels.

use burn::tensor::{DType, Device, Gradients, Tensor};
#[cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]
use fused::cube::testing;
use fused::deferred::backward_of_inputs;
use fused::{Rows, linear, linear_add, linear_add_layer_norm, linear_add_rms_norm, linear_gelu, linear_transposed};
use moe::kernels::grouped_gemm::grouped_gemm;
#[cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]
use test_kit::{assert_close, largest};
use test_kit::{floats, int, leaf};

const D: usize = 8;
const ROWS: usize = 6;

/// Leaves, and a loss that uses every product with a weight.
struct Graph {
    weights: Vec<Tensor<2>>,
    experts: Tensor<3>,
    /// Leaves whose gradients are never deferred.
    others: Vec<Tensor<1>>,
    x: Tensor<2>,
    loss: Tensor<1>,
}

fn graph(dtype: DType, device: &Device) -> Graph {
    let weights: Vec<Tensor<2>> = (0..7).map(|i| leaf(i, [D, D], dtype, device)).collect();
    let others: Vec<Tensor<1>> = (0..3).map(|i| leaf(20 + i, [D], dtype, device)).collect();
    let (x, experts) = (leaf(40, [ROWS, D], dtype, device), leaf(41, [2, D, D], dtype, device));
    let expert_offsets = int(&[0, 2, ROWS as i32], [3], device).autodiff();

    // The first weight is used twice; the rows of the second product are not kept.
    let y = linear(linear(x.clone(), weights[0].clone(), Some(others[0].clone())), weights[0].clone(), None);
    let again = y.clone().inner();
    let y = linear(Rows::not_kept(y, move || again.clone()), weights[1].clone(), None);
    let y = linear_add(linear_gelu(y.clone(), weights[2].clone(), None), weights[3].clone(), None, y);
    let y = linear_transposed(y, weights[4].clone());
    let [h, y] = linear_add_rms_norm(y, weights[5].clone(), x.clone(), others[1].clone(), 1e-3);
    let [h, y] = linear_add_layer_norm(y, weights[6].clone(), None, h, others[2].clone(), None, 1e-3);
    let y = grouped_gemm(y, experts.clone(), &expert_offsets) + h;
    let loss = y.cast(DType::F32).powi_scalar(2).mean();
    Graph { weights, experts, others, x, loss }
}

impl Graph {
    /// Collects the gradients of weights from `later`, and of the others from `now`.
    fn gradients(&self, now: &Gradients, later: &Gradients) -> Vec<Vec<f32>> {
        let weights = self.weights.iter().map(|weight| floats(weight.grad(later).expect("a weight's gradient")));
        let experts = std::iter::once_with(|| floats(self.experts.grad(later).expect("the experts' gradient")));
        let others = self.others.iter().map(|other| floats(other.grad(now).expect("a bias's or gain's gradient")));
        let x = std::iter::once_with(|| floats(self.x.grad(now).expect("the input's gradient")));
        weights.chain(experts).chain(others).chain(x).collect()
    }
}

fn whole(dtype: DType, device: &Device) -> Vec<Vec<f32>> {
    let graph = graph(dtype, device);
    let gradients = graph.loss.backward();
    graph.gradients(&gradients, &gradients)
}

fn in_parts(dtype: DType, device: &Device) -> Vec<Vec<f32>> {
    let graph = graph(dtype, device);
    let (now, deferred) = backward_of_inputs(&graph.loss);
    assert!(!deferred.is_empty());
    assert!(graph.weights.iter().all(|weight| weight.grad(&now).is_none()) && graph.experts.grad(&now).is_none());
    let later = deferred.backward();
    assert!(graph.x.grad(&later).is_none());
    graph.gradients(&now, &later)
}

#[test]
fn both_parts_together_are_the_whole_backward_on_flex() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        assert_eq!(in_parts(dtype, &Device::flex()), whole(dtype, &Device::flex()), "{dtype:?}");
    }
}

/// Burn chooses kernels for its products by trying them, so two runs need not have the same bits.
#[cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]
#[test]
fn both_parts_together_are_the_whole_backward_on_the_cpu_runtime() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3)] {
        let found = in_parts(dtype, &testing::device());
        for (other, expected) in [("whole", whole(dtype, &testing::device())), ("flex", whole(dtype, &Device::flex()))]
        {
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{dtype:?}, gradient {i}, against {other}");
                assert_close(&what, found, expected, tolerance * largest(expected, 1e-3));
            }
        }
    }
}
