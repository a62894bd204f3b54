//! Epilogues: what happens to sums before they are rounded and leave the cache, element by element and in `f32`.

use super::Epilogue;
use crate::Element;
use crate::math::gelu;
use std::ops::Range;

/// An epilogue whose outputs several threads write, each in different rectangles.
pub struct Finish<'a, T> {
    n: usize,
    bias: Option<&'a [T]>,
    gelu: bool,
    pre_activation: Option<*mut T>,
    residual: Option<&'a [T]>,
}

impl<'a, T: Element> Finish<'a, T> {
    /// The epilogue of a `C` with rows of `n`.
    pub fn new(epilogue: Epilogue<'a, T>, n: usize) -> Self {
        let Epilogue { bias, gelu, pre_activation, residual } = epilogue;
        Self { n, bias, gelu, pre_activation: pre_activation.map(|to| to.as_mut_ptr().cast()), residual }
    }

    /// Finishes these rows and columns. `sums` points to the first of them, in rows of `stride`; `c` is the first
    /// element of the whole `C`.
    ///
    /// # Safety
    /// The rectangle must be inside everything that the epilogue reads and writes, the sums must be set, and nothing
    /// else may use them.
    #[inline(always)]
    pub unsafe fn rows(
        &self,
        sums: *mut f32,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        c: *mut T,
        c_stride: usize,
    ) {
        for (i, row) in rows.enumerate() {
            // SAFETY: the caller guarantees it.
            unsafe {
                let sums = std::slice::from_raw_parts_mut(sums.add(i * stride), cols.len());
                self.row(sums, row, cols.start, c.add(row * c_stride + cols.start));
            }
        }
    }

    /// Finishes a part of a row. `sums` are those of `A B` from column `col` on. Results go to `c`, which for f32 is
    /// the same memory.
    ///
    /// # Safety
    /// The part must be inside the row of everything that the epilogue reads and writes, and nothing else may use it.
    #[inline(always)]
    unsafe fn row(&self, sums: &mut [f32], row: usize, col: usize, c: *mut T) {
        let at = row * self.n + col;
        if let Some(bias) = self.bias {
            add(sums, &bias[col..][..sums.len()]);
        }
        if let Some(to) = self.pre_activation {
            // SAFETY: the caller guarantees it.
            unsafe { write(sums, to.add(at)) };
        }
        if self.gelu {
            sums.iter_mut().for_each(|sum| *sum = gelu(*sum));
        }
        if let Some(residual) = self.residual {
            add(sums, &residual[at..][..sums.len()]);
        }
        if !T::IS_F32 {
            // SAFETY: the caller guarantees it.
            unsafe { write(sums, c) };
        }
    }
}

#[inline(always)]
fn add<T: Element>(sums: &mut [f32], values: &[T]) {
    let mut wide = [0.0; 32];
    for (sums, values) in sums.chunks_mut(32).zip(values.chunks(32)) {
        let wide = &mut wide[..values.len()];
        T::widen(values, wide);
        sums.iter_mut().zip(wide).for_each(|(sum, value)| *sum += *value);
    }
}

/// # Safety
/// There must be room for as many elements, and nothing else may use it.
#[inline(always)]
unsafe fn write<T: Element>(values: &[f32], to: *mut T) {
    let mut narrow = [T::from_f32(0.0); 32];
    for (i, values) in values.chunks(32).enumerate() {
        let narrow = &mut narrow[..values.len()];
        T::narrow(values, narrow);
        // SAFETY: the caller guarantees it. The memory need not be initialized.
        unsafe { std::ptr::copy_nonoverlapping(narrow.as_ptr(), to.add(i * 32), narrow.len()) };
    }
}
