//! Which cards have an instruction: what a module's `.target` names has to be among them.

use super::operands::{Op, Result};
use crate::parse::ast::Operand;

/// Ten times the compute capability's digits, and 1 more where only the card itself will do: `sm_80` is 800, `sm_90a` 901.
pub(super) type Target = u32;
/// What all cards from sm_50 on have.
const ALL: Target = 0;
const SM_52: Target = 520;
const SM_53: Target = 530;
const SM_60: Target = 600;
const SM_61: Target = 610;
pub(super) const SM_70: Target = 700;
const SM_72: Target = 720;
const SM_75: Target = 750;
const SM_80: Target = 800;
const SM_86: Target = 860;
const SM_89: Target = 890;
pub(super) const SM_90: Target = 900;
const SM_90A: Target = 901;
const SM_100: Target = 1000;

/// The target of this name; unknown ones have everything.
pub(super) fn of_name(name: &str) -> Target {
    let digits = name.trim_start_matches("sm_");
    let number: Option<u32> = digits.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    number.map_or(u32::MAX, |number| 10 * number + u32::from(digits.ends_with(|c: char| c.is_ascii_alphabetic())))
}

/// Refuses what the target lacks.
pub(super) fn check(target: Target, needed: Target) -> Result<()> {
    let has = if needed.is_multiple_of(10) { target >= needed } else { target == needed || target == u32::MAX };
    let letter = if needed.is_multiple_of(10) { "" } else { "a" };
    if has { Ok(()) } else { Err(format!("the module's '.target' lacks this: it needs sm_{}{letter}", needed / 10)) }
}

/// The least target that has an instruction. Modules for older cards than the emulated ones run, as on cards.
pub(super) fn needed(op: &Op<'_>, args: &[Operand<'_>]) -> Target {
    let any = |words: &[&str]| words.iter().any(|word| op.has(word));
    let bf16 = any(&["bf16", "bf16x2"]);
    let f16 = any(&["f16", "f16x2"]);
    let halves = any(&["u16x2", "s16x2"]);
    let scope = any(&["cluster", "shared::cluster"]);
    let param = any(&["param", "param::entry"]);
    match op.name {
        "wgmma" | "setmaxnreg" => SM_90A,
        "mapa" | "getctarank" | "elect" | "stmatrix" | "griddepcontrol" => SM_90,
        "cp" => {
            if op.has("bulk") {
                SM_90
            } else {
                SM_80
            }
        }
        "ld" | "st" | "atom" | "red" | "fence" | "barrier" if scope => SM_90,
        "ld" | "st" => memory(op),
        "atom" | "red" => atomic(op),
        "fence" => {
            if op.has("proxy") && !op.has("alias") {
                SM_90
            } else {
                SM_70
            }
        }
        "mbarrier" => {
            let counted = args.len() > 2 && any(&["arrive", "arrive_drop"]) && !op.has("noComplete");
            let newer = any(&["try_wait", "expect_tx", "complete_tx", "relaxed"]);
            if scope || counted || newer { SM_90 } else { SM_80 }
        }
        "add" | "sub" | "mul" | "ex2" | "tanh" | "set" | "setp" if bf16 || halves => SM_90,
        "ex2" if f16 => SM_75,
        "tanh" => SM_75,
        "fma" | "abs" | "neg" if bf16 || op.has("relu") => SM_80,
        "add" | "sub" | "mul" | "fma" | "abs" | "neg" | "set" | "setp" if f16 => SM_53,
        "min" | "max" if args.len() == 4 => SM_100,
        "min" | "max" if halves || op.has("relu") => SM_90,
        "min" | "max" if op.has("xorsign") => SM_86,
        "min" | "max" if f16 || bf16 || op.has("NaN") => SM_80,
        "cvt" => conversion(op),
        "wmma" => wmma(op),
        "ldmatrix" | "movmatrix" => SM_75,
        "redux" | "createpolicy" | "discard" | "applypriority" => SM_80,
        "prefetch" if op.has("tensormap") => SM_90,
        "prefetch" if any(&["L2::evict_last", "L2::evict_normal"]) => SM_80,
        "match" | "nanosleep" | "szext" | "bmsk" => SM_70,
        "lop3" if any(&["and", "or"]) => SM_70,
        "mov" | "ldu" if op.has("b128") => SM_70,
        "cvta" | "isspacep" if op.has("shared::cluster") => SM_90,
        "cvta" | "isspacep" if param => SM_70,
        "dp4a" | "dp2a" => SM_61,
        "alloca" | "stacksave" | "stackrestore" => SM_52,
        _ => ALL,
    }
}

fn memory(op: &Op<'_>) -> Target {
    let any = |words: &[&str]| words.iter().any(|word| op.has(word));
    match () {
        () if op.has("v8") && any(&["b32", "u32", "s32", "f32"]) => SM_100,
        () if op.has("v4") && any(&["b64", "u64", "s64", "f64"]) => SM_100,
        () if op.has("async") => SM_90,
        () if any(&["L2::cache_hint", "L2::256B"]) => SM_80,
        () if any(&["L2::64B", "L2::128B"]) => SM_75,
        () if any(&["weak", "relaxed", "acquire", "release", "b128"])
            || op.words.iter().any(|word| word.starts_with("L1::")) =>
        {
            SM_70
        }
        () => ALL,
    }
}

fn atomic(op: &Op<'_>) -> Target {
    let any = |words: &[&str]| words.iter().any(|word| op.has(word));
    match () {
        () if any(&["async", "bf16", "bf16x2", "v2", "v4", "v8", "b128"]) => SM_90,
        () if op.has("L2::cache_hint") => SM_80,
        () if any(&["relaxed", "acquire", "release", "acq_rel", "f16", "b16"]) => SM_70,
        () if any(&["cta", "gpu", "sys", "f64", "f16x2"]) => SM_60,
        () => ALL,
    }
}

fn wmma(op: &Op<'_>) -> Target {
    let any = |words: &[&str]| words.iter().any(|word| op.has(word));
    match () {
        () if any(&["bf16", "tf32", "f64"]) => SM_80,
        () if any(&["u8", "s8", "s32"]) => SM_72,
        () => SM_70,
    }
}

fn conversion(op: &Op<'_>) -> Target {
    match op.types()[..] {
        ["tf32", _] if !op.has("rna") => {
            if op.has("satfinite") {
                SM_100
            } else {
                SM_90
            }
        }
        [to, from] if [to, from].iter().any(|of| matches!(*of, "e4m3x2" | "e5m2x2")) => SM_89,
        ["bf16" | "bf16x2" | "f16x2" | "tf32", "f32"] | ["f32", "bf16"] => SM_80,
        [to, from] if to == "bf16" || from == "bf16" => SM_90,
        _ if op.has("relu") => SM_80,
        _ if ["u2", "s2", "u4", "s4"].iter().any(|of| op.has(of)) => SM_75,
        _ if op.has("pack") => SM_72,
        _ => ALL,
    }
}
