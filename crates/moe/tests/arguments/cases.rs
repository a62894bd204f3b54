//! One call of each public function.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use moe::kernels::dispatch::{DispatchRule, Dispatched, RowLayout, dispatch};
use moe::kernels::grouped_gemm::{grouped_gemm, rows_gradient, tile_rows, weight_gradient};
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::reroute::{RerouteRule, reroute};
use moe::kernels::route::{GateRule, Noise, SelectRule, count, gates, scores, select};
use moe::{Experts, MoeConfig, MoeLayer, MoeStats, NoiseKey, Order, Overflow, Router, ScoreFunc, SwiGlu};
use moe::{router_z_loss, sequence_balance_loss};
use test_kit::arguments::{Case, Draw};

pub const CASES: &[Case] = &[
    ("scores", |draw| {
        let logits = of_experts(draw);
        let func = draw.one_of([ScoreFunc::Softmax, ScoreFunc::Sigmoid]);
        draw.output(scores(logits.clone(), func), logits.dims());
    }),
    ("select", |draw| {
        let (scores, e) = (of_experts(draw), 6);
        let bias = draw.plain([e], DType::F32);
        let (candidates, n_group, topk_group) = (draw.number(3), draw.number(3), draw.number(2));
        let noise = draw.coin().then(|| Noise { amplitude: 0.1, key: 7, first_row: 0, seq_len: draw.number(4) });
        let rule = SelectRule { candidates, n_group, topk_group, group_best: 2, mask: f32::NEG_INFINITY, noise };
        let n = scores.dims()[0];
        draw.output(select(scores, bias, rule).float(), [candidates, n]);
    }),
    ("gates", |draw| {
        let scores = of_experts(draw);
        let experts = draw.indices([2, scores.dims()[0]], |draw, _| draw.below(7) as i64 - 1);
        let (shape, rule) = (experts.dims(), GateRule { normalise: draw.coin(), scale: 2.0 });
        draw.output(gates(scores.abs() + 0.1, experts, rule), shape);
    }),
    ("count", |draw| {
        let (experts, groups) = assignments(draw);
        draw.output(count(experts, groups, 6).float(), [groups, 6]);
    }),
    ("reroute", |draw| {
        let (groups, tokens) = (draw.size(3), draw.size(4));
        let candidates = draw.below_all([4, groups * tokens], 6);
        let (top_k, groups, n) = (draw.number(2), draw.number(groups), candidates.dims()[1]);
        let rule = RerouteRule { top_k, experts: 6, groups, capacity: draw.below(4), order: Order::Choice };
        draw.output(reroute(candidates, rule).float(), [top_k, n]);
    }),
    ("dispatch", |draw| {
        let (experts, groups) = assignments(draw);
        let capacity = draw.coin().then(|| draw.below(4));
        let layout = match capacity {
            Some(_) if draw.coin() => RowLayout::Capacity,
            _ => RowLayout::Sorted { tile: draw.number(4) },
        };
        let rule = DispatchRule { experts: 6, groups, capacity, order: Order::Token, layout };
        let [k, n] = experts.dims();
        let placed = dispatch(experts, rule);
        draw.output(placed.row_of_kn.float(), [k, n]);
        draw.output(placed.assignment_of_r.float(), [rule.rows(n, k)]);
        draw.output(placed.expert_offsets.float(), [7]);
        draw.output(placed.kept_e.float(), [6]);
    }),
    ("permute", |draw| {
        let (places, n, _) = placed(draw);
        let d = draw.size(9);
        let x = draw.float([n, d]);
        let shape = [places.assignment_of_r.dims()[0], x.dims()[1]];
        draw.output(permute(x, &places), shape);
    }),
    ("unpermute", |draw| {
        let (places, n, r) = placed(draw);
        let d = draw.size(9);
        let (y, gates) = (draw.float([r, d]), draw.tracked([2, n], DType::F32));
        let shape = [places.row_of_kn.dims()[1], y.dims()[1]];
        draw.output(unpermute(y, gates, &places), shape);
    }),
    ("grouped_gemm", |draw| {
        let ([r, e, p, q], expert_offsets) = offsets(draw);
        let (x, weight) = (draw.float([r, p]), draw.float([e, p, q]));
        let shape = [x.dims()[0], weight.dims()[2]];
        draw.output(grouped_gemm(x, weight, &expert_offsets), shape);
    }),
    ("rows_gradient", |draw| {
        let ([r, e, p, q], expert_offsets) = offsets(draw);
        let (d_y, weight) = (draw.float([r, q]), draw.float([e, p, q]));
        let shape = [d_y.dims()[0], weight.dims()[1]];
        draw.output(rows_gradient(d_y, weight, &expert_offsets), shape);
    }),
    ("weight_gradient", |draw| {
        let ([r, _, p, q], expert_offsets) = offsets(draw);
        let (x, d_y) = (draw.float([r, p]), draw.float([r, q]));
        let shape = [expert_offsets.dims()[0] - 1, x.dims()[1], d_y.dims()[1]];
        draw.output(weight_gradient(x, d_y, &expert_offsets), shape);
    }),
    ("Experts::forward", |draw| {
        let ([r, e, d, h], expert_offsets) = offsets(draw);
        let mut experts = Experts::new(e, d, h, &Device::flex());
        for (to, shape) in [(&mut experts.gate_proj, [e, d, h]), (&mut experts.down_proj, [e, h, d])] {
            *to = Param::from_tensor(draw.plain(shape, DType::F32));
        }
        let x = draw.tracked([r, d], DType::F32);
        let shape = [x.dims()[0], experts.down_proj.val().dims()[2]];
        draw.output(experts.forward(x.inner(), &expert_offsets), shape);
    }),
    ("SwiGlu::forward", |draw| {
        let [b, t, d, h] = [draw.size(3), draw.size(3), draw.size(6), draw.size(6)];
        let (layer, x) = (SwiGlu::new(d, h, &Device::flex()), draw.plain([b, t, d], DType::F32));
        draw.output(layer.forward(x.clone()), x.dims());
    }),
    ("SwiGlu::forward_add", |draw| {
        let [b, t, d, h] = [draw.size(3), draw.size(3), draw.size(6), draw.size(6)];
        let layer = SwiGlu::new(d, h, &Device::flex());
        let (x, residual) = (draw.plain([b, t, d], DType::F32), draw.plain([b, t, d], DType::F32));
        draw.output(layer.forward_add(x.clone(), residual), x.dims());
    }),
    ("Router::forward", |draw| {
        let [n, d] = [draw.size(6), draw.size(5)];
        let config = config(draw);
        let (router, x) = (Router::new(d, &config, &Device::flex()), draw.plain([n, d], DType::F32));
        let noise = draw.coin().then(|| NoiseKey::derive(1, 2, 3, 4));
        let (seq_len, n) = (draw.number(3), x.dims()[0]);
        let routing = router.forward(x, seq_len, noise);
        draw.output(routing.scores_ne, [n, 6]);
        draw.output(routing.logits_ne, [n, 6]);
    }),
    ("MoeLayer::forward", |draw| {
        let (layer, x) = layer(draw);
        let noise = draw.coin().then(|| NoiseKey::derive(1, 2, 3, 4));
        let output = layer.forward(x.clone(), noise);
        draw.output(output.y_btd, x.dims());
        stats(draw, &output.stats, x.dims()[0]);
    }),
    ("MoeLayer::evaluate", |draw| {
        let (layer, x) = layer(draw);
        let output = layer.evaluate(x.clone());
        draw.output(output.y_btd, x.dims());
        stats(draw, &output.stats, x.dims()[0]);
    }),
    ("MoeLayer::update_bias_from", |draw| {
        let config = MoeConfig { num_experts: 6, selection_bias: true, bias_update_speed: 0.5, ..MoeConfig::default() };
        let (mut layer, assigned) = (config.init(4, &Device::flex()), draw.plain([6], DType::F32));
        layer.update_bias_from(assigned);
        draw.output(layer.router.bias.expect("it is kept").val(), [6]);
    }),
    ("sequence_balance_loss", |draw| {
        let (scores, b) = (of_experts(draw), draw.size(2));
        let assigned = draw.indices([b, 6], |draw, _| 1 + draw.below(4) as i64);
        draw.output(sequence_balance_loss(scores.abs() + 0.1, assigned), [1]);
    }),
    ("router_z_loss", |draw| {
        let logits = of_experts(draw);
        draw.output(router_z_loss(logits), [1]);
    }),
];

/// Public functions without arguments that could have a wrong shape, and why.
pub const WITHOUT: &[(&str, &str)] = &[
    ("MoeLayer::update_bias", "statistics of the layer"),
    ("bias_update", "numbers"),
    ("DispatchRule::rows", "numbers"),
    ("tile_rows", "any tensor of the device"),
    ("gathered_rows", "rows that another rank's shape is checked with, in comm"),
    ("NoiseKey::derive", "numbers"),
    ("MoeConfig::new", "numbers"),
    ("MoeConfig::validate", "numbers, with errors of their own"),
    ("MoeConfig::init", "numbers, with errors of their own"),
    ("ConfigError::in_section", "a name"),
    ("MoeConfig::candidates", "numbers"),
    ("MoeConfig::capacity", "numbers"),
    ("Experts::hold", "a path"),
    ("Experts::new", "numbers"),
    ("SwiGlu::new", "numbers"),
    ("SwiGlu::forward_add_over", "of ranks: SwiGlu::forward_add where there is one, else tests/parallel.rs"),
    ("Router::new", "numbers"),
    ("MoeLayer::forward_over", "of ranks: what MoeLayer::forward calls"),
    ("MoeLayer::evaluate_over", "of ranks: what MoeLayer::evaluate calls"),
    ("ExpertParallel::new", "of ranks"),
    ("ExpertParallel::forward", "of ranks: tests/parallel.rs"),
    ("ExpertParallel::evaluate", "of ranks: tests/parallel.rs"),
    ("MoeStats::assigned_be", "read from a layer's output, above"),
    ("MoeStats::assigned_e", "read from a layer's output, above"),
    ("MoeStats::kept_e", "read from a layer's output, above"),
    ("MoeStats::dropped_e", "read from a layer's output, above"),
    ("MoeStats::gate_mass_e", "read from a layer's output, above"),
    ("MoeStats::load_ratio_e", "of MoeStats::assigned_e"),
    ("MoeStats::load_cv", "of MoeStats::assigned_e"),
];

/// Draws `[n, 6]` in f32.
fn of_experts(draw: &mut Draw) -> Tensor<2> {
    let n = 2 * draw.size(4);
    draw.tracked([n, 6], DType::F32)
}

/// Draws two choices among 6 experts, or none, for each token of some groups.
fn assignments(draw: &mut Draw) -> (Tensor<2, Int>, usize) {
    let (groups, tokens) = (draw.size(3), draw.size(4));
    let experts = draw.indices([2, groups * tokens], |draw, _| draw.below(7) as i64 - 1);
    (experts, draw.number(groups))
}

/// Draws places that fit, some of them changed; returns them with the numbers of tokens and rows.
fn placed(draw: &mut Draw) -> (Dispatched, usize, usize) {
    let n = draw.size(5);
    let experts: Tensor<2, Int> = draw.below_all([2, n], 3);
    let layout = RowLayout::Sorted { tile: 2 };
    let rule = DispatchRule { experts: 3, groups: 1, capacity: Some(3), order: Order::Choice, layout };
    let mut places = dispatch(experts, rule);
    let n = places.row_of_kn.dims()[1];
    let r = places.assignment_of_r.dims()[0];
    let [row_of, assignment_of] =
        [places.row_of_kn.into_data(), places.assignment_of_r.into_data()].map(|data| data.iter::<i64>().collect());
    let of = |of: Vec<i64>| move |_: &mut Draw, i: usize| of.get(i).copied().unwrap_or(-1);
    (places.row_of_kn, places.assignment_of_r) =
        (draw.indices([2, n], of(row_of)), draw.indices([r], of(assignment_of)));
    (places, n, r)
}

/// Draws the numbers of rows, matrices and widths, and offsets of the experts.
fn offsets(draw: &mut Draw) -> ([usize; 4], Tensor<1, Int>) {
    let [e, p, q] = [draw.size(3), draw.size(6), draw.size(6)];
    let lengths: Vec<usize> = (0..e).map(|_| draw.below(4)).collect();
    let ends = move |_: &mut Draw, i: usize| lengths.iter().take(i).sum::<usize>() as i64;
    let r = (0..e).fold(draw.below(3), |rows, _| rows + 3);
    (([r, e, p, q]), draw.indices([e + 1], ends))
}

/// Draws a configuration with 6 experts, with or without a capacity.
fn config(draw: &mut Draw) -> MoeConfig {
    let capacity_factor = draw.one_of([None, Some(0.7)]);
    let overflow = match capacity_factor {
        Some(_) if draw.coin() => Overflow::Reroute,
        _ => Overflow::Drop,
    };
    let config = MoeConfig {
        num_experts: 6,
        moe_intermediate_size: 4,
        router_noise: 0.1,
        n_shared_experts: 1,
        ..Default::default()
    };
    MoeConfig { capacity_factor, overflow, aux_loss_coef: 0.1, z_loss_coef: 0.1, ..config }
}

fn layer(draw: &mut Draw) -> (MoeLayer, Tensor<3>) {
    let [b, t, d] = [draw.size(3), draw.size(4), draw.size(5)];
    let config = config(draw);
    (config.init(d, &Device::flex()).no_grad(), draw.plain([b, t, d], DType::F32))
}

/// Checks the statistics of a layer of 6 experts for `b` sequences.
fn stats(draw: &mut Draw, stats: &MoeStats, b: usize) {
    draw.output(stats.assigned_be().float(), [b, 6]);
    for counts in [stats.assigned_e(), stats.kept_e(), stats.dropped_e()] {
        draw.output(counts.float(), [6]);
    }
    draw.output(stats.gate_mass_e(), [6]);
}

#[test]
fn a_device_pads_segments_by_whole_rows() {
    assert!(tile_rows(&Tensor::<2>::zeros([1, 1], &Device::flex())) >= 1);
}
