//! Arithmetic on `f32` in a form that compilers vectorize, and loops over rows on all cores.

use crate::element::Element;
use crate::pieces::Pieces;
use crate::team;
use crate::uninit::written;
use crate::vectorised;
use std::mem::MaybeUninit;

/// Number of elements that justify a separate task.
pub const TASK: usize = 16 * 1024;

/// Independent partial results of a reduction. Strict floating point forbids the compiler to reorder a sum, so the code
/// spells out the order: one lane per element of the widest vector.
const LANES: usize = 16;

/// Returns `e^x` within 2e-7 relative; `x` is clamped to -87 ..= 88.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by the polynomial of Cephes' `expf`, `2^n` by its exponent bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 x 2^23: adding it leaves the nearest integer in the lowest bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let e_r = p * r * r + r + 1.0;
    let two_n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    e_r * f32::from_bits(two_n)
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `2 sqrt(2/pi)`: [`gelu`] is `x sigmoid(GELU_FACTOR (x + GELU_CUBIC x^3))`.
pub const GELU_FACTOR: f32 = 1.595_769_2;
/// The factor of the cube in [`gelu`].
pub const GELU_CUBIC: f32 = 0.044_715;

/// GELU in its tanh form (arXiv 1606.08415) of one number.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    x * sigmoid(GELU_FACTOR * (x + GELU_CUBIC * x * x * x))
}

/// Sums `term` over three slices of equal length.
#[inline(always)]
pub fn sum3<T: Element, U: Element, V: Element>(
    (a, b, c): (&[T], &[U], &[V]),
    term: impl Fn(f32, f32, f32) -> f32,
) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let (c_lanes, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a_lanes.iter().zip(b_lanes).zip(c_lanes) {
        for i in 0..LANES {
            lanes[i] += term(a[i].to_f32(), b[i].to_f32(), c[i].to_f32());
        }
    }
    let rest = a_rest.iter().zip(b_rest).zip(c_rest);
    lanes.iter().sum::<f32>() + rest.map(|((a, b), c)| term(a.to_f32(), b.to_f32(), c.to_f32())).sum::<f32>()
}

/// Sums `term` over two slices of equal length.
#[inline(always)]
pub fn sum2<T: Element, U: Element>(a: &[T], b: &[U], term: impl Fn(f32, f32) -> f32) -> f32 {
    sum3((a, b, b), |a, b, _| term(a, b))
}

/// Sums `term` over a slice.
#[inline(always)]
pub fn sum<T: Element>(a: &[T], term: impl Fn(f32) -> f32) -> f32 {
    sum3((a, a, a), |a, _, _| term(a))
}

/// Returns the largest value of a slice.
#[inline(always)]
pub fn max<T: Element>(a: &[T]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            let value = chunk[i].to_f32();
            lanes[i] = if value > lanes[i] { value } else { lanes[i] };
        }
    }
    let rest = rest.iter().map(|value| value.to_f32());
    lanes.iter().copied().chain(rest).fold(f32::NEG_INFINITY, f32::max)
}

vectorised! {
    /// Adds a row to a sum of rows.
    pub fn accumulate<T: Element>(sum: &mut [f32], row: &[T]) {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f32());
    }
}

/// Number of elements of a task: whole rows of `width`, about [`TASK`] elements. It does not depend on the number of
/// cores, so neither do results that are summed task by task.
pub fn task_len(width: usize) -> usize {
    (TASK / width.max(1)).max(1) * width.max(1)
}

/// Computes `len` elements from `inputs` of the same length, on all cores. Each call of `task` gets the number of its
/// first row, the inputs' parts and the output's part, all of them whole rows of `width`.
///
/// # Safety
/// `task` must set every element of its output.
pub unsafe fn over_rows<T: Element, const N: usize>(
    width: usize,
    len: usize,
    inputs: [&[T]; N],
    task: impl Fn(usize, [&[T]; N], &mut [MaybeUninit<T>]) + Sync,
) -> Vec<T> {
    let task_len = task_len(width);
    let write = |output: &mut [MaybeUninit<T>]| {
        let (len, output) = (output.len(), Pieces::new(output));
        team::for_each(len.div_ceil(task_len), |i| {
            // SAFETY: the parts of tasks are disjoint.
            let output = unsafe { output.part(i, task_len) };
            let piece = i * task_len..i * task_len + output.len();
            task(i * task_len / width.max(1), inputs.map(|input| &input[piece.clone()]), output);
        });
    };
    // SAFETY: together the pieces cover the output, and the caller guarantees that each is set.
    unsafe { written(len, write) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_2e_7_of_the_exact_value() {
        for i in -870..=880 {
            let x = i as f32 * 0.1 + 0.0123;
            if x.abs() < 86.9 {
                let exact = f64::from(x).exp();
                assert!((f64::from(exp(x)) - exact).abs() < 2e-7 * exact, "exp({x})");
            }
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::NAN).is_nan());
    }
}
