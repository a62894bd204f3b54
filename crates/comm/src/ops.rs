//! Collectives that a graph's backward runs through.
//!
//! ```text
//! forward           backward
//! gather            reduce_scatter      rows of all ranks, whose gradients are partial sums, a part on each rank
//! reduce_scatter    gather
//! ```
//!
//! They run here and now, on the rank's thread, and every rank runs each of them, forward and backward. They return no error, nor do they panic if a rank is
//! lost: what failed is in a [`FirstError`], and the numbers of the graph mean nothing then.

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
use std::fmt;
use std::sync::Arc;

/// What makes the gradient of `x` of that of `y`; both flat.
type Formula = dyn Fn(Tensor<1>) -> Tensor<1> + Send + Sync;

/// A gradient that is computed outside of Burn's operations.
#[derive(Clone)]
pub struct Back(Arc<Formula>);

impl fmt::Debug for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Back")
    }
}

/// `y`, which was made of `x` outside of any graph, as a function of `x`: its gradient is `back` of that of `y`, both flat. `back` runs on the thread of the backward,
/// once if the loss depends on `y` and `x` is tracked, whether `x` itself wants a gradient or not.
pub fn with_gradient<const D: usize, const E: usize>(
    x: Tensor<D>,
    y: Tensor<E>,
    back: impl Fn(Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
) -> Tensor<E> {
    let (shape, [from, to]) = (y.dims(), [x.shape().num_elements(), y.shape().num_elements()]);
    let (x, y) = (x.reshape([from]).into_dispatch(), Tensor::from_inner(y.reshape([to])).into_dispatch());
    let y = <Dispatch as WithGradient>::comm_with_gradient(x, y, Back(Arc::new(back)));
    Tensor::<1>::from_dispatch(y).reshape(shape)
}

/// The operation behind [`with_gradient`].
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub trait WithGradient: Backend {
    /// See [`with_gradient`].
    #[fusion(default)]
    fn comm_with_gradient(x: FloatTensor<Self>, y: FloatTensor<Self>, back: Back) -> FloatTensor<Self> {
        let _ = (x, back);
        y
    }
}

impl WithGradient for Flex {}

#[cfg(feature = "cubecl")]
impl WithGradient for burn_cubecl::CubeBackend {}

impl<B: WithGradient, C: CheckpointStrategy> WithGradient for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn comm_with_gradient(x: FloatTensor<Self>, y: FloatTensor<Self>, back: Back) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl<B: Backend> Backward<B, 1> for Step
        where
            DispatchTensor: DispatchKindConversion<B>,
        {
            type State = Back;

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let d_y = Tensor::<1>::from_primitive::<B>(gradients.consume::<B>(&ops.node));
                let d_x = (ops.state.0)(d_y);
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
