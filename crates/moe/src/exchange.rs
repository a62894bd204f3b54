//! Rows from rank to rank, and their gradients back.

use burn::tensor::Tensor;
use comm::ops::with_gradient;
use comm::{CommError, Communicator, FirstError};

/// One `all_to_all` of rows.
#[derive(Clone)]
pub(crate) struct Exchange {
    comm: Communicator,
    /// Of its backward.
    first_error: FirstError,
    /// Rows that this rank gives to each rank, and gets of each.
    sent: Vec<usize>,
    arrived: Vec<usize>,
}

impl Exchange {
    pub fn new(comm: Communicator, first_error: FirstError, sent: Vec<usize>, arrived: Vec<usize>) -> Self {
        Self { comm, first_error, sent, arrived }
    }

    /// The way back.
    pub fn reversed(&self) -> Self {
        Self { sent: self.arrived.clone(), arrived: self.sent.clone(), ..self.clone() }
    }

    /// `[sum of sent, d]` to `[sum of arrived, d]`; the gradient goes the way back.
    pub fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>, CommError> {
        let (d, back) = (x.dims()[1], self.reversed());
        let y = self.plain(x.clone().inner())?;
        Ok(with_gradient(x, y, move |d_y| {
            let (rows, options) = (back.sent.iter().sum(), (&d_y.device(), d_y.dtype()));
            let none = || Tensor::zeros([back.arrived.iter().sum::<usize>() * d], options);
            back.first_error.run(|| back.plain(d_y.reshape([rows, d])).map(|d_x| d_x.flatten(0, 1)), none)
        }))
    }

    fn plain(&self, x: Tensor<2>) -> Result<Tensor<2>, CommError> {
        let [rows, d] = x.dims();
        let counts: Vec<usize> = self.sent.iter().map(|rows| rows * d).collect();
        let (y, _) = self.comm.all_to_all(x.reshape([rows * d]), &counts)?;
        Ok(y.reshape([self.arrived.iter().sum(), d]))
    }
}
