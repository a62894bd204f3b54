//! Collectives that a graph's backward runs through.
//!
//! ```text
//! forward           backward
//! gather            reduce_scatter      rows of all ranks, whose gradients are partial sums, a part on each rank
//! reduce_scatter    gather
//! ```
//!
//! They run here and now, on the rank's thread, and every rank runs each of them, forward and backward. They return no error, nor do they panic if a rank is
//! lost: what failed is in a [`FirstError`](crate::FirstError), and the numbers of the graph mean nothing then.

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

/// What makes the gradients of the inputs, those that there are, of that of `y`; all flat.
type Formula = dyn Fn(Tensor<1>) -> Vec<Tensor<1>> + Send + Sync;

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
    with_gradients([flat(x)], y, move |d_y| [back(d_y)])
}

/// The same of up to three inputs, which are flat.
pub fn with_gradients<const N: usize, const E: usize>(
    inputs: [Tensor<1>; N],
    y: Tensor<E>,
    back: impl Fn(Tensor<1>) -> [Tensor<1>; N] + Send + Sync + 'static,
) -> Tensor<E> {
    const { assert!(0 < N && N <= 3, "one to three inputs") };
    let (shape, y) = (y.dims(), Tensor::from_inner(flat(y)).into_dispatch());
    let none = || Tensor::<1>::empty([0], &inputs[0].device());
    let [a, b, c] = [0, 1, 2].map(|i| inputs.get(i).cloned().unwrap_or_else(none).into_dispatch());
    let back = Back(Arc::new(move |d_y| back(d_y).into()));
    Tensor::<1>::from_dispatch(<Dispatch as WithGradient>::comm_with_gradient(a, b, c, y, back)).reshape(shape)
}

/// All elements in a row.
pub fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let len = x.shape().num_elements();
    x.reshape([len])
}

/// The operation behind [`with_gradients`].
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub trait WithGradient: Backend {
    /// See [`with_gradients`].
    #[fusion(default)]
    fn comm_with_gradient(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        y: FloatTensor<Self>,
        back: Back,
    ) -> FloatTensor<Self> {
        let _ = (a, b, c, back);
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
    fn comm_with_gradient(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        y: FloatTensor<Self>,
        back: Back,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl<B: Backend> Backward<B, 3> for Step
        where
            DispatchTensor: DispatchKindConversion<B>,
        {
            type State = Back;

            fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let d_y = Tensor::<1>::from_primitive::<B>(gradients.consume::<B>(&ops.node));
                for (input, gradient) in ops.parents.iter().zip((ops.state.0)(d_y)) {
                    if let Some(input) = input {
                        let gradient = gradient.try_into_primitive::<B>();
                        let gradient = gradient.expect("the gradient is on the tensor's backend");
                        gradients.register::<B>(input.id, gradient);
                    }
                }
            }
        }

        match Step.prepare::<C>([a.node(), b.node(), c.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(back, y.into_primitive()),
            OpsKind::UnTracked(step) => step.finish(y.into_primitive()),
        }
    }
}
