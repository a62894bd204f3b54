//! GPT-2, Llama and DeepSeek (MLA + MoE) as Burn modules, and their weights in Hugging Face's format.
//!
//! A model is a module with public parts and a forward on one device: `model.logits(tokens)` needs no communicator. A
//! part that holds a rank's shard of the parameters computes its rows of the sequences together with the ranks in its
//! [`Parallel`].
//!
//! A [`Family`] knows everything else about its models: parameters ([`ParameterSpec`]: shape, initial values, how ranks
//! split it), sharding units, what each call costs, limits, and Hugging Face's names. [`ModelConfig`] is the only list
//! of families.
//!
//! Parameters may be f32, bf16 or f16, all of one dtype, which the residual stream and the gradients then share. Norms,
//! softmax, rotations, routing and the loss are computed in f32, and the loss is f32.
//!
//! Shape suffixes: `b` sequences, `t` positions, `s` positions on this rank, `d` width of the residual stream, `h`
//! heads, `v` vocabulary (in attention: width of a value), `c` columns of a cache, `r` rank of a latent, `p` width of a
//! rotated key.

mod batch;
mod cache;
mod cost;
pub mod deepseek;
mod expert_loads;
mod family;
mod generate;
pub mod gpt2;
pub mod hf;
mod init;
mod layers;
mod limits;
pub mod llama;
mod mtp_batch;
mod parallel;
mod parameters;
mod targets;

pub use batch::{Batch, Documents, MicroBatch, StepContext};
pub use cache::Cache;
pub use cost::{Flops, Workload};
pub use deepseek::{DeepSeek, DeepSeekConfig};
pub use expert_loads::{ExpertLoads, LayerLoad, bias_update, layer_loads};
pub use family::{AnyModel, Family, HuggingFace, ModelConfig, ModelUnits, Size, Training};
pub use generate::{Drafts, GenerateError, Generation, Sampling, generate, generate_speculative};
pub use gpt2::{Gpt2, Gpt2Config};
pub use init::Initial;
pub use layers::{BlockOutput, LayerNorm, Mlp, RmsNorm, Rope, RopeScaling, RopeType, YarnConfig};
pub use llama::{Llama, LlamaConfig};
pub use mtp_batch::MtpBatch;
pub use parallel::Parallel;
pub use parameters::{Initializer, ParameterSpec, Sharding, fill, visited};
pub use targets::{Targets, TokenRows};

use burn::tensor::{Int, Tensor, TensorData};

/// A model that predicts the next token.
pub trait LanguageModel {
    /// Unnormalized log-probabilities of the next token at every position: maps `[b, t]` to `[b, t, vocab]`.
    ///
    /// # Panics
    /// If `t` is above [`context`](Self::context) or a token is not in the vocabulary.
    fn logits(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        self.head(self.hidden(tokens_bt))
    }

    /// Mean over all positions of `-log softmax(logits)[target]`, in nats, for the next tokens `[b, t]`: `[1]`. The
    /// full logits are never in memory at once.
    ///
    /// # Panics
    /// See [`logits`](Self::logits).
    fn loss(&self, tokens_bt: Tensor<2, Int>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
        self.head_loss(self.hidden(tokens_bt), Targets::all(targets_bt))
    }

    /// Output of the last block: maps `[b, t]` to `[b, t, d]`.
    fn hidden(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        self.hidden_of(tokens_bt, &MicroBatch::default())
    }

    /// [`hidden`](Self::hidden) for a micro-batch with documents, padding or a place in a run.
    fn hidden_of(&self, tokens_bt: Tensor<2, Int>, batch: &MicroBatch) -> Tensor<3>;

    /// The longest sequence the model accepts.
    fn context(&self) -> usize;

    /// An empty cache for this many sequences.
    fn cache(&self, sequences: usize) -> Cache;

    /// Output of the last block for new tokens, `[b, t]` to `[b, t, d]`, which follow the cached tokens of each
    /// sequence.
    ///
    /// The first `counts[i]` tokens of sequence `i` are new, and the cache contains them afterwards. The others are
    /// padding (any token of the vocabulary) with meaningless output.
    ///
    /// # Panics
    /// If the number of `counts` differs from the cache's sequences, a count is above `t`, a sequence becomes longer
    /// than the context, or a token is not in the vocabulary.
    fn hidden_cached(&self, tokens_bt: Tensor<2, Int>, counts: &[usize], cache: &mut Cache) -> Tensor<3>;

    /// Logits from the output of the last block: maps `[b, t, d]` to `[b, t, vocab]`.
    fn head(&self, x_btd: Tensor<3>) -> Tensor<3>;

    /// [`loss`](Self::loss) from the output of the last block, for these targets.
    fn head_loss(&self, x_btd: Tensor<3>, targets: Targets) -> Tensor<1>;

    /// [`logits`](Self::logits) for new tokens, `[b, t]` to `[b, t, vocab]`: a whole prompt, or one token at a time.
    ///
    /// # Panics
    /// See [`hidden_cached`](Self::hidden_cached).
    fn logits_cached(&self, tokens_bt: Tensor<2, Int>, cache: &mut Cache) -> Tensor<3> {
        let [b, t] = tokens_bt.dims();
        self.head(self.hidden_cached(tokens_bt, &vec![t; b], cache))
    }

    /// The logits after the last new token of each sequence, `[b, vocab]`; see [`hidden_cached`](Self::hidden_cached).
    ///
    /// # Panics
    /// See [`hidden_cached`](Self::hidden_cached); also if a sequence has no new token.
    fn next_logits(&self, tokens_bt: Tensor<2, Int>, counts: &[usize], cache: &mut Cache) -> Tensor<2> {
        let ([b, t], device) = (tokens_bt.dims(), tokens_bt.device());
        assert!(counts.iter().all(|count| *count > 0), "counts {counts:?}: each sequence has a new token");
        let x_btd = self.hidden_cached(tokens_bt, counts, cache);
        let d = x_btd.dims()[2];
        let last: Vec<i64> = counts.iter().enumerate().map(|(i, count)| (i * t + count - 1) as i64).collect();
        let last = Tensor::<1, Int>::from_data(TensorData::new(last, [b]), &device);
        let logits_b1v = self.head(x_btd.reshape([b * t, d]).select(0, last).reshape([b, 1, d]));
        logits_b1v.squeeze_dim(1)
    }
}
