//! GPT-2 as a [`Family`]: shape and limits.

use super::parameters::{self, inner};
use super::{cost, hf};
use crate::ModelError;
use crate::cost::{Flops, Workload};
use crate::family::{Family, HuggingFace, Size};
use crate::hf::{Folder, SourceOf};
use crate::{Architecture, Gpt2, Gpt2Config, ParameterSpec};
use burn::tensor::Device;
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

impl Architecture for Gpt2Config {
    type Model = Gpt2;

    const TYPE: &'static str = "gpt2";
    const ABOUT: &'static str = "GPT-2.";
    const MODEL_TYPES: &'static [&'static str] = &["gpt2"];

    fn family<'a>(&'a self, _: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        Box::new(Gpt2Family { shape: self })
    }

    fn model(&self, _: Option<&MoeConfig>, device: &Device) -> Gpt2 {
        Gpt2::new(self, device)
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_blocks(&mut self, blocks: usize) {
        self.n_layer = blocks;
    }

    fn from_hugging_face(folder: &Folder) -> Result<(Self, Option<MoeConfig>), ModelError> {
        Ok((hf::config(folder)?, None))
    }

    fn hugging_face_names(folder: &Folder) -> SourceOf {
        Box::new(hf::names(folder))
    }
}

/// A GPT-2, given by its shape.
struct Gpt2Family<'a> {
    shape: &'a Gpt2Config,
}

impl Family for Gpt2Family<'_> {
    fn blocks(&self) -> usize {
        self.shape.n_layer
    }

    fn width(&self) -> usize {
        self.shape.n_embd
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab_size
    }

    fn context(&self) -> Size {
        ("model.n_positions", self.shape.n_positions)
    }

    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str> {
        Err("model.type gpt2 has no experts")
    }

    fn validate(&self) -> Result<(), ModelError> {
        Gpt2Config { vocab_size: self.shape.vocab_size.max(1), ..self.shape.clone() }.validate()
    }

    fn parameter_count(&self) -> f64 {
        self.shape.parameters()
    }

    fn sizes(&self) -> Vec<Size> {
        vec![
            ("model.vocab_size", self.shape.vocab_size),
            ("model.n_positions", self.shape.n_positions),
            ("model.n_embd", self.shape.n_embd),
            ("model.n_inner", self.shape.n_inner.unwrap_or(0)),
        ]
    }

    fn activations(&self, context: Size) -> Vec<Vec<Size>> {
        vec![
            vec![("model.n_head", self.shape.n_head), context],
            vec![("3 x model.n_embd", self.shape.n_embd.saturating_mul(3))],
            vec![("model.n_inner", inner(self.shape))],
        ]
    }

    fn tensor_parallel_sizes(&self) -> Vec<Size> {
        vec![("model.n_head", self.shape.n_head), ("model.n_inner", inner(self.shape))]
    }

    fn context_parallel(&self) -> bool {
        true
    }

    fn document_masking(&self) -> bool {
        true
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        parameters::parameters(self.shape)
    }

    fn flops(&self) -> Vec<Flops> {
        cost::flops(self, self.shape)
    }

    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        cost::memory(self.shape, workload)
    }

    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        cost::traffic(self.shape, workload)
    }

    fn hugging_face(&self) -> Option<Box<dyn HuggingFace + '_>> {
        Some(Box::new(hf::Gpt2Folder(self.shape)))
    }
}
