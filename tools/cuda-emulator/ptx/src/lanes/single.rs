//! What all arithmetic on `f32` shares: flushed numbers, the NaN of cards, and the smaller and larger of two.

/// Subnormal numbers as zeros of their sign, if `F`.
#[inline(always)]
pub(crate) fn flush<const F: bool>(x: f32) -> f32 {
    if F && x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// Any NaN as the one that cards give.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    // On bits: the compiler may take one NaN for another.
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { bits })
}

/// Flags of `min` and `max`, in the immediate.
pub(crate) const NAN: u32 = 8;
pub(crate) const XORSIGN: u32 = 16;

/// The smaller value. With [`NAN`] a NaN wins; with [`XORSIGN`] magnitudes are compared, and the
/// result has the sign of the product.
#[inline(always)]
pub(crate) fn least(imm: u32, a: f32, b: f32) -> f32 {
    of_two(imm, a, b, |a, b| a < b || a == b && a.is_sign_negative())
}

/// The larger value, likewise.
#[inline(always)]
pub(crate) fn most(imm: u32, a: f32, b: f32) -> f32 {
    of_two(imm, a, b, |a, b| a > b || a == b && a.is_sign_positive())
}

/// `a` if `is_first` says so of the two, none of which is NaN, or else `b`.
#[inline(always)]
fn of_two(imm: u32, a: f32, b: f32, is_first: impl FnOnce(f32, f32) -> bool) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    let (a, b) = if imm & XORSIGN != 0 { (a.abs(), b.abs()) } else { (a, b) };
    let found = if a.is_nan() || !b.is_nan() && !is_first(a, b) { b } else { a };
    let found = if imm & NAN != 0 && (a.is_nan() || b.is_nan()) { f32::NAN } else { found };
    let found = if imm & XORSIGN != 0 { f32::from_bits(found.to_bits() & 0x7fff_ffff | sign) } else { found };
    canonical(found)
}
