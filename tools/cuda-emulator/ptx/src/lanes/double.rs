//! Arithmetic on `f64`.

use super::round::RN;
use super::{Map, exact, lanes};

/// Any NaN as the one that cards give.
#[inline(always)]
pub(crate) fn canonical(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits << 1 > 0xffe0_0000_0000_0000 { 0x7fff_ffff_ffff_ffff } else { bits })
}

/// `add`, `sub`, `mul`, `fma`, `div`, `rcp`, `sqrt`; the immediate is the rounding mode.
pub(crate) fn arithmetic(op: &str, mode: u32) -> Option<Map> {
    if mode != RN {
        return Some(match op {
            "add" => lanes!(imm; a: f64, b: f64 => f64: canonical(exact::sum(a, b, imm))),
            "sub" => lanes!(imm; a: f64, b: f64 => f64: canonical(exact::sum(a, -b, imm))),
            "mul" => lanes!(imm; a: f64, b: f64 => f64: canonical(exact::product(a, b, imm))),
            "fma" => lanes!(imm; a: f64, b: f64, c: f64 => f64: canonical(exact::fused(a, b, c, imm))),
            "div" => lanes!(imm; a: f64, b: f64 => f64: canonical(exact::quotient(a, b, imm))),
            "rcp" => lanes!(imm; a: f64 => f64: canonical(exact::quotient(1.0, a, imm))),
            "sqrt" => lanes!(imm; a: f64 => f64: canonical(exact::root(a, imm))),
            _ => return None,
        });
    }
    Some(match op {
        "add" => lanes!(a: f64, b: f64 => f64: canonical(a + b)),
        "sub" => lanes!(a: f64, b: f64 => f64: canonical(a - b)),
        "mul" => lanes!(a: f64, b: f64 => f64: canonical(a * b)),
        "fma" => lanes!(a: f64, b: f64, c: f64 => f64: canonical(a.mul_add(b, c))),
        "div" => lanes!(a: f64, b: f64 => f64: canonical(a / b)),
        "rcp" => lanes!(a: f64 => f64: canonical(1.0 / a)),
        "sqrt" => lanes!(a: f64 => f64: canonical(a.sqrt())),
        "neg" => lanes!(a: u64 => u64: a ^ 1 << 63),
        "abs" => lanes!(a: u64 => u64: a & !(1 << 63)),
        "copysign" => lanes!(a: u64, b: u64 => u64: b & !(1 << 63) | a & 1 << 63),
        "min" => lanes!(a: f64, b: f64 => f64: {
            let found = if a < b || a == b && a.is_sign_negative() { a } else { b };
            canonical(if a.is_nan() { b } else if b.is_nan() { a } else { found })
        }),
        "max" => lanes!(a: f64, b: f64 => f64: {
            let found = if a > b || a == b && a.is_sign_positive() { a } else { b };
            canonical(if a.is_nan() { b } else if b.is_nan() { a } else { found })
        }),
        _ => return None,
    })
}
