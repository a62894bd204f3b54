//! Copies blocks of `A` and `B` into the order in which the kernel reads them, as `f32`.
//!
//! `A` is only ever broadcast, one element at a time, so the kernel takes it by rows or by columns and packing is
//! copying either way. `B` is read in rows of `NR` elements; if it comes by columns (the transposed weights of a
//! backward pass), packing transposes it.

use super::Matrix;
use super::kernel::{KC, PITCH_A, Vector};
use crate::Element;
use std::ops::Range;

/// The elements of a packed panel of `A`: up to 16 rows of `KC`, or `KC` columns of up to 16.
pub const PANEL_A: usize = PITCH_A * KC;

/// Packs the panels of `A` that cover these rows, `PANEL_A` elements each, for this block of `k`.
/// Returns whether they are packed by columns.
#[inline(always)]
pub fn pack_a<T: Element>(a: &Matrix<'_, T>, panels: &[Range<usize>], ks: Range<usize>, to: &mut [f32]) -> bool {
    let by_columns = a.row_stride == 1 && a.col_stride != 1;
    if by_columns {
        // All panels of one column before the next column: they are neighbours in memory.
        for (p, k) in ks.enumerate() {
            let column = &a.data[k * a.col_stride..];
            for (panel, rows) in to.chunks_exact_mut(PANEL_A).zip(panels) {
                let to = &mut panel[p * PITCH_A..][..PITCH_A];
                // A copy of a fixed length is one instruction, and rows too many do no harm.
                match column.get(rows.start..rows.start + PITCH_A) {
                    Some(from) => T::widen(from, to),
                    None => end_of_data(&column[rows.clone()], to),
                }
            }
        }
    } else {
        for (panel, rows) in to.chunks_exact_mut(PANEL_A).zip(panels) {
            for (to, row) in panel.chunks_exact_mut(KC).zip(rows.clone()) {
                line(a.data, row * a.row_stride + ks.start * a.col_stride, a.col_stride, &mut to[..ks.len()]);
            }
        }
    }
    by_columns
}

/// The rest of a column. Out of line, so that the usual copy in [`pack_a`] keeps its fixed length.
#[cold]
#[inline(never)]
fn end_of_data<T: Element>(from: &[T], to: &mut [f32]) {
    T::widen(from, &mut to[..from.len()]);
}

/// Packs the panels of `NR` columns of `B` that cover these columns, `KC * NR` elements each, for this block of `k`.
/// The last panel is filled up with zeros. `scratch` holds `NR * KC` elements.
///
/// # Safety
///
/// The processor must have the instructions of `V`.
#[inline(always)]
pub unsafe fn pack_b<T: Element, V: Vector>(
    b: &Matrix<'_, T>,
    ks: Range<usize>,
    cols: Range<usize>,
    to: &mut [f32],
    scratch: &mut [f32],
) {
    let panels = to.chunks_exact_mut(KC * V::NR).zip(cols.clone().step_by(V::NR));
    if b.row_stride == 1 && b.col_stride != 1 {
        for (panel, col) in panels {
            for (j, line) in scratch.chunks_exact_mut(KC).take(V::NR).enumerate() {
                let line = &mut line[..ks.len()];
                if col + j < cols.end {
                    T::widen(&b.data[(col + j) * b.col_stride + ks.start..][..ks.len()], line);
                } else {
                    line.fill(0.0);
                }
            }
            // SAFETY: the caller's promise; the scratch has `NR` rows of `KC`, a multiple of 4.
            unsafe { transpose::<V>(ks.len(), scratch, panel) };
        }
        return;
    }
    // A few rows at a time: read nearly in order, written in runs.
    const RUN: usize = 8;
    let count = cols.len().div_ceil(V::NR);
    for run in ks.clone().step_by(RUN) {
        for (panel, col) in to.chunks_exact_mut(KC * V::NR).zip(cols.clone().step_by(V::NR)).take(count) {
            for k in run..ks.end.min(run + RUN) {
                let to = &mut panel[(k - ks.start) * V::NR..][..V::NR];
                let at = k * b.row_stride + col * b.col_stride;
                if b.col_stride == 1 && col + V::NR <= cols.end {
                    T::widen(&b.data[at..][..V::NR], to);
                } else {
                    let (inside, outside) = to.split_at_mut(V::NR.min(cols.end - col));
                    line(b.data, at, b.col_stride, inside);
                    outside.fill(0.0);
                }
            }
        }
    }
}

/// Converts elements that are `stride` apart.
#[inline(always)]
fn line<T: Element>(data: &[T], start: usize, stride: usize, to: &mut [f32]) {
    if stride == 1 {
        T::widen(&data[start..][..to.len()], to);
    } else {
        for (to, from) in to.iter_mut().zip(data[start..].chunks(stride)) {
            T::widen(&from[..1], std::slice::from_mut(to));
        }
    }
}

/// Transposes `[NR, k]` with rows `KC` apart into `[k, NR]`, in blocks of `LANES` rows and 4 columns.
///
/// # Safety
///
/// The processor must have the instructions of `V`; `from` must hold `NR * KC` elements, `to` too.
#[inline(always)]
unsafe fn transpose<V: Vector>(k: usize, from: &[f32], to: &mut [f32]) {
    assert!(from.len() >= V::NR * KC && to.len() >= V::NR * KC && k <= KC);
    for p in (0..k).step_by(4) {
        for first in (0..V::NR).step_by(V::LANES) {
            // SAFETY: p + 4 <= KC and first + LANES <= NR.
            unsafe {
                let columns = V::columns(from.as_ptr().add(first * KC + p), KC);
                for (i, column) in columns.into_iter().enumerate() {
                    column.store(to.as_mut_ptr().add((p + i) * V::NR + first), V::LANES, false);
                }
            }
        }
    }
}
