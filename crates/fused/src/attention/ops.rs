//! Attention as operations of Burn.

use super::{Shape, Target, View, backward, forward, rows_together, tensor};
use crate::kernel::{contiguous, slice};
use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Flex, backend_extension, tensor::FloatTensor};
use std::sync::Arc;

/// The operations behind [`causal_attention`](super::causal_attention) and [`causal_self_attention`](super::causal_self_attention).
#[backend_extension(Flex, Autodiff)]
pub trait AttentionOps: Backend {
    /// `[b, heads, t, d]`, twice, and `[b, heads, t, dv]` to `[b, t, heads, dv]`.
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self>;

    /// `[b, t, 3 heads d]` to `[b, t, heads d]`.
    fn causal_self_attention(qkv: FloatTensor<Self>, heads: usize, scale: f32) -> FloatTensor<Self>;
}

/// What the backward of separate queries, keys and values needs.
#[derive(Debug, Clone)]
struct Separate {
    inputs: [FloatTensor<Flex>; 3],
    y: FloatTensor<Flex>,
    l: Arc<Vec<f32>>,
    scale: f32,
}

/// What that of one product needs.
#[derive(Debug, Clone)]
struct Together {
    qkv: FloatTensor<Flex>,
    y: FloatTensor<Flex>,
    l: Arc<Vec<f32>>,
    heads: usize,
    scale: f32,
}

impl Separate {
    fn new(inputs: [FloatTensor<Flex>; 3], scale: f32) -> Self {
        let inputs = inputs.map(rows_together);
        let shape = Shape::of(&inputs[0], &inputs[2], scale);
        let (y, l) = forward(shape, inputs.each_ref().map(View::of));
        Self { y: tensor(y, [shape.b, shape.t, shape.heads, shape.dv]), inputs, l: Arc::new(l), scale }
    }

    fn gradients(&self, dy: &FloatTensor<Flex>) -> [FloatTensor<Flex>; 3] {
        let Self { inputs, y, l, scale } = self;
        let shape = Shape::of(&inputs[0], &inputs[2], *scale);
        let Shape { b, heads, t, d, dv, .. } = shape;
        let by_head = |tensor: &FloatTensor<Flex>| rows_together(tensor.permute(&[0, 2, 1, 3]));
        let outputs = [y, dy].map(by_head);
        let mut values = [d, d, dv].map(|width| vec![0.0f32; b * t * heads * width]);
        let [dq, dk, d_v] = &mut values;
        let targets = [Target::of(dq, [t, heads, d]), Target::of(dk, [t, heads, d]), Target::of(d_v, [t, heads, dv])];
        backward(shape, inputs.each_ref().map(View::of), outputs.each_ref().map(View::of), l, targets);
        let [dq, dk, d_v] = values;
        let gradient = |values, width| tensor(values, [b, t, heads, width]).permute(&[0, 2, 1, 3]);
        [gradient(dq, d), gradient(dk, d), gradient(d_v, dv)]
    }
}

impl Together {
    fn new(qkv: &FloatTensor<Flex>, heads: usize, scale: f32) -> Self {
        let qkv = contiguous(qkv);
        let shape = Shape::of_three(&qkv, heads, scale);
        let Shape { b, t, d, .. } = shape;
        let (y, l) = forward(shape, View::three(slice(&qkv), [t, heads, d]));
        Self { y: tensor(y, [b, t, heads * d]), qkv, l: Arc::new(l), heads, scale }
    }

    fn gradient(&self, dy: &FloatTensor<Flex>) -> FloatTensor<Flex> {
        let Self { qkv, y, l, heads, scale } = self;
        let shape = Shape::of_three(qkv, *heads, *scale);
        let Shape { b, heads, t, d, .. } = shape;
        let dy = contiguous(dy);
        let by_head = |values| View { data: values, strides: [t * heads * d, d, heads * d], width: d };
        let outputs = [by_head(slice(y)), by_head(slice(&dy))];
        let mut values = vec![0.0f32; 3 * b * t * heads * d];
        let targets = Target::three(&mut values, [t, heads, d]);
        backward(shape, View::three(slice(qkv), [t, heads, d]), outputs, l, targets);
        tensor(values, [b, t, 3 * heads * d])
    }
}

impl AttentionOps for Flex {
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        Separate::new([q, k, v], scale).y
    }

    fn causal_self_attention(qkv: FloatTensor<Self>, heads: usize, scale: f32) -> FloatTensor<Self> {
        Together::new(&qkv, heads, scale).y
    }
}

impl<C: CheckpointStrategy> AttentionOps for Autodiff<Flex, C> {
    fn causal_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        scale: f32,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl Backward<Flex, 3> for Step {
            type State = Separate;

            fn backward(self, ops: Ops<Separate, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let dy = gradients.consume::<Flex>(&ops.node);
                for (parent, gradient) in ops.parents.iter().zip(ops.state.gradients(&dy)) {
                    if let Some(parent) = parent {
                        gradients.register::<Flex>(parent.id, gradient);
                    }
                }
            }
        }

        let inputs = [&q, &k, &v];
        let saved = Separate::new(inputs.map(|input| input.primitive().clone()), scale);
        let y = saved.y.clone();
        match Step.prepare::<C>(inputs.map(|input| input.node())).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(saved, y),
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }

    fn causal_self_attention(qkv: FloatTensor<Self>, heads: usize, scale: f32) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Step;

        impl Backward<Flex, 1> for Step {
            type State = Together;

            fn backward(self, ops: Ops<Together, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
                let dy = gradients.consume::<Flex>(&ops.node);
                if let [Some(qkv)] = &ops.parents {
                    gradients.register::<Flex>(qkv.id, ops.state.gradient(&dy));
                }
            }
        }

        let saved = Together::new(qkv.primitive(), heads, scale);
        let y = saved.y.clone();
        match Step.prepare::<C>([qkv.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(saved, y),
            OpsKind::UnTracked(step) => step.finish(y),
        }
    }
}
