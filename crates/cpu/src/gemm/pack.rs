//! Packing: copies blocks of `A` and `B`, as units, into the order in which the kernel reads them.
//!
//! `A` is only broadcast, one unit at a time, so the kernel takes it by rows or by columns, and packing only copies it.
//! (Tiles of AMX take it by rows, so there packing transposes columns.)
//! `B` is read in rows of `NR` units; if it is stored by columns (the transposed weights of a backward pass), packing
//! transposes it.

use super::Matrix;
use super::kernel::{KC, Panels, Vector};
use crate::Element;
use half::bf16;
use std::any::TypeId;
use std::ops::Range;

/// How many values of `k` ahead packing prefetches data that is not adjacent in memory.
const AHEAD: usize = 16;

/// The units of a packed panel of `A`: up to `PITCH` rows of `KC`, or `KC` columns of up to `PITCH`. One extra cache
/// line keeps equal positions of adjacent panels from competing for the same cache sets.
#[inline(always)]
pub const fn panel_a<P: Panels>() -> usize {
    P::PITCH * KC + 16
}

/// The units of a packed panel of `B`: `KC` rows of `NR`, and one extra row for the same reason.
#[inline(always)]
pub const fn panel_b<P: Panels>() -> usize {
    (KC + 1) * P::NR
}

/// Packs the panels of `A` that cover these rows, `panel_a` units each, for this block of `k`. Returns whether they are
/// packed by columns. `scratch` holds `PITCH * KC` units.
///
/// # Safety
/// The processor must have the instructions of `P`.
#[inline(always)]
pub unsafe fn pack_a<T: Element, P: Panels>(
    a: &Matrix<'_, T>,
    panels: &[Range<usize>],
    ks: Range<usize>,
    to: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    let columns = a.row_stride == 1 && a.col_stride != 1;
    let by_columns = columns && !P::KERNELS[1].is_empty();
    if by_columns {
        // SAFETY: the caller guarantees it.
        unsafe { columns_of_a::<T, P>(a, panels, ks, to) };
        return true;
    }
    let units = ks.len().div_ceil(P::DEPTH);
    let padded = units.next_multiple_of(P::STEP);
    for (panel, rows) in to.chunks_exact_mut(panel_a::<P>()).zip(panels) {
        if columns {
            scratch[units * P::PITCH..padded * P::PITCH].fill(0.0);
            // SAFETY: the caller guarantees it; the scratch has `padded` rows of `PITCH`, which is at least `MR`.
            unsafe {
                columns_of_a::<T, P>(a, std::slice::from_ref(rows), ks.clone(), scratch);
                transpose::<P>([padded, P::MR], scratch.as_ptr(), P::PITCH, panel, KC);
            }
            continue;
        }
        for (to, row) in panel.chunks_exact_mut(KC).zip(rows.clone()) {
            let start = row * a.row_stride + ks.start * a.col_stride;
            let (to, rest) = to[..padded].split_at_mut(units);
            along::<T, P>(a.data, start, a.col_stride, ks.len(), to);
            rest.fill(0.0);
        }
    }
    false
}

/// Packs by columns: one column of all panels precedes the next column, because panels are adjacent in memory.
///
/// # Safety
/// The processor must have the instructions of `P`.
#[inline(always)]
unsafe fn columns_of_a<T: Element, P: Panels>(
    a: &Matrix<'_, T>,
    panels: &[Range<usize>],
    ks: Range<usize>,
    to: &mut [f32],
) {
    for (p, k) in ks.clone().step_by(P::DEPTH).enumerate() {
        for (panel, rows) in to.chunks_mut(panel_a::<P>()).zip(panels) {
            let to = &mut panel[p * P::PITCH..][..P::PITCH];
            let start = k * a.col_stride + rows.start;
            // SAFETY: this is a hint.
            unsafe { P::Vector::prefetch(a.data.as_ptr().wrapping_add(start + AHEAD * a.col_stride).cast()) }
            let last = (ks.end - 1).min(k + P::DEPTH - 1) * a.col_stride + rows.start;
            // A whole vector is one instruction, and extra rows are harmless.
            let to = if last + P::PITCH <= a.data.len() { to } else { &mut to[..rows.len()] };
            // SAFETY: the caller guarantees it.
            unsafe { across::<T, P>(a.data, start, a.col_stride, ks.end - k, to) }
        }
    }
}

/// Packs the panels of `NR` columns of `B` that cover these columns, `panel_b` units each, for this block of `k`. The
/// last panel is padded with zeros. `scratch` holds `NR * KC` units.
///
/// # Safety
/// The processor must have the instructions of `P`.
#[inline(always)]
pub unsafe fn pack_b<T: Element, P: Panels>(
    b: &Matrix<'_, T>,
    ks: Range<usize>,
    cols: Range<usize>,
    to: &mut [f32],
    scratch: &mut [f32],
) {
    if b.col_stride != 1 {
        let panels = to.chunks_exact_mut(panel_b::<P>()).zip(cols.clone().step_by(P::NR));
        let units = ks.len().div_ceil(P::DEPTH);
        let padded = units.next_multiple_of(P::STEP);
        // Columns are read in place, unless their distance (multiples of 2 KiB) makes 32 of them compete for a few sets
        // of the first-level cache.
        let in_place = T::IS_F32 && b.row_stride == 1 && !b.col_stride.is_multiple_of(512) && units.is_multiple_of(4);
        for (panel, col) in panels {
            if in_place && col + P::NR <= cols.end {
                let columns = &b.data[col * b.col_stride + ks.start..][..(P::NR - 1) * b.col_stride + units];
                // SAFETY: the caller guarantees it; there are `NR` columns of this many `f32`.
                unsafe { transpose::<P>([P::NR, units], columns.as_ptr().cast(), b.col_stride, panel, P::NR) };
                continue;
            }
            for (j, line) in scratch.chunks_exact_mut(KC).take(P::NR).enumerate() {
                let (line, rest) = line[..padded].split_at_mut(units);
                if col + j < cols.end {
                    let start = (col + j) * b.col_stride + ks.start * b.row_stride;
                    along::<T, P>(b.data, start, b.row_stride, ks.len(), line);
                } else {
                    line.fill(0.0);
                }
                rest.fill(0.0);
            }
            assert!(scratch.len() >= P::NR * KC);
            // SAFETY: the caller guarantees it; the scratch has `NR` rows of `KC`, a multiple of 4.
            unsafe { transpose::<P>([P::NR, padded], scratch.as_ptr(), KC, panel, P::NR) };
        }
        return;
    }
    for (p, k) in ks.clone().step_by(P::DEPTH).enumerate() {
        for (panel, col) in to.chunks_exact_mut(panel_b::<P>()).zip(cols.clone().step_by(P::NR)) {
            let to = &mut panel[p * P::NR..][..P::NR];
            let start = k * b.row_stride + col;
            for line in (0..P::NR).step_by(64 / size_of::<T>()) {
                // SAFETY: this is a hint.
                unsafe { P::Vector::prefetch(b.data.as_ptr().wrapping_add(start + AHEAD * b.row_stride + line).cast()) }
            }
            let (inside, outside) = to.split_at_mut(P::NR.min(cols.end - col));
            // SAFETY: the caller guarantees it.
            match outside {
                [] => unsafe { across::<T, P>(b.data, start, b.row_stride, ks.end - k, &mut inside[..P::NR]) },
                _ => unsafe { across::<T, P>(b.data, start, b.row_stride, ks.end - k, inside) },
            }
            outside.fill(0.0);
        }
    }
    let units = ks.len().div_ceil(P::DEPTH);
    let rest = units * P::NR..units.next_multiple_of(P::STEP) * P::NR;
    if !rest.is_empty() {
        let panels = to.chunks_exact_mut(panel_b::<P>()).take(cols.len().div_ceil(P::NR));
        panels.for_each(|panel| panel[rest.clone()].fill(0.0));
    }
}

/// Packs `count` consecutive values of `k`, `stride` apart, into units.
#[inline(always)]
fn along<T: Element, P: Panels>(data: &[T], start: usize, stride: usize, count: usize, to: &mut [f32]) {
    let data = &data[start..];
    match (P::DEPTH, stride) {
        (1, 1) => widen(&data[..count], to),
        (1, _) => {
            for (to, from) in to.iter_mut().zip(data.chunks(stride)) {
                T::widen(&from[..1], std::slice::from_mut(to));
            }
        }
        (_, 1) => {
            let (pairs, last) = bits(&data[..count]).as_chunks::<2>();
            to.iter_mut().zip(pairs).for_each(|(to, &[first, second])| *to = pair(first, second));
            if let (Some(to), &[last]) = (to.get_mut(pairs.len()), last) {
                *to = pair(last, 0);
            }
        }
        _ => {
            let values = bits(data).chunks(stride).map(|from| from[0]).take(count);
            let (mut first, mut second) = (values.clone().step_by(2), values.skip(1).step_by(2));
            to.fill_with(|| pair(first.next().unwrap_or(0), second.next().unwrap_or(0)));
        }
    }
}

/// Packs one unit for each of `to.len()` adjacent elements, from rows of values `k_stride` apart; `left` rows are left.
///
/// # Safety
/// The processor must have the instructions of `P`.
#[inline(always)]
unsafe fn across<T: Element, P: Panels>(data: &[T], start: usize, k_stride: usize, left: usize, to: &mut [f32]) {
    let first = &data[start..][..to.len()];
    if P::DEPTH == 1 && T::IS_F32 {
        // This is a vector or two, and a call of a copy function would take longer.
        let whole = to.len() / P::Vector::LANES * P::Vector::LANES;
        let (from, to) = (first.as_ptr().cast::<f32>(), to);
        for i in (0..whole).step_by(P::Vector::LANES) {
            // SAFETY: both have this many `f32`; the caller guarantees the rest.
            unsafe { P::Vector::load(from.add(i)).store(to.as_mut_ptr().add(i), P::Vector::LANES, false) }
        }
        (whole..to.len()).for_each(|i| to[i] = first[i].to_f32());
    } else if P::DEPTH == 1 {
        T::widen(first, to);
    } else if left > 1 {
        let (first, second) = (bits(first), bits(&data[start + k_stride..][..to.len()]));
        let whole = to.len() / P::Vector::LANES * P::Vector::LANES;
        for i in (0..whole).step_by(P::Vector::LANES) {
            // SAFETY: all three have this many elements; the caller guarantees the rest.
            unsafe {
                P::Vector::interleave(first.as_ptr().add(i), second.as_ptr().add(i)).store(
                    to.as_mut_ptr().add(i),
                    P::Vector::LANES,
                    false,
                )
            }
        }
        for i in whole..to.len() {
            to[i] = pair(first[i], second[i]);
        }
    } else {
        to.iter_mut().zip(bits(first)).for_each(|(to, first)| *to = pair(*first, 0));
    }
}

/// Like [`Element::widen`], but a block copy for f32, whose loop the compiler would run element by element.
#[inline(always)]
fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    if T::IS_F32 {
        // SAFETY: both have this many `f32`, and a `&mut` overlaps nothing.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr().cast(), to.len()) }
    } else {
        T::widen(from, to);
    }
}

/// The unit of two `bf16`, in memory order.
#[inline(always)]
fn pair(first: u16, second: u16) -> f32 {
    f32::from_bits(u32::from(first) | u32::from(second) << 16)
}

/// The bits of `bf16`, the only type that is packed in pairs.
#[inline(always)]
fn bits<T: Element>(data: &[T]) -> &[u16] {
    assert!(TypeId::of::<T>() == TypeId::of::<bf16>());
    // SAFETY: `T` is `bf16`, which is a transparent `u16`.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) }
}

/// Transposes `[rows, cols]` with rows `stride` apart into rows `to_stride` apart, in blocks of `LANES` rows and 4
/// columns; `rows` is a multiple of `LANES`.
///
/// # Safety
/// The processor must have the instructions of `P`. From `from` on there must be this many rows, `stride` apart, of
/// `cols` elements rounded up to a multiple of 4.
#[inline(always)]
unsafe fn transpose<P: Panels>(
    [rows, cols]: [usize; 2],
    from: *const f32,
    stride: usize,
    to: &mut [f32],
    to_stride: usize,
) {
    assert!(
        rows.is_multiple_of(P::Vector::LANES) && rows <= to_stride && cols.next_multiple_of(4) * to_stride <= to.len()
    );
    for col in (0..cols).step_by(4) {
        for row in (0..rows).step_by(P::Vector::LANES) {
            // SAFETY: row + LANES <= rows, and col + 4 is at most the next multiple of 4, for which `to` has room.
            unsafe {
                let columns = P::Vector::columns(from.add(row * stride + col), stride);
                for (i, column) in columns.into_iter().enumerate() {
                    column.store(to.as_mut_ptr().add((col + i) * to_stride + row), P::Vector::LANES, false);
                }
            }
        }
    }
}
