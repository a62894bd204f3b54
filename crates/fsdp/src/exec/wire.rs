//! Activations and their cotangents in flight between ranks.

use burn::tensor::{DType, Int, Tensor, TensorData};
use comm::{CommError, Communicator};

/// Sends `x` to rank `to`.
pub(crate) fn send(wire: &Communicator, x: &Tensor<3>, to: usize) -> Result<(), CommError> {
    let shape = TensorData::new(x.dims().map(|size| size as i64).to_vec(), [3]);
    wire.send(Tensor::<1, Int>::from_data(shape, (wire.device(), DType::I64)), to)?;
    let len = x.shape().num_elements();
    wire.send(x.clone().reshape([len]), to)
}

/// Receives the next tensor from rank `from`.
pub(crate) fn recv(wire: &Communicator, from: usize) -> Result<Tensor<3>, CommError> {
    let shape = wire.recv::<Int>(from)?.into_data();
    let shape: Vec<usize> = shape.iter::<i64>().map(|size| size as usize).collect();
    Ok(wire.recv::<burn::tensor::Float>(from)?.reshape([shape[0], shape[1], shape[2]]))
}
