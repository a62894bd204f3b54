//! Runs a task: for each block of `k`, packs its columns of `B` once, and then `A` in groups of panels:
//!
//! ```text
//! for each KC units of k:
//!     pack B   [KC, cols]      at most 512 KiB: stays in the second-level cache
//!     for each group of panels of rows:
//!         pack A   [8 panels, KC]  at most 128 KiB
//!         for each panel of A:     14 KiB: stays in the first-level cache
//!             for each panel of B: 32 KiB, streams from the second-level cache
//!                 kernel
//!             after the last block of k: the epilogue of the panel's rows, 28 KiB at most
//! ```
//!
//! The sizes are those of AVX-512. With AMX, a panel of `A` takes 32 KiB, a group 256 KiB, and the rows of an epilogue
//! 64 KiB.

use super::epilogue::Finish;
use super::kernel::{KC, Kernel, Panels, Portable, Tile};
use super::pack::{pack_a, pack_b, panel_a, panel_b};
use super::task::even;
use super::{Epilogue, Matrix, Product};
use crate::Element;
use crate::simd::simd;
use crate::uninit::poisoned;
use half::{bf16, f16};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::ops::Range;

/// Maximum number of columns at a time: a block of `B` then takes 256 · 512 · 4 B = 512 KiB.
pub const MAX_COLS: usize = 512;
/// Maximum number of rows at a time. Packing `B` costs about half a cycle per element (it comes from the third-level
/// cache), and each of these rows computes with the element for 1/32 of a cycle: 2 %. More rows would need more scratch
/// for 16-bit products.
pub const MAX_ROWS: usize = 1024;
/// Columns are split at multiples of this, so that no tile is split.
pub const UNIT: usize = 32;
/// The panels of `A` packed at a time.
const GROUP: usize = 8;

/// A product whose `C` several threads write, each in different rectangles.
pub struct Job<'a, T> {
    k: usize,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    c: Output<'a, T>,
    c_stride: usize,
}

/// Where results go: the first element of `C`.
enum Output<'a, T> {
    /// Rounded, after the epilogue.
    Rounded(*mut T, Finish<'a, T>),
    /// The sums themselves, added to the old values if `add`.
    Sums { c: *mut f32, add: bool },
}

impl<T: Element> Output<'_, T> {
    /// `C`, if partial sums can wait in it for the next block of `k`.
    fn sums(&self) -> Option<*mut f32> {
        match self {
            Self::Rounded(c, _) => T::IS_F32.then_some(c.cast()),
            Self::Sums { c, .. } => Some(*c),
        }
    }

    fn adds(&self) -> bool {
        matches!(self, Self::Sums { add: true, .. })
    }
}

// SAFETY: `c` comes from a `&mut [T]`, or its owner guarantees that nothing else uses it; tasks do not overlap, and `T`
// is `Send + Sync`.
unsafe impl<T: Element> Sync for Job<'_, T> {}

impl<'a, T: Element> Job<'a, T> {
    /// A whole product.
    pub fn new(Product { n, k, a, b, c, .. }: Product<'a, T>, epilogue: Epilogue<'a, T>) -> Self {
        let c = Output::Rounded(c.as_mut_ptr().cast(), Finish::new(epilogue, n));
        Self { k, a, b, c, c_stride: n }
    }

    /// A product without an epilogue, whose sums are not rounded, into a `C` that may be part of something larger.
    pub fn here(k: usize, a: Matrix<'a, T>, b: Matrix<'a, T>, c: *mut f32, c_stride: usize, add: bool) -> Self {
        Self { k, a, b, c: Output::Sums { c, add }, c_stride }
    }
}

/// A rectangle of the `C` of one job.
pub struct Task {
    pub job: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub work: usize,
}

/// The memory that a thread packs into: it grows to at most 0.8 MiB (2.8 MiB with 16-bit elements), and is kept.
#[derive(Default)]
pub struct Buffers {
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
    /// Returns the first `len` elements, with arbitrary contents.
    fn take(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; 16]));
        }
        if poisoned() {
            self.0.fill(Line([f32::from_bits(u32::MAX); 16]));
        }
        // SAFETY: a `Line` is 16 `f32` without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Calls `f` with the buffers of this thread.
pub fn with_buffers<R>(f: impl FnOnce(&mut Buffers) -> R) -> R {
    BUFFERS.with_borrow_mut(f)
}

pub type Run<T> = unsafe fn(&Job<'_, T>, &Task, &mut Buffers);

/// Returns the version of [`run`] for the current [`simd`].
pub fn best_run<T: Element>() -> Run<T> {
    // These functions have no type parameters, so the kernels are compiled in this crate only, and not again in each
    // crate that multiplies.
    #[inline(never)]
    fn of_f32() -> Run<f32> {
        compiled_run()
    }
    #[inline(never)]
    fn of_bf16() -> Run<bf16> {
        compiled_run()
    }
    #[inline(never)]
    fn of_f16() -> Run<f16> {
        compiled_run()
    }
    let runs: [&dyn Any; 3] = [&of_f32(), &of_bf16(), &of_f16()];
    *runs.into_iter().find_map(|run| run.downcast_ref()).expect("an element is f32, bf16 or f16")
}

/// [`best_run`], to be called in this crate only.
fn compiled_run<T: Element>() -> Run<T> {
    #[cfg(target_arch = "x86_64")]
    {
        use super::amx::{Tiled, Tiles};
        use super::x86::Pairs;
        use crate::simd::{Simd, multiplies_bf16};
        use std::arch::x86_64::{__m256, __m512};

        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn amx<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller guarantees it.
            unsafe {
                let _tiles = Tiles::take();
                run::<T, Tiled>(job, task, buffers)
            }
        }

        #[target_feature(enable = "avx512f,avx512bf16")]
        unsafe fn pairs<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller guarantees it.
            unsafe { run::<T, Pairs>(job, task, buffers) }
        }

        #[target_feature(enable = "avx512f")]
        unsafe fn avx512<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller guarantees it.
            unsafe { run::<T, __m512>(job, task, buffers) }
        }

        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2<T: Element>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
            // SAFETY: the caller guarantees it.
            unsafe { run::<T, __m256>(job, task, buffers) }
        }

        let is_bf16 = TypeId::of::<T>() == TypeId::of::<bf16>();
        match simd() {
            Simd::Amx if is_bf16 => return amx::<T>,
            Simd::Avx512 if is_bf16 && multiplies_bf16() => return pairs::<T>,
            Simd::Amx | Simd::Avx512 => return avx512::<T>,
            Simd::Avx2 => return avx2::<T>,
            Simd::Default => {}
        }
    }
    run::<T, Portable>
}

/// Computes one task.
///
/// # Safety
/// The processor must have the instructions of `P`, the task must be inside the job, and nothing else may use its
/// rectangle of `C` and of the epilogue's outputs.
#[inline(always)]
unsafe fn run<T: Element, P: Panels>(job: &Job<'_, T>, task: &Task, buffers: &mut Buffers) {
    for cols in even(task.cols.clone(), task.cols.len().div_ceil(MAX_COLS), UNIT) {
        for rows in even(task.rows.clone(), task.rows.len().div_ceil(MAX_ROWS), 1) {
            // SAFETY: it is a part of the task.
            unsafe { rectangle::<T, P>(job, rows, cols.clone(), buffers) }
        }
    }
}

/// Computes a part of a task.
///
/// # Safety
/// Like [`run`].
#[inline(always)]
unsafe fn rectangle<T: Element, P: Panels>(
    job: &Job<'_, T>,
    rows: Range<usize>,
    cols: Range<usize>,
    buffers: &mut Buffers,
) {
    let block = KC * P::DEPTH;
    let to_a = buffers.a.take(GROUP * panel_a::<P>());
    let to_b = buffers.b.take(cols.len().div_ceil(P::NR) * panel_b::<P>());
    let scratch = buffers.scratch.take(P::NR.max(P::PITCH) * KC);
    let panels: Vec<_> = even(rows.clone(), rows.len().div_ceil(P::MR), 1).collect();
    // Partial sums wait for the next block of `k` as `f32`, in `C` itself if it is f32.
    let all_wait = job.c.sums().is_some() || job.k > block;
    let (c, c_stride) = match job.c.sums() {
        // SAFETY: the rectangle starts inside `C`.
        Some(c) => (unsafe { c.add(rows.start * job.c_stride + cols.start) }, job.c_stride),
        None => {
            let waiting = if all_wait { rows.len() } else { P::MR };
            (buffers.c.take(waiting * cols.len()).as_mut_ptr(), cols.len())
        }
    };
    let first_row = |panel: &Range<usize>| if all_wait { panel.start - rows.start } else { 0 };
    // A few rows do not amortize packing `B`: the kernel reads it in place, except for a last panel that is not full.
    let in_place = T::IS_F32 && job.b.col_stride == 1 && panels.len() <= 2 && job.k > 0;
    let a_in_place = panels.last().is_some_and(|last| lies_as_units::<T, P>(&job.a, job.k, last.start));
    let packed = if in_place { cols.end - cols.len() % P::NR..cols.end } else { cols.clone() };

    // With `k = 0` there is one empty block: nothing to pack, and the kernel's sums are zeros.
    for k in (0..job.k.max(1)).step_by(block) {
        let ks = k..job.k.min(k + block);
        if !ks.is_empty() {
            // SAFETY: the processor has the instructions of `P`.
            unsafe { pack_b::<T, P>(&job.b, ks.clone(), packed.clone(), to_b, scratch) };
        }
        for group in panels.chunks(GROUP) {
            // SAFETY: as above.
            let by_columns =
                !a_in_place && !ks.is_empty() && unsafe { pack_a::<T, P>(&job.a, group, ks.clone(), to_a, scratch) };
            for (panel, a) in group.iter().zip(to_a.chunks_exact(panel_a::<P>())) {
                let sums = c.wrapping_add(first_row(panel) * c_stride);
                let (panel_a, a_stride) = match a_in_place {
                    true => {
                        (job.a.data[panel.start * job.a.row_stride + k..].as_ptr().cast(), job.a.row_stride / P::DEPTH)
                    }
                    false => (a.as_ptr(), KC),
                };
                let kernel: Kernel = P::KERNELS[usize::from(by_columns)][panel.len() - 1];
                for col in cols.clone().step_by(P::NR) {
                    let (b, b_stride) = if col >= packed.start {
                        (to_b[(col - packed.start) / P::NR * panel_b::<P>()..].as_ptr(), P::NR)
                    } else {
                        (job.b.data[k * job.b.row_stride + col..].as_ptr().cast(), job.b.row_stride)
                    };
                    let tile = Tile {
                        k: ks.len().div_ceil(P::DEPTH),
                        a: panel_a,
                        a_stride,
                        b,
                        b_stride,
                        c: sums.wrapping_add(col - cols.start),
                        c_stride,
                        cols: P::NR.min(cols.end - col),
                        add: job.c.adds() || k > 0,
                    };
                    // SAFETY: the panels are packed as the kernel expects them.
                    unsafe { kernel(&tile) };
                }
                if let Output::Rounded(c, finish) = &job.c
                    && ks.end == job.k
                {
                    // SAFETY: the kernels have set the sums, and nothing else uses the rectangle.
                    unsafe { finish.rows(sums, c_stride, panel.clone(), cols.clone(), *c, job.c_stride) }
                }
            }
        }
    }
}

/// Whether the kernel can read `A` in place. `last` is the first row of the last panel.
#[inline(always)]
fn lies_as_units<T: Element, P: Panels>(a: &Matrix<'_, T>, k: usize, last: usize) -> bool {
    // Pairs of bf16 are adjacent in memory; other 16-bit elements are widened.
    let as_units = T::IS_F32 || P::DEPTH == 2;
    // Rows at a distance of multiples of 2 KiB, in bf16 of 1 KiB, compete for a few sets of the first-level cache.
    let spread = !a.row_stride.is_multiple_of(512);
    let whole = k > 0 && k.is_multiple_of(P::DEPTH * P::STEP) && a.row_stride.is_multiple_of(P::DEPTH);
    let aligned = a.data.as_ptr().cast::<f32>().is_aligned();
    // A kernel with tiles reads all rows of a panel, also those that it does not need.
    let readable = P::STEP == 1 || a.holds(last + P::MR, k);
    as_units && a.col_stride == 1 && spread && whole && aligned && readable
}
