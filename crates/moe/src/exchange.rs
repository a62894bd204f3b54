//! Exchange of rows between ranks, and of their gradients on the way back.

use burn::tensor::Tensor;
use comm::ops::with_gradient;
use comm::{CommError, Communicator, FirstError};

/// One `all_to_all` of rows.
#[derive(Clone)]
pub(crate) struct Exchange {
    comm: Communicator,
    /// Takes the first error of the backward.
    first_error: FirstError,
    /// Numbers of rows that this rank sends to each rank, and receives from each.
    sent: Vec<usize>,
    arrived: Vec<usize>,
    /// Numbers of rows of the tensors before and after. The exchanged rows come first; the others are not sent, and are
    /// 0 afterwards.
    lengths: [usize; 2],
}

impl Exchange {
    /// An exchange of the first rows of `rows`.
    pub fn new(
        comm: Communicator,
        first_error: FirstError,
        rows: usize,
        sent: Vec<usize>,
        arrived: Vec<usize>,
    ) -> Self {
        let lengths = [rows, arrived.iter().sum()];
        Self { comm, first_error, sent, arrived, lengths }
    }

    /// The exchange in the opposite direction.
    pub fn reversed(&self) -> Self {
        let (sent, arrived, [from, to]) = (self.arrived.clone(), self.sent.clone(), self.lengths);
        Self { sent, arrived, lengths: [to, from], ..self.clone() }
    }

    /// Exchanges rows; the gradient takes the opposite direction.
    ///
    /// It is one step of the graph for any number of rows, so all ranks have the same graph and their backwards
    /// communicate in the same order.
    pub fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>, CommError> {
        let (d, back) = (x.dims()[1], self.reversed());
        let y = self.plain(x.clone().inner())?;
        Ok(with_gradient(x, y, move |d_y| {
            let [from, to] = back.lengths.map(|rows| rows * d);
            let options = (&d_y.device(), d_y.dtype());
            let exchange = || back.plain(d_y.reshape([from / d, d])).map(|d_x| d_x.reshape([to]));
            back.first_error.run(exchange, || Tensor::zeros([to], options))
        }))
    }

    fn plain(&self, x: Tensor<2>) -> Result<Tensor<2>, CommError> {
        let ([rows, d], [_, length]) = (x.dims(), self.lengths);
        let counts: Vec<usize> = self.sent.iter().map(|rows| rows * d).collect();
        let (sent, arrived) = (counts.iter().sum(), self.arrived.iter().sum::<usize>());
        let (device, dtype) = (x.device(), x.dtype());
        let mut x = x.reshape([rows * d]);
        if sent < rows * d {
            x = x.slice(0..sent);
        }
        let (mut y, _) = self.comm.all_to_all(x, &counts)?;
        if arrived < length {
            y = Tensor::cat(vec![y, Tensor::zeros([(length - arrived) * d], (&device, dtype))], 0);
        }
        Ok(y.reshape([length, d]))
    }
}
