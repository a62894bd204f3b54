//! Matrix products on the CPU, one per line, in GFLOP/s: the best of several rounds. `peers/products_torch.py` prints
//! the same lines for PyTorch.
//!
//! `m x k x n` is `[m, k]` by `[k, n]`. `nn` is a forward product; `nt` reads the right matrix transposed in place (the
//! gradient of an input), `tn` the left one (the gradient of a weight).

use cpu::gemm::{Matrix, Product, products};
use cpu::{Element, overwritten};
use half::bf16;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(25);

/// Lists of products, as in a layer of experts: count, `m`, `k`, `n`, form.
const LISTS: [(usize, [usize; 3], &str); 9] = [
    (8, [1024, 1024, 512], "nn"),
    (8, [1024, 512, 1024], "nt"),
    (8, [1024, 1024, 512], "tn"),
    (64, [384, 512, 256], "nn"),
    (64, [384, 512, 256], "nt"),
    (64, [256, 384, 512], "tn"),
    (1, [4096, 512, 512], "nn"),
    (1, [4096, 512, 512], "nt"),
    (1, [512, 4096, 512], "tn"),
];

/// Linear layers, each with a product of every form: rows, input width, output width.
const LAYERS: [[usize; 3]; 7] = [
    [768, 128, 384],
    [768, 128, 128],
    [768, 128, 512],
    [768, 512, 128],
    [2048, 384, 1152],
    [2048, 384, 1536],
    [2048, 1536, 384],
];

fn main() {
    // As in criterion, a benchmark runs if its name contains the filter.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if filter.is_some_and(|filter| !"products".contains(&filter)) {
        return;
    }
    benches::keep_memory();
    let layers = LAYERS.iter().flat_map(|&[rows, from, to]| {
        [([rows, from, to], "nn"), ([rows, to, from], "nt"), ([from, rows, to], "tn")]
            .map(|(sizes, form)| (1, sizes, form))
    });
    for (count, sizes, form) in LISTS.into_iter().chain(layers) {
        line::<f32>("f32", count, sizes, form);
        line::<bf16>("bf16", count, sizes, form);
    }
}

fn line<T: Element>(name: &str, count: usize, [m, k, n]: [usize; 3], form: &str) {
    let some = |len: usize| (0..len).map(|i| T::from_f32((i % 7) as f32 - 3.0)).collect::<Vec<T>>();
    let a: Vec<_> = (0..count).map(|_| some(m * k)).collect();
    let b: Vec<_> = (0..count).map(|_| some(k * n)).collect();
    let mut c: Vec<_> = (0..count).map(|_| some(m * n)).collect();
    let mut once = || {
        let list = a.iter().zip(&b).zip(&mut c).map(|((a, b), c)| Product {
            m,
            n,
            k,
            a: if form == "tn" { Matrix::new(a, m).transposed() } else { Matrix::new(a, k) },
            b: if form == "nt" { Matrix::new(b, k).transposed() } else { Matrix::new(b, n) },
            // SAFETY: `products` overwrites all elements.
            c: unsafe { overwritten(c) },
        });
        products(list.collect());
    };
    let best = (0..ROUNDS).map(|_| seconds(&mut once)).fold(f64::INFINITY, f64::min);
    println!("{name} {count} of {m} x {k} x {n} {form} {:.1}", 2e-9 * (count * m * k * n) as f64 / best);
}

/// The mean time of a call in a round of calls.
fn seconds(once: &mut impl FnMut()) -> f64 {
    once();
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        once();
        calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(calls)
}
