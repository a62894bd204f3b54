//! Integer arithmetic.

use super::{Map, lanes};

/// Types of integer instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

/// One function for each of the types.
macro_rules! ints {
    ($type:expr, $($args:tt)+) => { {
        match $type {
            Int::U16 => { type T = u16; ints!(@ $($args)+) }
            Int::S16 => { type T = i16; ints!(@ $($args)+) }
            Int::U32 => { type T = u32; ints!(@ $($args)+) }
            Int::S32 => { type T = i32; ints!(@ $($args)+) }
            Int::U64 => { type T = u64; ints!(@ $($args)+) }
            Int::S64 => { type T = i64; ints!(@ $($args)+) }
        }
    } };
    (@ |$a:ident| $body:expr) => { lanes!($a: T => T: $body) };
    (@ |$a:ident, $b:ident| $body:expr) => { lanes!($a: T, $b: T => T: $body) };
    (@ |$a:ident, $b:ident, $c:ident| $body:expr) => { lanes!($a: T, $b: T, $c: T => T: $body) };
}

/// One function for signed and unsigned types alike.
macro_rules! words {
    ($type:expr, $($args:tt)+) => {
        match $type {
            Int::U16 | Int::S16 => { type T = u16; ints!(@ $($args)+) }
            Int::U32 | Int::S32 => { type T = u32; ints!(@ $($args)+) }
            Int::U64 | Int::S64 => { type T = u64; ints!(@ $($args)+) }
        }
    };
}

/// `op` with low results, by name.
pub(crate) fn arithmetic(op: &str, t: Int) -> Option<Map> {
    Some(match op {
        "add" => words!(t, |a, b| a.wrapping_add(b)),
        "sub" => words!(t, |a, b| a.wrapping_sub(b)),
        "mul" => words!(t, |a, b| a.wrapping_mul(b)),
        "mad" => words!(t, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        // Cards give all ones for a division by zero, and the dividend as remainder.
        "div" => ints!(t, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => ints!(t, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "min" => ints!(t, |a, b| a.min(b)),
        "max" => ints!(t, |a, b| a.max(b)),
        "abs" => match t {
            Int::S16 => lanes!(a: i16 => i16: a.wrapping_abs()),
            Int::S32 => lanes!(a: i32 => i32: a.wrapping_abs()),
            Int::S64 => lanes!(a: i64 => i64: a.wrapping_abs()),
            _ => return None,
        },
        "neg" => words!(t, |a| (0 as T).wrapping_sub(a)),
        "sad" => ints!(t, |a, b, c| c.wrapping_add(a.abs_diff(b) as T)),
        _ => return None,
    })
}

/// `add.sat.s32` and `sub.sat.s32`.
pub(crate) fn saturating(op: &str) -> Option<Map> {
    Some(match op {
        "add" => lanes!(a: i32, b: i32 => i32: a.saturating_add(b)),
        "sub" => lanes!(a: i32, b: i32 => i32: a.saturating_sub(b)),
        "mad" => lanes!(a: i32, b: i32, c: i32 => i32: {
            let high = (i64::from(a) * i64::from(b)) >> 32;
            (high + i64::from(c)).clamp(i32::MIN.into(), i32::MAX.into()) as i32
        }),
        _ => return None,
    })
}

/// `mad24.hi.sat.s32`
pub(crate) fn mad24_saturating() -> Map {
    lanes!(a: i32, b: i32, c: i32 => i32: {
        let product = i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8);
        ((product >> 16) as i32).saturating_add(c)
    })
}

/// The high half of a product.
pub(crate) fn mul_high(t: Int) -> Map {
    match t {
        Int::U16 => lanes!(a: u16, b: u16 => u16: ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Int::S16 => lanes!(a: i16, b: i16 => i16: ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Int::U32 => lanes!(a: u32, b: u32 => u32: ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Int::S32 => lanes!(a: i32, b: i32 => i32: ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Int::U64 => lanes!(a: u64, b: u64 => u64: ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Int::S64 => lanes!(a: i64, b: i64 => i64: ((i128::from(a) * i128::from(b)) >> 64) as i64),
    }
}

/// A product of twice the width.
pub(crate) fn mul_wide(t: Int) -> Option<Map> {
    Some(match t {
        Int::U16 => lanes!(a: u16, b: u16 => u32: u32::from(a) * u32::from(b)),
        Int::S16 => lanes!(a: i16, b: i16 => i32: i32::from(a) * i32::from(b)),
        Int::U32 => lanes!(a: u32, b: u32 => u64: u64::from(a) * u64::from(b)),
        Int::S32 => lanes!(a: i32, b: i32 => i64: i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

/// A product of twice the width and a sum.
pub(crate) fn mad_wide(t: Int) -> Option<Map> {
    Some(match t {
        Int::U16 => lanes!(a: u16, b: u16, c: u32 => u32: (u32::from(a) * u32::from(b)).wrapping_add(c)),
        Int::S16 => lanes!(a: i16, b: i16, c: i32 => i32: (i32::from(a) * i32::from(b)).wrapping_add(c)),
        Int::U32 => lanes!(a: u32, b: u32, c: u64 => u64: (u64::from(a) * u64::from(b)).wrapping_add(c)),
        Int::S32 => lanes!(a: i32, b: i32, c: i64 => i64: (i64::from(a) * i64::from(b)).wrapping_add(c)),
        _ => return None,
    })
}

/// `mul24` and `mad24`: products of the low 24 bits, sign-extended where signed.
pub(crate) fn mul24(signed: bool, high: bool, sum: bool) -> Map {
    #[inline(always)]
    fn product(imm: u32, a: u32, b: u32) -> u32 {
        let (signed, high) = (imm & 1 != 0, imm & 2 != 0);
        let wide = if signed {
            (i64::from((a << 8) as i32 >> 8) * i64::from((b << 8) as i32 >> 8)) as u64
        } else {
            u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)
        };
        (if high { wide >> 16 } else { wide }) as u32
    }
    match (signed, high, sum) {
        (false, false, false) => lanes!(a: u32, b: u32 => u32: product(0, a, b)),
        (true, false, false) => lanes!(a: u32, b: u32 => u32: product(1, a, b)),
        (false, true, false) => lanes!(a: u32, b: u32 => u32: product(2, a, b)),
        (true, true, false) => lanes!(a: u32, b: u32 => u32: product(3, a, b)),
        (false, false, true) => lanes!(a: u32, b: u32, c: u32 => u32: product(0, a, b).wrapping_add(c)),
        (true, false, true) => lanes!(a: u32, b: u32, c: u32 => u32: product(1, a, b).wrapping_add(c)),
        (false, true, true) => lanes!(a: u32, b: u32, c: u32 => u32: product(2, a, b).wrapping_add(c)),
        (true, true, true) => lanes!(a: u32, b: u32, c: u32 => u32: product(3, a, b).wrapping_add(c)),
    }
}

/// Two 16-bit values in a register: `add.u16x2`, `min.s16x2` and the like.
pub(crate) fn packed(op: &str, signed: bool) -> Option<Map> {
    Some(match (op, signed) {
        ("add", _) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]: [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])]),
        ("sub", _) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]: [a[0].wrapping_sub(b[0]), a[1].wrapping_sub(b[1])]),
        ("min", false) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]: [a[0].min(b[0]), a[1].min(b[1])]),
        ("max", false) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]: [a[0].max(b[0]), a[1].max(b[1])]),
        ("min", true) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]:
            [(a[0] as i16).min(b[0] as i16) as u16, (a[1] as i16).min(b[1] as i16) as u16]),
        ("max", true) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]:
            [(a[0] as i16).max(b[0] as i16) as u16, (a[1] as i16).max(b[1] as i16) as u16]),
        _ => return None,
    })
}

/// `min.relu` and `max.relu` of signed types: negative results become 0.
pub(crate) fn relu(op: &str, packed: bool) -> Option<Map> {
    Some(match (op, packed) {
        ("min", false) => lanes!(a: i32, b: i32 => i32: a.min(b).max(0)),
        ("max", false) => lanes!(a: i32, b: i32 => i32: a.max(b).max(0)),
        ("min", true) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]:
            [(a[0] as i16).min(b[0] as i16).max(0) as u16, (a[1] as i16).min(b[1] as i16).max(0) as u16]),
        ("max", true) => lanes!(a: [u16; 2], b: [u16; 2] => [u16; 2]:
            [(a[0] as i16).max(b[0] as i16).max(0) as u16, (a[1] as i16).max(b[1] as i16).max(0) as u16]),
        _ => return None,
    })
}

/// `dp4a`: four products of bytes and a sum; `imm` bit 0: `a` is signed, bit 1: `b` is.
pub(crate) fn dp4a() -> Map {
    lanes!(imm; a: u32, b: u32, c: u32 => u32: {
        let mut sum = c;
        for i in 0..4 {
            let (x, y) = ((a >> (8 * i)) as u8, (b >> (8 * i)) as u8);
            let x = if imm & 1 != 0 { i32::from(x as i8) } else { i32::from(x) };
            let y = if imm & 2 != 0 { i32::from(y as i8) } else { i32::from(y) };
            sum = sum.wrapping_add(x.wrapping_mul(y) as u32);
        }
        sum
    })
}

/// `dp2a`: two products of 16 by 8 bits; `imm` as for [`dp4a`], bit 2: the upper bytes of `b`.
pub(crate) fn dp2a() -> Map {
    lanes!(imm; a: u32, b: u32, c: u32 => u32: {
        let mut sum = c;
        for i in 0..2 {
            let (x, y) = ((a >> (16 * i)) as u16, (b >> (8 * i + if imm & 4 != 0 { 16 } else { 0 })) as u8);
            let x = if imm & 1 != 0 { i32::from(x as i16) } else { i32::from(x) };
            let y = if imm & 2 != 0 { i32::from(y as i8) } else { i32::from(y) };
            sum = sum.wrapping_add(x.wrapping_mul(y) as u32);
        }
        sum
    })
}

/// `vabsdiff4`: differences of bytes; immediate bit 0: their sum plus `c`, bit 1: signed.
pub(crate) fn vabsdiff4() -> Map {
    lanes!(imm; a: u32, b: u32, c: u32 => u32: {
        let (mut bytes, mut sum) = (0, c);
        for i in 0..4 {
            let (x, y) = ((a >> (8 * i)) as u8, (b >> (8 * i)) as u8);
            let difference = u32::from(if imm & 2 != 0 { (x as i8).abs_diff(y as i8) } else { x.abs_diff(y) });
            bytes |= difference << (8 * i);
            sum = sum.wrapping_add(difference);
        }
        if imm & 1 != 0 { sum } else { bytes }
    })
}

/// `vabsdiff2`: the same of halves of 16 bits.
pub(crate) fn vabsdiff2() -> Map {
    lanes!(imm; a: [u16; 2], b: [u16; 2], c: u32 => u32: {
        let difference = |x: u16, y: u16| if imm & 2 != 0 { (x as i16).abs_diff(y as i16) } else { x.abs_diff(y) };
        let [low, high] = [difference(a[0], b[0]), difference(a[1], b[1])].map(u32::from);
        if imm & 1 != 0 { c.wrapping_add(low).wrapping_add(high) } else { low | high << 16 }
    })
}
