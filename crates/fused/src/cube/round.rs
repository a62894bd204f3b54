//! Rounding of f32 to the dtype of a result.

// `#[cube]` generates a module and a struct for each function.
#![allow(missing_docs)]

use cubecl::comptime;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;

/// Rounds `values` to the nearest, ties to even.
///
/// If an x86 CPU has no bf16 instruction, LLVM calls a function that CubeCL's CPU runtime does not find. The CPU
/// runtime therefore rounds the bits by hand.
#[cube]
pub fn rounded<F: Float, N: Size>(values: Vector<f32, N>) -> Vector<F, N> {
    let dtype = elem_type_of::<F>();
    let cores = comptime::hardware_properties().num_cpu_cores;
    if comptime!(dtype == ElemType::Float(FloatKind::BF16) && cores.is_some()) {
        let bits = Vector::<u32, N>::reinterpret(values);
        let odd = (bits >> Vector::new(16u32)) & Vector::new(1u32);
        let kept = (bits + Vector::new(0x7fffu32) + odd) >> Vector::new(16u32);
        Vector::<F, N>::reinterpret(Vector::<u16, N>::cast_from(kept))
    } else {
        Vector::cast_from(values)
    }
}
