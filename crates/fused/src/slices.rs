//! Conversion of `flex` tensors to slices and back, for operations in plain Rust.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Element, Shape, TensorData};
use bytemuck::Pod;

/// Evaluates `$body` with `$T` as the Rust type of a float dtype.
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            ::burn::tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            ::burn::tensor::DType::BF16 => {
                type $T = ::half::bf16;
                $body
            }
            ::burn::tensor::DType::F16 => {
                type $T = ::half::f16;
                $body
            }
            other => panic!("the operations take f32, bf16 and f16, not {other:?}"),
        }
    };
}

/// Returns a contiguous tensor. Flex's own `to_contiguous` would also copy a contiguous part of a larger buffer, such
/// as the parameters of a sharded unit.
pub fn contiguous(tensor: &FloatTensor<Flex>) -> FloatTensor<Flex> {
    if tensor.is_contiguous() { tensor.clone() } else { tensor.to_contiguous() }
}

/// Returns all elements of a tensor.
///
/// # Panics
/// If the tensor is not contiguous or has another dtype.
pub fn slice<T: Element + Pod>(contiguous: &FloatTensor<Flex>) -> &[T] {
    contiguous.as_slice().expect("slice: the tensor is contiguous, and of the type that is asked for")
}

/// Returns the values of a tensor of i32 or i64.
pub(crate) fn indices(tensor: &IntTensor<Flex>) -> Vec<usize> {
    let tensor = contiguous(tensor);
    match tensor.dtype() {
        DType::I64 => slice::<i64>(&tensor).iter().map(|index| *index as usize).collect(),
        DType::I32 => slice::<i32>(&tensor).iter().map(|index| *index as usize).collect(),
        other => panic!("indices are i64 or i32, not {other:?}"),
    }
}

/// Makes a tensor of these elements, without a copy.
///
/// # Panics
/// If the number of elements is not that of the shape.
pub fn float<T: Element>(values: Vec<T>, shape: impl Into<Shape>) -> FloatTensor<Flex> {
    let (len, shape) = (values.len(), shape.into());
    assert!(len == shape.num_elements(), "float: {len} values, expected those of {shape:?}");
    Flex::float_from_data(TensorData::new(values, shape), &Default::default())
}
