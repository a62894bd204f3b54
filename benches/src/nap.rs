//! Computation that takes time but no core, so that a machine of two cores shows the bubbles of a pipeline on many
//! devices.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Dispatch, Flex, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;
use fused::deferred;
use std::thread::sleep;
use std::time::Duration;

/// Returns `x` after a sleep. Its backward sleeps as well: for the input's gradient, and for the weights' gradients,
/// which may be deferred. Runs on the CPU.
pub fn nap(x: Tensor<3>, forward: Duration, backward: [Duration; 2]) -> Tensor<3> {
    sleep(forward);
    Tensor::from_dispatch(<Dispatch as NapOps>::nap(x.into_dispatch(), backward))
}

/// The operation behind [`nap`].
#[backend_extension(Flex, Autodiff)]
pub trait NapOps: Backend {
    /// Returns its input; the backward sleeps.
    fn nap(x: FloatTensor<Self>, backward: [Duration; 2]) -> FloatTensor<Self>;
}

impl NapOps for Flex {
    fn nap(x: FloatTensor<Self>, _backward: [Duration; 2]) -> FloatTensor<Self> {
        x
    }
}

impl<B: NapOps, C: CheckpointStrategy> NapOps for Autodiff<B, C> {
    fn nap(x: FloatTensor<Self>, backward: [Duration; 2]) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Nap;

        impl<B: Backend> Backward<B, 1> for Nap {
            type State = [Duration; 2];

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let gradient = gradients.consume::<B>(&ops.node);
                let [input, weights] = ops.state;
                sleep(input);
                if deferred::defers() {
                    deferred::defer(move |_| sleep(weights));
                } else {
                    sleep(weights);
                }
                if let [Some(x)] = &ops.parents {
                    gradients.register::<B>(x.id, gradient);
                }
            }
        }

        let output = B::nap(x.primitive().clone(), backward);
        match Nap.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(nap) => nap.finish(backward, output),
            OpsKind::UnTracked(nap) => nap.finish(output),
        }
    }
}
