//! GPT-2 as a [`Family`]: shape and limits.

use super::parameters::{self, inner};
use super::{cost, hf};
use crate::cost::{Flops, Workload};
use crate::family::{Family, HuggingFace, Size};
use crate::{Gpt2Config, Initial, ParameterSpec};
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

/// A GPT-2, known by its shape.
pub struct Gpt2Family<'a> {
    shape: &'a Gpt2Config,
    has_experts: bool,
}

impl<'a> Gpt2Family<'a> {
    /// A GPT-2 of this shape, which cannot have experts.
    pub fn new(shape: &'a Gpt2Config, moe: Option<&MoeConfig>) -> Self {
        Self { shape, has_experts: moe.is_some() }
    }
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

    fn validate(&self) -> Result<(), String> {
        Gpt2Config { vocab_size: self.shape.vocab_size.max(1), ..self.shape.clone() }.validate()?;
        match self.has_experts {
            true => Err(
                "there is a `moe` section, but model.type gpt2 has no experts: remove it, or take llama or deepseek"
                    .into(),
            ),
            false => Ok(()),
        }
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

    fn parameters(&self) -> Vec<ParameterSpec> {
        parameters::parameters(self.shape)
    }

    fn initial(&self, seed: u64) -> Initial {
        Initial::new("gpt2", seed, self.parameters())
    }

    fn flops(&self) -> Vec<Flops> {
        cost::flops(self.shape, &self.parameters())
    }

    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        cost::memory(self.shape, workload)
    }

    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        cost::traffic(self.shape, workload)
    }

    fn hugging_face(&self) -> Box<dyn HuggingFace + '_> {
        Box::new(hf::Gpt2Folder(self.shape))
    }
}
