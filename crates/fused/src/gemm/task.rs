//! Cuts products into tasks and runs them on all threads.
//!
//! A task is a rectangle of one `C` with all of its `k`: nobody else writes there, and the sums over `k` stay with one
//! thread, in order. Per block of `k` it packs its columns of `B` once, and then `A` in groups of panels:
//!
//! ```text
//! for each KC values of k:
//!     pack B   [KC, cols]      at most 512 KiB: stays in the second-level cache
//!     for each group of panels of rows:
//!         pack A   [8 panels, KC]  at most 128 KiB
//!         for each panel of A:     14 KiB: stays in the first-level cache
//!             for each panel of B: 32 KiB, streams from the second-level cache
//!                 kernel
//! ```

use super::kernel::{KC, Kernel, Portable, Tile, Vector};
use super::pack::{PANEL_A, pack_a, pack_b};
use super::{Matrix, Product};
use crate::Element;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most columns of a task: a block of `B` is then 256 · 512 · 4 B = 512 KiB.
const MAX_COLS: usize = 512;
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
/// The panels of `A` packed at a time.
const GROUP: usize = 8;

/// A product whose `C` is written by several threads, each in its own rectangles.
struct Job<'a, T> {
    k: usize,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    c: *mut T,
    c_stride: usize,
    /// Whether to add to what is in `C`; f32 only.
    add: bool,
}

// SAFETY: `c` comes from a `&mut [T]`, tasks do not overlap, and `T` is `Send + Sync`.
unsafe impl<T: Element> Sync for Job<'_, T> {}

/// A rectangle of the `C` of one job.
struct Task {
    job: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    work: usize,
}

/// Computes products of which none is empty.
pub fn multiply<T: Element>(list: Vec<Product<'_, T>>) {
    let threads = rayon::current_num_threads();
    let total: usize = list.iter().map(|product| product.m * product.n * product.k).sum();
    let size = (total / (threads * TASKS_PER_THREAD)).max(MIN_WORK);
    let mut tasks = Vec::new();
    for (job, product) in list.iter().enumerate() {
        cut(job, product.m, product.n, product.k, size, &mut tasks);
    }
    // The largest first, so that the last ones to finish are small.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.work));
    let jobs: Vec<_> = list
        .into_iter()
        .map(|Product { n, k, a, b, c, .. }| Job { k, a, b, c: c.as_mut_ptr().cast(), c_stride: n, add: false })
        .collect();

    let run = best_run::<T>();
    let next = AtomicUsize::new(0);
    let work = || {
        BUFFERS.with_borrow_mut(|buffers| {
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                // SAFETY: `best_run` asked the processor; the tasks are inside their jobs and do not overlap.
                unsafe { run(&jobs[task.job], task, buffers) }
            }
        });
    };
    let workers = threads.min(tasks.len());
    if workers <= 1 {
        return work();
    }
    rayon::in_place_scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// `C = A B`, or `C += A B` if `add`, on this thread: `A` is `[m, k]`, `B` is `[k, n]`, and the rows of `C` begin `c_stride` apart. What is added is the sum that
/// the law gives, block by block.
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
    let (job, run) = (Job { k, a, b, c, c_stride, add }, best_run::<f32>());
    BUFFERS.with_borrow_mut(|buffers| {
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
fn even(range: Range<usize>, parts: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let units = range.len().div_ceil(unit);
    let edge = move |part: usize| range.end.min(range.start + units * part / parts * unit);
    (0..parts).map(move |part| edge(part)..edge(part + 1)).filter(|part| !part.is_empty())
}

/// The memory a thread packs into: it grows to at most 0.7 MiB, with 16-bit elements 2.7 MiB, and is kept.
#[derive(Default)]
struct Buffers {
    a: Aligned,
    b: Aligned,
    scratch: Aligned,
    c: Aligned,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Memory in whole cache lines, so that no vector straddles two.
#[derive(Default)]
struct Aligned(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [f32; 16]);

impl Aligned {
    /// The first `len` elements, with any content.
    fn take(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
        // SAFETY: a `Line` is 16 `f32` without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

type Run<T> = unsafe fn(&Job<'_, T>, &Task, &mut Buffers);

/// The widest version of [`run`] that this processor can execute.
fn best_run<T: Element>() -> Run<T> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m256, __m512};

        #[target_feature(enable = "avx512f")]
        unsafe fn avx512<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller's promise.
            unsafe { run::<T, __m512>(job, task, buffers) }
        }

        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller's promise.
            unsafe { run::<T, __m256>(job, task, buffers) }
        }

        if is_x86_feature_detected!("avx512f") {
            return avx512::<T>;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return avx2::<T>;
        }
    }
    run::<T, Portable>
}

/// Computes one task.
///
/// # Safety
///
/// The processor must have the instructions of `V`, the task must lie inside the job, and nobody else may use its
/// rectangle of `C`.
#[inline(always)]
unsafe fn run<T: Element, V: Vector>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
    let Task { rows, cols, .. } = task;
    let to_a = buffers.a.take(GROUP * PANEL_A);
    let to_b = buffers.b.take(cols.len().div_ceil(V::NR) * V::NR * KC);
    let scratch = buffers.scratch.take(V::NR * KC);
    // SAFETY: the rectangle starts inside `C`.
    let target = unsafe { job.c.add(rows.start * job.c_stride + cols.start) };
    // Partial sums wait for the next block of `k` as `f32`: in `C` itself if it is of that type.
    let (c, c_stride) = match T::IS_F32 {
        true => (target.cast::<f32>(), job.c_stride),
        false => (buffers.c.take(rows.len() * cols.len()).as_mut_ptr(), cols.len()),
    };
    let panels: Vec<_> = even(rows.clone(), rows.len().div_ceil(V::MR), 1).collect();
    // A few rows do not repay packing `B`: the kernel reads it where it is, except for a last panel that is not full.
    let in_place = T::IS_F32 && job.b.col_stride == 1 && panels.len() <= 2;
    let packed = if in_place { cols.end - cols.len() % V::NR..cols.end } else { cols.clone() };

    for k in (0..job.k).step_by(KC) {
        let ks = k..job.k.min(k + KC);
        // SAFETY: the processor has the instructions of `V`.
        unsafe { pack_b::<T, V>(&job.b, ks.clone(), packed.clone(), to_b, scratch) };
        for group in panels.chunks(GROUP) {
            let by_columns = pack_a(&job.a, group, ks.clone(), to_a);
            for (panel, a) in group.iter().zip(to_a.chunks_exact(PANEL_A)) {
                let kernel: Kernel = V::KERNELS[usize::from(by_columns)][panel.len() - 1];
                for col in cols.clone().step_by(V::NR) {
                    let (b, b_stride) = if col >= packed.start {
                        (to_b[(col - packed.start) * KC..].as_ptr(), V::NR)
                    } else {
                        (job.b.data[k * job.b.row_stride + col..].as_ptr().cast(), job.b.row_stride)
                    };
                    let tile = Tile {
                        k: ks.len(),
                        a: a.as_ptr(),
                        b,
                        b_stride,
                        // SAFETY: the tile is inside the rectangle.
                        c: unsafe { c.add((panel.start - rows.start) * c_stride + col - cols.start) },
                        c_stride,
                        cols: V::NR.min(cols.end - col),
                        add: job.add || k > 0,
                    };
                    // SAFETY: the panels are packed as the kernel expects them.
                    unsafe { kernel(&tile) };
                }
            }
        }
    }
    if !T::IS_F32 {
        for (i, _) in rows.clone().enumerate() {
            // SAFETY: rows of the scratch and of the rectangle.
            unsafe {
                let from = std::slice::from_raw_parts(c.add(i * c_stride), cols.len());
                T::narrow(from, std::slice::from_raw_parts_mut(target.add(i * job.c_stride), cols.len()));
            }
        }
    }
}
