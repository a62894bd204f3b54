//! f32 to the dtype of the result.

use cubecl::comptime;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;

/// `value`, rounded to the nearest, halves to even.
///
/// Where an x86 CPU has no instruction for bf16, LLVM calls a function that CubeCL's CPU runtime does not find: there the bits are rounded
/// by hand.
#[cube]
pub(super) fn rounded<F: Float>(value: f32) -> F {
    let dtype = elem_type_of::<F>();
    let cores = comptime::hardware_properties().num_cpu_cores;
    if comptime!(dtype == ElemType::Float(FloatKind::BF16) && cores.is_some()) {
        let bits = u32::reinterpret(value);
        F::reinterpret(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    } else {
        F::cast_from(value)
    }
}
