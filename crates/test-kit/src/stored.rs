//! Tensors in safetensors files.

use safetensors::{Dtype, SafeTensors};

/// Returns the numbers of a tensor that is stored in f32.
///
/// # Panics
/// If the file has no such tensor, or it is stored in another type.
#[track_caller]
pub fn stored_floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let view = file.tensor(name).expect("a tensor of this name");
    assert_eq!(view.dtype(), Dtype::F32, "{name}");
    view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Returns the numbers of a tensor that is stored in i64, and its shape.
///
/// # Panics
/// If the file has no such tensor, or it is stored in another type.
#[track_caller]
pub fn stored_ints(file: &SafeTensors, name: &str) -> (Vec<i64>, Vec<usize>) {
    let view = file.tensor(name).expect("a tensor of this name");
    assert_eq!(view.dtype(), Dtype::I64, "{name}");
    let values = view.data().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    (values, view.shape().to_vec())
}
