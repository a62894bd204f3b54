//! The kernels of [`route`](super): one unit per token, in a grid-stride loop.
//!
//! A unit reads its token's row of scores several times (adjacent in memory, so the cache holds them) and writes its
//! row or column of outputs; units share nothing. One cube per sequence counts choices, in shared memory.

mod select;

use super::{GateRule, RouteBackwardOps, RouteOps, SelectRule, TINY};
use crate::ScoreFunc;
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, contiguous, empty, over_items, over_rows, units};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};
use select::select_experts;

impl RouteOps for CubeBackend {
    fn moe_scores(logits: CubeTensor, func: ScoreFunc) -> CubeTensor {
        let ([n, e], logits) = (logits.shape().dims(), contiguous(logits, DType::F32));
        let scores = empty(&logits, [n, e], DType::F32);
        if n > 0 {
            let (count, dim) = over_items(&logits.client, n);
            let client = logits.client.clone();
            let (input, output) = (logits.elements(), scores.clone().elements());
            route_scores_kernel::launch(&client, count, dim, input, output, n, e, func == ScoreFunc::Softmax);
        }
        scores
    }

    fn moe_select(scores: CubeTensor, bias: CubeTensor, rule: SelectRule) -> CubeTensor {
        select_experts(scores, bias, rule)
    }

    fn moe_gates(scores: CubeTensor, experts: CubeTensor, rule: GateRule) -> CubeTensor {
        let ([n, e], [k, _]) = (scores.shape().dims(), experts.shape().dims::<2>());
        let (scores, experts) = (contiguous(scores, DType::F32), contiguous(experts, DType::I32));
        let gates = empty(&scores, [k, n], DType::F32);
        if n > 0 {
            let (count, dim) = over_items(&scores.client, n);
            route_gates_kernel::launch(
                &scores.client.clone(),
                count,
                dim,
                scores.elements(),
                experts.elements(),
                gates.clone().elements(),
                n,
                e,
                k,
                rule.scale,
                rule.normalise,
            );
        }
        gates
    }

    fn moe_count(experts: CubeTensor, groups: usize, e: usize) -> CubeTensor {
        let ([k, n], experts) = (experts.shape().dims(), contiguous(experts, DType::I32));
        if n * k == 0 {
            return zeros_client(experts.client.clone(), experts.device.clone(), [groups, e].into(), DType::I32);
        }
        let counts = empty(&experts, [groups, e], DType::I32);
        let units = units(&experts.client, n / groups * k);
        let (cubes, dim) = over_rows(&experts.client, groups, units);
        route_count_kernel::launch(
            &experts.client.clone(),
            cubes,
            dim,
            experts.elements(),
            counts.clone().elements(),
            n,
            k,
            e,
            groups,
            e.next_power_of_two(),
            units,
        );
        counts
    }
}

#[cube(launch)]
fn route_scores_kernel(logits: &[f32], scores: &mut [f32], n: usize, e: usize, #[comptime] softmax: bool) {
    let mut token = ABSOLUTE_POS;
    while token < n {
        let row = token * e;
        if comptime!(softmax) {
            let mut largest = logits[row];
            for i in 1..e {
                largest = max(largest, logits[row + i]);
            }
            let mut sum = 0.0f32;
            for i in 0..e {
                let s = (logits[row + i] - largest).exp();
                scores[row + i] = s;
                sum += s;
            }
            for i in 0..e {
                scores[row + i] /= sum;
            }
        } else {
            for i in 0..e {
                scores[row + i] = 1.0f32 / (1.0f32 + (-logits[row + i]).exp());
            }
        }
        token += CUBE_COUNT * CUBE_DIM as usize;
    }
}

impl RouteBackwardOps for CubeBackend {
    fn moe_scores_backward(scores: CubeTensor, d_scores: CubeTensor, func: ScoreFunc) -> CubeTensor {
        let [n, e] = scores.shape().dims();
        let (scores, d_scores) = (contiguous(scores, DType::F32), contiguous(d_scores, DType::F32));
        let d_logits = empty(&scores, [n, e], DType::F32);
        if n > 0 {
            let (count, dim) = over_items(&scores.client, n);
            route_scores_backward_kernel::launch(
                &scores.client.clone(),
                count,
                dim,
                scores.elements(),
                d_scores.elements(),
                d_logits.clone().elements(),
                n,
                e,
                func == ScoreFunc::Softmax,
            );
        }
        d_logits
    }

    fn moe_gates_backward(scores: CubeTensor, experts: CubeTensor, d_gates: CubeTensor, rule: GateRule) -> CubeTensor {
        let ([n, e], [k, _]) = (scores.shape().dims(), experts.shape().dims::<2>());
        let (scores, d_gates) = (contiguous(scores, DType::F32), contiguous(d_gates, DType::F32));
        let experts = contiguous(experts, DType::I32);
        let d_scores = empty(&scores, [n, e], DType::F32);
        if n > 0 {
            let (count, dim) = over_items(&scores.client, n);
            route_gates_backward_kernel::launch(
                &scores.client.clone(),
                count,
                dim,
                scores.elements(),
                experts.elements(),
                d_gates.elements(),
                d_scores.clone().elements(),
                n,
                e,
                k,
                rule.scale,
                rule.normalise,
            );
        }
        d_scores
    }
}

#[cube(launch)]
fn route_scores_backward_kernel(
    scores: &[f32],
    d_scores: &[f32],
    d_logits: &mut [f32],
    n: usize,
    e: usize,
    #[comptime] softmax: bool,
) {
    let mut token = ABSOLUTE_POS;
    while token < n {
        let row = token * e;
        if comptime!(softmax) {
            let mut dot = 0.0f32;
            for i in row..row + e {
                dot += scores[i] * d_scores[i];
            }
            for i in row..row + e {
                d_logits[i] = scores[i] * (d_scores[i] - dot);
            }
        } else {
            for i in row..row + e {
                d_logits[i] = d_scores[i] * scores[i] * (1.0f32 - scores[i]);
            }
        }
        token += CUBE_COUNT * CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn route_gates_kernel(
    scores: &[f32],
    experts: &[i32],
    gates: &mut [f32],
    n: usize,
    e: usize,
    k: usize,
    scale: f32,
    #[comptime] normalise: bool,
) {
    let mut token = ABSOLUTE_POS;
    while token < n {
        let sum = score_sum(scores, experts, token, n, e, k, normalise);
        for j in 0..k {
            let expert = experts[j * n + token];
            let mut gate = 0.0f32;
            if expert >= 0i32 {
                gate = scores[token * e + expert as usize] / sum * scale;
            }
            gates[j * n + token] = gate;
        }
        token += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The divisor of the scores of the token's experts.
#[cube]
fn score_sum(
    scores: &[f32],
    experts: &[i32],
    token: usize,
    n: usize,
    e: usize,
    k: usize,
    #[comptime] normalise: bool,
) -> f32 {
    let mut sum = 1.0f32;
    if comptime!(normalise) {
        sum = 0.0f32;
        for j in 0..k {
            let expert = experts[j * n + token];
            if expert >= 0i32 {
                sum += scores[token * e + expert as usize];
            }
        }
        sum += comptime!(TINY);
    }
    sum
}

/// Each unit owns its token's row: it sets the row to 0 and adds the gradients of the k chosen scores.
#[cube(launch)]
fn route_gates_backward_kernel(
    scores: &[f32],
    experts: &[i32],
    d_gates: &[f32],
    d_scores: &mut [f32],
    n: usize,
    e: usize,
    k: usize,
    scale: f32,
    #[comptime] normalise: bool,
) {
    let mut token = ABSOLUTE_POS;
    while token < n {
        let row = token * e;
        for i in 0..e {
            d_scores[row + i] = 0.0f32;
        }
        let sum = score_sum(scores, experts, token, n, e, k, normalise);
        let mut share = 0.0f32;
        if comptime!(normalise) {
            for j in 0..k {
                let expert = experts[j * n + token];
                if expert >= 0i32 {
                    share += d_gates[j * n + token] * scores[row + expert as usize] / sum;
                }
            }
        }
        for j in 0..k {
            let expert = experts[j * n + token];
            if expert >= 0i32 {
                d_scores[row + expert as usize] += scale / sum * (d_gates[j * n + token] - share);
            }
        }
        token += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The order of atomics does not change a sum of integers.
#[cube(launch)]
fn route_count_kernel(
    experts: &[i32],
    counts: &mut [i32],
    n: usize,
    k: usize,
    e: usize,
    groups: usize,
    #[comptime] table: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let tokens = n / groups;
    let count = Shared::<[Atomic<i32>]>::new_slice(table);
    let mut group = CUBE_POS;
    while group < groups {
        let mut expert = unit;
        while expert < e {
            count[expert].store(0i32);
            expert += units;
        }
        sync_cube();
        let mut i = unit;
        while i < tokens * k {
            let expert = experts[i / tokens * n + group * tokens + i % tokens];
            // Checked here: a launch checks bounds in global memory but not in shared memory.
            if expert >= 0i32 && expert < e as i32 {
                count[expert as usize].fetch_add(1i32);
            }
            i += units;
        }
        sync_cube();
        let mut expert = unit;
        while expert < e {
            counts[group * e + expert] = count[expert].load();
            expert += units;
        }
        // A unit clears for the next group only what it has read itself.
        group += CUBE_COUNT;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use route_count_kernel::RouteCountKernel;
    use route_gates_backward_kernel::RouteGatesBackwardKernel;
    use route_gates_kernel::RouteGatesKernel;
    use route_scores_backward_kernel::RouteScoresBackwardKernel;
    use route_scores_kernel::RouteScoresKernel;

    let dim = || CubeDim::new_1d(256);
    let mut cases = select::cases();
    for on in [false, true] {
        cases.push(KernelCase::new(format!("route scores softmax={on}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            RouteScoresKernel::new(s, d, t, b(), b(), (), (), on)
        }));
        cases.push(KernelCase::new(format!("route scores_backward softmax={on}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            RouteScoresBackwardKernel::new(s, d, t, b(), b(), b(), (), (), on)
        }));
        cases.push(KernelCase::new(format!("route gates normalise={on}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            RouteGatesKernel::new(s, d, t, b(), b(), b(), (), (), (), (), on)
        }));
        cases.push(KernelCase::new(format!("route gates_backward normalise={on}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            RouteGatesBackwardKernel::new(s, d, t, b(), b(), b(), b(), (), (), (), (), on)
        }));
    }
    cases.push(KernelCase::new("route count e=256", move |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
        RouteCountKernel::new(s, d, t, b(), b(), (), (), (), (), 256, 256)
    }));
    cases
}
