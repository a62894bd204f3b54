//! The operations and their gradients as plain loops in f64. `experts` and `row_of` are `[k, n]`, with -1 for none.

use moe::ScoreFunc;
use moe::kernels::route::GateRule;

/// A grouped product and its gradients.
pub struct Product {
    pub y: Vec<f64>,
    pub d_x: Vec<f64>,
    pub d_weight: Vec<f64>,
}

/// Multiplies `[r, p]` by `[e, p, q]`, where `r` is the length of `x` divided by `p`.
pub fn product(x: &[f64], weight: &[f64], d_y: &[f64], expert_offsets: &[i32], [p, q]: [usize; 2]) -> Product {
    let r = x.len() / p;
    let (mut y, mut d_x, mut d_weight) = (vec![0.0; r * q], vec![0.0; r * p], vec![0.0; weight.len()]);
    for (e, borders) in expert_offsets.windows(2).enumerate() {
        for row in borders[0] as usize..borders[1] as usize {
            let (y, d_y) = (&mut y[row * q..][..q], &d_y[row * q..][..q]);
            for i in 0..p {
                let w = (e * p + i) * q;
                let x = x[row * p + i];
                y.iter_mut().zip(&weight[w..]).for_each(|(y, w)| *y += x * w);
                d_x[row * p + i] = d_y.iter().zip(&weight[w..]).map(|(d_y, w)| d_y * w).sum();
                d_weight[w..][..q].iter_mut().zip(d_y).for_each(|(d_w, d_y)| *d_w += x * d_y);
            }
        }
    }
    Product { y, d_x, d_weight }
}

/// Scores `[n, e]`, and the gradient of the logits.
pub fn scores(logits: &[f64], d_scores: &[f64], e: usize, func: ScoreFunc) -> (Vec<f64>, Vec<f64>) {
    let (mut scores, mut d_logits) = (vec![], vec![]);
    for (logits, d_scores) in logits.chunks(e).zip(d_scores.chunks(e)) {
        let total: f64 = logits.iter().map(|x| x.exp()).sum();
        let score = |x: &f64| match func {
            ScoreFunc::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            ScoreFunc::Softmax => x.exp() / total,
        };
        let s: Vec<f64> = logits.iter().map(score).collect();
        let dot: f64 = s.iter().zip(d_scores).map(|(s, d)| s * d).sum();
        d_logits.extend(s.iter().zip(d_scores).map(|(s, d)| match func {
            ScoreFunc::Sigmoid => d * s * (1.0 - s),
            ScoreFunc::Softmax => s * (d - dot),
        }));
        scores.extend(s);
    }
    (scores, d_logits)
}

/// Gates `[k, n]`, and the gradient of the scores `[n, e]`.
pub fn gates(scores: &[f64], experts: &[i32], d_gates: &[f64], e: usize, rule: GateRule) -> (Vec<f64>, Vec<f64>) {
    let (n, scale) = (scores.len() / e, f64::from(rule.scale));
    let (mut gates, mut d_scores) = (vec![0.0; experts.len()], vec![0.0; scores.len()]);
    for t in 0..n {
        let chosen: Vec<usize> = (t..experts.len()).step_by(n).filter(|p| experts[*p] >= 0).collect();
        let at = |p: usize| t * e + experts[p] as usize;
        let sum: f64 = if rule.normalise { chosen.iter().map(|p| scores[at(*p)]).sum() } else { 1.0 };
        let dot: f64 = chosen.iter().map(|p| d_gates[*p] * scores[at(*p)] / sum).sum();
        for p in chosen {
            gates[p] = scale * scores[at(p)] / sum;
            d_scores[at(p)] += scale / sum * (d_gates[p] - if rule.normalise { dot } else { 0.0 });
        }
    }
    (gates, d_scores)
}

/// Rows `[r, d]`, and the gradient of the tokens `[n, d]` given that of the rows.
pub fn permute(x: &[f64], row_of: &[i32], d_rows: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let d = x.len() / n;
    let (mut rows, mut d_x) = (vec![0.0; d_rows.len()], vec![0.0; x.len()]);
    for (p, row) in row_of.iter().enumerate().filter(|(_, row)| **row >= 0) {
        let (row, token) = (*row as usize * d, p % n * d);
        rows[row..][..d].copy_from_slice(&x[token..][..d]);
        d_x[token..][..d].iter_mut().zip(&d_rows[row..]).for_each(|(d_x, d_row)| *d_x += d_row);
    }
    (rows, d_x)
}

/// Tokens `[n, d]`, and the gradients of the rows `[r, d]` and of the gates `[k, n]`.
pub fn unpermute(rows: &[f64], gates: &[f64], row_of: &[i32], d_y: &[f64], n: usize) -> [Vec<f64>; 3] {
    let d = d_y.len() / n;
    let (mut y, mut d_rows, mut d_gates) = (vec![0.0; d_y.len()], vec![0.0; rows.len()], vec![0.0; gates.len()]);
    for (p, row) in row_of.iter().enumerate().filter(|(_, row)| **row >= 0) {
        for i in 0..d {
            let (row, token) = (*row as usize * d + i, p % n * d + i);
            y[token] += gates[p] * rows[row];
            d_rows[row] = gates[p] * d_y[token];
            d_gates[p] += d_y[token] * rows[row];
        }
    }
    [y, d_rows, d_gates]
}
