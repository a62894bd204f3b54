use crate::kernel::{Kernel, Saves, apply1, runs_on};
use crate::math::{exp, max, over_rows, sum};
use crate::precision::widened;
use burn::tensor::{Int, Shape, Tensor, activation};
use multiversion::multiversion;

/// Mean over all rows of `-log softmax(logits)[target]`, in nats: `[1]`; f32 of shorter logits too.
///
/// # Shapes
/// `logits`: `[n, vocab]`; `targets`: `[n]`, each below `vocab`.
///
/// # Panics
/// If a target is not in the vocabulary.
pub fn cross_entropy(logits_nv: Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    let logits_nv = widened(logits_nv);
    let [n, vocab] = logits_nv.dims();
    if runs_on(&logits_nv) {
        let targets: Vec<usize> = targets_n.into_data().iter::<i64>().map(|target| target as usize).collect();
        assert!(targets.iter().all(|target| *target < vocab), "a target is not in the vocabulary of {vocab}");
        return apply1(CrossEntropy { vocab, targets }, logits_nv);
    }
    activation::log_softmax(logits_nv, 1).gather(1, targets_n.reshape([n, 1])).mean().neg()
}

#[derive(Debug)]
struct CrossEntropy {
    vocab: usize,
    targets: Vec<usize>,
}

impl Kernel<1> for CrossEntropy {
    const SAVES: Saves = Saves::Inputs;

    fn output_shape(&self, _: [&Shape; 1]) -> Shape {
        [1].into()
    }

    fn forward(&self, [logits]: [&[f32]; 1], output: &mut [f32]) {
        let mut losses = vec![0.0; self.targets.len()];
        // One loss a row: the rows of logits belong to the tasks of losses.
        over_rows(1, [], &mut losses, |first, [], losses| {
            let rows = &logits[first * self.vocab..(first + losses.len()) * self.vocab];
            forward(rows, &self.targets[first..first + losses.len()], self.vocab, losses);
        });
        output[0] = (losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64) as f32;
    }

    fn backward(&self, logits: [&[f32]; 1], _: &[f32], cotangent: &[f32], [gradient]: [&mut [f32]; 1]) {
        let scale = cotangent[0] / self.targets.len() as f32;
        over_rows(self.vocab, logits, gradient, |first, [logits], gradient| {
            let targets = &self.targets[first..first + logits.len() / self.vocab];
            backward(logits, targets, self.vocab, scale, gradient);
        });
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(logits: &[f32], targets: &[usize], vocab: usize, losses: &mut [f32]) {
    for ((row, target), loss) in logits.chunks_exact(vocab).zip(targets).zip(losses) {
        let largest = max(row);
        let total = sum(row, |x| exp(x - largest));
        *loss = largest + total.ln() - row[*target];
    }
}

/// `(softmax - one_hot) / n`
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(logits: &[f32], targets: &[usize], vocab: usize, scale: f32, gradient: &mut [f32]) {
    for ((row, target), gradient) in logits.chunks_exact(vocab).zip(targets).zip(gradient.chunks_exact_mut(vocab)) {
        let largest = max(row);
        for (gradient, x) in gradient.iter_mut().zip(row) {
            *gradient = exp(x - largest);
        }
        let factor = scale / sum(gradient, |p| p);
        gradient.iter_mut().for_each(|p| *p *= factor);
        gradient[*target] -= scale;
    }
}
