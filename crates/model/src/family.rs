//! What a run must know about a model before it exists.
//!
//! A family is a folder: `config` (shape and limits), the modules, `parameters`, `decoder` (the calls of a forward, and
//! generation: [`Decoder`](crate::Decoder)), `family` (this trait and [`Architecture`](crate::Architecture)), `cost`
//! (what the calls cost) and `hf` (Hugging Face's names). A new family adds its folder and a line in the registry.

use crate::ModelError;
use crate::cost::received::RowBytes;
use crate::cost::{Flops, Workload, product_flops, work};
use crate::hf::{Folder, Source};
use crate::parameters::ParameterSpec;
use fsdp::{CallBytes, CallTraffic};
use plan::Work;
use serde_json::Value;

/// A configuration key and its value.
pub type Size = (&'static str, usize);

/// A model of some family, given by its configuration. Nothing here creates modules.
///
/// The defaults describe a model without experts and without tensor or context parallelism. Its blocks are named
/// `blocks.0`, `blocks.1` and so on. Memory and FLOPs are estimated from its matrices.
pub trait Family {
    /// Number of blocks, without embedding and head.
    fn blocks(&self) -> usize;

    /// Width of the residual stream.
    fn width(&self) -> usize;

    /// Vocabulary size; 0 until it is known from the data.
    fn vocab_size(&self) -> usize;

    /// The configuration key of the longest context, and its value in tokens.
    fn context(&self) -> Size;

    /// Number of multi-token prediction modules.
    fn mtp_depth(&self) -> usize {
        0
    }

    /// The blocks with experts, including those of multi-token prediction modules (numbered after the model's own),
    /// and the number of experts; or the reason why there are none, which completes a message.
    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str> {
        Err("this type of model has no experts")
    }

    /// Rejects shapes that no model can be built from; the message names key, value and remedy. A vocabulary of 0
    /// passes.
    fn validate(&self) -> Result<(), ModelError> {
        Ok(())
    }

    /// The number of parameters, in floating point so that it cannot overflow. Override it with a formula if an
    /// unvalidated configuration could make [`parameters`](Self::parameters) too long to list.
    fn parameter_count(&self) -> f64 {
        self.parameters().iter().map(ParameterSpec::len).sum()
    }

    /// Sizes of the model's matrices; the largest one is named if the model is too large.
    fn sizes(&self) -> Vec<Size> {
        vec![("model.vocab_size", self.vocab_size()), ("the width of the model", self.width())]
    }

    /// Sizes per token in the largest tensors of a forward over a context of this size, which must not overflow; a
    /// tensor has the product of its sizes.
    fn activations(&self, context: Size) -> Vec<Vec<Size>> {
        vec![vec![context], vec![("the width of the model", self.width())]]
    }

    /// The sizes that the number of tensor-parallel ranks must divide: heads and columns. A size of 1 allows no tensor
    /// parallelism.
    fn tensor_parallel_sizes(&self) -> Vec<Size> {
        vec![("the 1 part that this type of model has", 1)]
    }

    /// Whether the model supports context parallelism ([`Training::parallel`](crate::Training::parallel)).
    fn context_parallel(&self) -> bool {
        false
    }

    /// Whether attention stays within the documents of a batch
    /// ([`MicroBatch::first_keys`](crate::MicroBatch::first_keys)).
    fn document_masking(&self) -> bool {
        false
    }

    /// All parameters, in the order in which the modules are visited; see [`parameters_of`](crate::parameters_of).
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// Number of calls that a forward makes after the blocks.
    fn calls_after_blocks(&self) -> usize {
        1
    }

    /// The call in whose products a parameter is a factor, counted from the embedding, which is call 0: block N for
    /// those of `blocks.N`, the last call for others.
    fn call_of(&self, parameter: &ParameterSpec) -> usize {
        let block = || parameter.name.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok();
        let last = self.blocks() + self.calls_after_blocks();
        block().map_or(last, |block| (1 + block).min(last))
    }

    /// FLOPs of each call of a forward: the embedding, every block, and the calls after them.
    fn flops(&self) -> Vec<Flops> {
        product_flops(self)
    }

    /// Activation memory of each call.
    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        let (d, vocab, parameters) = (self.width() as f64, self.vocab_size() as f64, self.parameters());
        let block = |block| workload.products_bytes(d, &format!("blocks.{block}."), &parameters);
        let last = vec![workload.head_bytes(d, vocab); self.calls_after_blocks()];
        std::iter::once(CallBytes::default()).chain((0..self.blocks()).map(block)).chain(last).collect()
    }

    /// Bytes that each call receives in its own collectives.
    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        vec![workload.call_traffic(self.width(), RowBytes::default()); 1 + self.blocks() + self.calls_after_blocks()]
    }

    /// What each call computes on one rank, for the time that it takes.
    fn work(&self, workload: &Workload) -> Vec<Work> {
        work::work(self, workload)
    }

    /// The path of the selection bias of a layer with experts.
    fn selection_bias(&self, layer: usize) -> String {
        format!("blocks.{layer}.mlp.Moe.router.bias")
    }

    /// How Hugging Face's folders name and store the model; `None` if transformers has no such model.
    fn hugging_face(&self) -> Option<Box<dyn HuggingFace + '_>> {
        None
    }
}

/// A model in Hugging Face's format.
pub trait HuggingFace {
    /// `config.json`, without the keys that every model has.
    ///
    /// # Errors
    /// If transformers cannot compute what the model does.
    fn config(&self) -> Result<Value, ModelError>;

    /// The tensor of a parameter, given its path.
    fn source(&self, path: &str) -> Source;

    /// The parameters that transformers' model has; those that this one lacks are zeros.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// Names and shapes of tensors that copy others, with the names of the originals.
    fn copies(&self) -> Vec<(String, &'static str, [usize; 2])> {
        vec![]
    }

    /// Names and shapes of tensors without elements that transformers expects.
    fn empty(&self) -> Vec<(String, [usize; 2])> {
        vec![]
    }

    /// Whether a tensor of this name holds no weights: what a model computes from its configuration, or a copy.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".rotary_emb.inv_freq")
    }

    /// Rejects a folder whose tensors contradict the model.
    fn check(&self, folder: &Folder) -> Result<(), ModelError> {
        let _ = folder;
        Ok(())
    }
}
