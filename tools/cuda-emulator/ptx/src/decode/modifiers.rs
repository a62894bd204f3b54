//! Which words each opcode may have. A word that is not listed might change what the instruction does, so it is refused.

use super::function::{Op, Result};

const SPACES: &str = "global const shared shared::cta shared::cluster local param param::entry param::func";
const ORDER: &str = "weak relaxed acquire release acq_rel sc volatile mmio cta cluster gpu sys";
const CACHE: &str = "ca cg cs lu cv wb wt nc unified v2 v4 v8";
const FLOAT: &str = "rn rz rm rp ftz sat";
const COMPARE: &str = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz";
const BULK: &str = "async reduce bulk ca cg commit_group wait_group wait_all mbarrier arrive noinc prefetch read L2 \
                    bulk_group mbarrier::complete_tx::bytes multicast::cluster";
const MBARRIER: &str = "init inval arrive arrive_drop test_wait try_wait expect_tx complete_tx pending_count \
                        noComplete parity";
const ATOMIC: &str = "add min max and or xor inc dec exch cas noftz v2 v4 v8";

/// The words of an opcode besides types, in several lists; `None` if they are looked at where it is decoded.
fn known(name: &str, words: &[&str]) -> Option<[&'static str; 3]> {
    Some(match name {
        "mov" | "selp" | "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "bfe" | "bfi" | "popc" | "clz"
        | "brev" | "fns" | "dp4a" | "rem" | "sad" | "copysign" | "activemask" => ["", "", ""],
        "setp" | "set" => [COMPARE, "", ""],
        "slct" | "abs" | "neg" => ["ftz", "", ""],
        "shf" => ["l r wrap clamp", "", ""],
        "lop3" => ["and or", "", ""],
        "prmt" => ["f4e b4e rc8 ecl ecr rc16", "", ""],
        "bfind" => ["shiftamt", "", ""],
        "szext" | "bmsk" => ["wrap clamp", "", ""],
        "dp2a" | "mul24" => ["lo hi", "", ""],
        "mad24" => ["lo hi sat", "", ""],
        "add" | "sub" => [FLOAT, "cc", ""],
        "mul" | "mad" => [FLOAT, "cc lo hi wide", ""],
        "fma" => [FLOAT, "relu", ""],
        "addc" | "subc" | "madc" => ["cc lo hi", "", ""],
        "div" => [FLOAT, "full approx", ""],
        "min" | "max" => ["ftz NaN xorsign abs relu", "", ""],
        "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => [FLOAT, "approx", ""],
        "testp" => ["finite infinite number notanumber normal subnormal", "", ""],
        "cvt" => [FLOAT, "rna rni rzi rmi rpi satfinite relu", "pack u2 s2 u4 s4"],
        "st" | "red" if words.contains(&"async") => [
            "async weak relaxed cluster shared::cluster mbarrier::complete_tx::bytes",
            "v2 v4",
            "add min max and or xor inc dec",
        ],
        "ld" | "ldu" | "st" => [SPACES, ORDER, CACHE],
        "atom" | "red" => [SPACES, ORDER, ATOMIC],
        "cvta" | "isspacep" => [SPACES, "to", ""],
        "bra" | "call" | "ret" | "exit" | "trap" => ["uni", "", ""],
        "brx" => ["idx uni", "", ""],
        "cp" if !words.contains(&"tensor") => [SPACES, BULK, "add min max and or xor inc dec noftz"],
        "mbarrier" => [SPACES, ORDER, MBARRIER],
        "shfl" => ["sync up down bfly idx", "", ""],
        "vote" => ["sync all any uni ballot", "", ""],
        "match" | "redux" | "elect" => ["sync any all add min max and or xor", "", ""],
        "bar" | "barrier" => ["sync arrive red popc and or warp wait aligned", ORDER, ""],
        _ => return None,
    })
}

/// Refuses words that are not known.
pub(super) fn check(op: &Op<'_>) -> Result<()> {
    let Some(lists) = known(op.name, &op.words) else { return Ok(()) };
    let is_known = |word: &str| {
        crate::parse::type_bits(word).is_some()
            || word.starts_with("L1::")
            || word.starts_with("L2::")
            || lists.iter().any(|list| list.split(' ').any(|known| known == word))
    };
    match op.words.iter().find(|word| !is_known(word)) {
        Some(word) => Err(format!("'.{word}' is not emulated here")),
        None => Ok(()),
    }
}
