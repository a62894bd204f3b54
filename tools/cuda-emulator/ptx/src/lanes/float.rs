//! Arithmetic on `f32`.

use super::round::{RN, fused, odd, quotient, root, to_f32, two_sum};
use super::single::{NAN, XORSIGN, canonical, flush, least, most};
use super::{Map, lanes};

/// Cut to the range from 0 to 1; 0 for a NaN.
#[inline(always)]
pub(crate) fn saturate<const S: bool>(x: f32) -> f32 {
    if !S {
        x
    } else if x > 0.0 {
        if x < 1.0 { x } else { 1.0 }
    } else {
        0.0
    }
}

#[inline(always)]
fn finish<const F: bool, const S: bool>(x: f32) -> f32 {
    canonical(saturate::<S>(flush::<F>(x)))
}

macro_rules! nearest {
    ($ftz:expr, $sat:expr, |$($arg:ident),+| $body:expr) => {
        match ($ftz, $sat) {
            (false, false) => nearest!(@ false, false, |$($arg),+| $body),
            (false, true) => nearest!(@ false, true, |$($arg),+| $body),
            (true, false) => nearest!(@ true, false, |$($arg),+| $body),
            (true, true) => nearest!(@ true, true, |$($arg),+| $body),
        }
    };
    (@ $f:literal, $s:literal, |$($arg:ident),+| $body:expr) => {
        lanes!($($arg: f32),+ => f32: { $(let $arg = flush::<$f>($arg);)+ finish::<$f, $s>($body) })
    };
}

/// Flags of the immediate, above the rounding mode's 3 bits.
pub(crate) const FTZ: u32 = 8;
pub(crate) const SAT: u32 = 16;

#[inline(always)]
fn general(imm: u32, args: [f32; 3], exact: impl Fn([f32; 3]) -> f64) -> f32 {
    let args = if imm & FTZ != 0 { args.map(flush::<true>) } else { args };
    let found = to_f32(exact(args), imm & 7);
    let found = if imm & FTZ != 0 { flush::<true>(found) } else { found };
    canonical(if imm & SAT != 0 { saturate::<true>(found) } else { found })
}

/// `add`, `sub`, `mul`, `fma`, `div`, `rcp` and `sqrt` with a rounding mode; the immediate that goes with the function.
pub(crate) fn arithmetic(op: &str, mode: u32, ftz: bool, sat: bool) -> Option<(Map, u32)> {
    if mode != RN {
        let imm = mode | if ftz { FTZ } else { 0 } | if sat { SAT } else { 0 };
        let map = match op {
            "add" => lanes!(imm; a: f32, b: f32 => f32: general(imm, [a, b, 0.0], |[a, b, _]| directed_sum(imm, a, b))),
            "sub" => {
                lanes!(imm; a: f32, b: f32 => f32: general(imm, [a, b, 0.0], |[a, b, _]| directed_sum(imm, a, -b)))
            }
            "mul" => lanes!(imm; a: f32, b: f32 => f32:
                general(imm, [a, b, 0.0], |[a, b, _]| f64::from(a) * f64::from(b))),
            "fma" => lanes!(imm; a: f32, b: f32, c: f32 => f32: general(imm, [a, b, c], |[a, b, c]| {
                let found = fused(a, b, c);
                if found == 0.0 { directed_zero(imm, f64::from(a) * f64::from(b), c.into()) } else { found }
            })),
            "div" => lanes!(imm; a: f32, b: f32 => f32: general(imm, [a, b, 0.0], |[a, b, _]| quotient(a, b))),
            "rcp" => lanes!(imm; a: f32 => f32: general(imm, [a, 0.0, 0.0], |[a, ..]| quotient(1.0, a))),
            "sqrt" => lanes!(imm; a: f32 => f32: general(imm, [a, 0.0, 0.0], |[a, ..]| root(a))),
            _ => return None,
        };
        return Some((map, imm));
    }
    let map = match op {
        "add" => nearest!(ftz, sat, |a, b| a + b),
        "sub" => nearest!(ftz, sat, |a, b| a - b),
        "mul" => nearest!(ftz, sat, |a, b| a * b),
        "fma" => nearest!(ftz, sat, |a, b, c| a.mul_add(b, c)),
        "div" => nearest!(ftz, sat, |a, b| a / b),
        "rcp" => nearest!(ftz, sat, |a| 1.0 / a),
        "sqrt" => nearest!(ftz, sat, |a| a.sqrt()),
        _ => return None,
    };
    Some((map, 0))
}

/// A zero as a directed sum of `a` and `b` gives it: negative if rounded down, unless both are positive zeros.
fn directed_zero(imm: u32, a: f64, b: f64) -> f64 {
    let both = a.is_sign_negative() && b.is_sign_negative();
    let either = a.is_sign_negative() || b.is_sign_negative();
    if both || either && imm & 7 == super::round::RM { -0.0 } else { 0.0 }
}

fn directed_sum(imm: u32, a: f32, b: f32) -> f64 {
    let (sum, error) = two_sum(a.into(), b.into());
    if sum == 0.0 { directed_zero(imm, a.into(), b.into()) } else { odd(sum, error) }
}

/// `neg`, `abs`, `min`, `max` and `copysign`; the immediate of `min` and `max` holds [`NAN`] and [`XORSIGN`].
pub(crate) fn simple(op: &str, ftz: bool) -> Option<Map> {
    Some(match (op, ftz) {
        ("neg", false) => lanes!(a: u32 => u32: a ^ 0x8000_0000),
        ("neg", true) => lanes!(a: f32 => f32: -flush::<true>(a)),
        ("abs", false) => lanes!(a: u32 => u32: a & 0x7fff_ffff),
        ("abs", true) => lanes!(a: f32 => f32: flush::<true>(a).abs()),
        ("min", false) => lanes!(imm; a: f32, b: f32 => f32: least(imm & (NAN | XORSIGN), a, b)),
        ("max", false) => lanes!(imm; a: f32, b: f32 => f32: most(imm & (NAN | XORSIGN), a, b)),
        ("min", true) => lanes!(imm; a: f32, b: f32 => f32:
            least(imm & (NAN | XORSIGN), flush::<true>(a), flush::<true>(b))),
        ("max", true) => lanes!(imm; a: f32, b: f32 => f32:
            most(imm & (NAN | XORSIGN), flush::<true>(a), flush::<true>(b))),
        ("copysign", _) => lanes!(a: u32, b: u32 => u32: b & 0x7fff_ffff | a & 0x8000_0000),
        _ => return None,
    })
}
