//! The loss in plain Rust.

use super::{CrossEntropyBackwardOps, CrossEntropyOps, CrossEntropyRule, ROWS};
use crate::slices::{contiguous, float, indices, slice};
use crate::with_float;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use cpu::gemm::{Matrix, Product, product_here, products};
use cpu::math::{exp, max, sum, task_len};
use cpu::{Element, Pieces, overwritten, team, vectorised, written};
use std::mem::MaybeUninit;

impl CrossEntropyOps for Flex {
    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (cross_entropy, z_loss, ..) = cross_entropy(x, head, targets, rule, false);
        (cross_entropy, z_loss)
    }
}

impl CrossEntropyBackwardOps for Flex {
    fn fused_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cross_entropy(x, head, targets, rule, true)
    }
}

fn cross_entropy(
    x: FloatTensor<Flex>,
    head: FloatTensor<Flex>,
    targets: IntTensor<Flex>,
    rule: CrossEntropyRule,
    wanted: bool,
) -> (FloatTensor<Flex>, FloatTensor<Flex>, FloatTensor<Flex>, FloatTensor<Flex>) {
    let (x, head, targets) = (contiguous(&x), contiguous(&head), indices(&targets));
    let [_, d] = x.shape().dims();
    with_float!(x.dtype(), T => {
        let (losses, d_x, d_head) = cross_entropy_cpu::<T>(slice(&x), slice(&head), &targets, d, rule, wanted);
        let shape = |of: &FloatTensor<Flex>| if wanted { of.shape() } else { [0].into() };
        let [cross_entropy, z_loss] = losses.map(|loss| float(vec![loss], [1]));
        (cross_entropy, z_loss, float(d_x, shape(&x)), float(d_head, shape(&head)))
    })
}

/// Returns the two mean losses and, if `wanted`, the gradients of `x` and the head for a cotangent of n.
///
/// # Panics
/// If a target is not in the vocabulary.
fn cross_entropy_cpu<T: Element>(
    x: &[T],
    head: &[T],
    targets: &[usize],
    d: usize,
    rule: CrossEntropyRule,
    wanted: bool,
) -> ([f32; 2], Vec<T>, Vec<f32>) {
    let (vocab, n) = (head.len() / d, targets.len());
    assert!(
        targets.iter().all(|target| *target < vocab || rule.ignores && is_ignored(*target)),
        "linear_cross_entropy: a target is not in the vocabulary of {vocab}"
    );
    let head_dv = match rule.transposed {
        false => Matrix::new(head, vocab),
        true => Matrix::new(head, d).transposed(),
    };
    let mut logits = vec![T::from_f32(0.0); ROWS.min(n) * vocab];
    let mut losses = vec![RowLoss::default(); n];
    let mut d_head = vec![0.0f32; if wanted { head.len() } else { 0 }];
    let write = |dx: &mut [MaybeUninit<T>]| {
        for first in (0..n).step_by(ROWS) {
            let rows = first..n.min(first + ROWS);
            let (x, logits) = (&x[first * d..rows.end * d], &mut logits[..rows.len() * vocab]);
            // SAFETY: `products` sets all elements.
            let c = unsafe { overwritten(logits) };
            products(vec![Product { m: rows.len(), n: vocab, k: d, a: Matrix::new(x, d), b: head_dv, c }]);
            over_logits(
                logits,
                &targets[rows.clone()],
                &mut losses[rows.clone()],
                vocab,
                wanted.then_some(rule.z_loss_coef),
            );
            if wanted {
                let (a, b) = (Matrix::new(&*logits, vocab), head_dv.transposed());
                let c = &mut dx[first * d..rows.end * d];
                products(vec![Product { m: rows.len(), n: d, k: vocab, a, b, c }]);
                add_to_head(x, logits, &mut d_head, [d, vocab], rule, first > 0);
            }
        }
    };
    // SAFETY: together the chunks cover `dx`.
    let dx = unsafe { written(if wanted { x.len() } else { 0 }, write) };
    let mean = |of: fn(&RowLoss) -> f64| losses.iter().map(of).sum::<f64>() / n as f64;
    let z_loss = f64::from(rule.z_loss_coef) * mean(|row| f64::from(row.log_sum_exp).powi(2));
    ([mean(|row| f64::from(row.cross_entropy)) as f32, z_loss as f32], dx, d_head)
}

/// Whether a target was negative before its conversion; false for all targets if the rule does not ignore negative
/// ones.
#[inline(always)]
fn is_ignored(target: usize) -> bool {
    target > isize::MAX as usize
}

/// The losses of one row of logits.
#[derive(Clone, Copy, Default)]
struct RowLoss {
    cross_entropy: f32,
    log_sum_exp: f32,
}

/// Writes each row's loss. If given a z-loss coefficient, also replaces the logits by their gradients.
fn over_logits<T: Element>(
    logits: &mut [T],
    targets: &[usize],
    losses: &mut [RowLoss],
    vocab: usize,
    gradients: Option<f32>,
) {
    let rows = (task_len(vocab) / vocab).max(1);
    let (logits, losses) = (Pieces::new(logits), Pieces::new(losses));
    team::for_each(targets.len().div_ceil(rows), |i| {
        // SAFETY: each task takes different rows.
        let (logits, losses) = unsafe { (logits.part(i, rows * vocab), losses.part(i, rows)) };
        let targets = &targets[i * rows..targets.len().min((i + 1) * rows)];
        forward(logits, targets, vocab, losses);
        if let Some(z_loss_coef) = gradients {
            backward(logits, targets, vocab, losses, z_loss_coef);
        }
    });
}

/// Computes `dW = x^T d_logits` of a chunk, `[d, vocab]`, or `[vocab, d]` if transposed. It is added to `d_head` if
/// `add`. Each task takes some columns of the vocabulary.
fn add_to_head<T: Element>(
    x: &[T],
    d_logits: &[T],
    d_head: &mut [f32],
    [d, vocab]: [usize; 2],
    rule: CrossEntropyRule,
    add: bool,
) {
    let rows = x.len() / d;
    let (x, d_logits, out) = (Matrix::new(x, d), Matrix::new(d_logits, vocab), Pieces::new(d_head));
    let width = vocab.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(32).max(256);
    team::for_each(vocab.div_ceil(width), |i| {
        let (out, first) = (out.as_mut_ptr(), i * width);
        let columns = width.min(vocab - first);
        let part = Matrix { data: &d_logits.data[first..], ..d_logits };
        // SAFETY: tasks write disjoint columns of a matrix that the first chunk sets.
        unsafe {
            if rule.transposed {
                product_here([columns, d, rows], part.transposed(), x, out.add(first * d), d, add);
            } else {
                product_here([d, columns, rows], x.transposed(), part, out.add(first), vocab, add);
            }
        }
    });
}

vectorised! {
    /// Computes `log(sum(exp(logits))) - logits[target]`.
    fn forward<T: Element>(logits: &[T], targets: &[usize], vocab: usize, losses: &mut [RowLoss]) {
        for ((row, target), loss) in logits.chunks_exact(vocab).zip(targets).zip(losses) {
            if is_ignored(*target) {
                *loss = RowLoss::default();
                continue;
            }
            let largest = max(row);
            let log_sum_exp = largest + sum(row, |x| exp(x - largest)).ln();
            *loss = RowLoss { log_sum_exp, cross_entropy: log_sum_exp - row[*target].to_f32() };
        }
    }
}

vectorised! {
    /// Replaces logits by `softmax (1 + 2 coef log_sum_exp) - one_hot`.
    fn backward<T: Element>(logits: &mut [T], targets: &[usize], vocab: usize, losses: &[RowLoss], z_loss_coef: f32) {
        for ((row, target), loss) in logits.chunks_exact_mut(vocab).zip(targets).zip(losses) {
            if is_ignored(*target) {
                row.fill(T::from_f32(0.0));
                continue;
            }
            let largest = max(row);
            let of_target = row[*target].to_f32();
            let factor = (1.0 + 2.0 * z_loss_coef * loss.log_sum_exp) / sum(row, |x| exp(x - largest));
            row.iter_mut().for_each(|x| *x = T::from_f32(exp(x.to_f32() - largest) * factor));
            row[*target] = T::from_f32(exp(of_target - largest) * factor - 1.0);
        }
    }
}
