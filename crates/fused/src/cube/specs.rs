//! Shapes and dtypes of outputs, which fusion needs before it runs anything.

use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::{DType, Shape};

/// The spec of a tensor of this shape and dtype.
pub fn spec(shape: impl Into<Shape>, dtype: DType) -> TensorSpec {
    TensorSpec::new(shape.into(), dtype)
}

/// The spec of an f32 tensor.
pub fn statistic(shape: impl Into<Shape>) -> TensorSpec {
    spec(shape, DType::F32)
}
