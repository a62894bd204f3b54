//! Gradients of weights that products write straight into a flat buffer, on a device.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device, Gradients, Tensor};
use fused::cube::{launches, testing};
use fused::deferred::backward_of_inputs;
use fused::weight_gradients::{Destination, GradientBuffer, written_into};
use fused::{flatten, flatten_into, linear, linear_transposed};
use moe::kernels::grouped_gemm::grouped_gemm;
use std::rc::Rc;
use test_kit::{floats, int, leaf};

const D: usize = 16;
const ROWS: usize = 6;
/// Where gradients begin in the buffer: multiples of 256 elements, as in the buffer of a sharded unit; but the last two
/// at offsets that a device cannot bind.
const STARTS: [usize; 6] = [0, 256, 512, 768, 1281, 1600];
const LEN: usize = 1880;

/// A weight, one that is read transposed, one that is used twice, the matrices of two experts, one at an odd place, and
/// a bias; and a loss of them.
struct Graph {
    weights: [Tensor<2>; 3],
    experts: Tensor<3>,
    odd: Tensor<2>,
    bias: Tensor<1>,
    loss: Tensor<1>,
}

impl Graph {
    fn new(dtype: DType, device: &Device) -> Self {
        let weights = [0, 1, 5].map(|seed| leaf(seed, [D, D], dtype, device));
        let (experts, bias) = (leaf(2, [2, D, D], dtype, device), leaf(3, [D], dtype, device));
        let odd = leaf(6, [D, D], dtype, device);
        let expert_offsets = int(&[0, 2, ROWS as i32], [3], device).autodiff();
        let y = linear(leaf(4, [ROWS, D], dtype, device), weights[0].clone(), Some(bias.clone()));
        let y = linear(linear(y, weights[2].clone(), None), weights[2].clone(), None);
        let y = linear(linear_transposed(y, weights[1].clone()), odd.clone(), None);
        let y = grouped_gemm(y, experts.clone(), &expert_offsets);
        let loss = y.cast(DType::F32).powi_scalar(2).mean();
        Self { weights, experts, odd, bias, loss }
    }

    fn destinations(&self, buffer: &Rc<GradientBuffer>) -> Vec<Destination> {
        let matrices = self.weights.iter().zip(STARTS).map(|(weight, start)| Destination::new(weight, buffer, start));
        let experts = Destination::new(&self.experts, buffer, STARTS[3]);
        let others = [Destination::new(&self.odd, buffer, STARTS[4]), Destination::new(&self.bias, buffer, STARTS[5])];
        matrices.chain([experts]).chain(others).map(|place| place.expect("leaves on a device")).collect()
    }

    /// The gradients that there are, at their destinations.
    fn parts(&self, gradients: &Gradients) -> Vec<(usize, Tensor<1>)> {
        let matrices = self.weights.iter().map(|weight| Some(weight.grad(gradients)?.flatten(0, 1)));
        let experts = self.experts.grad(gradients).map(|all| all.flatten(0, 2));
        let others = [self.odd.grad(gradients).map(|odd| odd.flatten(0, 1)), self.bias.grad(gradients)];
        let all = matrices.chain([experts]).chain(others);
        STARTS.into_iter().zip(all).filter_map(|(start, part)| Some((start, part?))).collect()
    }
}

/// The number of kernels that copy gradients, and the buffer.
fn copies(run: impl FnOnce() -> Tensor<1>) -> (usize, Vec<f32>) {
    let mut values = vec![];
    let names = launches(|| values = floats(run()));
    (names.iter().filter(|name| name.contains("flatten_kernel")).count(), values)
}

/// One test: launches are counted for the whole process.
#[test]
fn products_write_gradients_into_their_buffer_and_only_the_others_are_copied() {
    let device = testing::device_of_ranks();
    for dtype in [DType::F32, DType::F16].into_iter().filter(|dtype| testing::computes_in(*dtype, "gradients")) {
        let (copied, expected) = copies(|| {
            let graph = Graph::new(dtype, &device);
            let gradients = graph.loss.backward();
            flatten(graph.parts(&gradients), LEN, dtype, &device)
        });
        assert_eq!(copied, 1, "all parts in one launch");
        for deferred in [false, true] {
            // The second type is not the gradients', so nothing can be written in place.
            for (of_buffer, in_place) in
                [(dtype, true), (if dtype == DType::F32 { DType::F16 } else { DType::F32 }, false)]
            {
                let case = format!("{dtype:?} into {of_buffer:?}, deferred: {deferred}");
                let (copied, found) = copies(|| {
                    let (graph, buffer) = (Graph::new(dtype, &device), GradientBuffer::new(LEN, of_buffer, &device));
                    let buffer = buffer.expect("a device with one stream");
                    let gradients = if deferred {
                        let (_, weights) = backward_of_inputs(&graph.loss);
                        written_into(graph.destinations(&buffer), || weights.backward())
                    } else {
                        written_into(graph.destinations(&buffer), || graph.loss.backward())
                    };
                    // The bias's gradient is not deferred, and no product writes it.
                    let parts = graph.parts(&gradients);
                    assert_eq!(parts.len(), if deferred { 5 } else { 6 });
                    drop(gradients);
                    flatten_into(buffer.written().expect("products have asked for it"), parts)
                });
                // The sum of a weight that is used twice, the one at the odd place, and the bias.
                assert_eq!(copied, 1, "{case}");
                let tolerance = if in_place && dtype == DType::F32 { 1e-5 } else { 4e-3 };
                let near = |(i, x): (usize, &f32)| (x - expected[i]).abs() <= tolerance * expected[i].abs().max(1e-2);
                let (products, bias) = found.split_at(STARTS[5]);
                assert!(products.iter().enumerate().all(near), "{case}: {products:?}, expected {expected:?}");
                assert_eq!(bias.iter().any(|x| *x != 0.0), !deferred, "{case}: {bias:?}");
            }
        }
    }
}
