//! An operation of Kiln as a step of Burn's tape.

use crate::{deferred, weight_gradients};
use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, tensor::FloatTensor};
use std::fmt::Debug;
use std::marker::PhantomData;

/// The gradient formula of an operation, with what it keeps from the forward: it maps the output's gradient to those of
/// the `N` inputs. Only the `wanted` ones are used.
pub trait Gradient<B: Backend, const N: usize>: Clone + Debug + Send + Sync + 'static {
    /// The input that is a weight, whose gradient may be deferred; see [`deferred`].
    const WEIGHT: Option<usize> = None;

    /// Returns the gradients that are wanted.
    fn of(self, d_y: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N];

    /// Keeps only what the weight's gradient needs.
    fn of_weight_alone(self) -> Self {
        self
    }

    /// The weight's gradient, written into `flat` from element `start` on if the operation can.
    fn of_weight_into(self, d_y: FloatTensor<B>, flat: FloatTensor<B>, start: usize) -> FloatTensor<B> {
        let _ = (flat, start);
        of_weight::<B, Self, N>(self, d_y)
    }
}

/// The weight's gradient alone.
fn of_weight<B: Backend, G: Gradient<B, N>, const N: usize>(gradient: G, d_y: FloatTensor<B>) -> FloatTensor<B> {
    let all = gradient.of(d_y, std::array::from_fn(|input| Some(input) == G::WEIGHT));
    all.into_iter().flatten().next().expect("an operation with a weight has its gradient")
}

/// Returns the output `y` of an operation with these inputs. If one of them is tracked, `gradient` makes its gradient
/// formula.
pub fn step<B: Backend, C: CheckpointStrategy, G: Gradient<B, N>, const N: usize>(
    inputs: [&FloatTensor<Autodiff<B, C>>; N],
    y: FloatTensor<B>,
    gradient: impl FnOnce() -> G,
) -> FloatTensor<Autodiff<B, C>> {
    #[derive(Debug)]
    struct FusedNode<G>(PhantomData<G>);

    impl<B: Backend, G: Gradient<B, N>, const N: usize> Backward<B, N> for FusedNode<G> {
        type State = G;

        fn backward(self, ops: Ops<G, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let d_y = gradients.consume::<B>(&ops.node);
            let mut wanted = ops.parents.each_ref().map(Option::is_some);
            let weight = G::WEIGHT.and_then(|i| Some((i, ops.parents[i].as_ref()?)));
            if let Some((i, leaf)) = weight.filter(|(_, weight)| weight.parents.is_empty()) {
                let (id, deferred) = (leaf.id, deferred::defers());
                let place = if deferred { None } else { weight_gradients::take::<FloatTensor<B>>(id) };
                if deferred || place.is_some() {
                    wanted[i] = false;
                    let (state, d_y) = (ops.state.clone(), d_y.clone());
                    // A deferred step should keep little memory.
                    let state = if deferred { state.of_weight_alone() } else { state };
                    let weight = move |gradients: &mut Gradients| {
                        let gradient = match place.or_else(|| weight_gradients::take(id)) {
                            Some((flat, start)) => state.of_weight_into(d_y, flat, start),
                            None => of_weight::<B, G, N>(state, d_y),
                        };
                        gradients.register::<B>(id, gradient);
                    };
                    if deferred { deferred::defer(weight) } else { weight(gradients) }
                }
            }
            for (parent, gradient) in ops.parents.iter().zip(ops.state.of(d_y, wanted)) {
                if let (Some(parent), Some(gradient)) = (parent, gradient) {
                    gradients.register::<B>(parent.id, gradient);
                }
            }
        }
    }

    match FusedNode::<G>(PhantomData).prepare::<C>(inputs.map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(gradient(), y),
        OpsKind::UnTracked(step) => step.finish(y),
    }
}
