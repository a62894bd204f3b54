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
//! Attention takes a third of [`Flops::attention`](super::Flops::attention) in the forward, for the T/2 keys that a token
//! sees on average.

use super::Workload;
use crate::{Family, ParameterSpec, Sharding};
use plan::{Product, Work};

/// Operations of a call beside its products: norms, residuals, activation functions, rotations.
const LAUNCHES: f64 = 8.0;

pub(crate) fn work<F: Family + ?Sized>(family: &F, workload: &Workload) -> Vec<Work> {
    let Workload { sequences, positions, tp, cp, .. } = *workload;
    let tokens = (sequences * positions) as f64 / cp as f64;
    let (blocks, width) = (family.blocks(), family.width() as f64);
    let half = workload.element < size_of::<f32>();
    let call = |(bytes, flops): (fsdp::CallBytes, super::Flops)| Work {
        products: vec![],
        attention: flops.attention / 3.0 * positions as f64 / 2.0 * tokens / tp as f64,
        kept: bytes.graph as f64,
        launches: LAUNCHES,
        half,
        logits: 0.0,
    };
    let mut calls: Vec<Work> = family.memory(workload).into_iter().zip(family.flops()).map(call).collect();
    for parameter in
        family.parameters().iter().filter(|parameter| parameter.products > 0.0 && parameter.shape.len() > 1)
    {
        let call = family.call_of(parameter);
        let product = product(parameter, tokens, workload);
        // After the blocks, a tied table is a factor by its columns.
        let product = match call > blocks && parameter.shape.len() == 2 {
            true => Product { inner: width, columns: product.inner * product.columns / width, ..product },
            false => product,
        };
        calls[call].launches += 1.0;
        calls[call].products.push(product);
    }
    let last = calls.last_mut().expect("a model has a head");
    last.logits = tokens * family.vocab_size() as f64 * (1 + family.mtp_depth()) as f64 / tp as f64;
    last.kept = 0.0; // the gradients that the head keeps move with its logits
    calls
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
