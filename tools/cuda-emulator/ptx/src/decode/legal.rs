//! Which types and words go together, as the manual's syntax has them. Assemblers refuse all else, so it is refused here, too.

use super::function::{Op, Result};
use crate::lanes::convert::Kind;

const INTS: &str = "u16 s16 u32 s32 u64 s64";
const WIDE: &str = "u32 s32 u64 s64";
const BITS: &str = "b16 b32 b64";
const ROUND: &str = "rn rz rm rp";
const FLOAT: &str = "rn rz rm rp ftz sat";
const EXTREMES: &str = "ftz NaN xorsign abs";
const SIGNED: &str = "eq ne lt le gt ge and or xor";
const UNSIGNED: &str = "eq ne lt le gt ge lo ls hi hs and or xor";
const ORDERED: &str = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan and or xor";
const ORDERED_FTZ: &str = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan and or xor ftz";

/// Opcodes, types, and the words that these may have. An opcode that is not listed is looked at elsewhere.
const ROWS: &[(&str, &str, &str)] = &[
    ("add sub div rem sad min max", INTS, ""),
    ("add sub addc subc", WIDE, "cc"),
    ("add sub", "s32", "sat"),
    ("add sub min max", "u16x2 s16x2", ""),
    ("min max", "s32 s16x2", "relu"),
    ("mul mad", "u16 s16 u32 s32", "lo hi wide"),
    ("mul mad", "u64 s64", "lo hi"),
    ("mad madc", WIDE, "lo hi cc"),
    ("mad", "s32", "hi sat"),
    ("mul24 mad24", "u32 s32", "lo hi"),
    ("mad24", "s32", "hi sat"),
    ("abs neg", "s16 s32 s64 f64 bf16 bf16x2", ""),
    ("abs neg", "f32 f16 f16x2", "ftz"),
    ("add sub mul mad fma", "f32", FLOAT),
    ("add sub mul mad fma", "f64", ROUND),
    ("add sub mul fma", "f16 f16x2", "rn ftz sat"),
    ("add sub mul fma", "bf16 bf16x2", "rn"),
    ("fma", "f16 f16x2", "rn ftz relu"),
    ("fma", "bf16 bf16x2", "rn relu"),
    ("div", "f32", "approx full rn rz rm rp ftz"),
    ("div rcp sqrt", "f64", ROUND),
    ("rcp sqrt", "f32", "approx rn rz rm rp ftz"),
    ("rcp", "f64", "approx ftz"),
    ("rsqrt", "f32 f64", "approx ftz"),
    ("ex2 lg2 sin cos", "f32", "approx ftz"),
    ("ex2", "bf16 bf16x2", "approx ftz"),
    ("ex2 tanh", "f16 f16x2", "approx"),
    ("tanh", "f32 bf16 bf16x2", "approx"),
    ("min max", "f32 f16 f16x2", EXTREMES),
    ("min max", "bf16 bf16x2", "NaN xorsign abs"),
    ("min max", "f64", ""),
    ("copysign testp", "f32 f64", "finite infinite number notanumber normal subnormal"),
    ("and or xor not", "pred", ""),
    ("and or xor not cnot shl shr", BITS, ""),
    ("shr", INTS, ""),
    ("popc clz brev bfi", "b32 b64", ""),
    ("bfind", WIDE, "shiftamt"),
    ("bfe", WIDE, ""),
    ("selp", "b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64", ""),
    ("setp", "s16 s32 s64", SIGNED),
    ("setp", "u16 u32 u64", UNSIGNED),
    ("setp", BITS, "eq ne and or xor"),
    ("setp", "f32 f16 f16x2", ORDERED_FTZ),
    ("setp", "f64 bf16 bf16x2", ORDERED),
    ("szext", "u32 s32", "wrap clamp"),
    ("bmsk", "b32", "wrap clamp"),
    ("shf", "b32", "l r wrap clamp"),
];

fn lists(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

/// Refuses types and words that do not go together.
pub(super) fn check(op: &Op<'_>) -> Result<()> {
    let is_type = |word: &&&str| crate::parse::type_bits(word).is_some();
    let goes = |types: &str, words: &str| {
        let (mut of, others): (Vec<&&str>, Vec<&&str>) = op.words.iter().partition(is_type);
        of.dedup();
        matches!(of[..], [of] if lists(types, of)) && others.iter().all(|word| lists(words, word))
    };
    let mut rows = ROWS.iter().filter(|row| lists(row.0, op.name)).peekable();
    if rows.peek().is_some() && !rows.any(|row| goes(row.1, row.2)) {
        return Err("these types and modifiers do not go together".to_owned());
    }
    if op.name == "cvt" { conversion(op) } else { Ok(()) }
}

/// Rounding is asked for where digits are lost, and nowhere else.
fn conversion(op: &Op<'_>) -> Result<()> {
    let [to_name, from_name] = op.types()[..] else { return Ok(()) };
    let (Some(to), Some(from)) = (Kind::parse(to_name), Kind::parse(from_name)) else { return Ok(()) };
    let any = |words: &str| words.split(' ').any(|word| op.has(word));
    let (integral, fractional) = (any("rni rzi rmi rpi"), any("rn rz rm rp rna"));
    let small = to == Kind::Bf16 || from == Kind::Bf16;
    let rounds = match (to.is_float(), from.is_float()) {
        (false, false) => !integral && !fractional,
        (false, true) => integral && !fractional,
        (true, false) => fractional && !integral,
        (true, true) if to == from => !fractional,
        (true, true) if to.bits() < from.bits() => fractional && !integral,
        // To a wider type nothing is lost; bf16 lets one ask all the same.
        (true, true) => !integral && (small || !fractional),
    };
    if !rounds {
        return Err("this conversion is rounded otherwise".to_owned());
    }
    let signs = from.signed() && !to.signed();
    let fits =
        !to.is_float() && !from.is_float() && from.bits() + u32::from(!from.signed() && to.signed()) <= to.bits();
    if op.has("sat") && (small || fits && !signs) || op.has("ftz") && to != Kind::F32 && from != Kind::F32 {
        return Err("'.sat' and '.ftz' have no meaning here".to_owned());
    }
    if op.has("relu") && (from != Kind::F32 || !matches!(to, Kind::F16 | Kind::Bf16)) {
        return Err("'.relu' is for f16 and bf16 from f32".to_owned());
    }
    Ok(())
}
