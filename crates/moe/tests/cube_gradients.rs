//! Gradients of weights that products write straight into a flat buffer, on a device.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use fused::cube::{launches, testing};
use fused::deferred::backward_of_inputs;
use fused::weight_gradients::{Place, written_into};
use fused::{flatten, flatten_into, linear, linear_transposed};
use moe::kernels::grouped_gemm::grouped_gemm;

const D: usize = 16;
const ROWS: usize = 6;
/// Where gradients begin in the buffer: multiples of 256 elements, as in the buffer of a sharded unit.
const STARTS: [usize; 4] = [0, 256, 512, 1024];
const LEN: usize = 1280;

fn leaf<const N: usize>(seed: usize, shape: [usize; N], dtype: DType, device: &Device) -> Tensor<N> {
    let len = shape.iter().product();
    let values: Vec<f32> = (0..len).map(|i| ((i * 37 + seed * 11 + i / 7) % 17) as f32 / 16.0 - 0.5).collect();
    Tensor::<N>::from_data(TensorData::new(values, shape), (device, DType::F32)).cast(dtype).autodiff().require_grad()
}

/// A weight, one that is read turned, the matrices of two experts, and a bias; and a loss of them.
struct Graph {
    weights: [Tensor<2>; 2],
    experts: Tensor<3>,
    bias: Tensor<1>,
    loss: Tensor<1>,
}

impl Graph {
    fn new(dtype: DType, device: &Device) -> Self {
        let weights = [0, 1].map(|seed| leaf(seed, [D, D], dtype, device));
        let (experts, bias) = (leaf(2, [2, D, D], dtype, device), leaf(3, [D], dtype, device));
        let segments = TensorData::new(vec![0i32, 2, ROWS as i32], [3]);
        let segments = Tensor::<1, Int>::from_data(segments, (device, DType::I32)).autodiff();
        let y = linear(leaf(4, [ROWS, D], dtype, device), weights[0].clone(), Some(bias.clone()));
        let y = grouped_gemm(linear_transposed(y, weights[1].clone()), experts.clone(), &segments);
        let loss = y.cast(DType::F32).powi_scalar(2).mean();
        Self { weights, experts, bias, loss }
    }

    fn places(&self, flat: &Tensor<1>) -> Vec<Place> {
        let matrices = self.weights.iter().zip(STARTS).map(|(weight, start)| Place::new(weight, flat, start));
        let others = [Place::new(&self.experts, flat, STARTS[2]), Place::new(&self.bias, flat, STARTS[3])];
        matrices.chain(others).map(|place| place.expect("leaves on a device")).collect()
    }

    /// The gradients that there are, at their places.
    fn parts(&self, gradients: &Gradients) -> Vec<(usize, Tensor<1>)> {
        let matrices = self.weights.iter().map(|weight| Some(weight.grad(gradients)?.flatten(0, 1)));
        let others = [self.experts.grad(gradients).map(|all| all.flatten(0, 2)), self.bias.grad(gradients)];
        STARTS.into_iter().zip(matrices.chain(others)).filter_map(|(start, part)| Some((start, part?))).collect()
    }
}

/// How many kernels copy gradients, and the buffer.
fn copies(run: impl FnOnce() -> Tensor<1>) -> (usize, Vec<f32>) {
    let mut values = vec![];
    let names = launches(|| values = run().into_data().iter::<f32>().collect());
    (names.iter().filter(|name| name.contains("flatten_kernel")).count(), values)
}

/// One test: launches are counted of the whole process.
#[test]
fn products_write_gradients_into_their_buffer_and_only_the_others_are_copied() {
    let device = testing::device();
    for dtype in [DType::F32, DType::F16].into_iter().filter(|dtype| testing::computes_in(*dtype, "gradients")) {
        let (copied, expected) = copies(|| {
            let graph = Graph::new(dtype, &device);
            let gradients = graph.loss.backward();
            flatten(graph.parts(&gradients), LEN, dtype, &device)
        });
        assert_eq!(copied, 1, "all parts in one launch");
        let near = |found: &[f32]| found.iter().zip(&expected).all(|(x, y)| (x - y).abs() <= 4e-3 * y.abs().max(1e-2));
        for deferred in [false, true] {
            let (copied, found) = copies(|| {
                let (graph, flat) = (Graph::new(dtype, &device), Tensor::zeros([LEN], (&device, dtype)));
                let gradients = if deferred {
                    let (_, weights) = backward_of_inputs(&graph.loss);
                    written_into(graph.places(&flat), || weights.backward())
                } else {
                    written_into(graph.places(&flat), || graph.loss.backward())
                };
                // That of the bias is not deferred, and no product writes it.
                let parts = graph.parts(&gradients);
                assert_eq!(parts.len(), if deferred { 3 } else { 4 });
                drop(gradients);
                flatten_into(flat, parts)
            });
            let (products, bias) = found.split_at(STARTS[3]);
            assert_eq!(copied, usize::from(!deferred), "{dtype:?}, deferred: {deferred}: the bias alone is copied");
            assert!(near(products) && products.iter().any(|x| *x != 0.0), "{dtype:?}, deferred: {deferred}: {found:?}");
            assert!(bias.iter().any(|x| *x != 0.0) != deferred, "{dtype:?}, deferred: {deferred}: {bias:?}");
        }
    }
}
