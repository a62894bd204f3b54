//! What happens to sums before they are rounded and leave the cache, element by element and in `f32`.

use super::Epilogue;
use crate::Element;
use crate::gelu;
use std::ops::Range;

/// An epilogue whose outputs are written by several threads, each in its own rectangles.
pub struct Finish<'a, T> {
    n: usize,
    bias: Option<&'a [T]>,
    gelu: bool,
    pre_activation: Option<*mut T>,
    residual: Option<&'a [T]>,
}

impl<'a, T: Element> Finish<'a, T> {
    /// Of a `C` with rows of `n`.
    pub fn new(epilogue: Epilogue<'a, T>, n: usize) -> Self {
        let Epilogue { bias, gelu, pre_activation, residual } = epilogue;
        Self { n, bias, gelu, pre_activation: pre_activation.map(|to| to.as_mut_ptr().cast()), residual }
    }

    /// Finishes these rows and columns: `sums` begins with the first of them, in rows of `stride`; `c` is the first
    /// element of all of `C`.
    ///
    /// # Safety
    ///
    /// They are inside of all that the epilogue reads and writes, the sums are set, and nobody else uses them.
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
            // SAFETY: the caller's promise.
            unsafe {
                let sums = std::slice::from_raw_parts_mut(sums.add(i * stride), cols.len());
                self.row(sums, row, cols.start, c.add(row * c_stride + cols.start));
            }
        }
    }

    /// Finishes a part of a row: `sums` are those of `A B` from this column on, and results go to `c`; of f32 both are
    /// one place.
    ///
    /// # Safety
    ///
    /// The part is inside the row of all that the epilogue reads and writes, and nobody else uses it.
    #[inline(always)]
    unsafe fn row(&self, sums: &mut [f32], row: usize, col: usize, c: *mut T) {
        let at = row * self.n + col;
        if let Some(bias) = self.bias {
            add(sums, &bias[col..][..sums.len()]);
        }
        if let Some(to) = self.pre_activation {
            // SAFETY: the caller's promise.
            unsafe { write(sums, to.add(at)) };
        }
        if self.gelu {
            sums.iter_mut().for_each(|sum| *sum = gelu::of(*sum));
        }
        if let Some(residual) = self.residual {
            add(sums, &residual[at..][..sums.len()]);
        }
        if !T::IS_F32 {
            // SAFETY: the caller's promise.
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
///
/// There is room for as many elements, of which nobody else uses any.
#[inline(always)]
unsafe fn write<T: Element>(values: &[f32], to: *mut T) {
    let mut narrow = [T::from_f32(0.0); 32];
    for (i, values) in values.chunks(32).enumerate() {
        let narrow = &mut narrow[..values.len()];
        T::narrow(values, narrow);
        // SAFETY: the caller's promise. What is there need not be set yet.
        unsafe { std::ptr::copy_nonoverlapping(narrow.as_ptr(), to.add(i * 32), narrow.len()) };
    }
}
