//! Which lane holds which element, as the manual's figures have it, and tiles out of fragments and back.
//!
//! With `g = lane / 4`, `t = lane % 4`, and `e` elements of a register, all shapes of `mma.sync` with 8 or 16 rows are:
//!
//! ```text
//!             row                      column
//! a           g + 8 (word % 2)         t e + i + 4 e (word / 2)         16 rows
//! a           g                        t e + i + 4 e word               8 rows
//! b           t e + i + 4 e word       g
//! c, d        g + 8 (word / 2)         2 t + word % 2                   f32, s32, f64
//! c, d        g + 8 word               2 t + i                          f16
//! ```
//!
//! The fragment of `wgmma` is that of 16 rows for each warp, and tiles of 8 columns one after another.

use super::product::Sums;
use super::vector::vectorised;
use super::{Type, Words, convert};

/// Row and column of element `i` of register `word` of the left operand, with 8 or 16 rows.
#[inline(always)]
pub(super) fn place_a(of: Type, rows: usize, word: usize, i: usize, lane: usize) -> (usize, usize) {
    let (e, g, t) = (of.packed(), lane / 4, lane % 4);
    if rows == 16 { (g + 8 * (word % 2), t * e + i + 4 * e * (word / 2)) } else { (g, t * e + i + 4 * e * word) }
}

/// Row and column of element `i` of register `word` of the right operand, with 8 columns.
#[inline(always)]
pub(super) fn place_b(of: Type, word: usize, i: usize, lane: usize) -> (usize, usize) {
    let e = of.packed();
    (lane % 4 * e + i + 4 * e * word, lane / 4)
}

/// Row and column of element `i` of register `word` of the accumulator, with 8 columns.
#[inline(always)]
pub(super) fn place_c(of: Type, word: usize, i: usize, lane: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    if of == Type::F16 { (g + 8 * word, 2 * t + i) } else { (g + 8 * (word / 2), 2 * t + word % 2) }
}

/// Registers of `elements` elements, spread over 32 lanes: of 64 bits for f64, else of 32.
pub(super) fn registers(of: Type, elements: usize) -> usize {
    elements / (32 * of.packed())
}

/// 32-bit words of `elements` elements, spread over 32 lanes.
pub(super) fn words(of: Type, elements: usize) -> usize {
    elements * of.bits() / 1024
}

vectorised! {
    /// The left operand by rows of `k`.
    fn gather_a(of: Type, rows: usize, k: usize, words: &[Words], into: &mut [f32]) {
        for (word, values) in words.iter().enumerate() {
            convert::quads(of, values, |g, elements| {
                let (row, column) = place_a(of, rows, word, 0, 4 * g);
                into[row * k + column..][..elements.len()].copy_from_slice(elements);
            });
        }
    }

    /// The right operand by rows of 8.
    fn gather_b(of: Type, words: &[Words], into: &mut [[f32; 8]]) {
        for (word, values) in words.iter().enumerate() {
            let into = &mut into[4 * of.packed() * word..][..4 * of.packed()];
            convert::quads(of, values, |g, elements| {
                into.iter_mut().zip(elements).for_each(|(row, value)| row[g] = *value);
            });
        }
    }

    /// `d = sums + c`, and the sums alone where there is no `c`. `c` and `d` have the words of a tile of the sums' first rows.
    fn finish(c: Option<(Type, &[Words])>, saturate: bool, sums: &Sums, of_d: Type, d: &mut [Words]) {
        // The two elements of a lane in eight rows are side by side.
        let pairs = sums.as_flattened().as_chunks::<64>().0;
        match of_d {
            Type::S32 => {
                for (word, into) in d.iter_mut().enumerate() {
                    let before = c.map_or([0; 32], |(_, c)| c[word]);
                    for (lane, into) in into.iter_mut().enumerate() {
                        // Below 2^24, so the conversion is exact.
                        let (sum, c) = (pairs[word / 2][2 * lane + word % 2] as i32, before[lane] as i32);
                        *into = if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) } as u32;
                    }
                }
            }
            Type::F16 => {
                for (rows, (into, pairs)) in d.iter_mut().zip(pairs).enumerate() {
                    let (mut halves, before) = ([0u16; 64], before(c, rows));
                    for ((half, sum), before) in halves.iter_mut().zip(pairs).zip(&before) {
                        *half = convert::to_f16_bits(sum + before);
                    }
                    for (into, [low, high]) in into.iter_mut().zip(halves.as_chunks().0) {
                        *into = u32::from(*low) | u32::from(*high) << 16;
                    }
                }
            }
            _ => {
                for (rows, (into, pairs)) in d.as_chunks_mut::<2>().0.iter_mut().zip(pairs).enumerate() {
                    let before = before(c, rows);
                    for (i, into) in into.iter_mut().enumerate() {
                        for (lane, into) in into.iter_mut().enumerate() {
                            *into = convert::to_f32_bits(pairs[2 * lane + i] + before[2 * lane + i]);
                        }
                    }
                }
            }
        }
    }
}

/// Both elements of each lane of `c`, in the first or second eight rows.
#[inline(always)]
fn before(c: Option<(Type, &[Words])>, rows: usize) -> [f32; 64] {
    let mut pairs = [0f32; 64];
    match c {
        None => {}
        Some((Type::F16, c)) => {
            convert::quads(Type::F16, &c[rows], |g, eight| pairs[8 * g..][..8].copy_from_slice(eight));
        }
        Some((_, c)) => {
            for (lane, pair) in pairs.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *pair = [0, 1].map(|i| f32::from_bits(c[2 * rows + i][lane]));
            }
        }
    }
    pairs
}
