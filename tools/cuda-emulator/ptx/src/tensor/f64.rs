//! Products of f64, by fused multiply-adds in the order of `k`.

use super::fragment::{place_a, place_b, place_c};
use super::vector::vectorised;
use super::{Type, Words, convert};

/// Entry `register` of lane `lane` of a fragment of 64-bit registers.
#[inline(always)]
fn value(words: &[Words], register: usize, lane: usize) -> f64 {
    f64::from_bits(u64::from(words[2 * register][lane]) | u64::from(words[2 * register + 1][lane]) << 32)
}

vectorised! {
    /// `d = a b + c` of `rows` (8 or 16) rows and 8 columns.
    fn multiply(rows: usize, k: usize, a: &[Words], b: &[Words], c: &[Words], d: &mut [Words]) {
        let (mut left, mut right) = ([[0f64; 16]; 16], [[0f64; 8]; 16]);
        for lane in 0..32 {
            for register in 0..a.len() / 2 {
                let (row, column) = place_a(Type::F64, rows, register, 0, lane);
                left[row][column] = value(a, register, lane);
            }
            for register in 0..b.len() / 2 {
                let (row, column) = place_b(Type::F64, register, 0, lane);
                right[row][column] = value(b, register, lane);
            }
        }
        for lane in 0..32 {
            for register in 0..d.len() / 2 {
                let (row, column) = place_c(Type::F64, register, 0, lane);
                let sum = (0..k).fold(value(c, register, lane), |sum, i| left[row][i].mul_add(right[i][column], sum));
                let bits = convert::to_f64_bits(sum);
                (d[2 * register][lane], d[2 * register + 1][lane]) = (bits as u32, (bits >> 32) as u32);
            }
        }
    }
}
