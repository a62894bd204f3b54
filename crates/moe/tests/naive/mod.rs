//! A naive layer in f64 that works token by token.

use moe::{MoeConfig, ScoreFunc};
use test_kit::random;

/// The input and the weights of a layer, by the indices below.
pub type Numbers = [Vec<f64>; 9];
pub const X: usize = 0;
pub const ROUTER: usize = 1;
pub const BIAS: usize = 2;
pub const GATE: usize = 3;
pub const UP: usize = 4;
pub const DOWN: usize = 5;
pub const SHARED: [usize; 3] = [6, 7, 8];

#[derive(Debug, Clone)]
pub struct Case {
    pub shape_btd: [usize; 3],
    /// The capacity factor in quarters, so that the expected capacity is exact.
    pub quarters: Option<usize>,
    pub config: MoeConfig,
    pub seed: u64,
}

impl Case {
    pub fn new(shape_btd: [usize; 3], quarters: Option<usize>, config: MoeConfig, seed: u64) -> Self {
        let config = MoeConfig { capacity_factor: quarters.map(|q| q as f64 / 4.0), aux_loss_coef: 0.5, ..config };
        config.validate().unwrap();
        Self { shape_btd, quarters, config, seed }
    }

    /// Random numbers that f32 represents exactly. Tries seeds from the case's on until no choice of experts is closer
    /// than `margin`.
    pub fn numbers(&self, margin: f64) -> Numbers {
        let ([b, t, d], c) = (self.shape_btd, &self.config);
        let (e, h, shared) = (c.num_experts, c.moe_intermediate_size, c.n_shared_experts * c.moe_intermediate_size);
        let bias = if c.selection_bias { e } else { 0 };
        let lens = [b * t * d, d * e, bias, e * d * h, e * d * h, e * h * d, d * shared, d * shared, shared * d];
        let draw = |seed| {
            let mut numbers = random(seed, lens.iter().sum()).into_iter();
            lens.map(|len| numbers.by_ref().take(len).collect())
        };
        (self.seed..).map(draw).find(|numbers| reference(self, numbers).margin > margin).unwrap()
    }
}

#[derive(Default)]
pub struct Reference {
    pub y: Vec<f64>,
    pub balance: f64,
    /// The smallest difference between two scores that were compared.
    pub margin: f64,
    pub dropped: usize,
}

pub fn reference(case: &Case, numbers: &Numbers) -> Reference {
    let ([b, t, d], &MoeConfig { num_experts: e, top_k: k, .. }) = (case.shape_btd, &case.config);
    let capacity = case.quarters.map_or(usize::MAX, |quarters| (quarters * t * k).div_ceil(4 * e));
    let mut all = Reference { margin: f64::INFINITY, ..Reference::default() };
    for sequence in numbers[X].chunks(t * d) {
        let tokens: Vec<_> = sequence.chunks(d).map(|x| route(&case.config, numbers, x, &mut all.margin)).collect();
        let (mut load, mut kept) = (vec![0; e], vec![vec![false; k]; t]);
        for choice in 0..k {
            for (token, (_, chosen)) in tokens.iter().enumerate() {
                let expert = chosen[choice].0;
                kept[token][choice] = load[expert] < capacity;
                all.dropped += usize::from(load[expert] >= capacity);
                load[expert] += 1;
            }
        }
        for ((x, (scores, chosen)), kept) in sequence.chunks(d).zip(&tokens).zip(&kept) {
            let mut y = swiglu(x, SHARED.map(|weight| &numbers[weight][..]));
            for (&(expert, weight), _) in chosen.iter().zip(kept).filter(|(_, kept)| **kept) {
                let own = |all: usize| numbers[all].chunks(numbers[all].len() / e).nth(expert).unwrap();
                let out = swiglu(x, [own(GATE), own(UP), own(DOWN)]);
                y.iter_mut().zip(out).for_each(|(y, out)| *y += weight * out);
            }
            all.y.extend(y);
            let share = |expert: usize| scores[expert] / scores.iter().sum::<f64>() / (t * b) as f64;
            all.balance += (0..e).map(|i| (load[i] * e) as f64 / (k * t) as f64 * share(i)).sum::<f64>();
        }
    }
    all
}

/// Returns the scores of all experts, and the chosen experts, best first, with their weights.
fn route(config: &MoeConfig, numbers: &Numbers, x: &[f64], margin: &mut f64) -> (Vec<f64>, Vec<(usize, f64)>) {
    let (e, per_group) = (config.num_experts, config.num_experts / config.n_group);
    let logits: Vec<f64> =
        (0..e).map(|i| x.iter().enumerate().map(|(j, x)| x * numbers[ROUTER][j * e + i]).sum()).collect();
    let scores: Vec<f64> = match config.score_func {
        ScoreFunc::Softmax => {
            let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
            logits.iter().map(|logit| logit.exp() / total).collect()
        }
        ScoreFunc::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
    };
    let biased: Vec<f64> = (0..e).map(|i| scores[i] + numbers[BIAS].get(i).unwrap_or(&0.0)).collect();

    let mut best_first = |mut ranked: Vec<(f64, usize)>| {
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        *margin = ranked.windows(2).map(|pair| pair[0].0 - pair[1].0).fold(*margin, f64::min);
        ranked
    };
    let group_score = |group: usize| {
        let mut members = biased[group * per_group..][..per_group].to_vec();
        members.sort_by(|a, b| b.total_cmp(a));
        members.iter().take(if config.selection_bias { 2 } else { 1 }).sum::<f64>()
    };
    let groups = best_first((0..config.n_group).map(|group| (group_score(group), group)).collect());
    let open = |expert: &usize| groups[..config.topk_group].iter().any(|(_, group)| expert / per_group == *group);
    let ranked = best_first((0..e).filter(open).map(|expert| (biased[expert], expert)).collect());
    let chosen = ranked[..config.top_k].iter().map(|(_, expert)| *expert);
    let total = if config.norm_topk_prob { chosen.clone().map(|expert| scores[expert]).sum() } else { 1.0 };
    let weights = chosen.map(|expert| (expert, scores[expert] / total * config.routed_scaling_factor)).collect();
    (scores, weights)
}

/// Computes `down(silu(gate(x)) * up(x))`; zeros if the hidden width is 0.
fn swiglu(x: &[f64], [gate, up, down]: [&[f64]; 3]) -> Vec<f64> {
    let (d, h) = (x.len(), gate.len() / x.len());
    let dot = |weight: &[f64], i: usize| (0..d).map(|j| x[j] * weight[j * h + i]).sum::<f64>();
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let hidden: Vec<f64> = (0..h).map(|i| silu(dot(gate, i)) * dot(up, i)).collect();
    (0..d).map(|j| (0..h).map(|i| hidden[i] * down[i * d + j]).sum()).collect()
}
