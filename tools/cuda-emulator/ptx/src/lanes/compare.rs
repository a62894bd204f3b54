//! Comparisons.

use super::half::{bf16_to_f32, f16_to_f32};
use super::int::Int;
use super::{Test, test};

/// Types of comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int(Int),
    F16,
    BF16,
    F32,
    F64,
}

macro_rules! compare_ints {
    ($type:expr, |$a:ident, $b:ident| $body:expr) => {
        match $type {
            Int::U16 => test!($a: u16, $b: u16: $body),
            Int::S16 => test!($a: i16, $b: i16: $body),
            Int::U32 => test!($a: u32, $b: u32: $body),
            Int::S32 => test!($a: i32, $b: i32: $body),
            Int::U64 => test!($a: u64, $b: u64: $body),
            Int::S64 => test!($a: i64, $b: i64: $body),
        }
    };
}

macro_rules! compare_floats {
    ($kind:expr, $ftz:expr, |$a:ident, $b:ident| $body:expr) => {
        match ($kind, $ftz) {
            (Kind::F32, false) => test!($a: f32, $b: f32: $body),
            (Kind::F32, true) => test!(x: f32, y: f32: { let ($a, $b) = (flush(x), flush(y)); $body }),
            (Kind::F64, _) => test!($a: f64, $b: f64: $body),
            (Kind::F16, false) => test!(x: u16, y: u16: { let ($a, $b) = (f16_to_f32(x), f16_to_f32(y)); $body }),
            (Kind::F16, true) => test!(x: u16, y: u16: {
                let ($a, $b) = (f16_to_f32(flush16(x)), f16_to_f32(flush16(y)));
                $body
            }),
            (Kind::BF16, _) => test!(x: u16, y: u16: { let ($a, $b) = (bf16_to_f32(x), bf16_to_f32(y)); $body }),
            (Kind::Int(_), _) => return None,
        }
    };
}

#[inline(always)]
fn flush(x: f32) -> f32 {
    super::single::flush::<true>(x)
}

#[inline(always)]
fn flush16(x: u16) -> u16 {
    if x & 0x7c00 == 0 { x & 0x8000 } else { x }
}

/// `setp`'s comparison by name.
#[allow(clippy::float_cmp, clippy::double_comparisons, clippy::neg_cmp_op_on_partial_ord)] // These differ for NaNs.
pub(crate) fn compare(op: &str, kind: Kind, ftz: bool) -> Option<Test> {
    if let Kind::Int(t) = kind {
        let unsigned = match t {
            Int::S16 => Int::U16,
            Int::S32 => Int::U32,
            Int::S64 => Int::U64,
            t => t,
        };
        return Some(match op {
            "eq" => compare_ints!(unsigned, |a, b| a == b),
            "ne" => compare_ints!(unsigned, |a, b| a != b),
            "lt" => compare_ints!(t, |a, b| a < b),
            "le" => compare_ints!(t, |a, b| a <= b),
            "gt" => compare_ints!(t, |a, b| a > b),
            "ge" => compare_ints!(t, |a, b| a >= b),
            "lo" => compare_ints!(unsigned, |a, b| a < b),
            "ls" => compare_ints!(unsigned, |a, b| a <= b),
            "hi" => compare_ints!(unsigned, |a, b| a > b),
            "hs" => compare_ints!(unsigned, |a, b| a >= b),
            _ => return None,
        });
    }
    Some(match op {
        "eq" => compare_floats!(kind, ftz, |a, b| a == b),
        // Ordered: false where one is NaN.
        "ne" => compare_floats!(kind, ftz, |a, b| a < b || a > b),
        "lt" => compare_floats!(kind, ftz, |a, b| a < b),
        "le" => compare_floats!(kind, ftz, |a, b| a <= b),
        "gt" => compare_floats!(kind, ftz, |a, b| a > b),
        "ge" => compare_floats!(kind, ftz, |a, b| a >= b),
        "equ" => compare_floats!(kind, ftz, |a, b| !(a < b || a > b)),
        "neu" => compare_floats!(kind, ftz, |a, b| a != b),
        "ltu" => compare_floats!(kind, ftz, |a, b| !(a >= b)),
        "leu" => compare_floats!(kind, ftz, |a, b| !(a > b)),
        "gtu" => compare_floats!(kind, ftz, |a, b| !(a <= b)),
        "geu" => compare_floats!(kind, ftz, |a, b| !(a < b)),
        "num" => compare_floats!(kind, ftz, |a, b| !a.is_nan() && !b.is_nan()),
        "nan" => compare_floats!(kind, ftz, |a, b| a.is_nan() || b.is_nan()),
        _ => return None,
    })
}

/// `testp` by name.
pub(crate) fn property(op: &str, wide: bool) -> Option<Test> {
    macro_rules! both {
        (|$a:ident| $body:expr) => {
            if wide { test!($a: f64, _b: f64: $body) } else { test!($a: f32, _b: f32: $body) }
        };
    }
    Some(match op {
        "finite" => both!(|a| a.is_finite()),
        "infinite" => both!(|a| a.is_infinite()),
        "number" => both!(|a| !a.is_nan()),
        "notanumber" => both!(|a| a.is_nan()),
        // Zero counts as normal.
        "normal" => both!(|a| a.is_normal() || a == 0.0),
        "subnormal" => both!(|a| a.is_subnormal()),
        _ => return None,
    })
}
