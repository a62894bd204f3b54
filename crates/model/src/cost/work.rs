//! What a call computes on one rank for one micro-batch, from its parameters, its attention and what it keeps.
//!
//! With n tokens on the rank (1/cp of a context; tensor-parallel ranks have n/tp rows of the residual stream, or n rows
//! and 1/tp of the columns), products have the shapes
//!
//! ```text
//! matrix [k, j]           [n, k] x [k, j]; over tp ranks 1/tp of the rows k or of the columns j, or n/tp rows
//! experts [e, k, j]       e/ep products of n/tp ep top_k/e rows, if loads are balanced
//! output matrix           [n, d] x [d, vocab]
//! ```
//!
//! Ranks that share sequences also copy, per token and element of width w:
//!
//! ```text
//! gather, scatter         rows are put in order: each byte of the whole is read and written
//! ring of N ranks         forward: 2 N - 1 parts of half the rows are merged (8 accesses), the halves joined (2);
//!                         backward: 2 N + 1 parts are added (3 tensors, 3 accesses), and N messages with their
//!                         gradients joined and passed on (14), all in fp32
//! head over tp            the logits' softmax and its gradient are single operations, about 33 accesses
//! ```
//!
//! Attention takes a third of [`Flops::attention`](super::Flops::attention) in the forward, for the T/2 keys that a token
//! sees on average.

use super::Workload;
use crate::{Family, ParameterSpec, Sharding};
use comm::Axis;
use fsdp::{CallTraffic, Received};
use plan::{Product, Work};

/// Operations of a call beside its products: norms, residuals, activation functions, rotations.
const LAUNCHES: f64 = 8.0;
const FP32: f64 = 4.0;

pub(crate) fn work<F: Family + ?Sized>(family: &F, workload: &Workload) -> Vec<Work> {
    let Workload { sequences, positions, tp, cp, .. } = *workload;
    let tokens = (sequences * positions) as f64 / cp as f64;
    let (blocks, width) = (family.blocks(), family.width() as f64);
    let half = workload.element < size_of::<f32>();
    let traffic = family.traffic(workload);
    let call = |((bytes, flops), traffic): ((fsdp::CallBytes, super::Flops), &CallTraffic)| Work {
        products: vec![],
        attention: flops.attention / 3.0 * positions as f64 / 2.0 * tokens / tp as f64,
        kept: bytes.graph as f64,
        launches: LAUNCHES,
        half,
        logits: 0.0,
        copied: [&traffic.forward, &traffic.backward].map(|received| ordered(received, workload)),
        gradients_in_forward: false,
    };
    let memory = family.memory(workload).into_iter();
    let mut calls: Vec<Work> = memory.zip(family.flops()).zip(&traffic).map(call).collect();
    for (call, flops) in calls.iter_mut().zip(family.flops()) {
        let ring = ring(flops.attention / 12.0 / tp as f64 * tokens, cp as f64);
        call.copied = [call.copied[0] + ring[0], call.copied[1] + ring[1]];
    }
    for parameter in
        family.parameters().iter().filter(|parameter| parameter.products > 0.0 && parameter.shape.len() > 1)
    {
        let call = family.call_of(parameter);
        let product = product(parameter, tokens, workload);
        // After the blocks, a tied table is a factor by its columns.
        let product = match call > blocks && parameter.shape[..] == [family.vocab_size(), family.width()] {
            true => Product { inner: width, columns: product.inner * product.columns / width, ..product },
            false => product,
        };
        calls[call].launches += 1.0;
        calls[call].products.push(product);
    }
    let last = calls.last_mut().expect("a model has a head");
    last.logits = tokens * family.vocab_size() as f64 * (1 + family.mtp_depth()) as f64 / tp as f64;
    last.kept = 0.0; // the gradients that the head keeps move with its logits
    match tp {
        1 => last.gradients_in_forward = true,
        _ => last.copied = last.copied.map(|bytes| bytes + 16.5 * FP32 * last.logits),
    }
    calls
}

/// Returns the bytes that are moved to put rows in order that ranks gather or sum.
fn ordered(received: &Received, workload: &Workload) -> f64 {
    let whole = |((axis, collective), bytes): (&(Axis, &str), &usize)| {
        let ranks = if *axis == Axis::Tp { workload.tp } else { workload.cp } as f64;
        let is_of_rows = matches!(*collective, "all_gather" | "reduce_scatter") && matches!(axis, Axis::Tp | Axis::Cp);
        if is_of_rows && ranks > 1.0 { 2.0 * ranks / (ranks - 1.0) * *bytes as f64 } else { 0.0 }
    };
    received.iter().map(whole).sum()
}

/// Returns the bytes that ring attention over `n` ranks moves beside its kernels, in the forward and in the backward,
/// for an output of `elements`.
fn ring(elements: f64, n: f64) -> [f64; 2] {
    if n < 2.0 {
        return [0.0; 2];
    }
    [(2.0 * n - 1.0) / 2.0 * 8.0 + 2.0, (2.0 * n + 1.0) / 2.0 * 9.0 + 14.0 * n]
        .map(|accesses| FP32 * elements * accesses)
}

/// Returns the product with a parameter.
fn product(parameter: &ParameterSpec, tokens: f64, workload: &Workload) -> Product {
    let (tp, ep) = (workload.tp as f64, workload.ep as f64);
    let size = |from_the_end: usize| parameter.shape[parameter.shape.len() - from_the_end] as f64;
    let (inner, columns, rows) = (size(2), size(1), tokens * parameter.products);
    match parameter.sharding {
        Sharding::Replicated => Product { rows: rows / tp, inner, columns, count: 1.0 },
        Sharding::Tensor(shard) if shard.dim == 0 => Product { rows, inner: inner / tp, columns, count: 1.0 },
        Sharding::Tensor(_) => Product { rows, inner, columns: columns / tp, count: 1.0 },
        Sharding::Experts => {
            let count = (parameter.shape[0] as f64 / ep).max(1.0);
            Product { rows: rows / tp * ep * parameter.active, inner, columns, count }
        }
    }
}
