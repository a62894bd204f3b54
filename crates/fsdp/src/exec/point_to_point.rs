//! Activations and their cotangents in flight between ranks.

use crate::api::activations::Tensors;
use burn::tensor::{DType, Float, Int, Tensor, TensorData};
use comm::{CommError, Communicator};

/// Sends tensors to rank `to`: the sizes of each, and its elements.
pub(crate) fn send(ranks: &Communicator, x: &Tensors, to: usize) -> Result<(), CommError> {
    for (sizes, flat) in x.flat() {
        let rank = sizes.len();
        let sizes = TensorData::new(sizes.into_iter().map(|size| size as i64).collect(), [rank]);
        ranks.send(Tensor::<1, Int>::from_data(sizes, (ranks.device(), DType::I64)), to)?;
        ranks.send(flat, to)?;
    }
    Ok(())
}

/// Receives the next tensors from rank `from`; `dimensions` are the numbers of dimensions of what it sends.
pub(crate) fn recv(ranks: &Communicator, from: usize, dimensions: &[usize]) -> Result<Tensors, CommError> {
    let mut tensors = Tensors::default();
    for _ in dimensions {
        let sizes = ranks.recv::<Int>(from)?.into_data();
        let sizes: Vec<usize> = sizes.iter::<i64>().map(|size| size as usize).collect();
        tensors.push(&sizes, ranks.recv::<Float>(from)?);
    }
    Ok(tensors)
}
