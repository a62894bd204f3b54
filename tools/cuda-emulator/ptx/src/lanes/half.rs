//! `f16` and `bf16` as `f32` and back, without branches, so that loops over lanes vectorise.

use super::single::{least, most};

/// The value of `f16` bits.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    // Exponent and mantissa in their places; the product moves the bias from 15 to 127 and normalises subnormal numbers.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// The value of `bf16` bits.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest `f16`, ties to even; the canonical NaN for a NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    // Adding a power of two 13 bits above the value's exponent leaves the mantissa rounded in the low bits.
    let doubled = value.to_bits() << 1;
    let base = value.abs() * f32::from_bits((127 + 112) << 23) * f32::from_bits((127 - 110) << 23);
    let bias = (doubled & 0xff00_0000).max(0x7100_0000);
    let sum = (f32::from_bits((bias >> 1) + 0x0780_0000) + base).to_bits();
    let magnitude = (sum >> 13 & 0x7c00) + (sum & 0xfff);
    let magnitude = if doubled > 0xff00_0000 { return 0x7fff } else { magnitude };
    (value.to_bits() >> 16 & 0x8000 | magnitude) as u16
}

/// The nearest `bf16`, ties to even; the canonical NaN for a NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if value.is_nan() { 0x7fff } else { rounded }) as u16
}

/// A format of 16 bits.
pub(crate) trait Format {
    fn up(bits: u16) -> f32;
    fn down(value: f32) -> u16;
    /// `a * b` so that rounding it to the format rounds only once.
    fn product(a: f32, b: f32) -> f32;
    /// `a * b + c` likewise.
    fn fused(a: f32, b: f32, c: f32) -> f32;
}

pub(crate) struct F16;
pub(crate) struct Bf16;

impl Format for F16 {
    #[inline(always)]
    fn up(bits: u16) -> f32 {
        f16_to_f32(bits)
    }
    #[inline(always)]
    fn down(value: f32) -> u16 {
        f32_to_f16(value)
    }
    #[inline(always)]
    fn product(a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        sum_odd_f32(a * b, c)
    }
}

impl Format for Bf16 {
    #[inline(always)]
    fn up(bits: u16) -> f32 {
        bf16_to_f32(bits)
    }
    #[inline(always)]
    fn down(value: f32) -> u16 {
        f32_to_bf16(value)
    }
    // With the exponents of `f32` a product can leave its range, and a sum can come back into it.
    #[inline(always)]
    fn product(a: f32, b: f32) -> f32 {
        narrow_odd(f64::from(a) * f64::from(b))
    }
    #[inline(always)]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        narrow_odd(sum_odd_f64(f64::from(a) * f64::from(b), f64::from(c)))
    }
}

macro_rules! sum_odd {
    ($name:ident, $float:ident) => {
        /// `a + b` rounded to odd, so that rounding it to a format of 16 bits rounds only once: exact bits that are
        /// lost set the last one.
        #[inline(always)]
        fn $name(a: $float, b: $float) -> $float {
            let sum = a + b;
            let back = sum - a;
            let error = (a - (sum - back)) + (b - back);
            let bits = sum.to_bits();
            let inexact = sum.is_finite() && error != 0.0 && bits & 1 == 0;
            let toward = if (error > 0.0) == (sum > 0.0) { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
            $float::from_bits(if inexact { toward } else { bits })
        }
    };
}

sum_odd!(sum_odd_f32, f32);
sum_odd!(sum_odd_f64, f64);

/// `value` rounded to odd: rounding it to a format of 16 bits rounds only once.
#[inline(always)]
fn narrow_odd(value: f64) -> f32 {
    let near = value as f32;
    let (back, bits) = (f64::from(near), near.to_bits());
    let inexact = near.is_finite() && back != value && bits & 1 == 0;
    let toward = if back.abs() < value.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if inexact { toward } else { bits })
}

/// Flags of an instruction on 16-bit formats, in its immediate.
pub(crate) const FTZ: u32 = 1;
pub(crate) const SAT: u32 = 2;
pub(crate) const RELU: u32 = 4;
// 8 and 16 are `NAN` and `XORSIGN` of `min` and `max`.
/// Results that are subnormal in `f32` become zeros.
pub(crate) const FTZ_F32: u32 = 32;

#[inline(always)]
fn flush(imm: u32, bits: u16) -> u16 {
    if imm & FTZ != 0 && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits }
}

/// Both values, flushed if the immediate says so.
#[inline(always)]
fn signs(imm: u32, a: [u16; 2]) -> u32 {
    u32::from(flush(imm, a[0])) | u32::from(flush(imm, a[1])) << 16
}

#[inline(always)]
fn finish<T: Format>(imm: u32, value: f32) -> u16 {
    let value = if imm & SAT != 0 { if value > 0.0 { value.min(1.0) } else { 0.0 } } else { value };
    let value = if imm & RELU != 0 && value <= 0.0 { 0.0 } else { value };
    flush(imm, T::down(value))
}

macro_rules! ops {
    ($($name:ident($imm:ident, $a:ident, $b:ident, $c:ident): $value:expr;)+) => {$(
        #[inline(always)]
        fn $name<T: Format>($imm: u32, a: u16, b: u16, c: u16) -> u16 {
            let ($a, $b, $c) = (T::up(flush($imm, a)), T::up(flush($imm, b)), T::up(flush($imm, c)));
            let _ = ($a, $b, $c);
            finish::<T>($imm, $value)
        }
    )+};
}

ops! {
    add(imm, a, b, c): a + b;
    sub(imm, a, b, c): a - b;
    mul(imm, a, b, c): T::product(a, b);
    fma(imm, a, b, c): T::fused(a, b, c);
    min(imm, a, b, c): least(imm, a, b);
    max(imm, a, b, c): most(imm, a, b);
    ex2(imm, a, b, c): {
        let found = super::approx::exp2(a);
        // `.ftz` of `bf16`, which has the exponents of `f32`.
        if imm & FTZ_F32 != 0 { super::single::flush::<true>(found) } else { found }
    };
    tanh(imm, a, b, c): super::approx::tanh(a);
}

macro_rules! formats {
    ($f:ident, $args:tt, $bf16:expr, $packed:expr) => {
        match ($bf16, $packed) {
            (false, false) => formats!(@one $f::<F16>, $args),
            (true, false) => formats!(@one $f::<Bf16>, $args),
            (false, true) => formats!(@two $f::<F16>, $args),
            (true, true) => formats!(@two $f::<Bf16>, $args),
        }
    };
    (@one $f:expr, 1) => { lanes!(imm; a: u16 => u16: $f(imm, a, 0, 0)) };
    (@one $f:expr, 2) => { lanes!(imm; a: u16, b: u16 => u16: $f(imm, a, b, 0)) };
    (@one $f:expr, 3) => { lanes!(imm; a: u16, b: u16, c: u16 => u16: $f(imm, a, b, c)) };
    (@two $f:expr, 1) => { lanes!(imm; a: [u16; 2] => [u16; 2]: [$f(imm, a[0], 0, 0), $f(imm, a[1], 0, 0)]) };
    (@two $f:expr, 2) => {
        lanes!(imm; a: [u16; 2], b: [u16; 2] => [u16; 2]: [$f(imm, a[0], b[0], 0), $f(imm, a[1], b[1], 0)])
    };
    (@two $f:expr, 3) => {
        lanes!(imm; a: [u16; 2], b: [u16; 2], c: [u16; 2] => [u16; 2]:
            [$f(imm, a[0], b[0], c[0]), $f(imm, a[1], b[1], c[1])])
    };
}

/// Arithmetic by name on one value of 16 bits, or two in a register. The immediate holds flags.
pub(crate) fn arithmetic(op: &str, bf16: bool, packed: bool) -> Option<super::Map> {
    use super::lanes;
    Some(match op {
        "add" => formats!(add, 2, bf16, packed),
        "sub" => formats!(sub, 2, bf16, packed),
        "mul" => formats!(mul, 2, bf16, packed),
        "fma" => formats!(fma, 3, bf16, packed),
        "min" => formats!(min, 2, bf16, packed),
        "max" => formats!(max, 2, bf16, packed),
        "ex2" => formats!(ex2, 1, bf16, packed),
        "tanh" => formats!(tanh, 1, bf16, packed),
        // The signs' bits in the immediate, beside `FTZ`.
        "neg" => lanes!(imm; a: [u16; 2] => u32: signs(imm, a) ^ imm & 0x8000_8000),
        "abs" => lanes!(imm; a: [u16; 2] => u32: signs(imm, a) & !(imm & 0x8000_8000)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    #[test]
    fn every_f16_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            assert!(value.to_bits() == f16::from_bits(bits).to_f32().to_bits() || value.is_nan());
            assert!(f32_to_f16(value) == bits || value.is_nan());
        }
    }

    proptest! {
        #[test]
        fn rounding_is_that_of_the_crate_half(bits: u32) {
            let value = f32::from_bits(bits);
            if !value.is_nan() {
                prop_assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits());
                prop_assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits());
            }
        }

        #[test]
        fn a_fused_product_is_rounded_once(a: u16, b: u16, c: u16) {
            let [x, y, z] = [a, b, c].map(|bits| f64::from(f16_to_f32(bits)));
            let found = fma::<F16>(0, a, b, c);
            let (sum, error) = crate::lanes::round::two_sum(x * y, z);
            let exact = crate::lanes::round::narrow::<5, 10>(crate::lanes::round::odd(sum, error), 0);
            prop_assert_eq!(u32::from(found), exact);
        }
    }
}
