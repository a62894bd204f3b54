//! Splits products into tasks and runs them on all threads.
//!
//! A task is a rectangle of one `C` with its whole `k`: no other task writes there, and one thread adds the sums over
//! `k` in order.

use super::run::{Job, MAX_COLS, MAX_ROWS, Task, UNIT, best_run, with_buffers};
use super::{Epilogue, Matrix, Product};
use crate::{Element, team};
use std::ops::Range;

/// Target number of tasks per thread for several products, which may differ in size. A single product is split into one
/// task per thread: more tasks would balance better if other work delays some threads, but smaller tasks pack more.
const TASKS_PER_THREAD: usize = 3;
/// Number of multiply-adds below which another task costs more than it gains (some ten microseconds of one core).
const MIN_WORK: usize = 1 << 20;
/// Cost of packing an element of `A` or `B`, in multiply-adds: half a cycle at 32 per cycle.
const PACKING: usize = 16;

/// Computes products, none of which has an empty `C`.
pub fn multiply<T: Element>(list: Vec<(Product<'_, T>, Epilogue<'_, T>)>) {
    let work = |product: &Product<'_, T>| product.m * product.n * product.k;
    let total: usize = list.iter().map(|(product, _)| work(product)).sum();
    let count = rayon::current_num_threads() * if list.len() == 1 { 1 } else { TASKS_PER_THREAD };
    let size = total.div_ceil(count).max(MIN_WORK);
    let mut tasks = Vec::new();
    for (job, (product, _)) in list.iter().enumerate() {
        cut(job, product, work(product).div_ceil(size).max(1), &mut tasks);
    }
    // The largest tasks come first, so the last ones to finish are small.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.work));
    let jobs: Vec<_> = list.into_iter().map(|(product, epilogue)| Job::new(product, epilogue)).collect();
    let run = best_run::<T>();
    team::for_each(tasks.len(), |i| {
        let task = &tasks[i];
        // SAFETY: `best_run` has checked the processor; the tasks are inside their jobs and do not overlap.
        with_buffers(|buffers| unsafe { run(&jobs[task.job], task, buffers) });
    });
}

/// Computes `C = A B`, or `C += A B` if `add`, on this thread: `A` is `[m, k]`, `B` is `[k, n]`, and the rows of `C`
/// begin `c_stride` apart. `C` is f32, whatever the element type. Each block of the order of summation is added to it
/// in turn.
///
/// # Safety
/// `c` must point to the first element of a valid `C` that nothing else uses meanwhile, and that is initialized if
/// `add`.
///
/// # Panics
/// If `A` or `B` is larger than its data, or `k` is 0.
pub unsafe fn product_here<T: Element>(
    [m, n, k]: [usize; 3],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: *mut f32,
    c_stride: usize,
    add: bool,
) {
    assert!(a.holds(m, k) && b.holds(k, n) && k > 0, "[{m}, {k}] by [{k}, {n}] is larger than its data");
    if m * n == 0 {
        return;
    }
    let job = Job::here(k, a, b, c, c_stride, add);
    let task = Task { job: 0, rows: 0..m, cols: 0..n, work: 0 };
    // SAFETY: `best_run` has checked the processor, and the caller guarantees that nothing else uses `C`.
    with_buffers(|buffers| unsafe { best_run::<T>()(&job, &task, buffers) });
}

/// Splits a product into rectangles such that the largest one takes the shortest time.
fn cut<T>(job: usize, &Product { m, n, k, .. }: &Product<'_, T>, parts: usize, tasks: &mut Vec<Task>) {
    let time = |down: usize, across: usize| {
        let (rows, cols) = (m.div_ceil(down), n.div_ceil(UNIT).div_ceil(across) * UNIT);
        rows * cols + PACKING * (rows * cols.div_ceil(MAX_COLS) + cols * rows.div_ceil(MAX_ROWS))
    };
    let ways = (1..=parts).filter(|down| parts.is_multiple_of(*down)).map(|down| (down, parts / down));
    let (down, across) = ways.min_by_key(|&(down, across)| time(down, across)).expect("there is one part at least");
    for cols in even(0..n, across, UNIT) {
        for rows in even(0..m, down, 1) {
            let work = rows.len() * cols.len() * k;
            tasks.push(Task { job, rows, cols: cols.clone(), work });
        }
    }
}

/// Splits a range into `parts` that differ by at most one `unit` and start at multiples of it.
pub fn even(range: Range<usize>, parts: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let units = range.len().div_ceil(unit);
    let edge = move |part: usize| range.end.min(range.start + units * part / parts * unit);
    (0..parts).map(move |part| edge(part)..edge(part + 1)).filter(|part| !part.is_empty())
}
