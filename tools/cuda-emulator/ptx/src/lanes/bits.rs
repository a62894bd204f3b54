//! Logic, shifts and bit fields.

use super::{Map, lanes};

/// `and`, `or`, `xor` and `not` of any width.
pub(crate) fn logic(op: &str, wide: bool) -> Option<Map> {
    Some(match (op, wide) {
        ("and", false) => lanes!(a: u32, b: u32 => u32: a & b),
        ("or", false) => lanes!(a: u32, b: u32 => u32: a | b),
        ("xor", false) => lanes!(a: u32, b: u32 => u32: a ^ b),
        ("and", true) => lanes!(a: u64, b: u64 => u64: a & b),
        ("or", true) => lanes!(a: u64, b: u64 => u64: a | b),
        ("xor", true) => lanes!(a: u64, b: u64 => u64: a ^ b),
        ("not", true) => lanes!(a: u64 => u64: !a),
        _ => return None,
    })
}

/// `not.b16` and `not.b32`.
pub(crate) fn not(bits: u32) -> Map {
    match bits {
        16 => lanes!(a: u16 => u16: !a),
        32 => lanes!(a: u32 => u32: !a),
        _ => lanes!(a: u64 => u64: !a),
    }
}

/// `cnot`: 1 where the operand is 0.
pub(crate) fn cnot(wide: bool) -> Map {
    if wide { lanes!(a: u64 => u64: u64::from(a == 0)) } else { lanes!(a: u32 => u32: u32::from(a == 0)) }
}

/// Shift left; amounts from the width on give 0.
pub(crate) fn shl(bits: u32) -> Map {
    match bits {
        16 => lanes!(a: u16, b: u32 => u16: if b < 16 { a << b } else { 0 }),
        32 => lanes!(a: u32, b: u32 => u32: if b < 32 { a << b } else { 0 }),
        _ => lanes!(a: u64, b: u32 => u64: if b < 64 { a << b } else { 0 }),
    }
}

/// Shift right; amounts from the width on give 0, or the sign where signed.
pub(crate) fn shr(bits: u32, signed: bool) -> Map {
    match (bits, signed) {
        (16, false) => lanes!(a: u16, b: u32 => u16: if b < 16 { a >> b } else { 0 }),
        (32, false) => lanes!(a: u32, b: u32 => u32: if b < 32 { a >> b } else { 0 }),
        (_, false) => lanes!(a: u64, b: u32 => u64: if b < 64 { a >> b } else { 0 }),
        (16, true) => lanes!(a: i16, b: u32 => i16: a >> b.min(15)),
        (32, true) => lanes!(a: i32, b: u32 => i32: a >> b.min(31)),
        (_, true) => lanes!(a: i64, b: u32 => i64: a >> b.min(63)),
    }
}

/// Funnel shift of `b:a` by `c`.
pub(crate) fn funnel(left: bool, wrap: bool) -> Map {
    match (left, wrap) {
        (true, true) => lanes!(a: u32, b: u32, c: u32 => u32: {
            ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
        }),
        (true, false) => lanes!(a: u32, b: u32, c: u32 => u32: {
            ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32
        }),
        (false, true) => {
            lanes!(a: u32, b: u32, c: u32 => u32: ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32)
        }
        (false, false) => {
            lanes!(a: u32, b: u32, c: u32 => u32: ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32)
        }
    }
}

/// `lop3` with its table as the immediate.
pub(crate) fn lop3() -> Map {
    lanes!(imm; a: u32, b: u32, c: u32 => u32: {
        let all = |bit: u32| 0u32.wrapping_sub(imm >> bit & 1);
        all(0) & !a & !b & !c
            | all(1) & !a & !b & c
            | all(2) & !a & b & !c
            | all(3) & !a & b & c
            | all(4) & a & !b & !c
            | all(5) & a & !b & c
            | all(6) & a & b & !c
            | all(7) & a & b & c
    })
}

/// `prmt` with its selector in `c`; the immediate is the mode: 0 none, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
pub(crate) fn permute() -> Map {
    lanes!(imm; a: u32, b: u32, c: u32 => u32: {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let s = c & 3;
        let mut out = 0;
        for i in 0..4u32 {
            let (index, sign) = match imm {
                0 => (c >> (4 * i) & 7, c >> (4 * i + 3) & 1 != 0),
                1 => (s + i, false),
                2 => ((8 + s - i) & 7, false),
                3 => (s, false),
                4 => (i.max(s), false),
                5 => (i.min(s), false),
                _ => ((s & 1) * 2 + (i & 1), false),
            };
            let byte = (bytes >> (8 * index)) as u8;
            let byte = if sign { (byte as i8 >> 7) as u8 } else { byte };
            out |= u32::from(byte) << (8 * i);
        }
        out
    })
}

/// Bit field of `a` from bit `b & 255` on, `c & 255` bits long.
pub(crate) fn extract(bits: u32, signed: bool) -> Map {
    #[inline(always)]
    fn field(a: u64, b: u32, c: u32, bits: u32, signed: bool) -> u64 {
        let (at, len) = (b & 255, c & 255);
        // The field may reach over the top, where there are signs or zeros.
        let value = if signed { ((a << (64 - bits)) as i64 >> (64 - bits)) as i128 as u128 } else { u128::from(a) };
        let top = if signed && len > 0 { a >> (at + len - 1).min(bits - 1) & 1 != 0 } else { false };
        let field =
            if at >= bits { 0 } else { (value >> at) as u64 & u64::MAX.checked_shr(64 - len.min(64)).unwrap_or(0) };
        // Filled with the field's last bit, which is at most the operand's.
        let known = len.min(bits.saturating_sub(at));
        if top { field | u64::MAX.checked_shl(known).unwrap_or(0) } else { field }
    }
    match (bits, signed) {
        (32, false) => lanes!(a: u32, b: u32, c: u32 => u32: field(a.into(), b, c, 32, false) as u32),
        (32, true) => lanes!(a: u32, b: u32, c: u32 => u32: field(a.into(), b, c, 32, true) as u32),
        (_, false) => lanes!(a: u64, b: u32, c: u32 => u64: field(a, b, c, 64, false)),
        (_, true) => lanes!(a: u64, b: u32, c: u32 => u64: field(a, b, c, 64, true)),
    }
}

/// First step of `bfi`: the mask of the field from bit `a & 255` on, `b & 255` bits long.
pub(crate) fn field_mask(wide: bool) -> Map {
    #[inline(always)]
    fn mask(at: u32, len: u32, bits: u32) -> u64 {
        let (at, len) = (at & 255, len & 255);
        if at >= bits || len == 0 { 0 } else { u64::MAX.checked_shr(64 - len.min(64)).unwrap_or(0) << at }
    }
    if wide {
        lanes!(a: u32, b: u32 => u64: mask(a, b, 64))
    } else {
        lanes!(a: u32, b: u32 => u32: mask(a, b, 32) as u32)
    }
}

/// Second step of `bfi`: `a` shifted by `b & 255`.
pub(crate) fn field_shift(wide: bool) -> Map {
    if wide {
        lanes!(a: u64, b: u32 => u64: a.checked_shl(b & 255).unwrap_or(0))
    } else {
        lanes!(a: u32, b: u32 => u32: a.checked_shl(b & 255).unwrap_or(0))
    }
}

/// Last step of `bfi`: the bits of `a` where the mask `c` is set, otherwise those of `b`.
pub(crate) fn blend(wide: bool) -> Map {
    if wide {
        lanes!(a: u64, b: u64, c: u64 => u64: a & c | b & !c)
    } else {
        lanes!(a: u32, b: u32, c: u32 => u32: a & c | b & !c)
    }
}

/// Position of the highest bit that is not the sign; `imm`: as an amount to shift left by.
pub(crate) fn find(bits: u32, signed: bool) -> Map {
    #[inline(always)]
    fn position(a: u64, shift: u32, bits: u32) -> u32 {
        if a == 0 {
            return u32::MAX;
        }
        let at = 63 - a.leading_zeros();
        if shift != 0 { bits - 1 - at } else { at }
    }
    match (bits, signed) {
        (32, false) => lanes!(imm; a: u32 => u32: position(a.into(), imm, 32)),
        (32, true) => lanes!(imm; a: i32 => u32: position(((a ^ a >> 31) as u32).into(), imm, 32)),
        (_, false) => lanes!(imm; a: u64 => u32: position(a, imm, 64)),
        (_, true) => lanes!(imm; a: i64 => u32: position((a ^ a >> 63) as u64, imm, 64)),
    }
}

/// `brev`, `popc` and `clz`.
pub(crate) fn count(op: &str, wide: bool) -> Option<Map> {
    Some(match (op, wide) {
        ("brev", false) => lanes!(a: u32 => u32: a.reverse_bits()),
        ("brev", true) => lanes!(a: u64 => u64: a.reverse_bits()),
        ("popc", false) => lanes!(a: u32 => u32: a.count_ones()),
        ("popc", true) => lanes!(a: u64 => u32: a.count_ones()),
        ("clz", false) => lanes!(a: u32 => u32: a.leading_zeros()),
        ("clz", true) => lanes!(a: u64 => u32: a.leading_zeros()),
        _ => return None,
    })
}

/// `fns`: position of the `c`-th set bit of `a` from bit `b` on; downwards where `c` is negative.
pub(crate) fn find_nth() -> Map {
    lanes!(a: u32, b: u32, c: i32 => u32: {
        let base = b & 31;
        if c == 0 {
            if a >> base & 1 != 0 { base } else { u32::MAX }
        } else {
            let (mut left, mut at, step) = (c.unsigned_abs(), base as i32, c.signum());
            loop {
                if !(0..32).contains(&at) {
                    break u32::MAX;
                }
                left -= a >> at & 1;
                if left == 0 {
                    break at as u32;
                }
                at += step;
            }
        }
    })
}

/// `szext`: `a` cut to `b` bits and extended; immediate bit 0: wrap, bit 1: signed.
pub(crate) fn extend() -> Map {
    lanes!(imm; a: u32, b: u32 => u32: {
        let bits = if imm & 1 != 0 { b & 31 } else { b };
        if bits >= 32 {
            a
        } else if bits == 0 {
            0
        } else if imm & 2 != 0 {
            ((a << (32 - bits)) as i32 >> (32 - bits)) as u32
        } else {
            a & !(u32::MAX << bits)
        }
    })
}

/// `bmsk`: a mask of `b` bits from bit `a` on; immediate: wrap.
pub(crate) fn mask() -> Map {
    lanes!(imm; a: u32, b: u32 => u32: {
        let (at, len) = if imm != 0 { (a & 31, b & 31) } else { (a, b) };
        if at >= 32 { 0 } else { (if len >= 32 { u32::MAX } else { !(u32::MAX << len) }) << at }
    })
}
