//! Deferred weight gradients: a backward pass in two parts, first the gradients of inputs, which earlier operations
//! wait for, then those of weights, which nothing waits for.
//!
//! ```text
//! backward          dy ─> dx = dy W^T ─> ...        backward_of_inputs   dy ─> dx = dy W^T ─> ...
//!                    └──> dW = x^T dy                                     └──> (x, dy) are kept
//!                                                   Deferred::backward    (x, dy) ─> dW = x^T dy
//! ```
//!
//! Pipelines without bubbles fill their gaps with the second part (Zero Bubble, arXiv 2401.10241). Burn's tape cannot
//! be split this way. Instead, each of Kiln's operations asks this module whether to defer the gradient of its weight.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients as Tape,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Dispatch, Flex, backend_extension, tensor::FloatTensor};
use burn::tensor::{Device, Gradients, Tensor};
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Computes the gradient of a weight and registers it.
type Job = Box<dyn FnOnce(&mut Tape) + Send>;

thread_local! {
    /// The jobs of the backward that runs on this thread, if it defers weight gradients.
    static JOBS: RefCell<Option<Vec<Job>>> = const { RefCell::new(None) };
}

/// The weight gradients that a backward has deferred, with the tensors from which they will be computed.
#[derive(Default)]
pub struct Deferred(Vec<Job>);

/// Runs the backward of a loss but defers weight gradients, on every backend.
///
/// This covers [`linear`](crate::linear), its variants, and other operations that ask [`defers`]. The head of a loss is
/// an exception: its forward computes its gradient. Only leaves are deferred; if the weight is a slice or a function of
/// another tensor, that tensor waits for the gradient.
pub fn backward_of_inputs(loss: &Tensor<1>) -> (Gradients, Deferred) {
    JOBS.with_borrow_mut(|jobs| {
        assert!(jobs.replace(vec![]).is_none(), "backward_of_inputs: one backward at a time on a thread")
    });
    // Runs even if the backward panics.
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            JOBS.take();
        }
    }
    let off = Off;
    let gradients = loss.backward();
    let jobs = JOBS.take().unwrap_or_default();
    drop(off);
    (gradients, Deferred(jobs))
}

impl Deferred {
    /// Whether no gradient was deferred.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes the deferred gradients.
    pub fn backward(self) -> Gradients {
        // A tape with this single step puts the gradients into Burn's own container, each under its leaf.
        let root = Tensor::<1>::zeros([1], &Device::flex()).autodiff().require_grad();
        let jobs = Arc::new(Jobs(Mutex::new(self.0)));
        Tensor::<1>::from_dispatch(<Dispatch as DeferredOps>::run_deferred(root.into_dispatch(), jobs)).backward()
    }
}

/// For the step of an operation whose weight is a leaf: whether the weight's gradient is deferred. If so, the step
/// computes the other gradients and [`defer`]s this one.
pub fn defers() -> bool {
    JOBS.with_borrow(Option::is_some)
}

/// Keeps a job that computes a weight's gradient and registers it.
///
/// # Panics
/// If gradients are not deferred on this thread; see [`defers`].
pub fn defer(job: impl FnOnce(&mut Tape) + Send + 'static) {
    JOBS.with_borrow_mut(|jobs| {
        jobs.as_mut().expect("defer: no backward of this thread puts gradients off").push(Box::new(job))
    });
}

/// The jobs that the backward step of [`DeferredOps`] runs.
pub struct Jobs(Mutex<Vec<Job>>);

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gradients of weights")
    }
}

/// The operation behind [`Deferred::backward`].
#[backend_extension(Flex, Autodiff)]
pub trait DeferredOps: Backend {
    /// Returns `root`; its backward runs `jobs`.
    fn run_deferred(root: FloatTensor<Self>, jobs: Arc<Jobs>) -> FloatTensor<Self>;
}

impl DeferredOps for Flex {
    fn run_deferred(root: FloatTensor<Self>, _: Arc<Jobs>) -> FloatTensor<Self> {
        root
    }
}

impl<B: DeferredOps, C: CheckpointStrategy> DeferredOps for Autodiff<B, C> {
    fn run_deferred(root: FloatTensor<Self>, jobs: Arc<Jobs>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct DeferredNode;

        impl<B: Backend> Backward<B, 1> for DeferredNode {
            type State = Arc<Jobs>;

            fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Tape, _: &mut Checkpointer) {
                gradients.consume::<B>(&ops.node);
                let jobs = std::mem::take(&mut *ops.state.0.lock().unwrap_or_else(PoisonError::into_inner));
                jobs.into_iter().for_each(|job| job(gradients));
            }
        }

        let value = root.primitive().clone();
        match DeferredNode.prepare::<C>([root.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(jobs, value),
            OpsKind::UnTracked(step) => step.finish(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear;
    use burn::tensor::Distribution;

    /// A weight used twice, a weight that is a slice of a leaf, and biases: the two parts together are bitwise equal to
    /// the whole backward.
    #[test]
    fn both_parts_together_are_the_whole_backward() {
        let device = Device::flex();
        let random = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        let (x, twice, cut) = (random([5, 8]), random([8, 8]), random([8, 24]));
        let bias = random([1, 8]).reshape([8]);
        let run = |split: bool| {
            let leaf = |tensor: &Tensor<2>| tensor.clone().autodiff().require_grad();
            let (x, twice, cut) = (leaf(&x), leaf(&twice), leaf(&cut));
            let bias = bias.clone().autodiff().require_grad();
            let y = linear(linear(x.clone(), twice.clone(), Some(bias.clone())), twice.clone(), None);
            let loss = linear(y, cut.clone().slice([0..8, 8..16]), None).powi_scalar(2).mean();
            if !split {
                let gradients = loss.backward();
                let flat = |of: Tensor<2>| of.into_data();
                return [x, twice, cut].map(|leaf| flat(leaf.grad(&gradients).unwrap()));
            }
            let (mut now, deferred) = backward_of_inputs(&loss);
            assert_eq!(deferred.0.len(), 2, "both uses of one weight");
            assert!(twice.grad(&now).is_none() && bias.grad(&now).is_some() && cut.grad(&now).is_some());
            let mut later = deferred.backward();
            [x.grad_remove(&mut now), twice.grad_remove(&mut later), cut.grad_remove(&mut now)]
                .map(|gradient| gradient.unwrap().into_data())
        };
        assert_eq!(run(true), run(false));
        assert!(!defers(), "only while a backward runs that puts off");
    }
}
