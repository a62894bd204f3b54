//! Elements as f32, which holds each of them exactly, and back.

use super::vector::vectorised;
use super::{Type, Words};
use half::bf16;

/// Calls `each` with the index and the elements of four lanes after four. A row of a left fragment and a column of a right one are theirs.
#[inline(always)]
pub(super) fn quads(of: Type, words: &Words, mut each: impl FnMut(usize, &[f32])) {
    if of == Type::Tf32 {
        return words
            .as_chunks()
            .0
            .iter()
            .enumerate()
            .for_each(|(g, four): (_, &[u32; 4])| each(g, &four.map(from_tf32)));
    }
    let (mut elements, length) = ([0f32; 32 * 8], 4 * of.packed());
    let bytes = words.map(u32::to_le_bytes);
    convert(of, bytes.as_flattened().as_chunks().0, &mut elements[..8 * length]);
    elements[..8 * length].chunks_exact(length).enumerate().for_each(|(g, elements)| each(g, elements));
}

vectorised! {
    /// The elements of chunks of shared memory, in order.
    fn chunks(of: Type, chunks: &[[u8; 16]], into: &mut [f32]) {
        convert(of, chunks, into);
    }
}

/// The elements of chunks, in order.
#[inline(always)]
fn convert(of: Type, chunks: &[[u8; 16]], into: &mut [f32]) {
    match of {
        Type::F16 => each(chunks, into, |bytes| [from_f16(u16::from_le_bytes(bytes))]),
        Type::Bf16 => each(chunks, into, |[low, high]| [f32::from_le_bytes([0, 0, low, high])]),
        Type::Tf32 => each(chunks, into, |bytes| [from_tf32(u32::from_le_bytes(bytes))]),
        Type::S8 => each(chunks, into, |[byte]| [f32::from(byte as i8)]),
        Type::U8 => each(chunks, into, |[byte]| [f32::from(byte)]),
        Type::S4 => each(chunks, into, |[byte]| [byte as i8, (byte >> 4) as i8].map(|half| f32::from(half << 4 >> 4))),
        Type::U4 => each(chunks, into, |[byte]| [byte & 15, byte >> 4].map(f32::from)),
        Type::E4m3 => each(chunks, into, |[byte]| [from_fp8(byte, E4M3)]),
        Type::E5m2 => each(chunks, into, |[byte]| [from_fp8(byte, E5M2)]),
        Type::F64 | Type::F32 | Type::S32 => unreachable!("{} is not multiplied in f32", of.name()),
    }
}

/// `B` bytes are `E` elements.
#[inline(always)]
fn each<const B: usize, const E: usize>(chunks: &[[u8; 16]], into: &mut [f32], convert: impl Fn([u8; B]) -> [f32; E]) {
    let into = into.as_chunks_mut::<E>().0;
    for (values, bytes) in into.iter_mut().zip(chunks.as_flattened().as_chunks().0) {
        *values = convert(*bytes);
    }
}

/// The cores read the upper 19 bits of the register.
#[inline(always)]
pub(super) fn from_tf32(bits: u32) -> f32 {
    f32::from_bits(bits & 0xffff_e000)
}

/// Without branches or calls, so that the loop over lanes is vectorised.
#[inline(always)]
pub(super) fn from_f16(bits: u16) -> f32 {
    // The exponent and the mantissa in their places; the product moves the bias from 15 to 127 and normalises subnormal numbers.
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// Bits of the mantissa, and whether the largest exponent is for infinities and NaN.
type Fp8 = (u32, bool);
const E4M3: Fp8 = (3, false);
const E5M2: Fp8 = (2, true);

#[inline(always)]
fn from_fp8(bits: u8, (mantissa, infinite): Fp8) -> f32 {
    // In the place of an f16 with 5 bits of exponent, or scaled to it.
    if infinite {
        return from_f16(u16::from(bits) << 8);
    }
    let magnitude = f32::from_bits(u32::from(bits & 0x7f) << (23 - mantissa)) * f32::from_bits((127 + 120) << 23);
    let nan = if bits & 0x7f == 0x7f { 0x7fff_ffff } else { 0 };
    f32::from_bits(magnitude.to_bits() | nan | u32::from(bits & 0x80) << 24)
}

/// The f32's bits, of a NaN those of the canonical one.
#[inline(always)]
pub(super) fn to_f32_bits(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// The f64's bits, of a NaN those of the canonical one.
#[inline(always)]
pub(super) fn to_f64_bits(value: f64) -> u64 {
    if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
}

/// Rounded to the nearest f16, ties to even; of a NaN the canonical one. Without branches or calls, as above.
#[inline(always)]
pub(super) fn to_f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
    // Below the least normal number, a sum with 0.5 rounds to multiples of 2^-24 and has them in its lowest bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // Else the bias moves from 127 to 15, and what is cut off carries into what is kept.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let finite = if magnitude < 113 << 23 { subnormal } else { normal.min(0x7c00) };
    if magnitude > 0x7f80_0000 { 0x7fff } else { finite as u16 | sign }
}

/// Rounded to the nearest bf16, ties to even; of a NaN the canonical one.
#[inline(always)]
pub(super) fn to_bf16_bits(value: f32) -> u16 {
    if value.is_nan() { 0x7fff } else { bf16::from_f32(value).to_bits() }
}

/// `cvt.rna.tf32.f32`: rounded to the nearest tf32, ties away from zero.
pub(super) fn round_to_tf32(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0x7f80_0000 { bits } else { (bits + 0x1000) & 0xffff_e000 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_becomes_its_f32() {
        for bits in 0..=u16::MAX {
            let (found, wanted) = (from_f16(bits), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn every_f16_and_what_lies_around_it_rounds_as_in_half() {
        for bits in 0..=u16::MAX {
            let (here, next) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits.wrapping_add(1)).to_f32());
            let between = here / 2.0 + next / 2.0;
            let around = [-1, 0, 1].map(|by| f32::from_bits(between.to_bits().wrapping_add_signed(by)));
            for value in [here].into_iter().chain(around).filter(|value| !value.is_nan()) {
                assert_eq!(to_f16_bits(value), f16::from_f32(value).to_bits(), "{value:e}");
            }
        }
        for value in [65519.0, 65520.0, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, -1e-45] {
            assert_eq!(to_f16_bits(value), f16::from_f32(value).to_bits(), "{value:e}");
        }
        assert_eq!(to_f16_bits(-f32::NAN), 0x7fff);
    }

    #[test]
    fn every_fp8_is_its_formula() {
        for bits in 0..=u8::MAX {
            let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
            for (mantissa, of) in [(3, E4M3), (2, E5M2)] {
                let bias = if mantissa == 3 { 7 } else { 15 };
                let (exponent, fraction) = (i32::from(bits & 0x7f) >> mantissa, bits & ((1 << mantissa) - 1));
                let fraction = f32::from(fraction) / (1 << mantissa) as f32;
                let wanted = match (exponent, mantissa) {
                    (15, 3) if fraction == 0.875 => f32::NAN,
                    (31, 2) if fraction == 0.0 => sign * f32::INFINITY,
                    (31, 2) => f32::NAN,
                    (0, _) => sign * fraction * 2f32.powi(1 - bias),
                    _ => sign * (1.0 + fraction) * 2f32.powi(exponent - bias),
                };
                let found = from_fp8(bits, of);
                assert!(
                    found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                    "{bits:#x} {found} {wanted}"
                );
            }
        }
    }

    #[test]
    fn tf32_rounds_ties_away_from_zero() {
        assert_eq!(round_to_tf32(1f32.to_bits() | 0x1000), 1f32.to_bits() | 0x2000);
        assert_eq!(round_to_tf32(1f32.to_bits() | 0x0fff), 1f32.to_bits());
        assert_eq!(round_to_tf32(f32::INFINITY.to_bits()), f32::INFINITY.to_bits());
    }
}
