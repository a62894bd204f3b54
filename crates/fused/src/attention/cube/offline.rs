//! The kernels with typical compile-time values, to compile without a GPU.

use super::rows::{RuleCompilationArg, StridesCompilationArg, Widths};
use super::small::{attention_delta, attention_sum_heads};
use super::{mma, simt};
use crate::cube::offline::{KernelCase, buffer};
use cubecl::prelude::*;
use half::{bf16, f16};

fn strides_of() -> StridesCompilationArg {
    StridesCompilationArg { first: (), sequence: (), head: (), row: () }
}

fn rule() -> RuleCompilationArg {
    RuleCompilationArg {
        heads: (),
        group: (),
        t: (),
        s: (),
        offset: (),
        scale: (),
        key: (),
        first_row: (),
        first_index: (),
        of_query: (),
        of_head: (),
        threshold: (),
        kept: (),
    }
}

/// Widths of GPT-2, and of DeepSeek-V2's latent attention.
const GPT2: Widths = Widths { nope: 64, rope: 0, v: 64 };
const LATENT: Widths = Widths { nope: 128, rope: 64, v: 128 };

/// The case of a body's kernel with these buffers, row locations and compile-time values.
macro_rules! case {
    ($value:expr, for $of:ident) => { $value };
    ($body:ident, $module:ident::$kernel:ident, $type:ident, $name:expr, $dim:expr, [$($buffer:ident)*], [$($rows:ident)*], $($known:expr),*) => {{
        let name = format!("{} {} {}", stringify!($kernel), stringify!($body), $name);
        KernelCase::new(name, move |gpu| $body::$module::$kernel::$type::new(
            gpu.unchecked($dim), gpu.device(), gpu.target(),
            $(case!(buffer(), for $buffer),)* $(case!(strides_of(), for $rows),)* rule(), $($known),*
        ))
    }};
}

/// All kernels of a body.
macro_rules! cases {
    ($body:ident, $name:expr, $dim:expr, $($known:expr),*) => {
        [
            case!($body, forward::attention_forward, AttentionForward, $name, $dim,
                [q k v k_rope cos sin first_keys y l], [q k v k_rope y], $($known),*),
            case!($body, dkv::attention_dkv, AttentionDkv, $name, $dim,
                [q k v k_rope cos sin first_keys d_y l delta d_k d_v d_k_rope], [q k v k_rope y d_k d_v], $($known),*),
            case!($body, dq::attention_dq, AttentionDq, $name, $dim,
                [q k v k_rope cos sin first_keys d_y l delta d_q], [q k v k_rope y d_q], $($known),*),
        ]
    };
}

fn simt_cases(
    name: &str,
    widths: Widths,
    tile: usize,
    [dropout, documents]: [bool; 2],
    vector: usize,
    dtype: ElemType,
) -> [KernelCase; 3] {
    let shape = simt::SimtShape { widths, tile, dropout, documents };
    let dim = CubeDim::new_1d(shape.units() as u32);
    cases!(simt, name, dim, vector, shape, dtype)
}

fn mma_cases(name: &str, widths: Widths, [dropout, documents]: [bool; 2], dtype: ElemType) -> [KernelCase; 3] {
    let shape = mma::MmaShape { widths, dropout, documents };
    let dim = CubeDim::new_1d(mma::UNITS as u32);
    cases!(mma, name, dim, shape, dtype).map(|case| case.instructions(&["HMMA", "LDSM"]))
}

pub(crate) fn cases() -> Vec<KernelCase> {
    let (single, brain, half) = (f32::elem_type_native(), bf16::elem_type_native(), f16::elem_type_native());
    let mut cases = vec![];
    let [none, dropout, documents] = [[false; 2], [true, false], [false, true]];
    cases.extend(simt_cases("64 f32", GPT2, 64, none, 4, single));
    cases.extend(simt_cases("64 f32 documents", GPT2, 64, documents, 4, single));
    cases.extend(simt_cases("64 bf16 dropout", GPT2, 64, dropout, 8, brain));
    cases.extend(simt_cases("latent f32", LATENT, 32, none, 4, single));
    cases.extend(mma_cases("64 bf16", GPT2, none, brain));
    cases.extend(mma_cases("64 f16 dropout", GPT2, dropout, half));
    cases.extend(mma_cases("64 bf16 documents", GPT2, documents, brain));
    cases.extend(mma_cases("latent bf16", LATENT, none, brain));
    cases.extend(mma_cases("latent bf16 documents", LATENT, documents, brain));
    cases.push(KernelCase::new("attention_delta bf16", move |gpu| {
        let (s, d, t) = (gpu.unchecked(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        attention_delta::AttentionDelta::new(s, d, t, buffer(), buffer(), buffer(), (), (), 8, brain)
    }));
    cases.push(KernelCase::new("attention_sum_heads bf16", move |gpu| {
        let (s, d, t) = (gpu.unchecked(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        attention_sum_heads::AttentionSumHeads::new(s, d, t, buffer(), buffer(), buffer(), buffer(), (), (), (), brain)
    }));
    cases
}
