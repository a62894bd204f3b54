//! What is measured: the shapes of three models, the distribution of rows over experts, and the sizes.

use crate::numbers::Numbers;
use crate::operations::Shapes;
use serde::Serialize;

/// A layer of a published model.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Model {
    pub name: &'static str,
    /// Number of experts in the layer.
    pub experts: usize,
    pub top_k: usize,
    /// Ranks that share the experts. This rank holds `experts / ep` of them.
    pub ep: usize,
    /// Width of a token.
    pub d: usize,
    /// Width of an expert.
    pub h: usize,
    /// Tokens of all ranks together, in a case with fewer and one with more rows: `tokens * top_k / ep` rows.
    pub tokens: [usize; 2],
    /// Whether experts are scored and grouped as in DeepSeek-V3: sigmoid, the best 4 of 8 groups, selection bias.
    pub grouped: bool,
}

impl Model {
    pub fn local_experts(&self) -> usize {
        self.experts / self.ep
    }

    pub fn rows(&self, tokens: usize) -> usize {
        tokens * self.top_k / self.ep
    }
}

/// About 8 and 32 thousand rows each.
const MODELS: [Model; 3] = [
    Model { name: "mixtral", experts: 8, top_k: 2, ep: 1, d: 4096, h: 14336, tokens: [4096, 16384], grouped: false },
    Model {
        name: "deepseek-16b",
        experts: 64,
        top_k: 6,
        ep: 1,
        d: 2048,
        h: 1408,
        tokens: [1344, 5376],
        grouped: false,
    },
    Model {
        name: "deepseek-v3-ep8",
        experts: 256,
        top_k: 8,
        ep: 8,
        d: 7168,
        h: 2048,
        tokens: [8192, 32768],
        grouped: true,
    },
];

/// Sizes, and the effort spent on measuring.
#[derive(Debug, Clone, Serialize)]
pub struct Sizes {
    pub shapes: Shapes,
    pub models: Vec<Model>,
    /// Number of samples for a median.
    pub samples: usize,
    /// Launches before the samples.
    pub warm_up: usize,
    /// Each sample consists of as many launches as take about this long, but at least 1.
    pub sample_seconds: f64,
    /// Measures only one product for kernels made for GPUs, because a CPU takes seconds for it.
    pub smoke: bool,
}

impl Sizes {
    /// The sizes. Tiny ones for `smoke`.
    pub fn new(smoke: bool) -> Self {
        if !smoke {
            return Self {
                shapes: Shapes::FULL,
                models: MODELS.to_vec(),
                samples: 15,
                warm_up: 4,
                sample_seconds: 0.05,
                smoke,
            };
        }
        let small = |model: &Model| Model {
            experts: model.experts.min(16),
            top_k: model.top_k.min(4),
            ep: model.ep.min(2),
            d: 32,
            h: 48,
            tokens: [32, 64],
            ..*model
        };
        Self {
            shapes: Shapes::TINY,
            models: MODELS.iter().map(small).collect(),
            samples: 1,
            warm_up: 1,
            sample_seconds: 0.0,
            smoke,
        }
    }
}

/// How rows are distributed over experts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skew {
    /// As evenly as whole [`GRAIN`]s allow.
    Balanced,
    /// Expert number i in some order gets a share proportional to 1 / i.
    Zipf,
}

/// Segments are multiples of this many rows, as PyTorch's grouped product requires.
const GRAIN: usize = 16;

/// A grouped product to measure, in Kiln and in PyTorch.
#[derive(Debug, Clone, Serialize)]
pub struct ProductCase {
    pub model: Model,
    pub tokens: usize,
    pub rows: usize,
    pub skew: Skew,
    /// The first row of each expert, then the end of the last.
    pub expert_offsets: Vec<i32>,
}

impl ProductCase {
    /// Fewer and more rows, balanced and skewed.
    pub fn of(model: Model) -> Vec<Self> {
        let case = |tokens, skew| {
            let rows = model.rows(tokens);
            Self { model, tokens, rows, skew, expert_offsets: offsets(rows, model.local_experts(), skew) }
        };
        model
            .tokens
            .into_iter()
            .flat_map(|tokens| [Skew::Balanced, Skew::Zipf].map(|skew| case(tokens, skew)))
            .collect()
    }

    /// Floating-point operations of one of the three products.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.model.d as f64 * self.model.h as f64
    }
}

/// Borders of segments with `rows` rows in total. The same arguments always give the same borders.
fn offsets(rows: usize, experts: usize, skew: Skew) -> Vec<i32> {
    // Expert `order[i]` is number i: a shuffle with a fixed seed.
    let mut order: Vec<usize> = (0..experts).collect();
    (1..experts).rev().for_each(|i| order.swap(i, Numbers(7).below(i, i + 1)));
    let share = |i: usize| if skew == Skew::Zipf { 1.0 / (i + 1) as f64 } else { 1.0 };
    let total: f64 = (0..experts).map(share).sum();
    let (mut lengths, mut sum, mut given) = (vec![0; experts], 0.0, 0);
    for (i, expert) in order.into_iter().enumerate() {
        // Rounds the running sum, so that nothing is left over.
        sum += share(i);
        let end = ((rows / GRAIN) as f64 * sum / total).round() as usize * GRAIN;
        lengths[expert] = end - given;
        given = end;
    }
    lengths[experts - 1] += rows - given;
    let ends = lengths.iter().scan(0, |end, length| {
        *end += *length as i32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}
