//! The operations of `fused` at the sizes of two models. Each is defined once here, for both checks and measurements.
//!
//! ```text
//! inputs, flat:  [n d] [d] [d]  ->  run: reshape, the operation, reshape  ->  the result, flat
//! ```
//!
//! A reshape moves nothing. It gives inputs and results of any number of dimensions one type.

use crate::numbers::{Numbers, ints};
use burn::tensor::{Device, Tensor};
use fused::{DropoutKey, RopeTable};
use serde::Serialize;

/// Sizes of a GPT-2. PyTorch's side reads them from the report.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Gpt2 {
    pub name: &'static str,
    pub b: usize,
    pub t: usize,
    pub heads: usize,
    pub d: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// Number of parameters that an optimizer's step changes.
    pub parameters: usize,
}

/// Sizes of a DeepSeek with latent attention.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DeepSeek {
    pub name: &'static str,
    pub b: usize,
    pub t: usize,
    pub heads: usize,
    pub nope: usize,
    pub rope: usize,
    pub v: usize,
    pub d: usize,
    pub hidden: usize,
    pub vocab: usize,
}

/// Sizes of both models.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Shapes {
    pub gpt2: Gpt2,
    pub deepseek: DeepSeek,
}

const GPT2: &str = "gpt2-124m";
const DEEPSEEK: &str = "deepseek-v2-lite";

impl Shapes {
    /// GPT-2 with 124 million parameters as trained by nanoGPT, and DeepSeek-V2-Lite with its own context length.
    pub const FULL: Self = Self {
        gpt2: Gpt2 {
            name: GPT2,
            b: 12,
            t: 1024,
            heads: 12,
            d: 768,
            hidden: 3072,
            vocab: 50257,
            parameters: 124_439_808,
        },
        deepseek: DeepSeek {
            name: DEEPSEEK,
            b: 4,
            t: 4096,
            heads: 16,
            nope: 128,
            rope: 64,
            v: 128,
            d: 2048,
            hidden: 10944,
            vocab: 102_400,
        },
    };
    /// For checks: DeepSeek's head widths are those above, for which tensor cores have kernels, and nothing else is a
    /// multiple of a tile.
    pub const SMALL: Self = Self {
        gpt2: Gpt2 { b: 2, t: 200, heads: 2, d: 128, hidden: 520, vocab: 1001, parameters: 100_003, ..Self::FULL.gpt2 },
        deepseek: DeepSeek { b: 2, t: 136, heads: 2, d: 320, hidden: 600, vocab: 1000, ..Self::FULL.deepseek },
    };
    /// For `--smoke`.
    pub const TINY: Self = Self {
        gpt2: Gpt2 { b: 2, t: 24, heads: 2, d: 32, hidden: 64, vocab: 57, parameters: 1003, ..Self::FULL.gpt2 },
        deepseek: DeepSeek {
            b: 2,
            t: 20,
            heads: 2,
            nope: 16,
            rope: 8,
            v: 16,
            d: 32,
            hidden: 48,
            vocab: 64,
            ..Self::FULL.deepseek
        },
    };
}

/// Computes the result from the inputs.
type Run = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

/// An operation with gradients, at one model's sizes.
pub struct Operation {
    pub name: &'static str,
    pub model: &'static str,
    /// Number of tokens.
    pub rows: usize,
    /// Number of elements of each input.
    pub inputs: Vec<usize>,
    pub run: Run,
    /// Floating-point operations of the forward, and of forward and backward. 0 if the operation is measured in bytes.
    pub flops: [f64; 2],
    /// Elements that the forward, and forward and backward, must at least read and write.
    pub elements: [usize; 2],
    /// Factor on the inputs, which are in -1..1.
    pub scale: f32,
    /// Whether its products are Burn's, which may use TF32 on a GPU.
    pub burns_product: bool,
}

impl Operation {
    /// Creates an operation. Its forward reads the inputs and writes the result. Its backward reads these inputs and
    /// the result's gradient, and writes the inputs' gradients.
    fn new(
        [name, model]: [&'static str; 2],
        rows: usize,
        inputs: Vec<usize>,
        result: usize,
        run: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
    ) -> Self {
        let read: usize = inputs.iter().sum();
        let elements = [read + result, 3 * read + 2 * result];
        Self {
            name,
            model,
            rows,
            inputs,
            run: Box::new(run),
            flops: [0.0; 2],
            elements,
            scale: 1.0,
            burns_product: false,
        }
    }

    /// The backward skips this many of the elements that [`new`](Self::new) counts.
    fn less(self, numbers: usize) -> Self {
        let [forward, both] = self.elements;
        Self { elements: [forward, both - numbers], ..self }
    }

    /// The forward has a second result of this many elements.
    fn more(self, numbers: usize) -> Self {
        Self { elements: self.elements.map(|elements| elements + numbers), ..self }
    }

    /// Attention under a causal mask, with half of `t^2` scores per head. The forward computes `q k^T` and `p v`. The
    /// backward computes `q k^T` again, `dy v^T` and three products for the gradients, and it also reads the result.
    fn attention(self, scores: usize, qk: usize, v: usize, result: usize) -> Self {
        let half = scores as f64 / 2.0;
        let forward = half * 2.0 * (qk + v) as f64;
        let [reads, both] = self.elements;
        Self {
            flops: [forward, forward + half * 2.0 * (3 * qk + 2 * v) as f64],
            elements: [reads, both + result],
            ..self
        }
    }

    /// A language-model head of `d` by `vocab` and the loss: one product forward, two more for the gradients, and only
    /// the gradients are written. Large inputs would give logits whose rounding to bf16 distorts the softmax.
    fn cross_entropy(self, d: usize, vocab: usize) -> Self {
        let (forward, read) = (2.0 * (self.rows * d) as f64 * vocab as f64, self.inputs.iter().sum::<usize>());
        Self { flops: [forward, 3.0 * forward], elements: [read, 2 * read], scale: 0.25, burns_product: true, ..self }
    }

    /// A product of the rows with a matrix `[from, to]`, and two for the gradients.
    fn linear(self, from: usize, to: usize) -> Self {
        let forward = 2.0 * (self.rows * from) as f64 * to as f64;
        Self { flops: [forward, 3.0 * forward], scale: 0.25, burns_product: true, ..self }
    }

    /// Rows of a table. Only these are read, but the whole table has a gradient.
    fn embedding(self, d: usize) -> Self {
        let (rows, table) = (self.rows * d, self.inputs[0]);
        Self { elements: [2 * rows, 3 * rows + table], ..self }
    }
}

/// All operations on this device.
pub fn operations(shapes: &Shapes, device: &Device) -> Vec<Operation> {
    gpt2(&shapes.gpt2, device).into_iter().chain(deepseek(&shapes.deepseek, device)).collect()
}

fn tokens(n: usize, vocab: usize) -> Vec<i32> {
    (0..n).map(|i| Numbers(111).below(i, vocab) as i32).collect()
}

fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let len: usize = x.dims().iter().product();
    x.reshape([len])
}

fn gpt2(sizes: &Gpt2, device: &Device) -> Vec<Operation> {
    let Gpt2 { name: model, b, t, heads, d, hidden, vocab, .. } = *sizes;
    let (n, scale, scores) = (b * t, ((d / heads) as f64).powf(-0.5), b * heads * t * t);
    let tokens_bt = ints(&tokens(n, vocab), [b, t], device);
    let targets_n = tokens_bt.clone().reshape([n]);
    let matrix = |weight: &Tensor<1>, from, to| weight.clone().reshape([from, to]);
    vec![
        Operation::new(["linear", model], n, vec![n * d, 3 * d * d, 3 * d], n * 3 * d, move |x| {
            flat(fused::linear(x[0].clone().reshape([n, d]), matrix(&x[1], d, 3 * d), Some(x[2].clone())))
        })
        .linear(d, 3 * d),
        Operation::new(["linear_gelu", model], n, vec![n * d, d * hidden, hidden], n * hidden, move |x| {
            flat(fused::linear_gelu(x[0].clone().reshape([n, d]), matrix(&x[1], d, hidden), Some(x[2].clone())))
        })
        .linear(d, hidden),
        Operation::new(["linear_add", model], n, vec![n * hidden, hidden * d, d, n * d], n * d, move |x| {
            let (x_nf, residual_nd) = (x[0].clone().reshape([n, hidden]), x[3].clone().reshape([n, d]));
            flat(fused::linear_add(x_nf, matrix(&x[1], hidden, d), Some(x[2].clone()), residual_nd))
        })
        .linear(hidden, d)
        // The residual is not read again, and its gradient is that of the result.
        .less(2 * n * d),
        Operation::new(["linear_add_layer_norm", model], n, vec![n * d, d * d, d, n * d, d, d], n * d, move |x| {
            let [x_nd, residual_nd] = [0, 3].map(|i| x[i].clone().reshape([n, d]));
            let (bias, norm_bias) = (Some(x[2].clone()), Some(x[5].clone()));
            let matrix = matrix(&x[1], d, d);
            let sum = fused::linear_add_layer_norm(x_nd, matrix, bias, residual_nd, x[4].clone(), norm_bias, 1e-5);
            flat(sum[1].clone())
        })
        .linear(d, d)
        .more(n * d),
        Operation::new(["layer_norm", model], n, vec![n * d, d, d], n * d, move |x| {
            flat(fused::layer_norm(x[0].clone().reshape([n, d]), x[1].clone(), Some(x[2].clone()), 1e-5))
        }),
        Operation::new(["gelu", model], n, vec![n * hidden], n * hidden, |x| fused::gelu(x[0].clone())),
        Operation::new(["dropout", model], n, vec![n * d], n * d, move |x| {
            flat(fused::dropout(x[0].clone().reshape([b, t, d]), 0.1, DropoutKey::derive(1, 2, 3, 4)))
        })
        .less(n * d),
        Operation::new(["causal_self_attention", model], n, vec![n * 3 * d], n * d, move |x| {
            flat(fused::causal_self_attention(x[0].clone().reshape([b, t, 3 * d]), heads, scale, None, None))
        })
        .attention(scores, d / heads, d / heads, n * d),
        Operation::new(["causal_attention", model], n, vec![n * d; 3], n * d, move |x| {
            let [q, k, v] = [0, 1, 2].map(|i| x[i].clone().reshape([b, heads, t, d / heads]));
            flat(fused::causal_attention(q, k, v, scale, 0, None))
        })
        .attention(scores, d / heads, d / heads, n * d),
        Operation::new(["linear_cross_entropy_transposed", model], n, vec![n * d, vocab * d], 1, move |x| {
            let (x_nd, head_vd) = (x[0].clone().reshape([n, d]), x[1].clone().reshape([vocab, d]));
            fused::linear_cross_entropy_transposed(x_nd, head_vd, targets_n.clone(), 0.0).cross_entropy
        })
        .cross_entropy(d, vocab),
        Operation::new(["embedding", model], n, vec![vocab * d], n * d, move |x| {
            flat(fused::embedding(x[0].clone().reshape([vocab, d]), tokens_bt.clone()))
        })
        .embedding(d),
    ]
}

fn deepseek(sizes: &DeepSeek, device: &Device) -> Vec<Operation> {
    let DeepSeek { name: model, b, t, heads, nope, rope, v, d, hidden, vocab } = *sizes;
    let (n, qk, scores) = (b * t, nope + rope, b * heads * t * t);
    let scale = (qk as f64).powf(-0.5);
    let targets_n = ints(&tokens(n, vocab), [n], device);
    // Position times 10000^(-pair / pairs).
    let pairs = rope / 2;
    let angle = move |i: usize| (i / pairs) as f64 * 1e4f64.powf(-((i % pairs) as f64) / pairs as f64);
    let table = RopeTable::new((0..t * pairs).map(angle), 1.0, pairs, device);
    let same_table = table.clone();
    let latent = vec![n * heads * qk, n * heads * (nope + v), n * rope];
    vec![
        Operation::new(["rms_norm", model], n, vec![n * d, d], n * d, move |x| {
            flat(fused::rms_norm(x[0].clone().reshape([n, d]), x[1].clone(), 1e-6))
        }),
        Operation::new(["silu_mul", model], n, vec![n * hidden; 2], n * hidden, |x| {
            fused::silu_mul(x[0].clone(), x[1].clone())
        }),
        Operation::new(["rope", model], n, vec![n * heads * rope], n * heads * rope, move |x| {
            flat(fused::rope(x[0].clone().reshape([b, heads, t, rope]), &table))
        })
        .less(n * heads * rope),
        Operation::new(["latent_attention", model], n, latent, n * heads * v, move |x| {
            let (q, kv) = (x[0].clone().reshape([b, t, heads * qk]), x[1].clone().reshape([b, t, heads * (nope + v)]));
            flat(fused::latent_attention(q, kv, x[2].clone().reshape([b, t, rope]), &same_table, heads, scale, None))
        })
        .attention(scores, qk, v, n * heads * v),
        Operation::new(["linear_cross_entropy", model], n, vec![n * d, d * vocab], 1, move |x| {
            let (x_nd, head_dv) = (x[0].clone().reshape([n, d]), x[1].clone().reshape([d, vocab]));
            fused::linear_cross_entropy(x_nd, head_dv, targets_n.clone(), 0.0).cross_entropy
        })
        .cross_entropy(d, vocab),
    ]
}
