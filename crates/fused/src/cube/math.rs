//! Arithmetic that several kernels share.

// `#[cube]` generates a module and a struct for each function.
#![allow(missing_docs)]

use cubecl::prelude::*;

/// `1 / (1 + e^-x)`
#[cube]
pub fn sigmoid<V: Size>(x: Vector<f32, V>) -> Vector<f32, V> {
    let one = Vector::<f32, V>::new(1.0f32);
    one / (one + (-x).exp())
}
