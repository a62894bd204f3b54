//! The collectives of tensor parallelism against the graph of a single rank: values and gradients of all inputs.

use burn::tensor::{Device, Tensor, TensorData};
use comm::{FirstError, TensorParallel, part};
use test_kit::{floats, on_ranks};

const B: usize = 2;
const T: usize = 6;
const D: usize = 3;
/// Columns between the two matrices.
const H: usize = 5;

fn numbers(seed: usize, shape: [usize; 3]) -> Tensor<3> {
    let values = (0..shape.iter().product()).map(|i: usize| ((i * 7 + seed * 13) % 11) as f32 / 5.0 - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), &Device::flex().autodiff()).require_grad()
}

/// Returns `(x W1)^2 W2` and the gradients of its weighted sum by `x`, `W1` and `W2`. This rank has `columns` of the
/// matrices and `rows` of each sequence.
fn layer(tp: &TensorParallel, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> [Vec<f32>; 4] {
    let x = numbers(1, [B, T, D]).inner().slice([0..B, rows.clone()]).autodiff().require_grad();
    let w1 = numbers(2, [1, D, H]).inner().slice([0..1, 0..D, columns.clone()]).autodiff().require_grad();
    let w2 = numbers(3, [1, H, D]).inner().slice([0..1, columns]).autodiff().require_grad();
    let y = tp.gather(x.clone()).matmul(w1.clone()).powi_scalar(2).matmul(w2.clone());
    let y = tp.scatter(y);
    let weights = Tensor::from_inner(numbers(4, [B, T, D]).inner().slice([0..B, rows]));
    let mut gradients = (y.clone() * weights).sum().backward();
    let [of_x, of_w1, of_w2] = [&x, &w1, &w2].map(|leaf| floats(leaf.grad_remove(&mut gradients).expect("a gradient")));
    [floats(y.inner()), of_x, of_w1, of_w2]
}

/// Concatenates the ranks' parts of a tensor along a dimension.
fn whole(parts: Vec<Vec<f32>>, shape: [usize; 3], dim: usize) -> Vec<f32> {
    let ranks = parts.len();
    let tensors = parts.into_iter().enumerate().map(|(rank, values)| {
        let mut shape = shape;
        shape[dim] = part(shape[dim], rank, ranks).len();
        Tensor::<3>::from_data(TensorData::new(values, shape), &Device::flex())
    });
    floats(Tensor::cat(tensors.collect(), dim))
}

#[test]
fn a_layer_of_several_ranks_is_that_of_one() {
    let expected = layer(&TensorParallel::default(), 0..T, 0..H);
    for ranks in [1, 2, 3] {
        let found = on_ranks(ranks, move |comm| {
            let first_error = FirstError::default();
            let tp = TensorParallel::new(comm, first_error.clone());
            assert_eq!((tp.size(), tp.is_alone()), (ranks, ranks == 1));
            let found = layer(&tp, tp.part(T), tp.part(H));
            first_error.check().map(|()| found)
        });
        let of = |i: usize, shape, dim| whole(found.iter().map(|of| of[i].clone()).collect(), shape, dim);
        let found = [of(0, [B, T, D], 1), of(1, [B, T, D], 1), of(2, [1, D, H], 2), of(3, [1, H, D], 1)];
        for (found, expected) in found.iter().zip(&expected) {
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
            assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?} {expected:?}");
        }
    }
}

#[test]
fn a_lost_rank_is_an_error_and_no_panic() {
    let errors = on_ranks(2, |comm| {
        if comm.rank() == 1 {
            return Ok(String::new()); // this rank leaves
        }
        let first_error = FirstError::default();
        let tp = TensorParallel::new(comm, first_error.clone());
        layer(&tp, tp.part(T), tp.part(H));
        Ok::<_, comm::CommError>(first_error.check().unwrap_err().to_string())
    });
    assert!(errors[0].contains("rank 1"), "{errors:?}");
}
