//! Checks how every public function rejects invalid arguments, and what it returns for empty ones.

mod cases;

use burn::tensor::{Device, Tensor};
use fused::{AttentionPart, causal_attention, layer_norm, linear_add_layer_norm};
use proptest::prelude::*;
use std::collections::BTreeSet;
use test_kit::arguments::{check, exported};

#[test]
fn every_public_function_has_a_case_or_a_reason() {
    let known = cases::CASES.iter().map(|case| case.0).chain(cases::WITHOUT.iter().map(|without| without.0));
    let (exported, known) = (exported("fused"), known.map(String::from).collect::<BTreeSet<String>>());
    let [missing, gone] = [&exported - &known, &known - &exported];
    assert!(
        missing.is_empty() && gone.is_empty(),
        "tests/arguments/cases.rs lacks {missing:?}: add a case or a reason; it has {gone:?}, which is not exported"
    );
}

proptest! {
    // Seeds cannot be shrunk.
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 0, failure_persistence: None, ..Default::default() })]

    #[test]
    fn arguments_are_refused_by_name_or_every_result_is_written(seed: u64) {
        let names = exported("fused");
        let wrong: Vec<String> = cases::CASES.iter().filter_map(|case| check(*case, seed, &names).err()).collect();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

fn ones<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &Device::flex())
}

/// A bias of one element left the rest of each row unwritten.
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

#[test]
#[should_panic(expected = "causal_attention: q has 3 heads, expected a multiple of the 2 of k and v")]
fn query_heads_that_keys_cannot_share_are_refused() {
    causal_attention(ones([1, 3, 4, 8]), ones([1, 2, 4, 8]), ones([1, 2, 4, 8]), 1.0, 0, None);
}

#[test]
#[should_panic(expected = "AttentionPart::forward: q has 2 heads, expected a multiple of the 4 of k and v")]
fn fewer_query_heads_than_heads_of_keys_are_refused() {
    let part = AttentionPart { first: [0, 0], scale: 1.0, dropout: None };
    _ = part.forward([ones([1, 2, 4, 8]), ones([1, 4, 4, 8]), ones([1, 4, 4, 8])], None);
}

/// Their gradients would be those of keys that nothing reads, and nothing wrote them.
#[test]
#[should_panic(expected = "AttentionPart::forward: q has 0 heads, expected a multiple of the 2 of k and v")]
fn keys_without_query_heads_are_refused() {
    let part = AttentionPart { first: [0, 0], scale: 1.0, dropout: None };
    _ = part.forward([ones([1, 0, 4, 8]), ones([1, 2, 4, 8]), ones([1, 2, 4, 8])], None);
}

/// Without queries there are no tasks, and nothing wrote the gradients of the keys.
#[test]
fn keys_that_no_query_sees_have_gradients_of_0() {
    cpu::poison_uninitialised(true);
    let part = AttentionPart { first: [4, 0], scale: 1.0, dropout: None };
    let (b, heads, s, d, dv) = (3, 2, 64, 32, 16);
    let (q, k, v) = (ones([b, heads, 0, d]), ones([b, heads, s, d]), ones([b, heads, s, dv]));
    let outputs = [ones([b, 0, heads, dv]), ones([b, 0, heads, dv])];
    let [d_q, d_k, d_v] = part.backward([q, k, v], outputs, ones([b, heads, 0]), None);
    assert_eq!(d_q.dims(), [b, heads, 0, d]);
    for (gradient, width) in [(d_k, d), (d_v, dv)] {
        assert_eq!(gradient.dims(), [b, heads, s, width]);
        assert!(gradient.into_data().iter::<f32>().all(|value| value == 0.0));
    }
}
