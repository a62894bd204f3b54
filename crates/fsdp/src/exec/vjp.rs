//! Starts a backward from a given cotangent instead of a loss.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension, tensor::FloatTensor};
use burn::tensor::{DType, Tensor};

/// Returns a zero, `[1]` in fp32, whose backward gives `y` the gradient `cotangent`: the start of a vector-Jacobian
/// product.
///
/// Burn's backward starts at a loss and accepts no gradient. `(y * cotangent).sum()` would work at the cost of two
/// passes over both tensors; this costs nothing. The result can be added to another loss of the same graph. On backends
/// other than `flex` it is that sum.
///
/// # Panics
/// Panics in the backward if the shapes differ.
pub fn vjp_seed<const D: usize>(y: Tensor<D>, cotangent: Tensor<D>) -> Tensor<1> {
    if cotangent.clone().inner().try_into_primitive::<Flex>().is_err() {
        return (y * cotangent.autodiff()).sum().cast(DType::F32);
    }
    let cotangent = cotangent.autodiff().into_dispatch();
    Tensor::from_dispatch(<Dispatch as SeedOps>::vjp_seed(y.into_dispatch(), cotangent))
}

/// The operation behind [`vjp_seed`].
#[backend_extension(Flex, Autodiff)]
pub trait SeedOps: Backend {
    /// See [`vjp_seed`].
    fn vjp_seed(y: FloatTensor<Self>, cotangent: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl SeedOps for Flex {
    fn vjp_seed(y: FloatTensor<Self>, _cotangent: FloatTensor<Self>) -> FloatTensor<Self> {
        zero::<Self>(&y)
    }
}

impl<B: SeedOps, C: CheckpointStrategy> SeedOps for Autodiff<B, C> {
    fn vjp_seed(y: FloatTensor<Self>, cotangent: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Seed;

        impl<B: Backend> Backward<B, 1> for Seed {
            type State = FloatTensor<B>;

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                gradients.consume::<B>(&ops.node);
                if let [Some(y)] = &ops.parents {
                    gradients.register::<B>(y.id, ops.state);
                }
            }
        }

        let zero = zero::<B>(y.primitive());
        match Seed.prepare::<C>([y.node()]).compute_bound().stateful() {
            OpsKind::Tracked(seed) => seed.finish(cotangent.into_primitive(), zero),
            OpsKind::UnTracked(seed) => seed.finish(zero),
        }
    }
}

fn zero<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros([1].into(), &like.device(), DType::F32.into())
}
