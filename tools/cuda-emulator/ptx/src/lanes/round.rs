//! Rounding to a format in a direction, from an `f64` that is exact or rounded to odd.

/// Rounding modes as immediates hold them: nearest even, towards zero, down, up, nearest away from zero.
pub(crate) const RN: u32 = 0;
pub(crate) const RZ: u32 = 1;
pub(crate) const RM: u32 = 2;
pub(crate) const RP: u32 = 3;
pub(crate) const RNA: u32 = 4;

/// The sum rounded to nearest, and what is missing from it.
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let back = sum - a;
    (sum, (a - (sum - back)) + (b - back))
}

/// `value + error` rounded to odd: a later rounding to fewer bits is as if from the exact value.
#[inline(always)]
pub(crate) fn odd(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    if !value.is_finite() || error == 0.0 || error.is_nan() || bits & 1 != 0 {
        return value;
    }
    if value == 0.0 {
        return f64::from_bits(1).copysign(error);
    }
    f64::from_bits(if (error > 0.0) == (value > 0.0) { bits + 1 } else { bits - 1 })
}

/// The bits of `value` in a format of `E` bits of exponent and `M` of mantissa; all ones without the sign for a NaN.
pub(crate) fn narrow<const E: u32, const M: u32>(value: f64, mode: u32) -> u32 {
    let bits = value.to_bits();
    let negative = bits >> 63 != 0;
    let sign = (bits >> 63) as u32 * (1 << (E + M));
    let infinite = ((1u32 << E) - 1) << M;
    if value.is_nan() {
        return (1 << (E + M)) - 1;
    }
    if value.is_infinite() {
        return sign | infinite;
    }
    let bias = (1i32 << (E - 1)) - 1;
    let (exponent, mantissa) = match (bits >> 52 & 0x7ff) as i32 {
        0 => (-1022, bits & ((1 << 52) - 1)),
        exponent => (exponent - 1023, bits & ((1 << 52) - 1) | 1 << 52),
    };
    let least = 1 - bias;
    let shift = (52 - M as i32 + (least - exponent).max(0)).min(62);
    let kept = mantissa >> shift;
    let (rest, half) = (mantissa & ((1 << shift) - 1), 1u64 << (shift - 1));
    let up = match mode {
        RN => rest > half || rest == half && kept & 1 != 0,
        RZ => false,
        RM => rest > 0 && negative,
        RP => rest > 0 && !negative,
        _ => rest >= half,
    };
    let kept = kept + u64::from(up);
    let exponent = i64::from((exponent - least).max(0));
    let found = (kept as i64 + (exponent << M)) as u32;
    if i64::from(infinite) <= kept as i64 + (exponent << M) {
        let stays = mode == RZ || mode == RM && !negative || mode == RP && negative;
        return sign | if stays { infinite - 1 } else { infinite };
    }
    sign | found
}

/// The `f32` nearest in the direction of `mode`.
#[inline(always)]
pub(crate) fn to_f32(value: f64, mode: u32) -> f32 {
    if mode == RN { value as f32 } else { f32::from_bits(narrow::<8, 23>(value, mode)) }
}

/// Moves an `f64` that is rounded to nearest, and whose exact value is `error` more, to the one in the direction of
/// `mode`.
pub(crate) fn directed(value: f64, error: f64, mode: u32) -> f64 {
    if !value.is_finite() || error == 0.0 || error.is_nan() {
        return value;
    }
    let up = match mode {
        RM => false,
        RP => true,
        RZ => value < 0.0 || value == 0.0 && error < 0.0,
        _ => return value,
    };
    match (up, error > 0.0) {
        (true, true) => value.next_up(),
        (false, false) => value.next_down(),
        _ => value,
    }
}

/// `a * b + c` rounded to odd in `f64`, for operands that are `f32`.
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f64 {
    let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    odd(sum, error)
}

/// A quotient of `f32` rounded to odd in `f64`.
pub(crate) fn quotient(a: f32, b: f32) -> f64 {
    let (x, y) = (f64::from(a), f64::from(b));
    let found = x / y;
    let left = (-found).mul_add(y, x);
    odd(found, if y < 0.0 { -left } else { left })
}

/// A square root of an `f32` rounded to odd in `f64`.
pub(crate) fn root(a: f32) -> f64 {
    let x = f64::from(a);
    let found = x.sqrt();
    odd(found, (-found).mul_add(found, x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn narrowing_to_f32_is_that_of_the_processor(bits: u64) {
            let value = f64::from_bits(bits);
            let near = f64::from(f32::from_bits((bits >> 32) as u32)) * (1.0 + f64::from(bits as u32) * 1e-12);
            for value in [value, near].into_iter().filter(|value| !value.is_nan()) {
                prop_assert_eq!(narrow::<8, 23>(value, RN), (value as f32).to_bits());
                let (down, up) = (to_f32(value, RM), to_f32(value, RP));
                prop_assert!(f64::from(down) <= value && value <= f64::from(up));
                prop_assert!(down == up || down.next_up() == up);
                prop_assert_eq!(to_f32(value, RZ), if value < 0.0 { up } else { down });
            }
        }

        #[test]
        fn products_and_quotients_round_as_the_processor_does(a: f32, b: f32, c: f32) {
            let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
            prop_assert!(same(fused(a, b, c) as f32, a.mul_add(b, c)));
            prop_assert!(same(quotient(a, b) as f32, a / b));
            prop_assert!(same(root(a) as f32, a.sqrt()));
        }
    }
}
