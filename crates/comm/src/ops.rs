//! Collectives that a graph's backward runs through.
//!
//! ```text
//! forward           backward
//! gather            reduce_scatter      rows of all ranks, whose gradients are partial sums, a part on each rank
//! reduce_scatter    gather
//! all_reduce        all_reduce          a sum, of which each rank's gradient is a part
//! ```
//!
//! They run here and now, on the rank's thread, and every rank runs each of them, forward and backward. They return no
//! error, nor do they panic if a rank is lost: what failed is in a [`FirstError`], and the numbers of the graph mean
//! nothing then.

use crate::{CommError, Communicator, FirstError, Reduce};
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

/// `y`, which was made of `x` outside of any graph, as a function of `x`: its gradient is `back` of that of `y`, both
/// flat. `back` runs on the thread of the backward, once if the loss depends on `y` and `x` is tracked, whether `x`
/// itself wants a gradient or not.
pub fn with_gradient<const D: usize, const E: usize>(
    x: Tensor<D>,
    y: Tensor<E>,
    back: impl Fn(Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
) -> Tensor<E> {
    with_gradients([flat(x)], y, move |d_y| [back(d_y)])
}

/// The same of up to four inputs, which are flat.
pub fn with_gradients<const N: usize, const E: usize>(
    inputs: [Tensor<1>; N],
    y: Tensor<E>,
    back: impl Fn(Tensor<1>) -> [Tensor<1>; N] + Send + Sync + 'static,
) -> Tensor<E> {
    const { assert!(0 < N && N <= 4, "one to four inputs") };
    let (shape, y) = (y.dims(), Tensor::from_inner(flat(y)).into_dispatch());
    let none = || Tensor::<1>::empty([0], &inputs[0].device());
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| inputs.get(i).cloned().unwrap_or_else(none).into_dispatch());
    let back = Back(Arc::new(move |d_y| back(d_y).into()));
    Tensor::<1>::from_dispatch(<Dispatch as WithGradient>::comm_with_gradient(a, b, c, d, y, back)).reshape(shape)
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
        d: FloatTensor<Self>,
        y: FloatTensor<Self>,
        back: Back,
    ) -> FloatTensor<Self> {
        let _ = (a, b, c, d, back);
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
        d: FloatTensor<Self>,
        y: FloatTensor<Self>,
        back: Back,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl<B: Backend> Backward<B, 4> for Step
        where
            DispatchTensor: DispatchKindConversion<B>,
        {
            type State = Back;

            fn backward(self, ops: Ops<Self::State, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
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

        match Step.prepare::<C>([a.node(), b.node(), c.node(), d.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(back, y.into_primitive()),
            OpsKind::UnTracked(step) => step.finish(y.into_primitive()),
        }
    }
}

/// What a collective makes of `x`, or zeros where it fails.
pub(crate) fn run(
    first_error: &FirstError,
    x: Tensor<1>,
    len: usize,
    collective: impl FnOnce(Tensor<1>) -> Result<Tensor<1>, CommError>,
) -> Tensor<1> {
    let (device, dtype) = (x.device(), x.dtype());
    first_error.run(|| collective(x), || Tensor::zeros([len], (&device, dtype)))
}

/// What a collective makes of this rank's rows of `b` sequences, in one dimension.
type Move = fn(&Communicator, Tensor<1>, usize) -> Result<Tensor<1>, CommError>;

/// Rows in a graph, `[b, s, d]` to `[b, t, d]`: what `forward` makes of them, and of their gradient `backward`, its
/// transpose; zeros where either fails.
pub(crate) fn move_rows(
    comm: Communicator,
    first_error: FirstError,
    x_bsd: Tensor<3>,
    t: usize,
    forward: Move,
    backward: Move,
) -> Tensor<3> {
    let [b, s, d] = x_bsd.dims();
    let y = run(&first_error, flat(x_bsd.clone().inner()), b * t * d, |x| forward(&comm, x, b));
    let back = move |d_y| run(&first_error, d_y, b * s * d, |d_y| backward(&comm, d_y, b));
    with_gradient(x_bsd, y.reshape([b, t, d]), back)
}

/// The sum over ranks in a graph, on each of them, and of the gradients of it; zeros where either fails.
pub(crate) fn sum<const D: usize>(comm: Communicator, first_error: FirstError, x: Tensor<D>) -> Tensor<D> {
    let (shape, len) = (x.dims(), x.shape().num_elements());
    let of_ranks = move |x| run(&first_error, x, len, |x| comm.all_reduce(x, Reduce::Sum));
    let y = of_ranks(flat(x.clone().inner())).reshape(shape);
    with_gradient(x, y, of_ranks)
}
