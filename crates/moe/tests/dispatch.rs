//! Checks which assignments get a row, and which row.

use burn::tensor::{Device, Int, Tensor};
use moe::MoeConfig;
use moe::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use moe::kernels::reroute::{RerouteRule, reroute};
use moe::kernels::route::count;
use proptest::prelude::*;
use test_kit::{int, ints};

/// Candidates of each token, all different and best first, choice-major: `[c, n]`.
#[derive(Debug, Clone)]
struct Choices {
    groups: usize,
    /// Tokens per group.
    tokens: usize,
    k: usize,
    c: usize,
    e: usize,
    candidates: Vec<i32>,
}

impl Choices {
    fn n(&self) -> usize {
        self.groups * self.tokens
    }

    /// The choices, without the reserves.
    fn experts(&self) -> &[i32] {
        &self.candidates[..self.k * self.n()]
    }

    /// The assignments (choice, token) of a group, in order.
    fn in_order(&self, group: usize, order: Order) -> Vec<(usize, usize)> {
        let mut all: Vec<_> = (0..self.k).flat_map(|j| (0..self.tokens).map(move |t| (j, t))).collect();
        if order == Order::Token {
            all.sort_by_key(|(j, t)| (*t, *j));
        }
        all.into_iter().map(|(j, t)| (j, group * self.tokens + t)).collect()
    }
}

fn choices() -> impl Strategy<Value = Choices> {
    let experts = prop_oneof![8 => 1..=12usize, 1 => Just(256)];
    let tokens = prop_oneof![1 => Just(0usize), 2 => Just(1), 8 => 2..=12usize];
    (1..=3usize, tokens, experts).prop_flat_map(|(groups, tokens, e)| {
        (1..=e.min(8)).prop_flat_map(move |k| (Just(k), k..=e.min(16))).prop_flat_map(move |(k, c)| {
            let token = Just((0..e as i32).collect::<Vec<_>>()).prop_shuffle();
            prop::collection::vec(token, groups * tokens).prop_map(move |tokens_| {
                let candidates = (0..c).flat_map(|j| tokens_.iter().map(move |token| token[j])).collect();
                Choices { groups, tokens, k, c, e, candidates }
            })
        })
    })
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Choice), Just(Order::Token)]
}

fn tensor(values: &[i32], rows: usize, n: usize) -> Tensor<2, Int> {
    int(values, [rows, n], &Device::flex())
}

/// Checks that `dispatch` keeps the first `capacity` assignments of each group to each expert, that its index tensors
/// are inverses of each other, and that rows follow the layout.
fn follows_the_rule(case: &Choices, experts: &[i32], rule: DispatchRule) {
    let n = case.n();
    let Dispatched { row_of_kn, assignment_of_r, expert_offsets, kept_e } = dispatch(tensor(experts, case.k, n), rule);
    let (row_of, assignment_of, expert_offsets, kept) =
        (ints(row_of_kn), ints(assignment_of_r), ints(expert_offsets), ints(kept_e));
    let capacity = rule.capacity.unwrap_or(usize::MAX);
    assert_eq!((assignment_of.len(), expert_offsets.len()), (rule.rows(n, case.k), case.e + 1));

    let mut last_row = vec![-1; case.e];
    let (mut expected_kept, mut expected_assignment_of) = (vec![0; case.e], vec![-1; assignment_of.len()]);
    for group in 0..case.groups {
        let mut load = vec![0; case.e];
        for (j, token) in case.in_order(group, rule.order) {
            let (p, expert) = (j * n + token, experts[j * n + token]);
            if expert < 0 {
                assert_eq!(row_of[p], -1, "there is no assignment {p}");
                continue;
            }
            let expert = expert as usize;
            load[expert] += 1;
            assert_eq!(row_of[p] >= 0, load[expert] <= capacity, "token {token}, choice {j}");
            if row_of[p] >= 0 {
                assert!(row_of[p] > last_row[expert], "an expert's rows are in order");
                assert!((expert_offsets[expert]..expert_offsets[expert + 1]).contains(&row_of[p]));
                if rule.layout == RowLayout::Capacity {
                    assert_eq!(row_of[p] as usize, (expert * case.groups + group) * capacity + load[expert] - 1);
                }
                last_row[expert] = row_of[p];
                expected_assignment_of[row_of[p] as usize] = p as i32;
                expected_kept[expert] += 1;
            }
        }
    }
    assert_eq!((&assignment_of, &kept), (&expected_assignment_of, &expected_kept));
    for expert in 0..case.e {
        let (from, rows) = (expert_offsets[expert], expert_offsets[expert + 1] - expert_offsets[expert]);
        match rule.layout {
            RowLayout::Sorted { tile } => {
                assert_eq!(rows as usize, (kept[expert] as usize).next_multiple_of(tile), "rows of expert {expert}");
                assert!(last_row[expert] - from < kept[expert].max(1), "the kept rows come first");
            }
            RowLayout::Capacity => assert_eq!(rows as usize, case.groups * capacity),
        }
    }
    assert!(expert_offsets[case.e] as usize <= assignment_of.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn an_expert_takes_the_first_assignments_of_a_group_up_to_its_capacity(
        case in choices(), order in order(), capacity in prop_oneof![Just(0usize), 1..=13usize, Just(1000)], tile in 1..=5usize,
    ) {
        let rule = |layout| DispatchRule { experts: case.e, groups: case.groups, capacity: Some(capacity), order, layout };
        follows_the_rule(&case, case.experts(), rule(RowLayout::Sorted { tile }));
        follows_the_rule(&case, case.experts(), rule(RowLayout::Capacity));
    }

    #[test]
    fn dropless_dispatch_keeps_everything_and_skips_what_is_not_there(
        case in choices(), order in order(), tile in 1..=5usize, holes in any::<u64>(),
    ) {
        let rule = DispatchRule { experts: case.e, groups: 1, capacity: None, order, layout: RowLayout::Sorted { tile } };
        let whole = Choices { groups: 1, tokens: case.n(), ..case.clone() };
        follows_the_rule(&whole, case.experts(), rule);
        let with_holes: Vec<i32> =
            case.experts().iter().enumerate().map(|(p, expert)| if holes >> (p % 64) & 1 == 1 { -1 } else { *expert }).collect();
        follows_the_rule(&whole, &with_holes, rule);
    }

    /// After rerouting, a dropped choice had no candidate with room that its token does not already hold.
    #[test]
    fn reroute_drops_nothing_while_a_candidate_has_room(case in choices(), order in order(), capacity in 0..=6usize) {
        let (n, k) = (case.n(), case.k);
        let rule = RerouteRule { top_k: k, experts: case.e, groups: case.groups, capacity, order };
        let experts = ints(reroute(tensor(&case.candidates, case.c, n), rule));
        for group in 0..case.groups {
            // In order: the choice itself, otherwise the best reserve with room, otherwise none.
            let mut load = vec![0; case.e];
            for (j, token) in case.in_order(group, order) {
                let held: Vec<i32> = (0..k).map(|i| experts[i * n + token]).filter(|expert| *expert >= 0).collect();
                prop_assert!(held.iter().all(|expert| held.iter().filter(|other| *other == expert).count() == 1));
                let (choice, found) = (case.candidates[j * n + token], experts[j * n + token]);
                if load[choice as usize] < capacity && (found == choice || !held.contains(&choice)) {
                    prop_assert_eq!(found, choice, "there was room in the choice itself");
                }
                if found >= 0 {
                    load[found as usize] += 1;
                }
            }
            prop_assert!(load.iter().all(|load| *load <= capacity));
            for token in group * case.tokens..(group + 1) * case.tokens {
                let of_token: Vec<i32> = (0..k).map(|j| experts[j * n + token]).collect();
                if of_token.contains(&-1) {
                    for candidate in (0..case.c).map(|i| case.candidates[i * n + token]) {
                        prop_assert!(load[candidate as usize] == capacity || of_token.contains(&candidate));
                    }
                }
            }
        }
        // Rerouted assignments all fit.
        let layout = RowLayout::Sorted { tile: 1 };
        let rule = DispatchRule { experts: case.e, groups: case.groups, capacity: Some(capacity), order, layout };
        let kept = ints(dispatch(tensor(&experts, k, n), rule).kept_e).iter().sum::<i32>() as usize;
        prop_assert_eq!(kept, experts.iter().filter(|expert| **expert >= 0).count());
    }

    #[test]
    fn counts_are_of_each_sequence(case in choices()) {
        let counts = ints(count(tensor(case.experts(), case.k, case.n()), case.groups, case.e));
        for (group, counts) in counts.chunks(case.e).enumerate() {
            for (expert, count) in counts.iter().enumerate() {
                let chose = |p: &usize| case.experts()[*p] == expert as i32 && p % case.n() / case.tokens == group;
                prop_assert_eq!(*count as usize, (0..case.k * case.n()).filter(chose).count());
            }
        }
    }

    #[test]
    fn capacity_is_the_rounded_up_share_of_a_sequence(t in 0..50usize, e in 1..12usize, k in 1..8usize, quarters in 0..20usize) {
        let (k, factor) = (k.min(e), quarters as f64 / 4.0);
        let config = MoeConfig { num_experts: e, top_k: k, capacity_factor: Some(factor), ..MoeConfig::default() };
        prop_assert_eq!(config.capacity(t), Some((quarters * t * k).div_ceil(4 * e).min(t)));
        prop_assert_eq!(MoeConfig { capacity_factor: None, ..config }.capacity(t), None);
    }
}

#[test]
fn where_capacity_runs_out_the_weakest_choices_go_first() {
    let (a, b, c) = (0, 1, 2);
    let experts = tensor(&[a, a, c, b, c, a], 2, 3);
    let rule = |order| DispatchRule { experts: 3, groups: 1, capacity: Some(2), order, layout: RowLayout::Capacity };
    let Dispatched { row_of_kn, assignment_of_r, .. } = dispatch(experts.clone(), rule(Order::Choice));
    assert_eq!(ints(row_of_kn), [0, 1, 4, 2, 5, -1]);
    assert_eq!(ints(assignment_of_r), [0, 1, 3, -1, 2, 4]);
    assert_eq!(ints(dispatch(experts, rule(Order::Token)).row_of_kn), [0, 1, 5, 2, 4, -1]);
}

#[test]
fn a_full_expert_sends_on_to_the_best_reserve_with_room() {
    // Candidates of three tokens, top-1, one place per expert.
    let candidates = tensor(&[0, 0, 0, 1, 1, 2, 2, 2, 1], 3, 3);
    let rule = RerouteRule { top_k: 1, experts: 3, groups: 1, capacity: 1, order: Order::Choice };
    assert_eq!(ints(reroute(candidates, rule)), [0, 1, 2]);
}

#[test]
fn the_layer_counts_what_it_assigned_kept_and_dropped() {
    let layer = |capacity_factor| {
        let config = MoeConfig { num_experts: 4, top_k: 2, capacity_factor, ..MoeConfig::default() };
        config.init(8, &Device::flex())
    };
    let x_btd = Tensor::<3>::random([3, 16, 8], burn::tensor::Distribution::Default, &Device::flex());
    for factor in [None, Some(0.5), Some(0.01)] {
        let stats = layer(factor).forward(x_btd.clone(), None).stats;
        let (assigned, kept, dropped) = (ints(stats.assigned_e()), ints(stats.kept_e()), ints(stats.dropped_e()));
        assert_eq!(assigned.iter().sum::<i32>(), 3 * 16 * 2);
        assert!((0..4).all(|e| assigned[e] == kept[e] + dropped[e]), "{assigned:?} {kept:?} {dropped:?}");
        assert!(kept.iter().all(|kept| *kept <= 3 * 4 || factor.is_none()));
        assert_eq!(dropped.iter().sum::<i32>() == 0, factor.is_none());
        let mass: f32 = stats.gate_mass_e().sum().into_scalar();
        assert!((mass - 48.0).abs() < 1e-3, "every token's gates add up to 1: {mass}");
        let ratios: Vec<f32> = stats.load_ratio_e().into_data().try_to_vec().unwrap();
        assert!((0..4).all(|e| (ratios[e] - assigned[e] as f32 / 24.0).abs() < 1e-5));
    }
}
