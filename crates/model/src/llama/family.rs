//! Llama as a [`Family`]: shape and limits.

use super::{cost, hf, parameters};
use crate::ModelError;
use crate::cost::{Flops, Workload};
use crate::family::{Family, HuggingFace, Size};
use crate::hf::{Folder, SourceOf};
use crate::layers::mixture::{mixture_count, validate_moe};
use crate::{Architecture, Llama, LlamaConfig, ParameterSpec};
use burn::tensor::Device;
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

impl Architecture for LlamaConfig {
    type Model = Llama;

    const TYPE: &'static str = "llama";
    const ABOUT: &'static str = "Llama, Mistral, Qwen2 and Qwen3; Mixtral and Qwen3-MoE with a `moe` section.";
    const MODEL_TYPES: &'static [&'static str] = &hf::MODEL_TYPES;

    fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        Box::new(LlamaFamily { shape: self, moe })
    }

    fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> Llama {
        Llama::new(self, moe, device)
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_blocks(&mut self, blocks: usize) {
        self.num_hidden_layers = blocks;
    }

    fn default_experts() -> Option<MoeConfig> {
        Some(MoeConfig::default())
    }

    fn from_hugging_face(folder: &Folder) -> Result<(Self, Option<MoeConfig>), ModelError> {
        hf::config(folder)
    }

    fn hugging_face_names(folder: &Folder) -> SourceOf {
        Box::new(hf::names(folder))
    }
}

/// A Llama, given by its shape and its experts; without experts, all blocks are dense.
struct LlamaFamily<'a> {
    shape: &'a LlamaConfig,
    moe: Option<&'a MoeConfig>,
}

impl<'a> LlamaFamily<'a> {
    /// The experts of a block.
    fn experts_of(&self, layer: usize) -> Option<&'a MoeConfig> {
        self.shape.experts_of(layer, self.moe)
    }

    /// Whether some block has no experts.
    fn has_dense_layers(&self) -> bool {
        (0..self.shape.num_hidden_layers).any(|layer| self.experts_of(layer).is_none())
    }
}

impl Family for LlamaFamily<'_> {
    fn blocks(&self) -> usize {
        self.shape.num_hidden_layers
    }

    fn width(&self) -> usize {
        self.shape.hidden_size
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab_size
    }

    fn context(&self) -> Size {
        ("model.max_position_embeddings", self.shape.max_position_embeddings)
    }

    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str> {
        let moe = self.moe.ok_or("there is no `moe` section")?;
        let layers: Vec<usize> = (0..self.shape.num_hidden_layers).filter(|i| self.experts_of(*i).is_some()).collect();
        if layers.is_empty() {
            Err("all layers are dense (model.mlp_only_layers)")
        } else {
            Ok((layers, moe.num_experts))
        }
    }

    fn validate(&self) -> Result<(), ModelError> {
        LlamaConfig { vocab_size: self.shape.vocab_size.max(1), ..self.shape.clone() }.validate()?;
        match self.moe {
            None if !self.shape.mlp_only_layers.is_empty() => Err(
                "model.mlp_only_layers lists layers without experts, but there is no `moe` section: add one (`moe: \
                 {num_experts: 8}`), or remove the list"
                    .into(),
            ),
            moe => moe.map_or(Ok(()), validate_moe),
        }
    }

    fn parameter_count(&self) -> f64 {
        let (shape, of) = (self.shape, |size: usize| size as f64);
        let (d, vocab, layers) = (of(shape.hidden_size), of(shape.vocab_size), of(shape.num_hidden_layers));
        let head_dim = of(shape.head_dim());
        let [q, k] = [shape.num_attention_heads, shape.num_key_value_heads].map(|heads| of(heads) * head_dim);
        let bias = if shape.qkv_bias { q + 2.0 * k } else { 0.0 };
        let norms = 2.0 * d + if shape.qk_norm { 2.0 * head_dim } else { 0.0 };
        let attention = 2.0 * d * (q + k) + bias + norms;
        let dense = 3.0 * d * of(shape.intermediate_size);
        let mlps = self.moe.map_or(layers * dense, |moe| {
            let dense_layers = of(shape.mlp_only_layers.len());
            dense_layers * dense + (layers - dense_layers) * mixture_count(d, moe)
        });
        let matrices = if shape.tie_word_embeddings { 1.0 } else { 2.0 };
        matrices * vocab * d + layers * attention + mlps + d
    }

    fn sizes(&self) -> Vec<Size> {
        let mut sizes = vec![
            ("model.vocab_size", self.shape.vocab_size),
            ("model.hidden_size", self.shape.hidden_size),
            ("model.intermediate_size", self.shape.intermediate_size),
            ("model.num_attention_heads", self.shape.num_attention_heads),
            ("model.head_dim", self.shape.head_dim()),
        ];
        if let Some(moe) = self.moe {
            sizes.extend([
                ("moe.num_experts", moe.num_experts),
                ("moe.moe_intermediate_size", moe.moe_intermediate_size),
                ("moe.n_shared_experts", moe.n_shared_experts),
            ]);
        }
        sizes
    }

    fn activations(&self, context: Size) -> Vec<Vec<Size>> {
        let heads = ("model.num_attention_heads", self.shape.num_attention_heads);
        let d = ("model.hidden_size", self.shape.hidden_size);
        let mut tensors = vec![
            vec![heads, context],
            vec![heads, ("model.head_dim", self.shape.head_dim())],
            vec![("model.intermediate_size", self.shape.intermediate_size)],
            vec![d],
        ];
        if let Some(moe) = self.moe {
            let (top_k, width) = (("moe.top_k", moe.top_k), ("moe.moe_intermediate_size", moe.moe_intermediate_size));
            tensors.extend([
                vec![top_k, d],
                vec![top_k, width],
                vec![("moe.n_shared_experts", moe.n_shared_experts), width],
                vec![("moe.num_experts", moe.num_experts)],
            ]);
        }
        tensors
    }

    /// The number of query heads is a multiple of the number of key-value heads.
    fn tensor_parallel_sizes(&self) -> Vec<Size> {
        let mut sizes = vec![("model.num_key_value_heads", self.shape.num_key_value_heads)];
        if self.has_dense_layers() {
            sizes.push(("model.intermediate_size", self.shape.intermediate_size));
        }
        if let Some(moe) = self.moe.filter(|moe| moe.n_shared_experts > 0) {
            let width = moe.n_shared_experts.saturating_mul(moe.moe_intermediate_size);
            sizes.push(("moe.n_shared_experts x moe.moe_intermediate_size", width));
        }
        sizes
    }

    fn context_parallel(&self) -> bool {
        true
    }

    fn document_masking(&self) -> bool {
        true
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        parameters::parameters(self.shape, self.moe)
    }

    /// The head; its norm and the embedding if they are tied.
    fn calls_after_blocks(&self) -> usize {
        if self.shape.tie_word_embeddings { 2 } else { 1 }
    }

    fn flops(&self) -> Vec<Flops> {
        cost::flops(self, self.shape)
    }

    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        cost::memory(self.shape, self.moe, workload)
    }

    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        cost::traffic(self.shape, self.moe, workload)
    }

    fn hugging_face(&self) -> Option<Box<dyn HuggingFace + '_>> {
        Some(Box::new(hf::LlamaFolder::new(self.shape, self.moe)))
    }
}
