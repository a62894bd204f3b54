//! Functions that cards approximate. Here each is the nearest `f32`, or one beside it: better than the card's.

use super::double;
use super::single::{canonical, flush};
use super::{Map, lanes};

/// 2 to the power of `x`, which is between -160 and 130, by a polynomial.
#[inline(always)]
fn power(x: f64) -> f64 {
    const LN2: f64 = std::f64::consts::LN_2;
    let whole = x.round_ties_even();
    let y = (x - whole) * LN2;
    let mut sum = 1.0 / 362_880.0;
    for factor in [1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * y + factor;
    }
    // SAFETY: between -160 and 130.
    let whole: i32 = unsafe { whole.to_int_unchecked() };
    sum * f64::from_bits(((i64::from(whole) + 1023) as u64) << 52)
}

/// 2 to the power of `x`.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let within = if x.is_nan() { 0.0 } else { x.clamp(-160.0, 130.0) };
    if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { power(within.into()) as f32 }
}

#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let within = f64::from(if x.is_nan() { 0.0 } else { x.clamp(-20.0, 20.0) });
    let square = within * within;
    let small = within * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))));
    let large = 1.0 - 2.0 / (power(within * 2.0 * std::f64::consts::LOG2_E) + 1.0);
    let found = if within.abs() < 0.04 { small } else { large };
    if x.is_nan() { canonical(x) } else { found as f32 }
}

#[inline(always)]
fn apply<const F: bool>(x: f32, f: impl Fn(f32) -> f32) -> f32 {
    canonical(flush::<F>(f(flush::<F>(x))))
}

macro_rules! f32_maps {
    ($ftz:expr, $f:expr) => {
        if $ftz { lanes!(a: f32 => f32: apply::<true>(a, $f)) } else { lanes!(a: f32 => f32: apply::<false>(a, $f)) }
    };
}

/// A function of an `f32` by its opcode.
pub(crate) fn f32(op: &str, ftz: bool) -> Option<Map> {
    Some(match op {
        "ex2" => f32_maps!(ftz, exp2),
        "lg2" => f32_maps!(ftz, f32::log2),
        "sin" => f32_maps!(ftz, |x: f32| f64::from(x).sin() as f32),
        "cos" => f32_maps!(ftz, |x: f32| f64::from(x).cos() as f32),
        "tanh" => f32_maps!(ftz, tanh),
        "rcp" => f32_maps!(ftz, |x: f32| 1.0 / x),
        "sqrt" => f32_maps!(ftz, f32::sqrt),
        "rsqrt" => f32_maps!(ftz, |x: f32| (1.0 / f64::from(x).sqrt()) as f32),
        _ => return None,
    })
}

/// `div.approx.f32`, which is `a` times the reciprocal of `b`: of divisors above 2^126 that is 0, as the manual says.
pub(crate) fn divide(ftz: bool) -> Map {
    #[inline(always)]
    fn quotient<const F: bool>(a: f32, b: f32) -> f32 {
        let (a, b) = (flush::<F>(a), flush::<F>(b));
        let large = b.abs() > f32::from_bits((127 + 126) << 23) && b.is_finite();
        canonical(flush::<F>(if large { a * 0f32.copysign(b) } else { a / b }))
    }
    if ftz {
        lanes!(a: f32, b: f32 => f32: quotient::<true>(a, b))
    } else {
        lanes!(a: f32, b: f32 => f32: quotient::<false>(a, b))
    }
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: the upper 32 bits of the result, from those of the operand. On cards
/// `rsqrt.approx.f64` is a program, precise to the last bits.
pub(crate) fn f64(op: &str, ftz: bool) -> Option<Map> {
    #[inline(always)]
    fn upper(x: f64) -> f64 {
        if x.is_nan() { f64::from_bits(0x7fff_ffff << 32) } else { f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000) }
    }
    #[inline(always)]
    fn normal(x: f64) -> f64 {
        if x.is_subnormal() { 0f64.copysign(x) } else { x }
    }
    Some(match (op, ftz) {
        ("rcp", _) => lanes!(a: f64 => f64: upper(normal(1.0 / normal(upper(a))))),
        ("rsqrt", true) => lanes!(a: f64 => f64: upper(1.0 / normal(upper(a)).sqrt())),
        ("rsqrt", false) => lanes!(a: f64 => f64: double::canonical(1.0 / a.sqrt())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_tangents_are_within_a_bit_of_the_library() {
        for i in -20_000..20_000 {
            let x = i as f32 * 0.007_321;
            let close = |found: f32, exact: f64| (f64::from(found) - exact).abs() <= exact.abs() * 1.2e-7 + 1e-44;
            assert!(close(exp2(x), f64::from(x).exp2()) || exp2(x) > f32::MAX, "2^{x} = {}", exp2(x));
            assert!(close(tanh(x * 0.1), f64::from(x * 0.1).tanh()), "tanh {} = {}", x * 0.1, tanh(x * 0.1));
        }
        assert_eq!((exp2(f32::NEG_INFINITY), exp2(f32::INFINITY), exp2(-200.0)), (0.0, f32::INFINITY, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(-f32::INFINITY)), (1.0, -1.0));
        assert!(exp2(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
    }
}
