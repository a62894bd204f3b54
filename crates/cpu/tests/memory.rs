//! The unsafe code at sizes that Miri, valgrind and sanitizers can run: uninitialized memory, disjoint parts of memory
//! for tasks, rows of attention heads, and matrix products on every vector path of this processor.

use cpu::gemm::{Epilogue, Matrix, Product, products_with};
use cpu::heads::{Target, View};
use cpu::{Element, Pieces, overwritten, team, written};
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// Small enough for an interpreter, with partial tiles and blocks on every side.
const SIZES: &[[usize; 3]] = if cfg!(miri) {
    &[[1, 1, 1], [3, 5, 2], [7, 33, 4], [2, 3, 259], [9, 17, 0]]
} else {
    &[[1, 1, 1], [3, 5, 2], [7, 33, 4], [65, 130, 259], [300, 70, 515], [9, 17, 0], [1, 600, 31], [37, 1, 600]]
};

fn numbers<T: Element>(len: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f32(((i * 37 + i / 5) % 17) as f32 / 8.0 - 1.0)).collect()
}

/// Compares products with sums in f64, for `A` and `B` plain or transposed, with and without GELU.
fn products_are_those_of_f64<T: Element>(tolerance: f64) {
    for &[m, n, k] in SIZES {
        for turned in 0..4 {
            let (a, b): (Vec<T>, Vec<T>) = (numbers(m * k), numbers(k * n));
            let (bias, residual): (Vec<T>, Vec<T>) = (numbers(n), numbers(m * n));
            let view_a = if turned & 1 == 0 { Matrix::new(&a, k) } else { Matrix::new(&a, m).transposed() };
            let view_b = if turned & 2 == 0 { Matrix::new(&b, n) } else { Matrix::new(&b, k).transposed() };
            let mut pre = vec![];
            let write = |c: &mut [_]| {
                // SAFETY: the product sets all elements of both outputs.
                pre = unsafe {
                    written(m * n, |pre| {
                        let (bias, residual) = (Some(&*bias), Some(&*residual));
                        let epilogue = Epilogue { bias, residual, gelu: turned == 0, pre_activation: Some(pre) };
                        products_with(vec![(Product { m, n, k, a: view_a, b: view_b, c }, epilogue)]);
                    })
                };
            };
            // SAFETY: as above.
            let c = unsafe { written(m * n, write) };
            let at = |of: &Matrix<'_, T>, i: usize, j: usize| {
                f64::from(of.data[i * of.row_stride + j * of.col_stride].to_f32())
            };
            for (i, (found, before)) in c.iter().zip(&pre).enumerate() {
                let (row, column) = (i / n, i % n);
                let sum: f64 = (0..k).map(|p| at(&view_a, row, p) * at(&view_b, p, column)).sum();
                let sum = sum + f64::from(bias[column].to_f32());
                let near =
                    |found: T, exact: f64| (f64::from(found.to_f32()) - exact).abs() <= tolerance * (1.0 + exact.abs());
                assert!(near(*before, sum), "[{m}, {n}, {k}] at {i}: {} for {sum}", before.to_f32());
                let exact = if turned == 0 { f64::from(cpu::math::gelu(sum as f32)) } else { sum };
                assert!(near(*found, exact + f64::from(residual[i].to_f32())), "[{m}, {n}, {k}] at {i}");
            }
        }
    }
}

#[test]
fn products_of_f32() {
    products_are_those_of_f64::<f32>(1e-4);
}

#[test]
fn products_of_bf16() {
    products_are_those_of_f64::<bf16>(2e-2);
}

#[test]
fn products_of_f16() {
    products_are_those_of_f64::<f16>(4e-3);
}

#[test]
fn tasks_write_disjoint_parts() {
    for len in [0, 1, 7, 1000] {
        let write = |values: &mut [MaybeUninit<usize>]| {
            let parts = Pieces::new(values);
            team::for_each(usize::div_ceil(len, 3), |i| {
                // SAFETY: the parts of tasks are disjoint.
                for (j, value) in unsafe { parts.part(i, 3) }.iter_mut().enumerate() {
                    value.write(3 * i + j);
                }
            });
        };
        // SAFETY: together the parts cover the slice.
        let mut values = unsafe { written(len, write) };
        // SAFETY: every element is set again.
        unsafe { overwritten(&mut values) }.iter_mut().enumerate().for_each(|(i, value)| _ = value.write(i));
        assert!(values.iter().copied().eq(0..len));
    }
}

/// Copies `[b, t, 3, heads, width]`: the rows of a head are not adjacent, and source and target use the same offsets.
fn heads_are_read_and_written_where_they_lie<T: Element + PartialEq>() {
    let [b, heads, t, width] = [2, 3, 4, 5];
    let strides = [3 * t * heads * width, width, 3 * heads * width];
    let from: Vec<T> = numbers(b * t * 3 * heads * width);
    let mut to = vec![T::from_f32(9.0); from.len()];
    for part in 0..3 {
        let view = View::new(&from[part * heads * width..], strides, width);
        // SAFETY: the rows of a part lie inside this memory and do not overlap.
        let target = unsafe { Target::new(to.as_mut_ptr().wrapping_add(part * heads * width), strides, width) };
        team::for_each(b * heads, |i| {
            let (place, mut wide, mut to_wide) = ([i / heads, i % heads], vec![], vec![]);
            let rows = view.rows(place, t, &mut wide);
            let (first, stride) = target.rows(place, t, &mut to_wide);
            for (row, column) in (0..t * width).map(|i| (i / width, i % width)) {
                // SAFETY: the element belongs to this head.
                unsafe { *first.add(row * stride + column) = rows.data[row * rows.row_stride + column] };
            }
            target.put(place, &to_wide);
        });
    }
    assert!(to == from);
}

#[test]
fn heads_of_f32_and_bf16() {
    heads_are_read_and_written_where_they_lie::<f32>();
    heads_are_read_and_written_where_they_lie::<bf16>();
}
