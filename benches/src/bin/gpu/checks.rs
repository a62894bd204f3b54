//! Compares the operations of `moe` on the device with [`mod@reference`]: numbers relative to the largest, indices exactly.

use crate::numbers::{Numbers, ints, tensor};
use crate::parts::GpuCheck;
use crate::reference;
use crate::report::dtype_name;
use crate::timer::message;
use burn::module::Param;
use burn::tensor::{DType, Device, Gradients, Int, Tensor};
use moe::kernels::dispatch::{DispatchRule, Dispatched, Order, RowLayout, dispatch};
use moe::kernels::grouped_gemm::{Tier, force_tier, grouped_gemm, rows_gradient, weight_gradient};
use moe::kernels::permute::{permute, unpermute};
use moe::kernels::reroute::{RerouteRule, reroute};
use moe::kernels::route::{GateRule, Noise, SelectRule, count, gates, scores, select};
use moe::{MoeConfig, ScoreFunc};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a part in this process and prints a line for each result. Returns whether all are correct.
pub fn run(part: GpuCheck, device: &Device, smoke: bool) -> bool {
    let cpu = open_is_cpu(device);
    let mut check = Check { device: device.clone(), cpu, right: true };
    match part {
        GpuCheck::Routing => {
            check.each("indices", |check| check.indices(smoke));
            check.each("route", |check| check.route(smoke));
            for dtype in [DType::F32, DType::BF16] {
                check.each("permute", |check| check.permutation(smoke, dtype));
            }
        }
        GpuCheck::Product(tier, dtype) => check.product(smoke, tier, dtype),
        GpuCheck::Fused(dtype) => check.operations(smoke, dtype),
        GpuCheck::Layer => {
            check.layer(smoke, DType::F32);
            if !cpu {
                check.layer(smoke, DType::BF16);
            }
        }
    }
    check.right
}

/// Whether the device is CubeCL's CPU runtime, on which Burn's generated code rounds to bf16 on few CPUs only.
fn open_is_cpu(device: &Device) -> bool {
    crate::parts::open("cpu").is_ok_and(|cpu| cpu == *device)
}

/// The device, and whether everything was correct so far.
pub struct Check {
    pub device: Device,
    /// Whether it is CubeCL's CPU runtime.
    pub cpu: bool,
    right: bool,
}

/// Allowed error: rounding of sums in f32, and of results to bf16.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-5 } else { 1e-2 }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// `k` distinct experts for each of `n` tokens, with one in nine missing: `[k, n]`.
fn some_experts(n: usize, k: usize, e: usize) -> Vec<i32> {
    let first = |token: usize| Numbers(11).below(token, e);
    (0..k * n).map(|p| if p % 9 == 4 { -1 } else { ((first(p % n) + p / n) % e) as i32 }).collect()
}

/// Tokens, experts, top-k, width.
fn size(smoke: bool) -> [usize; 4] {
    if smoke { [24, 8, 2, 16] } else { [1024, 64, 6, 320] }
}

impl Check {
    pub fn floats<const D: usize>(&mut self, what: &str, found: Tensor<D>, expected: &[f64], tolerance: f64) {
        let found: Vec<f64> = found.into_data().iter::<f64>().collect();
        let largest = expected.iter().fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
        let errors = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs() / largest);
        // A NaN counts as the worst error, and stays so.
        let worst = errors.fold(0.0, |worst: f64, error| if worst.is_nan() || error <= worst { worst } else { error });
        let right = found.len() == expected.len() && worst <= tolerance;
        self.line(right, &format!("{what}: off by {worst:.1e} of the largest, {tolerance:.0e} allowed"));
    }

    /// Continues if an operation panics.
    pub fn each(&mut self, what: &str, run: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(self))) {
            self.line(false, &format!("{what}: {}", message(&*panic)));
        }
    }

    pub fn line(&mut self, right: bool, text: &str) {
        println!("{}  {text}", if right { "ok  " } else { "FAIL" });
        self.right &= right;
    }

    /// A tracked tensor of numbers that the dtype holds exactly.
    fn tracked<const D: usize>(&self, values: &[f32], shape: [usize; D], dtype: DType) -> Tensor<D> {
        tensor(values, shape, dtype, &self.device.clone().autodiff()).require_grad()
    }

    /// The gradient from which `backward` starts.
    fn cotangent(&self, seed: u32, len: usize, dtype: DType) -> Vec<f32> {
        if self.ones(dtype) { vec![1.0; len] } else { Numbers(seed).in_dtype(len, dtype) }
    }

    pub fn ones(&self, dtype: DType) -> bool {
        self.cpu && dtype == DType::BF16
    }

    fn backward<const D: usize>(&self, y: Tensor<D>, cotangent: &[f32]) -> Gradients {
        if self.ones(y.dtype()) {
            return y.backward();
        }
        let cotangent = tensor(cotangent, y.dims(), y.dtype(), &self.device.clone().autodiff());
        (y * cotangent).backward()
    }

    /// Compares selecting, counting and placing experts on the device with plain Rust.
    fn indices(&mut self, smoke: bool) {
        let [n, e, k, _] = size(smoke);
        let plain = [Device::flex(), self.device.clone()];
        let mut same = |what: &str, run: &dyn Fn(&Device) -> Vec<i64>| {
            let [expected, found] = plain.each_ref().map(run);
            self.line(found == expected && !found.is_empty(), &format!("{what}: {} indices", found.len()));
        };
        let read = |tensor: Tensor<2, Int>| tensor.into_data().iter::<i64>().collect::<Vec<_>>();
        // Few distinct scores, so that there are ties.
        let coarse =
            |seed, len| Numbers(seed).vec(len).into_iter().map(|x| (x * 8.0).round() / 8.0).collect::<Vec<_>>();
        let (scores, bias) = (coarse(1, n * e), coarse(2, e));
        let noise = Noise { amplitude: 0.5, key: 9, first_row: 3, seq_len: n / 2 };
        let rule = SelectRule {
            candidates: k,
            n_group: 1,
            topk_group: 1,
            group_best: 1,
            mask: f32::NEG_INFINITY,
            noise: None,
        };
        let grouped = SelectRule { n_group: 4, topk_group: 2, group_best: 2, ..rule };
        let rules = [("", rule), (" in groups", grouped), (" with noise", SelectRule { noise: Some(noise), ..rule })];
        for (name, rule) in rules {
            same(&format!("select{name}"), &|device| {
                let scores_ne = tensor(&scores, [n, e], DType::F32, device);
                read(select(scores_ne, tensor(&bias, [e], DType::F32, device), rule))
            });
        }
        let candidates: Vec<i32> = (0..k * n).map(|p| ((p % n * 7 + p / n) % e) as i32).collect();
        let experts = some_experts(n, k, e);
        same("count", &|device| read(count(ints(&experts, [k, n], device), 2, e)));
        let capacity = n * k / e;
        let rule = RerouteRule { top_k: 1, experts: e, groups: 2, capacity: capacity / 2, order: Order::Token };
        same("reroute", &|device| read(reroute(ints(&candidates, [k, n], device), rule)));
        let rule = |groups, capacity, order, layout| DispatchRule { experts: e, groups, capacity, order, layout };
        let rules = [
            ("dropless", rule(1, None, Order::Choice, RowLayout::Sorted { tile: 1 })),
            ("in tiles", rule(1, None, Order::Token, RowLayout::Sorted { tile: 128 })),
            ("with a capacity", rule(2, Some(capacity / 2), Order::Choice, RowLayout::Capacity)),
        ];
        for (name, rule) in rules {
            same(&format!("dispatch {name}"), &|device| {
                let Dispatched { row_of_kn, assignment_of_r, expert_offsets, kept_e } =
                    dispatch(ints(&experts, [k, n], device), rule);
                let parts = [row_of_kn.reshape([k * n]), assignment_of_r, expert_offsets, kept_e];
                parts.into_iter().flat_map(|part| part.into_data().iter::<i64>().collect::<Vec<_>>()).collect()
            });
        }
    }

    fn route(&mut self, smoke: bool) {
        let [n, e, k, _] = size(smoke);
        let logits: Vec<f32> = Numbers(21).vec(n * e).into_iter().map(|x| x * 4.0).collect();
        let cotangent = Numbers(22).vec(n * e);
        for func in [ScoreFunc::Softmax, ScoreFunc::Sigmoid] {
            let (expected, d_logits) = reference::scores(&wide(&logits), &wide(&cotangent), e, func);
            let logits_ne = self.tracked(&logits, [n, e], DType::F32);
            let scores_ne = scores(logits_ne.clone(), func);
            let gradients = self.backward(scores_ne.clone(), &cotangent);
            self.floats(&format!("scores {func:?}"), scores_ne, &expected, 1e-5);
            self.floats(&format!("scores {func:?} dlogits"), logits_ne.grad(&gradients).unwrap(), &d_logits, 1e-5);
        }
        // Positive, like scores.
        let values: Vec<f32> = Numbers(23).vec(n * e).into_iter().map(|x| (x + 1.25) / 4.0).collect();
        let (experts, cotangent) = (some_experts(n, k, e), Numbers(24).vec(k * n));
        for normalise in [false, true] {
            let rule = GateRule { normalise, scale: 2.5 };
            let (expected, d_scores) = reference::gates(&wide(&values), &experts, &wide(&cotangent), e, rule);
            let scores_ne = self.tracked(&values, [n, e], DType::F32);
            let gates_kn = gates(scores_ne.clone(), ints(&experts, [k, n], &self.device), rule);
            let gradients = self.backward(gates_kn.clone(), &cotangent);
            let name = if normalise { "gates normalised" } else { "gates" };
            self.floats(name, gates_kn, &expected, 1e-5);
            self.floats(&format!("{name} dscores"), scores_ne.grad(&gradients).unwrap(), &d_scores, 1e-5);
        }
    }

    fn permutation(&mut self, smoke: bool, dtype: DType) {
        let ([n, e, k, d], name) = (size(smoke), dtype_name(dtype));
        let layout = RowLayout::Sorted { tile: 16 };
        let rule = DispatchRule { experts: e, groups: 1, capacity: None, order: Order::Choice, layout };
        let placed = dispatch(ints(&some_experts(n, k, e), [k, n], &self.device), rule);
        let row_of: Vec<i32> = placed.row_of_kn.clone().into_data().iter::<i32>().collect();
        let r = placed.assignment_of_r.dims()[0];

        let (x, cotangent) = (Numbers(31).in_dtype(n * d, dtype), self.cotangent(32, r * d, dtype));
        let (rows, d_x) = reference::permute(&wide(&x), &row_of, &wide(&cotangent), n);
        let x_nd = self.tracked(&x, [n, d], dtype);
        let x_rd = permute(x_nd.clone(), &placed);
        let gradients = self.backward(x_rd.clone(), &cotangent);
        self.floats(&format!("permute {name}"), x_rd, &rows, 0.0);
        self.floats(&format!("permute {name} dx"), x_nd.grad(&gradients).unwrap(), &d_x, tolerance(dtype));

        let (y, g, cotangent) =
            (Numbers(33).in_dtype(r * d, dtype), Numbers(34).vec(k * n), self.cotangent(35, n * d, dtype));
        let [expected, d_y, d_gates] = reference::unpermute(&wide(&y), &wide(&g), &row_of, &wide(&cotangent), n);
        let (y_rd, gates_kn) = (self.tracked(&y, [r, d], dtype), self.tracked(&g, [k, n], DType::F32));
        let y_nd = unpermute(y_rd.clone(), gates_kn.clone(), &placed);
        let gradients = self.backward(y_nd.clone(), &cotangent);
        self.floats(&format!("unpermute {name}"), y_nd, &expected, tolerance(dtype));
        self.floats(&format!("unpermute {name} dy"), y_rd.grad(&gradients).unwrap(), &d_y, tolerance(dtype));
        self.floats(&format!("unpermute {name} dgates"), gates_kn.grad(&gradients).unwrap(), &d_gates, 1e-5);
    }

    /// Covers an expert without rows, irregular segment lengths, and rows after the last segment.
    fn product(&mut self, smoke: bool, tier: Tier, dtype: DType) {
        let (lengths, p, q): (&[i32], _, _) =
            if smoke { (&[6, 0, 33, 1], 24, 40) } else { (&[300, 0, 77, 1, 128, 513], 320, 192) };
        let expert_offsets: Vec<i32> = (0..=lengths.len()).map(|e| lengths[..e].iter().sum()).collect();
        let (e, end) = (lengths.len(), expert_offsets[lengths.len()] as usize);
        let r = end + 9;
        let (x, weight, d_y) = (
            Numbers(51).in_dtype(r * p, dtype),
            Numbers(52).in_dtype(e * p * q, dtype),
            Numbers(53).in_dtype(r * q, dtype),
        );
        let expected = reference::product(&wide(&x), &wide(&weight), &wide(&d_y), &expert_offsets, [p, q]);
        // On a GPU, cubek multiplies f32 in TF32, which keeps 10 bits.
        let tf32 = tier == Tier::MultiLevel && dtype == DType::F32 && !self.cpu;
        let tolerance = if tf32 { 2e-3 } else { tolerance(dtype) };

        force_tier(Some(tier));
        let on = |values: &[f32], shape| tensor::<2>(values, shape, dtype, &self.device);
        let weight_epq = tensor::<3>(&weight, [e, p, q], dtype, &self.device);
        let expert_offsets = ints(&expert_offsets, [e + 1], &self.device);
        let (x_rp, d_y_rq) = (on(&x, [r, p]), on(&d_y, [r, q]));
        let name = format!("grouped_gemm {tier} {}", dtype_name(dtype));
        let y_rq = grouped_gemm(x_rp.clone(), weight_epq.clone(), &expert_offsets);
        // The next operation handles the rows after the end.
        let [y, d_x] =
            [y_rq, rows_gradient(d_y_rq.clone(), weight_epq, &expert_offsets)].map(|rows| rows.slice(0..end));
        self.floats(&name, y, &expected.y[..end * q], tolerance);
        self.floats(&format!("{name} dx"), d_x, &expected.d_x[..end * p], tolerance);
        let d_weight = weight_gradient(x_rp, d_y_rq, &expert_offsets);
        self.floats(&format!("{name} dW"), d_weight, &expected.d_weight, tolerance);
    }

    /// Compares a layer and its gradients with the same layer in f32 and plain Rust. The router's weights make each
    /// logit a multiple of a single input, exact in every precision, so both choose the same experts.
    fn layer(&mut self, smoke: bool, dtype: DType) {
        let [n, e, k, d] = size(smoke);
        let (h, name) = (2 * d, dtype_name(dtype));
        let config = MoeConfig { num_experts: e, top_k: k, moe_intermediate_size: h, ..MoeConfig::default() };
        let router: Vec<f32> = (0..d * e).map(|i| if i / e == i % e { 4.0 } else { 0.0 }).collect();
        let run = |device: &Device, dtype| {
            let device = device.clone().autodiff();
            let mut layer = config.init(d, &device);
            layer.router.proj.weight = Param::from_tensor(tensor(&router, [d, e], dtype, &device));
            let stack = |seed, shape| Param::from_tensor(Numbers(seed).tensor::<3>(shape, 0.125, dtype, &device));
            layer.experts.gate_proj = stack(62, [e, d, h]);
            layer.experts.up_proj = stack(63, [e, d, h]);
            layer.experts.down_proj = stack(64, [e, h, d]);
            let x_btd = Numbers(61).tensor::<3>([2, n / 2, d], 1.0, dtype, &device).require_grad();
            let y_btd = layer.forward(x_btd.clone(), None).y_btd;
            let gradients = y_btd.clone().backward();
            let of = |weight: &Param<Tensor<3>>| weight.val().grad(&gradients).unwrap();
            let experts = &layer.experts;
            let d_weights = [of(&experts.gate_proj), of(&experts.up_proj), of(&experts.down_proj)];
            let [d_gate, d_up, d_down] = d_weights;
            [
                ("y", y_btd.inner()),
                ("dx", x_btd.grad(&gradients).unwrap()),
                ("dgate", d_gate),
                ("dup", d_up),
                ("ddown", d_down),
            ]
        };
        let expected = run(&Device::flex(), DType::F32);
        for ((what, found), (_, expected)) in run(&self.device, dtype).into_iter().zip(expected) {
            let expected: Vec<f64> = expected.into_data().iter::<f64>().collect();
            // The router's product may be in TF32, and dx includes its gradient.
            let tolerance = if dtype == DType::BF16 {
                2e-2
            } else if what == "dx" {
                2e-3
            } else {
                1e-5
            };
            self.floats(&format!("layer {name} {what}"), found, &expected, tolerance);
        }
    }
}
