//! Rows from rank to rank, and their gradients back.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{
    Backend, Dispatch, DispatchKindConversion, DispatchTensor, Flex, backend_extension, tensor::FloatTensor,
};
use burn::tensor::Tensor;
use comm::{CommError, Communicator, FirstError};
use std::fmt;
use std::sync::Arc;

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

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange of {:?} rows for {:?}", self.sent, self.arrived)
    }
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
        // Here and now, on the rank's thread: an operation that a backend runs when it likes must not wait for other ranks.
        let y = self.plain(x.clone().inner())?;
        let (x, y) = (x.into_dispatch(), Tensor::<2>::from_inner(y).into_dispatch());
        Ok(Tensor::from_dispatch(<Dispatch as ExchangeOps>::moe_exchanged(x, y, Arc::new(self.reversed()))))
    }

    fn plain(&self, x: Tensor<2>) -> Result<Tensor<2>, CommError> {
        let [rows, d] = x.dims();
        let counts: Vec<usize> = self.sent.iter().map(|rows| rows * d).collect();
        let (y, _) = self.comm.all_to_all(x.reshape([rows * d]), &counts)?;
        Ok(y.reshape([self.arrived.iter().sum(), d]))
    }
}

/// The operation behind [`Exchange::forward`].
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub trait ExchangeOps: Backend {
    /// `y`, which came of `x` by an exchange, as its function; `back` is the way of the gradient.
    #[fusion(default)]
    fn moe_exchanged(x: FloatTensor<Self>, y: FloatTensor<Self>, back: Arc<Exchange>) -> FloatTensor<Self> {
        let _ = (x, back);
        y
    }
}

impl ExchangeOps for Flex {}

#[cfg(feature = "cubecl")]
impl ExchangeOps for burn_cubecl::CubeBackend {}

impl<B: ExchangeOps, C: CheckpointStrategy> ExchangeOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn moe_exchanged(x: FloatTensor<Self>, y: FloatTensor<Self>, back: Arc<Exchange>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl<B: Backend> Backward<B, 1> for Step
        where
            DispatchTensor: DispatchKindConversion<B>,
        {
            type State = Arc<Exchange>;

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let d_y = Tensor::<2>::from_primitive::<B>(gradients.consume::<B>(&ops.node));
                // The other ranks wait for this one, whether its own input wants a gradient or not.
                let (shape, options) = ([ops.state.arrived.iter().sum(), d_y.dims()[1]], (&d_y.device(), d_y.dtype()));
                let d_x = ops.state.first_error.run(|| ops.state.plain(d_y), || Tensor::zeros(shape, options));
                if let [Some(x)] = &ops.parents {
                    let d_x = d_x.try_into_primitive::<B>().expect("the gradient is on the tensor's backend");
                    gradients.register::<B>(x.id, d_x);
                }
            }
        }

        match Step.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(back, y.into_primitive()),
            OpsKind::UnTracked(step) => step.finish(y.into_primitive()),
        }
    }
}
