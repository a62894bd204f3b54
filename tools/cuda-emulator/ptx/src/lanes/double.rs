//! Arithmetic on `f64`.

use super::round::{RN, directed, two_sum};
use super::{Map, lanes};

#[inline(always)]
fn canonical(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits << 1 > 0xffe0_0000_0000_0000 { 0x7fff_ffff_ffff_ffff } else { bits })
}

/// The exact rest of `a * b + c` beside `found`, as far as its sign matters.
fn fused_error(a: f64, b: f64, c: f64, found: f64) -> f64 {
    let product = a * b;
    let low = a.mul_add(b, -product);
    let (sum, rest) = two_sum(product, c);
    let (head, tail) = two_sum(rest, low);
    let (high, mid) = two_sum(sum - found, head);
    high + (mid + tail)
}

/// `add`, `sub`, `mul`, `fma`, `div`, `rcp`, `sqrt`; the immediate is the rounding mode.
pub(crate) fn arithmetic(op: &str, mode: u32) -> Option<Map> {
    if mode != RN {
        return Some(match op {
            "add" => lanes!(imm; a: f64, b: f64 => f64: {
                let (sum, error) = two_sum(a, b);
                canonical(directed(sum, error, imm))
            }),
            "sub" => lanes!(imm; a: f64, b: f64 => f64: {
                let (sum, error) = two_sum(a, -b);
                canonical(directed(sum, error, imm))
            }),
            "mul" => lanes!(imm; a: f64, b: f64 => f64: {
                let found = a * b;
                canonical(directed(found, a.mul_add(b, -found), imm))
            }),
            "fma" => lanes!(imm; a: f64, b: f64, c: f64 => f64: {
                let found = a.mul_add(b, c);
                canonical(directed(found, fused_error(a, b, c, found), imm))
            }),
            "div" => lanes!(imm; a: f64, b: f64 => f64: {
                let found = a / b;
                let left = (-found).mul_add(b, a);
                canonical(directed(found, if b < 0.0 { -left } else { left }, imm))
            }),
            "rcp" => lanes!(imm; a: f64 => f64: {
                let found = 1.0 / a;
                let left = (-found).mul_add(a, 1.0);
                canonical(directed(found, if a < 0.0 { -left } else { left }, imm))
            }),
            "sqrt" => lanes!(imm; a: f64 => f64: {
                let found = a.sqrt();
                canonical(directed(found, (-found).mul_add(found, a), imm))
            }),
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
