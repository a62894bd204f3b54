//! Which assignments get a slot, and which one.

use burn::tensor::{Device, Int, Tensor, TensorData};
use moe::{Dispatch, MoeConfig};
use proptest::prelude::*;

fn experts_tensor<const D: usize>(experts: &[usize], shape: [usize; D]) -> Tensor<D, Int> {
    let experts: Vec<i64> = experts.iter().map(|expert| *expert as i64).collect();
    Tensor::from_data(TensorData::new(experts, shape), &Device::flex())
}

fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<usize> {
    tensor.into_data().iter::<i64>().map(|value| value as usize).collect()
}

/// Experts of each token, all different: `[b, t, k]` flat, with b, t, k, e and a capacity.
fn choices() -> impl Strategy<Value = ([usize; 3], usize, usize, Vec<usize>)> {
    ([1..=3usize, 1..=12], 1..=8usize).prop_flat_map(|([b, t], e)| {
        let token = Just((0..e).collect::<Vec<_>>()).prop_shuffle();
        (1..=e, 1..=t, prop::collection::vec(token, b * t)).prop_map(move |(k, capacity, tokens)| {
            ([b, t, k], e, capacity, tokens.iter().flat_map(|token| token[..k].to_vec()).collect())
        })
    })
}

/// `dispatch` keeps the first `capacity` assignments to each expert of each group, in choice-major order, and its two index
/// tensors are each other's inverse.
fn follows_the_rule([b, t, k]: [usize; 3], e: usize, capacity: usize, experts: &[usize], dispatch: Dispatch) {
    let (s, token_of_slot) = (dispatch.slots_per_expert, ints(dispatch.token_of_slot));
    let (slots, kept) = (ints(dispatch.slot_nk), dispatch.kept_nk.into_data().try_to_vec::<f32>().unwrap());
    assert_eq!((s, token_of_slot.len()), (b * capacity, e * s));
    let mut token_in = vec![None; e * s];
    for group in 0..b {
        let mut load = vec![0; e];
        for (choice, token) in (0..k).flat_map(|choice| (0..t).map(move |token| (choice, group * t + token))) {
            let (i, expert) = (token * k + choice, experts[token * k + choice]);
            assert_eq!(kept[i], if load[expert] < capacity { 1.0 } else { 0.0 }, "token {token}, choice {choice}");
            if kept[i] == 1.0 {
                assert_eq!(slots[i] / capacity, expert * b + group, "a slot of the group and the expert");
                assert_eq!(token_in[slots[i]].replace(token), None, "slot {} is taken twice", slots[i]);
            } else {
                assert_eq!(slots[i], 0);
            }
            load[expert] += 1;
        }
        for (expert, load) in load.into_iter().enumerate() {
            let taken = token_in[(expert * b + group) * capacity..][..capacity].iter().flatten().count();
            assert_eq!(taken, load.min(capacity), "assignments kept by expert {expert}");
        }
    }
    assert_eq!(token_of_slot, token_in.into_iter().map(|token| token.unwrap_or(0)).collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn an_expert_takes_the_first_assignments_of_a_sequence_up_to_its_capacity((btk, e, capacity, experts) in choices()) {
        let dispatch = Dispatch::limited(experts_tensor(&experts, btk), e, capacity);
        follows_the_rule(btk, e, capacity, &experts, dispatch);
    }

    #[test]
    fn dropless_dispatch_keeps_everything_in_the_slots_of_the_largest_load(([b, t, k], e, _, experts) in choices()) {
        let n = b * t;
        let load = |expert| experts.iter().filter(|chosen| **chosen == expert).count();
        let largest = (0..e).map(load).max().unwrap();
        let dispatch = Dispatch::dropless(experts_tensor(&experts, [n, k]), e);
        prop_assert!(dispatch.kept_nk.clone().equal_elem(1.0).all().into_scalar::<bool>());
        follows_the_rule([1, n, k], e, largest, &experts, dispatch);
    }

    #[test]
    fn capacity_is_the_rounded_up_share_of_a_sequence(t in 1..50usize, e in 1..12usize, k in 1..8usize, quarters in 1..20usize) {
        let (k, factor) = (k.min(e), quarters as f64 / 4.0);
        let config = MoeConfig { num_experts: e, top_k: k, capacity_factor: Some(factor), ..MoeConfig::default() };
        prop_assert_eq!(config.capacity(t), Some((quarters * t * k).div_ceil(4 * e).min(t)));
        prop_assert_eq!(MoeConfig { capacity_factor: None, ..config }.capacity(t), None);
    }
}

#[test]
fn where_capacity_runs_out_the_weakest_choices_go_first() {
    let (a, b, c) = (0, 1, 2);
    let experts = experts_tensor(&[a, b, a, c, c, a], [1, 3, 2]);
    let Dispatch { token_of_slot, slot_nk, kept_nk, slots_per_expert } = Dispatch::limited(experts, 3, 2);
    assert_eq!(slots_per_expert, 2);
    assert_eq!(ints(slot_nk), [0, 2, 1, 5, 4, 0]);
    assert_eq!(kept_nk.into_data().try_to_vec::<f32>().unwrap(), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(ints(token_of_slot), [0, 1, 0, 0, 2, 1]);
}
