//! Arithmetic on `f32` in a form that compilers vectorise, and rows over cores.

use rayon::prelude::*;

/// Elements that are worth a task of their own.
pub(crate) const TASK: usize = 16 * 1024;

/// Independent partial results of a reduction: strict floating point forbids a compiler to reorder a sum, so the order is spelt
/// out here, one lane per element of the widest vector.
const LANES: usize = 16;

/// `e^x` within 2e-7 relative; below -87 it is `e^-87`.
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
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The sum of `term` over two slices of equal length.
#[inline(always)]
pub(crate) fn sum2(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            lanes[i] += term(a[i], b[i]);
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b)).sum::<f32>()
}

/// The sum of `term` over a slice.
#[inline(always)]
pub(crate) fn sum(a: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum2(a, a, |a, _| term(a))
}

/// The largest value of a slice.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b))
}

/// Elements of a task: whole rows of `width`, about [`TASK`] elements. It does not depend on the number of cores, so neither
/// do results that are summed task by task.
pub(crate) fn task_len(width: usize) -> usize {
    (TASK / width.max(1)).max(1) * width.max(1)
}

/// Runs `task` on pieces of `output` of whole rows, with the same pieces of `inputs`, on all cores.
pub(crate) fn over_rows<const N: usize>(
    width: usize,
    inputs: [&[f32]; N],
    output: &mut [f32],
    task: impl Fn(usize, [&[f32]; N], &mut [f32]) + Sync,
) {
    let len = task_len(width);
    let run = |(i, output): (usize, &mut [f32])| {
        let piece = i * len..i * len + output.len();
        task(i * len / width.max(1), inputs.map(|input| &input[piece.clone()]), output);
    };
    match output.len() <= len {
        true => output.chunks_mut(len).enumerate().for_each(run),
        false => output.par_chunks_mut(len).enumerate().for_each(run),
    }
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
