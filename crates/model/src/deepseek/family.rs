//! DeepSeek as a [`Family`]: shape and limits.

use super::{cost, hf, parameters};
use crate::ModelError;
use crate::cost::{Flops, Workload};
use crate::family::{Family, HuggingFace, Size};
use crate::hf::{Folder, SourceOf};
use crate::layers::mixture::validate_moe;
use crate::{Architecture, DeepSeek, DeepSeekConfig, ParameterSpec};
use burn::tensor::Device;
use fsdp::{CallBytes, CallTraffic};
use moe::MoeConfig;

impl Architecture for DeepSeekConfig {
    type Model = DeepSeek;

    const TYPE: &'static str = "deepseek";
    const ABOUT: &'static str = "DeepSeek-V2/V3: latent attention and experts.";
    const MODEL_TYPES: &'static [&'static str] = &["deepseek_v2", "deepseek_v3"];

    fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        let has_experts = moe.is_some();
        Box::new(DeepSeekFamily { shape: self, moe: moe.cloned().unwrap_or_default(), has_experts })
    }

    fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> DeepSeek {
        DeepSeek::new(self, &moe.cloned().unwrap_or_default(), device)
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
        hf::config(folder).map(|(shape, moe)| (shape, Some(moe)))
    }

    fn hugging_face_names(folder: &Folder) -> SourceOf {
        Box::new(hf::names(folder))
    }
}

/// A DeepSeek, given by its shape and its experts.
struct DeepSeekFamily<'a> {
    shape: &'a DeepSeekConfig,
    /// The defaults if the configuration has none.
    moe: MoeConfig,
    has_experts: bool,
}

impl Family for DeepSeekFamily<'_> {
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

    fn mtp_depth(&self) -> usize {
        self.shape.mtp_depth
    }

    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str> {
        let layers: Vec<usize> = (self.shape.first_k_dense_replace..self.shape.num_layers()).collect();
        match layers.is_empty() || !self.has_experts {
            true => Err("all layers are dense (model.first_k_dense_replace)"),
            false => Ok((layers, self.moe.num_experts)),
        }
    }

    fn validate(&self) -> Result<(), ModelError> {
        DeepSeekConfig { vocab_size: self.shape.vocab_size.max(1), ..self.shape.clone() }.validate()?;
        let (dense, layers) = (self.shape.first_k_dense_replace, self.shape.num_layers());
        if dense > layers {
            return Err(format!(
                "model.first_k_dense_replace is {dense} of {layers} layers: give at most as many as there are"
            )
            .into());
        }
        if !self.has_experts && dense < layers {
            let modules = if self.shape.mtp_depth > 0 { ", those of model.mtp_depth among them," } else { "" };
            return Err(format!(
                "model.first_k_dense_replace is {dense} of {layers} layers{modules} and the others have experts, but \
                 there is no `moe` section: add one (`moe: {{num_experts: 8}}`), or make all dense (--set \
                 model.first_k_dense_replace={layers})"
            )
            .into());
        }
        if self.has_experts { validate_moe(&self.moe) } else { Ok(()) }
    }

    fn parameter_count(&self) -> f64 {
        self.shape.parameters(&self.moe)
    }

    fn sizes(&self) -> Vec<Size> {
        vec![
            ("model.vocab_size", self.shape.vocab_size),
            ("model.hidden_size", self.shape.hidden_size),
            ("model.intermediate_size", self.shape.intermediate_size),
            ("model.num_attention_heads", self.shape.num_attention_heads),
            ("model.q_lora_rank", self.shape.q_lora_rank.unwrap_or(0)),
            ("model.kv_lora_rank", self.shape.kv_lora_rank),
            ("model.qk_nope_head_dim", self.shape.qk_nope_head_dim),
            ("model.v_head_dim", self.shape.v_head_dim),
            ("moe.num_experts", self.moe.num_experts),
            ("moe.moe_intermediate_size", self.moe.moe_intermediate_size),
            ("moe.n_shared_experts", self.moe.n_shared_experts),
        ]
    }

    fn activations(&self, context: Size) -> Vec<Vec<Size>> {
        let heads = ("model.num_attention_heads", self.shape.num_attention_heads);
        let (d, top_k) = (("model.hidden_size", self.shape.hidden_size), ("moe.top_k", self.moe.top_k));
        let width = ("moe.moe_intermediate_size", self.moe.moe_intermediate_size);
        vec![
            vec![heads, context],
            vec![heads, ("model.qk_nope_head_dim", self.shape.qk_nope_head_dim)],
            vec![heads, ("model.qk_rope_head_dim", self.shape.qk_rope_head_dim)],
            vec![heads, ("model.v_head_dim", self.shape.v_head_dim)],
            vec![("model.intermediate_size", self.shape.intermediate_size)],
            vec![("1 + model.mtp_depth", 1 + self.shape.mtp_depth), d],
            vec![top_k, d],
            vec![top_k, width],
            vec![("moe.n_shared_experts", self.moe.n_shared_experts), width],
            vec![("moe.num_experts", self.moe.num_experts)],
        ]
    }

    fn tensor_parallel_sizes(&self) -> Vec<Size> {
        let mut sizes = vec![("model.num_attention_heads", self.shape.num_attention_heads)];
        if self.shape.first_k_dense_replace > 0 {
            sizes.push(("model.intermediate_size", self.shape.intermediate_size));
        }
        if self.has_experts && self.moe.n_shared_experts > 0 {
            let width = self.moe.n_shared_experts.saturating_mul(self.moe.moe_intermediate_size);
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
        parameters::parameters(self.shape, &self.moe)
    }

    /// The head; with multi-token prediction its norm, the embedding, the modules, and the output matrix.
    fn calls_after_blocks(&self) -> usize {
        match self.shape.mtp_depth {
            0 => 1,
            depth => depth + 3,
        }
    }

    /// Those of multi-token prediction module K belong to its call, the blocks to theirs, and others to the last.
    fn call_of(&self, parameter: &ParameterSpec) -> usize {
        let number = |path: &str| parameter.name.strip_prefix(path)?.split('.').next()?.parse::<usize>().ok();
        let last = self.blocks() + self.calls_after_blocks();
        let module = || number("mtp.").map(|module| last - self.shape.mtp_depth + module);
        number("blocks.").map(|block| 1 + block).or_else(module).unwrap_or(last)
    }

    fn flops(&self) -> Vec<Flops> {
        cost::flops(self, self.shape)
    }

    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        cost::memory(self.shape, &self.moe, workload)
    }

    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        cost::traffic(self.shape, &self.moe, workload)
    }

    fn selection_bias(&self, layer: usize) -> String {
        let bias = "mlp.Moe.router.bias";
        match layer.checked_sub(self.shape.num_hidden_layers) {
            None => format!("blocks.{layer}.{bias}"),
            Some(k) => format!("mtp.{k}.block.{bias}"),
        }
    }

    fn hugging_face(&self) -> Option<Box<dyn HuggingFace + '_>> {
        Some(Box::new(hf::DeepSeekFolder { shape: self.shape, moe: &self.moe }))
    }
}
