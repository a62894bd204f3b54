//! Cuts products into tasks and runs them on all threads.
//!
//! A task is a rectangle of one `C` with all of its `k`: nobody else writes there, and the sums over `k` stay with one
//! thread, in order.

use super::kernel::KC;
use super::run::{Job, Task, best_run, with_buffers};
use super::{Epilogue, Matrix, Product};
use crate::{Element, team};
use std::ops::Range;

/// The most columns of a task: a block of `B` is then 256 · 512 · 4 B = 512 KiB.
pub const MAX_COLS: usize = 512;
/// The most rows of a task. Packing `B` costs about half a cycle per element (it comes from the third-level cache), and
/// each of these rows computes with it for 1/32 of a cycle: 2 %. More rows would need more scratch for 16-bit products.
const MAX_ROWS: usize = 1024;
/// The least of both: packing costs relatively more in small tasks.
const MIN_SIDE: usize = 64;
/// Tasks per thread to aim at with a single product. More would balance better against threads that are held up by
/// something else, but smaller tasks pack more: for large `k` a second task per thread costs about 5 %.
const TASKS_PER_THREAD: usize = 1;
/// The multiply-adds below which another task costs more than it gains (some ten microseconds of one core).
const MIN_WORK: usize = 1 << 20;

/// Computes products of which no `C` is empty.
pub fn multiply<T: Element>(list: Vec<(Product<'_, T>, Epilogue<'_, T>)>) {
    let threads = rayon::current_num_threads();
    let total: usize = list.iter().map(|(product, _)| product.m * product.n * product.k).sum();
    let size = (total / (threads * TASKS_PER_THREAD)).max(MIN_WORK);
    let mut tasks = Vec::new();
    for (job, (product, _)) in list.iter().enumerate() {
        cut(job, product.m, product.n, product.k, size, &mut tasks);
    }
    // The largest first, so that the last ones to finish are small.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.work));
    let jobs: Vec<_> = list.into_iter().map(|(product, epilogue)| Job::new(product, epilogue)).collect();
    let run = best_run::<T>();
    team::for_each(tasks.len(), |i| {
        let task = &tasks[i];
        // SAFETY: `best_run` asked the processor; the tasks are inside their jobs and do not overlap.
        with_buffers(|buffers| unsafe { run(&jobs[task.job], task, buffers) });
    });
}

/// `C = A B`, or `C += A B` if `add`, on this thread: `A` is `[m, k]`, `B` is `[k, n]`, and the rows of `C` begin
/// `c_stride` apart. What is added is the sum that the law gives, block by block.
///
/// # Safety
/// `c` points to the first element of a `C` that is there, that nobody else uses meanwhile, and that is set if `add`.
///
/// # Panics
/// If `A` or `B` is larger than its data, or `k` is 0.
pub unsafe fn product_here(
    [m, n, k]: [usize; 3],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    c: *mut f32,
    c_stride: usize,
    add: bool,
) {
    assert!(a.holds(m, k) && b.holds(k, n) && k > 0, "[{m}, {k}] by [{k}, {n}] is larger than its data");
    if m * n == 0 {
        return;
    }
    let (job, run) = (Job::here(k, a, b, c, c_stride, add), best_run::<f32>());
    with_buffers(|buffers| {
        for rows in even(0..m, m.div_ceil(MAX_ROWS), 1) {
            for cols in even(0..n, n.div_ceil(MAX_COLS), 32) {
                let task = Task { job: 0, rows: rows.clone(), cols, work: 0 };
                // SAFETY: `best_run` asked the processor, and the caller says that the rectangle is free.
                unsafe { run(&job, &task, buffers) }
            }
        }
    });
}

/// Cuts one product into tasks of at most about `size` multiply-adds, if its sides allow.
fn cut(job: usize, m: usize, n: usize, k: usize, size: usize, tasks: &mut Vec<Task>) {
    let mut down = m.div_ceil(MAX_ROWS);
    let mut across = n.div_ceil(MAX_COLS);
    while (m / down) * (n / across) * k > size {
        let (rows, cols) = (m / (down + 1), n / (across + 1));
        if rows >= cols && rows >= MIN_SIDE {
            down += 1;
        } else if cols >= MIN_SIDE {
            across += 1;
        } else {
            break;
        }
    }
    for cols in even(0..n, across, 32) {
        for rows in even(0..m, down, 1) {
            let work = rows.len() * cols.len() * k;
            tasks.push(Task { job, rows, cols: cols.clone(), work });
        }
    }
}

/// Cuts a range into `parts` that differ by at most one `unit` and start at multiples of it.
pub fn even(range: Range<usize>, parts: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let units = range.len().div_ceil(unit);
    let edge = move |part: usize| range.end.min(range.start + units * part / parts * unit);
    (0..parts).map(move |part| edge(part)..edge(part + 1)).filter(|part| !part.is_empty())
}
