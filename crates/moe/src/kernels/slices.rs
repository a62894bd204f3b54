//! Shapes and indices of `flex` tensors.

use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Shape, TensorData};

pub(super) fn dims<const D: usize>(tensor: &FloatTensor<Flex>) -> [usize; D] {
    tensor.shape().dims()
}

/// Makes a tensor of i32.
pub(super) fn int<const D: usize>(values: Vec<i32>, shape: [usize; D]) -> IntTensor<Flex> {
    Flex::int_from_data(TensorData::new(values, Shape::from(shape)), &Default::default())
}
