//! Measures the operations that move tokens in bytes per second: router, dispatch, permute and unpermute, each next to
//! a copy of as many bytes.

use crate::cases::{Model, Sizes};
use crate::numbers::{Numbers, tensor};
use crate::report::{Record, Report, dtype_name};
use crate::timer::{finite, seconds};
use burn::tensor::{DType, Device, Int, Tensor};
use moe::ScoreFunc;
use moe::kernels::dispatch::{DispatchRule, Order, RowLayout, dispatch};
use moe::kernels::grouped_gemm::tile_rows;
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::route::{GateRule, SelectRule, gates, scores, select};

/// Measures the tokens of one rank for every model.
pub fn measure(device: &Device, sizes: &Sizes, report: &mut Report) {
    for model in &sizes.models {
        of_model(device, sizes, report, model);
    }
}

fn of_model(device: &Device, sizes: &Sizes, report: &mut Report, model: &Model) {
    let Model { experts: e, top_k: k, d, grouped, .. } = *model;
    let (n, dtype) = (model.tokens[1] / model.ep, report.dtype());
    let (groups, func) = if grouped { ((8, 4, 2), ScoreFunc::Sigmoid) } else { ((1, 1, 1), ScoreFunc::Softmax) };
    let rule = SelectRule {
        candidates: k,
        n_group: groups.0,
        topk_group: groups.1,
        group_best: groups.2,
        mask: f32::NEG_INFINITY,
        noise: None,
    };
    let logits_ne = Numbers(71).tensor::<2>([n, e], 4.0, DType::F32, device);
    let bias_e = tensor(&vec![0.0; e], [e], DType::F32, device);
    let route = || -> (Tensor<2>, Tensor<2>, Tensor<2, Int>) {
        let scores_ne = scores(logits_ne.clone(), func);
        let experts_kn = select(scores_ne.clone(), bias_e.clone(), rule);
        let gates_kn = gates(scores_ne.clone(), experts_kn.clone(), GateRule { normalise: true, scale: 1.0 });
        (gates_kn, scores_ne, experts_kn)
    };
    let x_nd = Numbers(72).tensor::<2>([n, d], 1.0, dtype, device);
    // As in a layer. Padding is the layout's overhead and does not count as bytes.
    let layout = RowLayout::Sorted { tile: tile_rows(&x_nd) };
    let rule = DispatchRule { experts: e, groups: 1, capacity: None, order: Order::Choice, layout };
    let (gates_kn, _, experts_kn) = route();
    let placed = dispatch(experts_kn.clone(), rule);
    let y_rd = permute(x_nd.clone(), &placed);

    let (r, token) = (n * k, d * dtype.size());
    // Each input is read once, each output is written once.
    let mut record = |op: &str, bytes: usize, seconds: Result<f64, String>| {
        let (skew, dtype) = ("routed".into(), dtype_name(dtype).into());
        let (op, tier, bytes) = (op.into(), "chosen".into(), bytes as f64);
        let group = "routing";
        let record =
            Record { group, op, tier, shape: model.name, rows: r, skew, dtype, seconds: 0.0, flops: 0.0, bytes };
        report.measured(record, seconds);
    };
    let mut with_copy = |op: &str, bytes: usize, time: Result<f64, String>| {
        record(op, bytes, time);
        // Half of the bytes are read, half are written.
        let from = Numbers(73).tensor::<1>([bytes / 8], 1.0, DType::F32, device);
        record("copy", bytes / 8 * 8, seconds(device, sizes, || from.clone().neg(), finite));
    };
    with_copy("router", 2 * n * e * 4 + 2 * r * 4, seconds(device, sizes, route, |(gates, ..)| finite(gates)));
    with_copy("dispatch", 3 * r * 4, {
        let check = |row_of_kn: Tensor<2, Int>| finite(row_of_kn.float());
        let launch = || dispatch(experts_kn.clone(), rule);
        seconds(device, sizes, launch, |placed| check(placed.row_of_kn))
    });
    with_copy("permute", (n + r) * token + r * 4, seconds(device, sizes, || permute(x_nd.clone(), &placed), finite));
    with_copy("unpermute", (n + r) * token + 2 * r * 4, {
        seconds(device, sizes, || unpermute(y_rd.clone(), gates_kn.clone(), &placed), finite)
    });
}
