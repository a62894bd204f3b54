//! Arithmetic that several kernels have.

use cubecl::prelude::*;

/// `1 / (1 + e^-x)`
#[cube]
pub fn sigmoid<V: Size>(x: Vector<f32, V>) -> Vector<f32, V> {
    let one = Vector::<f32, V>::new(1.0f32);
    one / (one + (-x).exp())
}
