//! Tensors from numbers, and numbers from tensors.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Makes a tensor of these numbers, rounded to a dtype.
///
/// # Panics
/// If the shape has another number of elements.
pub fn float<const D: usize>(values: &[f32], shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), (device, dtype))
}

/// Makes a tensor of these indices, in i32.
///
/// # Panics
/// If the shape has another number of elements.
pub fn int<const D: usize>(values: &[i32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (device, DType::I32))
}

/// Makes a tensor of [`random`](crate::random) numbers, in f32.
pub fn random_tensor<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values = crate::random(seed, shape.iter().product());
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    float(&values, shape, DType::F32, device)
}

/// Makes a leaf of half the [`eighths`](crate::eighths), which requires a gradient.
pub fn leaf<const D: usize>(seed: usize, shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    let values = crate::eighths(seed, shape.iter().product());
    let values: Vec<f32> = values.into_iter().map(|value| value / 2.0).collect();
    float(&values, shape, dtype, device).autodiff().require_grad()
}

/// Reads the numbers of a tensor of any dtype.
pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Reads the indices of a tensor.
pub fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i32> {
    tensor.into_data().iter::<i32>().collect()
}
