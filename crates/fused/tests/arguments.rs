//! What operations say of arguments that do not fit, and what they return of empty ones.

use burn::tensor::{Device, Tensor};
use fused::{AttentionPart, layer_norm, linear_add_layer_norm};

fn ones<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &Device::flex())
}

/// A bias of one element left the rest of each row as the memory was.
#[test]
#[should_panic(expected = "layer_norm: bias has shape [1], expected [4]")]
fn a_bias_that_is_shorter_than_the_rows_is_refused() {
    layer_norm(ones([2, 4]), ones([4]), Some(ones([1])), 1e-5);
}

#[test]
#[should_panic(expected = "linear_add_layer_norm: norm_bias has shape [1], expected [4]")]
fn a_bias_of_the_norm_behind_a_product_that_is_shorter_is_refused() {
    linear_add_layer_norm(ones([2, 3]), ones([3, 4]), None, ones([2, 4]), ones([4]), Some(ones([1])), 1e-5);
}

/// No query, no task: nothing wrote the gradients of the keys.
#[test]
fn keys_that_no_query_sees_have_gradients_of_0() {
    let part = AttentionPart { first: [4, 0], scale: 1.0, dropout: None };
    let (b, heads, s, d, dv) = (3, 2, 64, 32, 16);
    drop((0..64).map(|_| ones([b, heads, s, d])).collect::<Vec<_>>()); // what is allocated next was ones
    let (q, k, v) = (ones([b, heads, 0, d]), ones([b, heads, s, d]), ones([b, heads, s, dv]));
    let outputs = [ones([b, 0, heads, dv]), ones([b, 0, heads, dv])];
    let [d_q, d_k, d_v] = part.backward([q, k, v], outputs, ones([b, heads, 0]), None);
    assert_eq!(d_q.dims(), [b, heads, 0, d]);
    for (gradient, width) in [(d_k, d), (d_v, dv)] {
        assert_eq!(gradient.dims(), [b, heads, s, width]);
        assert!(gradient.into_data().iter::<f32>().all(|value| value == 0.0));
    }
}
