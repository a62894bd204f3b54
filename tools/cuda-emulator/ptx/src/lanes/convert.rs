//! `cvt`.

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::int::Int;
use super::round::{RN, narrow, odd, to_f32};
use super::single::{canonical, flush};
use super::{Map, lanes};

/// Types of conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    S8,
    Int(Int),
    F16,
    Bf16,
    F32,
    F64,
}

impl Kind {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "u8" | "b8" => Self::U8,
            "s8" => Self::S8,
            "u16" | "b16" => Self::Int(Int::U16),
            "s16" => Self::Int(Int::S16),
            "u32" | "b32" => Self::Int(Int::U32),
            "s32" => Self::Int(Int::S32),
            "u64" | "b64" => Self::Int(Int::U64),
            "s64" => Self::Int(Int::S64),
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    pub fn bits(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 8,
            Self::Int(Int::U16 | Int::S16) | Self::F16 | Self::Bf16 => 16,
            Self::Int(Int::U32 | Int::S32) | Self::F32 => 32,
            Self::Int(Int::U64 | Int::S64) | Self::F64 => 64,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::Int(Int::S16 | Int::S32 | Int::S64))
    }

    fn code(self) -> u32 {
        match self {
            Self::U8 => 0,
            Self::S8 => 1,
            Self::Int(t) => 2 + t as u32,
            Self::F16 => 8,
            Self::Bf16 => 9,
            Self::F32 => 10,
            Self::F64 => 11,
        }
    }
}

/// What a conversion does besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// Rounding mode as in `round`.
    pub mode: u32,
    /// Rounds to an integer: `.rni` and the like.
    pub integral: bool,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
}

const INTEGRAL: u32 = 8;
const FTZ: u32 = 16;
const SAT: u32 = 32;
const RELU: u32 = 64;

/// The range of an integer type by its code.
fn range(code: u32) -> (i128, i128) {
    match code {
        0 => (0, 0xff),
        1 => (-0x80, 0x7f),
        2 => (0, 0xffff),
        3 => (-0x8000, 0x7fff),
        4 => (0, 0xffff_ffff),
        5 => (-0x8000_0000, 0x7fff_ffff),
        6 => (0, u64::MAX.into()),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

fn whole(value: f64, mode: u32) -> f64 {
    match mode {
        0 => value.round_ties_even(),
        1 => value.trunc(),
        2 => value.floor(),
        _ => value.ceil(),
    }
}

/// Any conversion, one value at a time. The immediate holds both types and the flags.
fn general(imm: u32, bits: u64) -> u64 {
    let (from, to, mode) = (imm >> 8 & 15, imm >> 12 & 15, imm & 7);
    if from < 8 {
        let value = match from {
            0 => i128::from(bits as u8),
            1 => i128::from(bits as i8),
            2 => i128::from(bits as u16),
            3 => i128::from(bits as i16),
            4 => i128::from(bits as u32),
            5 => i128::from(bits as i32),
            6 => i128::from(bits),
            _ => i128::from(bits as i64),
        };
        return if to < 8 { put(clamp(value, to, imm & SAT != 0), to) } else { from_int(value, to, mode, imm) };
    }
    let mut value = match from {
        8 => f64::from(f16_to_f32(bits as u16)),
        9 => f64::from(bf16_to_f32(bits as u16)),
        10 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    if imm & FTZ != 0 && from == 10 && value.abs() < f64::from(f32::MIN_POSITIVE) {
        value = 0f64.copysign(value);
    }
    if to < 8 {
        if value.is_nan() {
            // As the manual has it: not zero where one side has 64 bits.
            let sign = match (from == 11 || to >= 6, to) {
                (false, _) => 0,
                (true, 6 | 7) => 1 << 63,
                (true, 4 | 5) => 1 << 31,
                (true, 2 | 3) => 1 << 15,
                (true, 1) => -0x80,
                (true, _) => 1 << 7,
            };
            return put(sign, to);
        }
        let (least, most) = range(to);
        return put((whole(value, mode) as i128).clamp(least, most), to);
    }
    if imm & INTEGRAL != 0 {
        value = whole(value, mode);
    }
    if imm & SAT != 0 {
        value = if value > 0.0 { value.min(1.0) } else { 0.0 };
    }
    if imm & RELU != 0 && value <= 0.0 {
        value = 0.0;
    }
    let mode = if imm & INTEGRAL != 0 { RN } else { mode };
    match to {
        8 => u64::from(narrow::<5, 10>(value, mode)),
        9 => u64::from(narrow::<8, 7>(value, mode)),
        10 => {
            let found = f32::from_bits(narrow::<8, 23>(value, mode));
            u64::from(if imm & FTZ != 0 { flush::<true>(found) } else { found }.to_bits())
        }
        _ if value.is_nan() => 0x7fff_ffff_ffff_ffff,
        _ => value.to_bits(),
    }
}

fn clamp(value: i128, to: u32, sat: bool) -> i128 {
    let (least, most) = range(to);
    if sat { value.clamp(least, most) } else { value }
}

/// The register of an integer of this type: signs up to 16 bits, as `Lane` has them.
fn put(value: i128, to: u32) -> u64 {
    match to {
        0 => u64::from(value as u8),
        1 => u64::from(value as i8 as u16),
        2 | 3 => u64::from(value as u16),
        4 | 5 => u64::from(value as u32),
        _ => value as u64,
    }
}

fn from_int(value: i128, to: u32, mode: u32, imm: u32) -> u64 {
    let near = value as f64;
    let error = (value - near as i128) as f64;
    if to == 11 {
        let found = super::round::directed(near, error, mode);
        return if imm & SAT != 0 { found.clamp(0.0, 1.0) } else { found }.to_bits();
    }
    let exact = odd(near, error);
    let exact = if imm & SAT != 0 { exact.clamp(0.0, 1.0) } else { exact };
    u64::from(match to {
        8 => narrow::<5, 10>(exact, mode),
        9 => narrow::<8, 7>(exact, mode),
        _ => to_f32(exact, mode).to_bits(),
    })
}

macro_rules! to_ints {
    ($S:ty, $to:expr) => {
        match $to {
            Kind::U8 => lanes!(a: $S => u8: a as u8),
            Kind::S8 => lanes!(a: $S => i8: a as i8),
            Kind::Int(Int::U16) => lanes!(a: $S => u16: a as u16),
            Kind::Int(Int::S16) => lanes!(a: $S => i16: a as i16),
            Kind::Int(Int::U32) => lanes!(a: $S => u32: a as u32),
            Kind::Int(Int::S32) => lanes!(a: $S => i32: a as i32),
            Kind::Int(Int::U64) => lanes!(a: $S => u64: a as u64),
            Kind::Int(Int::S64) => lanes!(a: $S => i64: a as i64),
            _ => unreachable!("an integer"),
        }
    };
}

/// Between integers, without saturation.
fn ints(to: Kind, from: Kind) -> Map {
    match from {
        Kind::U8 => to_ints!(u8, to),
        Kind::S8 => to_ints!(i8, to),
        Kind::Int(Int::U16) => to_ints!(u16, to),
        Kind::Int(Int::S16) => to_ints!(i16, to),
        Kind::Int(Int::U32) => to_ints!(u32, to),
        Kind::Int(Int::S32) => to_ints!(i32, to),
        Kind::Int(Int::U64) => to_ints!(u64, to),
        _ => to_ints!(i64, to),
    }
}

/// The conversions that are frequent, as loops that vectorise.
fn fast(to: Kind, from: Kind, how: How) -> Option<Map> {
    use Kind::{Bf16, F16, F32, F64, Int as I};
    let plain = how == How { mode: RN, integral: false, ftz: how.ftz, sat: false, relu: false };
    if !to.is_float() && !from.is_float() && !how.sat {
        return Some(ints(to, from));
    }
    Some(match (to, from) {
        (F32, F16) if plain => lanes!(a: u16 => f32: canonical(f16_to_f32(a))),
        (F32, Bf16) if plain && !how.ftz => lanes!(a: u16 => f32: bf16_to_f32(a)),
        (F16, F32) if plain && !how.ftz => lanes!(a: f32 => u16: f32_to_f16(a)),
        (Bf16, F32) if plain && !how.ftz => lanes!(a: f32 => u16: f32_to_bf16(a)),
        (F64, F32) if plain && !how.ftz => lanes!(a: f32 => f64: f64::from(a)),
        (F32, F64) if plain && !how.ftz => lanes!(a: f64 => f32: canonical(a as f32)),
        (F32, I(Int::U32)) if plain => lanes!(a: u32 => f32: a as f32),
        (F32, I(Int::S32)) if plain => lanes!(a: i32 => f32: a as f32),
        (F32, I(Int::U64)) if plain => lanes!(a: u64 => f32: a as f32),
        (F32, I(Int::S64)) if plain => lanes!(a: i64 => f32: a as f32),
        (F64, I(Int::U32)) if plain => lanes!(a: u32 => f64: f64::from(a)),
        (F64, I(Int::S32)) if plain => lanes!(a: i32 => f64: f64::from(a)),
        (F64, I(Int::U64)) if plain => lanes!(a: u64 => f64: a as f64),
        (F64, I(Int::S64)) if plain => lanes!(a: i64 => f64: a as f64),
        (I(Int::S32), F32) if how.mode == 1 && !how.ftz => lanes!(a: f32 => i32: a as i32),
        (I(Int::U32), F32) if how.mode == 1 && !how.ftz => lanes!(a: f32 => u32: a as u32),
        (I(Int::S32), F32) if how.mode == 0 && !how.ftz => lanes!(a: f32 => i32: a.round_ties_even() as i32),
        (F32, F32) if how.integral && !how.ftz && !how.sat => match how.mode {
            0 => lanes!(a: f32 => f32: canonical(a.round_ties_even())),
            1 => lanes!(a: f32 => f32: canonical(a.trunc())),
            2 => lanes!(a: f32 => f32: canonical(a.floor())),
            _ => lanes!(a: f32 => f32: canonical(a.ceil())),
        },
        _ => return None,
    })
}

/// The function of a conversion, and its immediate.
pub(crate) fn convert(to: Kind, from: Kind, how: How) -> (Map, u32) {
    if let Some(map) = fast(to, from, how) {
        return (map, 0);
    }
    let flag = |set: bool, bit: u32| if set { bit } else { 0 };
    let flags =
        flag(how.integral, INTEGRAL) | flag(how.ftz, FTZ) | flag(how.sat, SAT) | flag(how.relu, RELU) | how.mode;
    let map = match (to.bits() == 64, from.bits() == 64) {
        (false, false) => lanes!(imm; a: u32 => u32: general(imm, a.into()) as u32),
        (false, true) => lanes!(imm; a: u64 => u32: general(imm, a) as u32),
        (true, false) => lanes!(imm; a: u32 => u64: general(imm, a.into())),
        (true, true) => lanes!(imm; a: u64 => u64: general(imm, a)),
    };
    (map, flags | from.code() << 8 | to.code() << 12)
}

/// `cvt` to two values of 16 bits from two `f32`; `a` becomes the upper half. The immediate: bit 0 to 2 mode, 3 `bf16`, 4
/// `relu`, 5 `satfinite`.
pub(crate) fn pair(bf16: bool, how: How) -> (Map, u32) {
    if how.mode == RN && !how.relu && !how.sat {
        let map = if bf16 {
            lanes!(a: f32, b: f32 => [u16; 2]: [f32_to_bf16(b), f32_to_bf16(a)])
        } else {
            lanes!(a: f32, b: f32 => [u16; 2]: [f32_to_f16(b), f32_to_f16(a)])
        };
        return (map, 0);
    }
    let map = lanes!(imm; a: f32, b: f32 => [u16; 2]: [to_small(imm, b), to_small(imm, a)]);
    (map, small_flags(bf16, how))
}

/// `cvt` to one value of 16 bits with `.satfinite`; the immediate is that of [`pair`].
pub(crate) fn finite(bf16: bool, how: How) -> (Map, u32) {
    (lanes!(imm; a: f32 => u16: to_small(imm, a)), small_flags(bf16, how))
}

fn small_flags(bf16: bool, how: How) -> u32 {
    how.mode | u32::from(bf16) << 3 | u32::from(how.relu) << 4 | u32::from(how.sat) << 5
}

fn to_small(imm: u32, value: f32) -> u16 {
    let value = if imm & 16 != 0 && value <= 0.0 { 0.0 } else { f64::from(value) };
    let bits = if imm & 8 != 0 { narrow::<8, 7>(value, imm & 7) } else { narrow::<5, 10>(value, imm & 7) } as u16;
    let infinite = if imm & 8 != 0 { 0x7f80 } else { 0x7c00 };
    if imm & 32 != 0 && bits & 0x7fff == infinite { bits - 1 } else { bits }
}

/// `cvt` to `tf32`; the immediate: the mode, bit 3 `relu`, bit 4 `satfinite`.
pub(crate) fn tf32(how: How) -> (Map, u32) {
    let map = lanes!(imm; a: f32 => u32: {
        let value = if imm & 8 != 0 && a <= 0.0 { 0.0 } else { f64::from(a) };
        let bits = narrow::<8, 10>(value, imm & 7);
        (if imm & 16 != 0 && bits & 0x3_ffff == 0x3_fc00 { bits - 1 } else { bits }) << 13
    });
    (map, how.mode | u32::from(how.relu) << 3 | u32::from(how.sat) << 4)
}

/// An `f32` as a value of 8 bits, with the largest finite value instead of infinity.
fn to_fp8(value: f64, e5m2: bool, relu: bool) -> u16 {
    let value = if relu && value <= 0.0 { 0.0 } else { value };
    if e5m2 {
        let bits = narrow::<5, 2>(value, RN) as u16;
        return if value.is_nan() {
            0x7f
        } else if bits & 0x7f == 0x7c {
            bits - 1
        } else {
            bits
        };
    }
    // Its largest exponent is for numbers, up to 448.
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return 0x7f;
    }
    let magnitude = value.abs();
    if magnitude >= 256.0 {
        let steps = ((magnitude.min(448.0) - 256.0) / 32.0).round_ties_even() as u16;
        return sign | (0x78 + steps.min(6));
    }
    sign | narrow::<4, 3>(magnitude, RN) as u16
}

/// `cvt` to `e4m3x2` or `e5m2x2` from two `f32`, or from `f16x2` if `half`. The immediate: bit 0 `e5m2`, bit 1 `relu`.
pub(crate) fn to_fp8_pair(half: bool) -> Map {
    if half {
        lanes!(imm; a: [u16; 2] => u16: {
            let [low, high] = a.map(|bits| to_fp8(f16_to_f32(bits).into(), imm & 1 != 0, imm & 2 != 0));
            low | high << 8
        })
    } else {
        lanes!(imm; a: f32, b: f32 => u16: {
            to_fp8(b.into(), imm & 1 != 0, imm & 2 != 0) | to_fp8(a.into(), imm & 1 != 0, imm & 2 != 0) << 8
        })
    }
}

/// `cvt` to `f16x2` from `e4m3x2` or `e5m2x2`; the immediate as for [`to_fp8_pair`].
pub(crate) fn from_fp8_pair() -> Map {
    lanes!(imm; a: u16 => [u16; 2]: [a & 0xff, a >> 8].map(|bits| {
        if imm & 1 != 0 {
            return if bits & 0x7f > 0x7c {
                0x7fff
            } else if imm & 2 != 0 && bits & 0x80 != 0 {
                0
            } else {
                bits << 8
            };
        }
        let magnitude = f32::from_bits(u32::from(bits & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
        let found = if bits & 0x7f == 0x7f { 0x7fff } else { f32_to_f16(magnitude) };
        let found = if imm & 2 != 0 && bits & 0x80 != 0 { 0 } else { found | (bits & 0x80) << 8 };
        if bits & 0x7f == 0x7f { 0x7fff } else { found }
    }))
}
