//! Arithmetic on `f64` in a direction: exact results, rounded once.
//!
//! The processor rounds to nearest, and what it leaves out is no `f64` where results overflow or are subnormal. So sums, products,
//! quotients and roots are computed on integers here; infinities, NaNs and exact zeros are the processor's.

use super::round::{RM, RP};

/// `mantissa` times 2 to the power of `exponent`, or a bit more if `more`, which the first 60 bits do not show.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    mantissa: u128,
    exponent: i32,
    more: bool,
}

/// A finite number that is not zero, with 53 bits.
fn number(x: f64) -> Exact {
    let bits = x.to_bits();
    let (exponent, mantissa) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (exponent, mantissa) = if exponent == 0 { (-1074, mantissa) } else { (exponent - 1075, mantissa | 1 << 52) };
    let shift = mantissa.leading_zeros() as i32 - 11;
    Exact {
        negative: x.is_sign_negative(),
        mantissa: u128::from(mantissa << shift),
        exponent: exponent - shift,
        more: false,
    }
}

impl Exact {
    fn top(self) -> i32 {
        self.exponent + 127 - self.mantissa.leading_zeros() as i32
    }

    /// The `f64` in the direction of `mode`, which is not to the nearest.
    fn round(self, mode: u32) -> f64 {
        let least = (self.top() - 52).max(-1074);
        let shift = least - self.exponent;
        let (kept, rest) = match shift {
            128.. => (0, true),
            1.. => (self.mantissa >> shift, self.mantissa & ((1 << shift) - 1) != 0),
            _ => (self.mantissa << -shift, false),
        };
        let away = match mode {
            RM => self.negative,
            RP => !self.negative,
            _ => false,
        };
        let kept = kept as u64 + u64::from(away && (rest || self.more));
        // A carry into the exponent makes the next binade, or infinity.
        let exponent = if kept >> 52 == 0 { 0 } else { (least + 1074) as u64 };
        let bits = kept + (exponent << 52);
        let infinite = 0x7ff << 52;
        let bits = if bits < infinite { bits } else { infinite - u64::from(!away) };
        f64::from_bits(bits | u64::from(self.negative) << 63)
    }

    fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
            more: false,
        }
    }

    /// The sum of numbers of at most 106 bits, or `None` if it is 0.
    fn plus(self, other: Self) -> Option<Self> {
        let (mut x, mut y) = if self.top() >= other.top() { (self, other) } else { (other, self) };
        let room = x.mantissa.leading_zeros() as i32 - 2;
        (x.mantissa, x.exponent) = (x.mantissa << room, x.exponent - room);
        let shift = y.exponent - x.exponent;
        let lost = match shift {
            0.. => {
                y.mantissa <<= shift;
                false
            }
            -127..0 => {
                let lost = y.mantissa & ((1 << -shift) - 1) != 0;
                y.mantissa >>= -shift;
                lost
            }
            _ => {
                y.mantissa = 0;
                true
            }
        };
        x.more = lost;
        if x.negative == y.negative {
            x.mantissa += y.mantissa;
        } else if x.mantissa >= y.mantissa {
            x.mantissa -= y.mantissa + u128::from(lost);
        } else {
            (x.mantissa, x.negative) = (y.mantissa - x.mantissa, y.negative);
        }
        (x.mantissa != 0).then_some(x)
    }
}

fn is_ordinary(x: f64) -> bool {
    x.is_finite() && x != 0.0
}

/// A sum that is exactly 0 of terms that are not both zeros of one sign.
fn zero(mode: u32) -> f64 {
    if mode == RM { -0.0 } else { 0.0 }
}

pub(super) fn sum(a: f64, b: f64, mode: u32) -> f64 {
    match (is_ordinary(a), is_ordinary(b)) {
        (true, true) => number(a).plus(number(b)).map_or(zero(mode), |sum| sum.round(mode)),
        _ if a == 0.0 && b == 0.0 && a.is_sign_negative() != b.is_sign_negative() => zero(mode),
        _ => a + b,
    }
}

pub(super) fn product(a: f64, b: f64, mode: u32) -> f64 {
    if is_ordinary(a) && is_ordinary(b) { number(a).times(number(b)).round(mode) } else { a * b }
}

pub(super) fn fused(a: f64, b: f64, c: f64, mode: u32) -> f64 {
    if !is_ordinary(a) || !is_ordinary(b) {
        // The product is exact.
        return sum(a * b, c, mode);
    }
    if !c.is_finite() {
        return c + 0.0;
    }
    let product = number(a).times(number(b));
    if c == 0.0 {
        return product.round(mode);
    }
    product.plus(number(c)).map_or(zero(mode), |sum| sum.round(mode))
}

pub(super) fn quotient(a: f64, b: f64, mode: u32) -> f64 {
    if !is_ordinary(a) || !is_ordinary(b) {
        return a / b;
    }
    let (x, y) = (number(a), number(b));
    let dividend = x.mantissa << 74;
    Exact {
        negative: x.negative != y.negative,
        mantissa: dividend / y.mantissa,
        exponent: x.exponent - 74 - y.exponent,
        more: dividend % y.mantissa != 0,
    }
    .round(mode)
}

pub(super) fn root(a: f64, mode: u32) -> f64 {
    if !is_ordinary(a) || a < 0.0 {
        return a.sqrt();
    }
    let mut x = number(a);
    // An even exponent, and a root of 63 bits.
    let shift = 72 + (x.exponent & 1);
    (x.mantissa, x.exponent) = (x.mantissa << shift, x.exponent - shift);
    let root = x.mantissa.isqrt();
    Exact { mantissa: root, exponent: x.exponent / 2, more: root * root != x.mantissa, ..x }.round(mode)
}

#[cfg(test)]
mod tests {
    use super::super::round::RZ;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn directions_hold_where_results_overflow_or_vanish() {
        let (most, least) = (f64::MAX, f64::from_bits(1));
        for (mode, up, down) in [(RZ, most, -most), (RM, most, f64::NEG_INFINITY), (RP, f64::INFINITY, -most)] {
            assert_eq!((product(most, 2.0, mode), product(most, -2.0, mode)), (up, down));
            assert_eq!((sum(most, most, mode), quotient(-1.0, least, mode)), (up, down));
            assert_eq!(fused(most, 2.0, -1.0, mode), up);
        }
        assert_eq!((product(least, least, RP), product(least, -least, RP)), (least, -0.0));
        assert_eq!((product(least, -least, RM), product(least, least, RZ)), (-least, 0.0));
        assert!(sum(1.0, -1.0, RM).is_sign_negative() && sum(1.0, -1.0, RP).is_sign_positive());
        assert!(fused(0.0, -1.0, 0.0, RM).is_sign_negative());
        assert_eq!(fused(least, least, 1.0, RP), 1f64.next_up());
        assert_eq!(fused(least, -least, 1.0, RZ), 1f64.next_down());
    }

    proptest! {
        #[test]
        fn the_nearest_result_lies_between_those_of_two_directions(a: u64, b: u64, c: u64, near: u8) {
            let (a, b, c) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
            // Exponents of which the sum matters.
            let c = if near % 2 == 0 { c } else { f64::from_bits((a * b).to_bits() ^ c.to_bits() >> 10) };
            let results = |mode| [sum(a, c, mode), product(a, b, mode), fused(a, b, c, mode), quotient(a, b, mode), root(a, mode)];
            let nearest = [a + c, a * b, a.mul_add(b, c), a / b, a.sqrt()];
            let (down, up, zero) = (results(RM), results(RP), results(RZ));
            for i in 0..5 {
                if nearest[i].is_nan() {
                    prop_assert!(down[i].is_nan() && up[i].is_nan());
                    continue;
                }
                prop_assert!(down[i] <= nearest[i] && nearest[i] <= up[i], "{i}: {} {} {}", down[i], nearest[i], up[i]);
                prop_assert!(down[i] == up[i] || down[i].next_up() == up[i], "{i}: {} {}", down[i], up[i]);
                prop_assert_eq!(zero[i], if nearest[i] < 0.0 || nearest[i] == 0.0 && up[i] <= 0.0 { up[i] } else { down[i] });
            }
        }
    }
}
