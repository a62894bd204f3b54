//! An operation of ours as a step of Burn's tape.

use crate::deferred;
use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, tensor::FloatTensor};
use std::fmt::Debug;
use std::marker::PhantomData;

/// An operation's gradient formula, which keeps what it needs of the forward: from the output's gradient to those of
/// the `N` inputs, of which only the `wanted` are used.
pub trait Gradient<B: Backend, const N: usize>: Clone + Debug + Send + Sync + 'static {
    /// The input that is a weight, whose gradient may be put off; see [`deferred`].
    const WEIGHT: Option<usize> = None;

    /// The gradients, where they are wanted.
    fn of(self, d_y: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N];

    /// What the weight's gradient alone needs.
    fn of_weight_alone(self) -> Self {
        self
    }
}

/// The output `y` of an operation with these inputs, with the gradient that `gradient` makes where one of them is
/// tracked.
pub fn step<B: Backend, C: CheckpointStrategy, G: Gradient<B, N>, const N: usize>(
    inputs: [&FloatTensor<Autodiff<B, C>>; N],
    y: FloatTensor<B>,
    gradient: impl FnOnce() -> G,
) -> FloatTensor<Autodiff<B, C>> {
    #[derive(Debug)]
    struct Step<G>(PhantomData<G>);

    impl<B: Backend, G: Gradient<B, N>, const N: usize> Backward<B, N> for Step<G> {
        type State = G;

        fn backward(self, ops: Ops<G, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let d_y = gradients.consume::<B>(&ops.node);
            let mut wanted = ops.parents.each_ref().map(Option::is_some);
            if let Some((i, weight)) = G::WEIGHT.and_then(|i| Some((i, ops.parents[i].as_ref()?)))
                && deferred::defers(weight.parents.len())
            {
                wanted[i] = false;
                let (id, state, d_y) = (weight.id, ops.state.clone().of_weight_alone(), d_y.clone());
                deferred::defer(move |gradients| {
                    let of_inputs = state.of(d_y, std::array::from_fn(|input| input == i));
                    gradients.register::<B>(id, of_inputs.into_iter().flatten().next().expect("it is wanted"));
                });
            }
            for (parent, gradient) in ops.parents.iter().zip(ops.state.of(d_y, wanted)) {
                if let (Some(parent), Some(gradient)) = (parent, gradient) {
                    gradients.register::<B>(parent.id, gradient);
                }
            }
        }
    }

    match Step::<G>(PhantomData).prepare::<C>(inputs.map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(gradient(), y),
        OpsKind::UnTracked(step) => step.finish(y),
    }
}
