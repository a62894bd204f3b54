//! The step of the tape of [`embedding`](super::embedding).

use super::{EmbeddingBackwardOps, EmbeddingOps};
use crate::step::{Gradient, step};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};

#[derive(Debug, Clone)]
struct Embedding<B: Backend> {
    tokens: IntTensor<B>,
    rows: usize,
}

impl<B: EmbeddingBackwardOps> Gradient<B, 1> for Embedding<B> {
    fn of(self, d_y: FloatTensor<B>, _: [bool; 1]) -> [Option<FloatTensor<B>>; 1] {
        [Some(B::fused_embedding_backward(self.tokens, d_y, self.rows))]
    }
}

impl<B: EmbeddingOps + EmbeddingBackwardOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let (table, rows) = (weight.primitive().clone(), weight.primitive().shape()[0]);
        let y = B::fused_embedding(table, tokens.clone());
        step::<B, C, _, 1>([&weight], y, || Embedding::<B> { tokens, rows })
    }
}
