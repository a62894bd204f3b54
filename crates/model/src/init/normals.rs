//! Normal numbers with random access: a range costs its length, wherever it begins.
//!
//! ```text
//! words of ChaCha8   | w0   w1 | w2   w3 | w4   w5 | ..      32 bits each
//! numbers            | z0   z1 | z2   z3 | z4   z5 | ..
//! ```
//!
//! Each pair of words yields a pair of numbers (Box-Muller): 40 bits give a radius `sqrt(-2 ln u)`, the other 24 an
//! angle. Number `i` therefore depends only on words `i` and `i ^ 1`, and ChaCha computes any block directly from its
//! key and the block's number.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f64::consts::{LN_2, PI};
use std::ops::Range;

/// Bits of a pair that give the radius; the largest number is `sqrt(2 * 40 ln 2)`, 7.4.
const RADIUS_BITS: u32 = 40;
/// Bits of a pair that give the angle.
const ANGLE_BITS: u32 = 64 - RADIUS_BITS;
/// Pairs generated at a time.
const PAIRS: usize = 128;

/// A sequence of independent normal numbers.
pub(super) struct Normals(ChaCha8Rng);

impl Normals {
    /// The sequence of a key.
    pub fn new(key: [u8; 32]) -> Self {
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Appends the numbers of a range, times `std`, to `values`.
    pub fn append(&mut self, range: Range<usize>, std: f32, values: &mut Vec<f32>) {
        let (mut bits, mut block) = ([0; PAIRS], [0.0; 2 * PAIRS]);
        let mut at = range.start & !1;
        self.0.set_word_pos(at as u128);
        while at < range.end {
            let pairs = (range.end - at).div_ceil(2).min(PAIRS);
            for bits in &mut bits[..pairs] {
                *bits = self.0.next_u64();
            }
            for (pair, bits) in block.chunks_exact_mut(2).zip(&bits[..pairs]) {
                let [a, b] = normals(*bits);
                pair[0] = (f64::from(std) * a) as f32;
                pair[1] = (f64::from(std) * b) as f32;
            }
            let wanted = range.start.saturating_sub(at)..(range.end - at).min(2 * pairs);
            values.extend_from_slice(&block[wanted]);
            at += 2 * pairs;
        }
    }
}

/// Converts 64 random bits to two independent normal numbers.
///
/// Uses only additions, products, one quotient and one root, which give the same bits on every machine; the logarithm
/// and sine of system libraries do not. The result is exact to 1e-9, far below the precision of f32, and the code has
/// no branches.
fn normals(bits: u64) -> [f64; 2] {
    // u = 2^exponent * mantissa, with the mantissa in [sqrt(1/2), sqrt(2)); ln mantissa = 2 artanh((mantissa - 1) /
    // (mantissa + 1)).
    const SQRT_HALF: u64 = 0x3fe6_a09e_0000_0000;
    let u = (((bits >> ANGLE_BITS) + 1) as f64).to_bits(); // times 2^-40: in (0, 1]
    let exponent = (u - SQRT_HALF) >> 52;
    let mantissa = f64::from_bits(u - (exponent << 52));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let q = s * s;
    let artanh = s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0))))));
    let radius = (2.0 * LN_2 * (f64::from(RADIUS_BITS) - exponent as f64) - 4.0 * artanh).sqrt();

    // Sine and cosine of a quarter of the angle, which is in (-pi, pi), by their series; then doubled twice.
    const STEPS: f64 = (1u64 << ANGLE_BITS) as f64;
    let angle = (bits & ((1 << ANGLE_BITS) - 1)) as f64 + 0.5;
    let x = (2.0 * angle - STEPS) * (PI / 4.0 / STEPS);
    let q = -x * x;
    let sin = 1.0 / 120.0 + q * (1.0 / 5040.0 + q * (1.0 / 362_880.0 + q * (1.0 / 39_916_800.0)));
    let sin = x * (1.0 + q * (1.0 / 6.0 + q * sin));
    let cos = 1.0 / 720.0 + q * (1.0 / 40_320.0 + q * (1.0 / 3_628_800.0 + q * (1.0 / 479_001_600.0)));
    let cos = 1.0 + q * (1.0 / 2.0 + q * (1.0 / 24.0 + q * cos));
    let [sin, cos] = doubled(doubled([sin, cos]));
    [radius * cos, radius * sin]
}

/// Sine and cosine of twice the angle.
#[inline(always)]
fn doubled([sin, cos]: [f64; 2]) -> [f64; 2] {
    [2.0 * sin * cos, 1.0 - 2.0 * sin * sin]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert_eq, prop_oneof, proptest};

    fn drawn(key: u8, range: Range<usize>) -> Vec<f32> {
        let mut values = vec![];
        Normals::new([key; 32]).append(range, 1.0, &mut values);
        values
    }

    #[test]
    fn they_are_those_of_the_library_s_logarithm_and_sine() {
        let mut rng = ChaCha8Rng::from_seed([5; 32]);
        let random: Vec<u64> = (0..200_000).map(|_| rng.next_u64()).collect();
        let corners = [0, 1, u64::MAX, u64::MAX << ANGLE_BITS, 1 << ANGLE_BITS, (1 << ANGLE_BITS) - 1, 1 << 63];
        for bits in corners.into_iter().chain(random) {
            let u = ((bits >> 24) + 1) as f64 / 2f64.powi(40);
            let angle = 2.0 * PI * (((bits & 0xff_ffff) as f64 + 0.5) / 2f64.powi(24)) - PI;
            let radius = (-2.0 * u.ln()).sqrt();
            let found = normals(bits);
            for (found, expected) in found.into_iter().zip([radius * angle.cos(), radius * angle.sin()]) {
                assert!((found - expected).abs() < 1e-9, "{bits:#x}: {found} for {expected}");
            }
        }
        let (largest, none) = (normals(0), normals(u64::MAX));
        assert!((largest[0].hypot(largest[1]) - (80.0 * LN_2).sqrt()).abs() < 1e-9, "a radius of 7.4 at most");
        assert_eq!(none.map(f64::abs), [0.0; 2]);
    }

    #[test]
    fn they_are_these_on_every_machine() {
        let found: Vec<u32> = drawn(1, (1 << 40) + 1..(1 << 40) + 5).into_iter().map(f32::to_bits).collect();
        assert_eq!(
            found,
            [0x3f25_f356, 0xbf68_7d0c, 0xbf54_c354, 0xbfb5_3e72],
            "made by another implementation of ChaCha8"
        );
    }

    proptest! {
        #[test]
        fn a_range_is_the_same_however_it_is_split(
            start in prop_oneof![0usize..2000, (1usize << 44)..(1 << 44) + 2000],
            lens in vec(0usize..600, 1..6),
        ) {
            let mut parts = vec![];
            let mut end = start;
            for len in lens {
                parts.extend(drawn(2, end..end + len));
                end += len;
            }
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            prop_assert_eq!(parts.len(), end - start);
            prop_assert_eq!(bits(parts), bits(drawn(2, start..end)));
        }
    }

    /// Bounds are five standard errors: a fair sequence exceeds one of them about once in a million keys.
    #[test]
    fn they_are_normal_and_independent() {
        const N: usize = 1 << 20;
        let n = N as f64;
        for start in [0, 1 << 40] {
            let mut values: Vec<f64> = drawn(3, start..start + N).into_iter().map(f64::from).collect();
            let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / n;
            // The variances of z, z^2, z^3 and z^4 are 1, 2, 15 and 96.
            for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
                let error = (moment(power) - expected) / (variance / n).sqrt();
                assert!(error.abs() < 5.0, "moment {power}: {} is {error} standard errors off", moment(power));
            }
            for lag in [1, 2, 3, 16, 256] {
                let product = |power: i32| {
                    let (a, b) = (&values[lag..], &values);
                    a.iter().zip(b).map(|(a, b)| a.powi(power) * b.powi(power)).sum::<f64>() / (N - lag) as f64
                };
                assert!(product(1).abs() * n.sqrt() < 5.0, "numbers {lag} apart: {}", product(1));
                // The variance of (ab)^2 is 9 - 1.
                assert!((product(2) - 1.0).abs() * (n / 8.0).sqrt() < 5.0, "squares {lag} apart: {}", product(2));
            }
            values.sort_by(f64::total_cmp);
            let distance = |(i, value): (usize, &f64)| {
                let below = cumulative(*value);
                (below - i as f64 / n).max((i + 1) as f64 / n - below)
            };
            // Kolmogorov: beyond 2.5 with probability 2 exp(-2 * 2.5^2), 7e-6.
            let distance = values.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt();
            assert!(distance < 2.5, "Kolmogorov-Smirnov {distance}");
            let beyond = |limit: f64| values.iter().filter(|value| value.abs() > limit).count() as f64;
            for (limit, probability) in [(3.0, 2.699_796e-3), (4.0, 6.334_248e-5)] {
                let (found, expected) = (beyond(limit), n * probability);
                assert!((found - expected).abs() < 5.0 * expected.sqrt(), "{found} of {expected} beyond {limit}");
            }
        }
    }

    /// The probability that a normal number is below `x`: Simpson's rule applied to the density.
    fn cumulative(x: f64) -> f64 {
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * PI).sqrt();
        let (steps, width) = (64, x / 64.0);
        let sum: f64 = (0..=steps)
            .map(|i| {
                let weight = if i == 0 || i == steps {
                    1.0
                } else if i % 2 == 1 {
                    4.0
                } else {
                    2.0
                };
                weight * density(i as f64 * width)
            })
            .sum();
        0.5 + sum * width / 3.0
    }
}
