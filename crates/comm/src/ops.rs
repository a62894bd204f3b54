//! Collectives through which a graph's backward runs.
//!
//! ```text
//! forward           backward
//! gather            reduce_scatter      rows of all ranks; each rank's gradients of them are partial sums
//! reduce_scatter    gather
//! all_reduce        all_reduce          a sum; each rank's gradient of it is a partial sum
//! ```
//!
//! They run immediately on the rank's thread. Every rank runs each of them, forward and backward. They return no error
//! and do not panic if a rank is lost: the failure is kept in a [`FirstError`], and the graph's numbers are meaningless
//! from then on.

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
use burn::tensor::{Int, Tensor, TensorData};
use std::fmt;
use std::sync::Arc;

/// Computes the gradients of the inputs from the gradient of `y`; all are flat.
type Formula = dyn Fn(Tensor<1>) -> Vec<Tensor<1>> + Send + Sync;

/// A gradient that is computed outside Burn's operations.
#[derive(Clone)]
pub struct Back(Arc<Formula>);

impl fmt::Debug for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Back")
    }
}

/// Makes `y`, computed from `x` outside any graph, a function of `x`: `back` maps the gradient of `y` to that of `x`,
/// both flat. `back` runs on the thread of the backward, once if the loss depends on `y` and `x` is tracked, even if
/// `x` itself needs no gradient.
pub fn with_gradient<const D: usize, const E: usize>(
    x: Tensor<D>,
    y: Tensor<E>,
    back: impl Fn(Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
) -> Tensor<E> {
    with_gradients([flat(x)], y, move |d_y| [back(d_y)])
}

/// Does the same as [`with_gradient`] for one to four flat inputs.
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

/// Reshapes a tensor to one dimension.
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
        struct CollectiveNode;

        impl<B: Backend> Backward<B, 4> for CollectiveNode
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

        match CollectiveNode.prepare::<C>([a.node(), b.node(), c.node(), d.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(back, y.into_primitive()),
            OpsKind::UnTracked(step) => step.finish(y.into_primitive()),
        }
    }
}

/// Returns the result of a collective on `x`, or zeros if it fails.
pub(crate) fn run(
    first_error: &FirstError,
    x: Tensor<1>,
    len: usize,
    collective: impl FnOnce(Tensor<1>) -> Result<Tensor<1>, CommError>,
) -> Tensor<1> {
    let (device, dtype) = (x.device(), x.dtype());
    first_error.run(|| collective(x), || Tensor::zeros([len], (&device, dtype)))
}

/// A collective that maps this rank's rows of `b` sequences to other rows, all flat.
type Move = fn(&Communicator, Tensor<1>, usize) -> Result<Tensor<1>, CommError>;

/// Moves rows in a graph: `forward` maps `[b, s, d]` to `[b, t, d]`, and its transpose `backward` maps the gradients.
/// Either gives zeros if it fails.
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

/// Reorders the rows of a flat tensor, which have equal lengths: row `order[i]` becomes row `i`. A permutation of
/// dimensions does the same, but Flex copies some permuted tensors element by element.
pub(crate) fn reorder(x: Tensor<1>, order: impl Iterator<Item = usize>) -> Tensor<1> {
    let order: Vec<i32> = order.map(|row| row as i32).collect();
    let (len, rows) = (x.dims()[0], order.len());
    let order = Tensor::<1, Int>::from_data(TensorData::new(order, [rows]), &x.device());
    x.reshape([rows, len / rows]).select(0, order).reshape([len])
}

/// Sums a tensor, and its gradients in the backward, over the ranks, on each of them. Either sum is zeros if it fails.
pub(crate) fn sum<const D: usize>(comm: Communicator, first_error: FirstError, x: Tensor<D>) -> Tensor<D> {
    let (shape, len) = (x.dims(), x.shape().num_elements());
    let of_ranks = move |x| run(&first_error, x, len, |x| comm.all_reduce(x, Reduce::Sum));
    let y = of_ranks(flat(x.clone().inner())).reshape(shape);
    with_gradient(x, y, of_ranks)
}
