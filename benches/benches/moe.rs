//! A mixture-of-experts layer on the CPU, forward and backward, and each of its operations, next to a naive loop over
//! tokens.
//!
//! `peers/moe_torch.py` measures the same layers in PyTorch, and `peers/compare.py moe` computes the ratio.

use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput};
use fused::silu_mul;
use moe::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use moe::kernels::grouped_gemm::grouped_gemm;
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::route::{self, GateRule, SelectRule};
use moe::{MoeConfig, MoeLayer, ScoreFunc};
use std::hint::black_box;
use std::time::Duration;

const TOKENS: usize = 4096;
const D: usize = 512;

/// Name, experts, top-k, width of an expert.
const SHAPES: [(&str, usize, usize, usize); 2] = [("E=8 top-2 h=1024", 8, 2, 1024), ("E=64 top-6 h=256", 64, 6, 256)];

fn main() {
    benches::keep_memory();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5))
        .configure_from_args();
    for (name, e, k, h) in SHAPES {
        layer(&mut criterion, name, e, k, h);
        operations(&mut criterion, name, e, k, h);
    }
    criterion.final_summary();
}

fn config(e: usize, k: usize, h: usize) -> MoeConfig {
    MoeConfig { num_experts: e, top_k: k, moe_intermediate_size: h, ..MoeConfig::default() }
}

fn random<const N: usize>(shape: [usize; N], device: &Device) -> Tensor<N> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Forward and backward of a dropless layer, with the gradients of tokens and weights. The naive loop processes only
/// some of the tokens.
fn layer(criterion: &mut Criterion, name: &str, e: usize, k: usize, h: usize) {
    let device = Device::flex().autodiff();
    let layer = config(e, k, h).init(D, &device);
    let x_btd = random([1, TOKENS, D], &Device::flex());
    let mut group = criterion.benchmark_group("moe/layer");
    group.throughput(Throughput::Elements(TOKENS as u64));
    group.bench_function(BenchmarkId::new("kiln", name), |bencher| {
        bencher.iter(|| {
            let x_btd = Tensor::from_inner(x_btd.clone()).require_grad();
            black_box(layer.forward(x_btd, None).y_btd.sum().backward())
        });
    });
    const SOME: usize = 32;
    let naive = Naive::new(&layer, &x_btd, SOME, k);
    group.throughput(Throughput::Elements(SOME as u64));
    group.bench_function(BenchmarkId::new("naive", name), |bencher| bencher.iter(|| black_box(naive.run())));
}

/// Each operation at the sizes that it has in the layer.
fn operations(criterion: &mut Criterion, name: &str, e: usize, k: usize, h: usize) {
    let device = Device::flex();
    let logits_ne = random([TOKENS, e], &device);
    let select =
        SelectRule { candidates: k, n_group: 1, topk_group: 1, group_best: 1, mask: f32::NEG_INFINITY, noise: None };
    let rule = DispatchRule {
        experts: e,
        groups: 1,
        capacity: None,
        order: Order::Choice,
        layout: RowLayout::Sorted { tile: 1 },
    };
    let routed = || {
        let scores_ne = route::scores(logits_ne.clone(), ScoreFunc::Softmax);
        let experts_kn = route::select(scores_ne.clone(), Tensor::zeros([e], &device), select);
        let gates_kn = route::gates(scores_ne, experts_kn.clone(), GateRule { normalise: true, scale: 1.0 });
        (experts_kn, gates_kn)
    };
    let (experts_kn, gates_kn) = routed();
    let placed = dispatch(experts_kn.clone(), rule);
    let x_nd = random([TOKENS, D], &device);
    let x_rd = permute(x_nd.clone(), &placed);
    let (up_edh, y_rh) = (random([e, D, h], &device), random([TOKENS * k, h], &device));

    let mut group = criterion.benchmark_group("moe/op");
    let mut bench = |op: &str, run: &dyn Fn()| {
        group.bench_function(BenchmarkId::new(op, name), |bencher| bencher.iter(run));
    };
    bench("route", &|| drop(black_box(routed())));
    bench("dispatch", &|| drop(black_box(dispatch(experts_kn.clone(), rule))));
    bench("permute", &|| drop(black_box(permute(x_nd.clone(), &placed))));
    bench("unpermute", &|| drop(black_box(unpermute(x_rd.clone(), gates_kn.clone(), &placed))));
    bench("silu_mul", &|| drop(black_box(silu_mul(y_rh.clone(), y_rh.clone()))));
    bench("grouped_gemm", &|| drop(black_box(grouped_gemm(x_rd.clone(), up_edh.clone(), &placed.expert_offsets))));
    drop(group);
    gradients(criterion, name, x_rd, up_edh, &placed);
}

/// Forward and both gradients of one grouped product.
fn gradients(criterion: &mut Criterion, name: &str, x_rd: Tensor<2>, up_edh: Tensor<3>, placed: &Dispatched) {
    let mut group = criterion.benchmark_group("moe/op");
    group.bench_function(BenchmarkId::new("grouped_gemm with gradients", name), |bencher| {
        bencher.iter(|| {
            let x_rd = Tensor::from_inner(x_rd.clone()).require_grad();
            let up_edh = Tensor::from_inner(up_edh.clone()).require_grad();
            black_box(grouped_gemm(x_rd, up_edh, &placed.expert_offsets).sum().backward())
        });
    });
}

/// Forward and backward, one token, one expert and one product at a time.
struct Naive {
    /// Tokens, and the experts of each.
    x: Vec<Vec<f32>>,
    experts: Vec<Vec<usize>>,
    /// `[e, d, h]`, `[e, d, h]`, `[e, h, d]`
    weights: [Vec<f32>; 3],
    h: usize,
}

impl Naive {
    fn new(layer: &MoeLayer, x_btd: &Tensor<3>, tokens: usize, k: usize) -> Self {
        let floats = |weight: Tensor<3>| weight.into_data().try_to_vec::<f32>().expect("weights are f32");
        let experts = &layer.experts;
        let [e, _, h] = experts.gate_proj.val().dims();
        Self {
            x: floats(x_btd.clone()).chunks(D).take(tokens).map(<[f32]>::to_vec).collect(),
            experts: (0..tokens).map(|token| (0..k).map(|choice| (token * 7 + choice) % e).collect()).collect(),
            weights: [experts.gate_proj.val(), experts.up_proj.val(), experts.down_proj.val()].map(floats),
            h,
        }
    }

    /// Outputs, and the gradients of tokens and weights.
    fn run(&self) -> Vec<Vec<f32>> {
        let h = self.h;
        let mut gradients = self.weights.each_ref().map(|weight| vec![0.0; weight.len()]);
        let (mut ys, mut dxs) = (vec![], vec![]);
        for (x, experts) in self.x.iter().zip(&self.experts) {
            let (mut y, mut dx) = (vec![0.0; D], vec![0.0; D]);
            for expert in experts {
                let range = expert * D * h..(expert + 1) * D * h;
                let [gate_w, up_w, down_w] = self.weights.each_ref().map(|weight| &weight[range.clone()]);
                let (gate, up) = (row_times(x, gate_w, h), row_times(x, up_w, h));
                let s: Vec<f32> = gate.iter().map(|g| 1.0 / (1.0 + (-g).exp())).collect();
                let hidden: Vec<f32> = (0..h).map(|i| gate[i] * s[i] * up[i]).collect();
                add(&mut y, &row_times(&hidden, down_w, D));
                // The incoming gradient is all ones.
                let dy = vec![1.0; D];
                let d_hidden = times_column(down_w, &dy, h);
                let d_up: Vec<f32> = (0..h).map(|i| d_hidden[i] * gate[i] * s[i]).collect();
                let silu_slope = |i: usize| s[i] * (1.0 + gate[i] * (1.0 - s[i]));
                let d_gate: Vec<f32> = (0..h).map(|i| d_hidden[i] * up[i] * silu_slope(i)).collect();
                add(&mut dx, &times_column(gate_w, &d_gate, D));
                add(&mut dx, &times_column(up_w, &d_up, D));
                let [d_gate_w, d_up_w, d_down_w] = gradients.each_mut().map(|weight| &mut weight[range.clone()]);
                outer(d_gate_w, x, &d_gate);
                outer(d_up_w, x, &d_up);
                outer(d_down_w, &hidden, &dy);
            }
            ys.push(y);
            dxs.push(dx);
        }
        ys.into_iter().chain(dxs).chain(gradients).collect()
    }
}

/// `x W`, with `W` `[x.len(), width]`.
fn row_times(x: &[f32], weight: &[f32], width: usize) -> Vec<f32> {
    (0..width).map(|j| x.iter().enumerate().map(|(i, x)| x * weight[i * width + j]).sum()).collect()
}

/// `W y`, with `W` `[rows, y.len()]`.
fn times_column(weight: &[f32], y: &[f32], rows: usize) -> Vec<f32> {
    (0..rows).map(|i| weight[i * y.len()..][..y.len()].iter().zip(y).map(|(w, y)| w * y).sum()).collect()
}

/// `W += x^T y`
fn outer(weight: &mut [f32], x: &[f32], y: &[f32]) {
    for (row, x) in weight.chunks_mut(y.len()).zip(x) {
        row.iter_mut().zip(y).for_each(|(w, y)| *w += x * y);
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
