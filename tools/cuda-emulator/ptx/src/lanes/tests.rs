//! Functions on lanes against the manual's pseudocode, one bit or one value at a time.

use proptest::prelude::*;

use super::convert::{How, Kind, convert};
use super::int::Int;
use super::round::{RM, RN, RP, RZ};
use super::*;

/// Values in rows: of 32 or of 64 bits a lane.
fn rows(value: u64, wide: bool) -> [Row; 2] {
    let (low, high) = (value as u32, (value >> 32) as u32);
    if wide { [Row(std::array::from_fn(|i| if i % 2 == 0 { low } else { high })); 2] } else { [Row([low; LANES]); 2] }
}

/// The result of a function in the last lane. Each operand says whether it has 64 bits.
fn run((map, imm): (Map, u32), args: &[(u64, bool)], wide: bool) -> u64 {
    let mut all = [[Row::ZERO; 2]; 3];
    for (rows_of, (value, wide)) in all.iter_mut().zip(args) {
        *rows_of = rows(*value, *wide);
    }
    let mut out = [Row::ZERO; 2];
    // SAFETY: two rows each.
    unsafe { map(out.as_mut_ptr(), all[0].as_ptr(), all[1].as_ptr(), all[2].as_ptr(), imm) };
    if wide { u64::from(out[1].0[30]) | u64::from(out[1].0[31]) << 32 } else { out[0].0[31].into() }
}

/// `bfe` as the manual has it.
fn bfe(a: u64, at: u32, len: u32, bits: u32, signed: bool) -> u64 {
    let bit = |i: u32| a >> i & 1;
    let sign = if !signed || len == 0 { 0 } else { bit((at + len - 1).min(bits - 1)) };
    (0..bits).fold(0, |d, i| d | if i < len && at + i < bits { bit(at + i) } else { sign } << i)
}

proptest! {
    #[test]
    fn fields_and_shifts(a: u64, b: u64, at in 0u32..80, len in 0u32..80, signed: bool, wide: bool) {
        let bits = if wide { 64 } else { 32 };
        let args = [(a, wide), (at.into(), false), (len.into(), false)];
        let a_cut = if wide { a } else { a & 0xffff_ffff };
        prop_assert_eq!(run((bits::extract(bits, signed), 0), &args, wide), bfe(a_cut, at, len, bits, signed));
        let pair = u64::from(b as u32) << 32 | u64::from(a as u32);
        let args = [(a, false), (b, false), (at.into(), false)];
        prop_assert_eq!(run((bits::funnel(false, false), 0), &args, false), pair >> at.min(32) & 0xffff_ffff);
        prop_assert_eq!(run((bits::funnel(true, true), 0), &args, false), pair << (at & 31) >> 32);
    }

    #[test]
    fn tables_of_three_operands(a: u32, b: u32, c: u32, table: u8) {
        let naive = (0..32).fold(0u32, |d, i| {
            let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
            d | (u32::from(table) >> index & 1) << i
        });
        let args = [(a.into(), false), (b.into(), false), (c.into(), false)];
        prop_assert_eq!(run((bits::lop3(), table.into()), &args, false), u64::from(naive));
    }

    #[test]
    fn floats_become_integers_within_their_range(x: f32, mode in 0u32..4) {
        let whole = match mode {
            RN => f64::from(x).round_ties_even(),
            RZ => f64::from(x).trunc(),
            RM => f64::from(x).floor(),
            _ => f64::from(x).ceil(),
        };
        let how = How { mode, integral: true, ..How::default() };
        for (to, least, most) in [(Kind::S8, -128, 127), (Kind::Int(Int::S32), i32::MIN.into(), i32::MAX.into()), (Kind::Int(Int::U32), 0, u32::MAX.into())] {
            let expected: i64 = if x.is_nan() { 0 } else { (whole as i64).clamp(least, most) };
            let mask = if to == Kind::S8 { 0xffff } else { 0xffff_ffff };
            prop_assert_eq!(run(convert(to, Kind::F32, how), &[(x.to_bits().into(), false)], false), expected as u64 & mask);
        }
    }

    #[test]
    fn integers_become_the_floats_around_them(a: u64) {
        let to = |mode| {
            let how = How { mode, ..How::default() };
            f32::from_bits(run(convert(Kind::F32, Kind::Int(Int::U64), how), &[(a, true)], false) as u32)
        };
        prop_assert_eq!(to(RN), a as f32);
        prop_assert!(to(RM) as u128 <= u128::from(a) && u128::from(a) <= to(RP) as u128);
        prop_assert!(to(RZ) == to(RM) && (to(RM) == to(RP) || to(RM).next_up() == to(RP)));
    }

    #[test]
    fn both_ways_of_a_conversion_agree(bits: u32) {
        // Saturation and flushing take the general way; they change nothing here.
        let plain = run(convert(Kind::F16, Kind::F32, How::default()), &[(bits.into(), false)], false);
        let general = How { ftz: true, ..How::default() };
        let flushed = if f32::from_bits(bits).is_subnormal() { bits & 0x8000_0000 } else { bits };
        prop_assert_eq!(run(convert(Kind::F16, Kind::F32, general), &[(bits.into(), false)], false), plain, "{:#x}", flushed);
    }
}
