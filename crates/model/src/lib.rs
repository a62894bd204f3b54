//! GPT-2 and DeepSeek (MLA + MoE) as Burn modules, and their weights in Hugging Face's format.
//!
//! A model is a module with public parts and a forward on one device: `model.logits(tokens)` needs no communicator. A
//! part whose parameters are a rank's part of them, with a rank's rows of the sequences, computes the same together
//! with the ranks in its [`Parallel`]; [`cut`] says which parameters are cut how.
//!
//! Parameters may be f32, bf16 or f16, all of one dtype, which is then that of the residual stream and of the
//! gradients. Norms, softmax, rotations, routing and the loss are computed in f32, and the loss is f32.
//!
//! Shape suffixes: `b` sequences, `t` positions, `s` those of them that are here, `d` width of the residual stream, `h`
//! heads, `v` vocabulary (in attention: width of a value), `c` columns of a cache, `r` rank of a latent, `p` width of a
//! rotated key.

mod cache;
mod config;
mod cut;
pub mod deepseek;
mod dropout;
mod generate;
pub mod gpt2;
pub mod hf;
mod init;
mod micro_batch;
mod norm;
mod parallel;
mod parameters;
mod ring;
mod rope;
mod targets;
mod vocabulary;

pub use cache::Cache;
pub use config::{DeepSeekConfig, Gpt2Config, YarnConfig};
pub use cut::cut;
pub use deepseek::DeepSeek;
pub use generate::{Drafts, GenerateError, Generation, Sampling, generate, generate_speculative};
pub use gpt2::Gpt2;
pub use init::Initial;
pub use micro_batch::{Documents, MicroBatch, RunPlace};
pub use norm::{LayerNorm, RmsNorm};
pub use parallel::Parallel;
pub use parameters::{fill, parameter_count};
pub use rope::{Rope, softmax_scale};
pub use targets::{Targets, TokenRows};

use burn::tensor::{Int, Tensor, TensorData};

/// A model that predicts the next token.
pub trait LanguageModel {
    /// Unnormalised log-probabilities of the next token at every position: `[b, t]` to `[b, t, vocab]`.
    ///
    /// # Panics
    /// If `t` is above [`context`](Self::context) or a token is not in the vocabulary.
    fn logits(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        self.head(self.hidden(tokens_bt))
    }

    /// Mean over all positions of `-log softmax(logits)[target]`, in nats, of the next tokens `[b, t]`: `[1]`. The
    /// logits are never all in memory.
    ///
    /// # Panics
    /// As [`logits`](Self::logits).
    fn loss(&self, tokens_bt: Tensor<2, Int>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
        self.head_loss(self.hidden(tokens_bt), Targets::all(targets_bt))
    }

    /// What the last block makes of tokens: `[b, t]` to `[b, t, d]`.
    fn hidden(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        self.hidden_of(tokens_bt, &MicroBatch::default())
    }

    /// The same of a micro-batch of which more is known.
    fn hidden_of(&self, tokens_bt: Tensor<2, Int>, batch: &MicroBatch) -> Tensor<3>;

    /// The longest sequence the model takes.
    fn context(&self) -> usize;

    /// An empty cache for this many sequences.
    fn cache(&self, sequences: usize) -> Cache;

    /// What the last block makes of new tokens, `[b, t]` to `[b, t, d]`, each sequence's following those that the cache
    /// has of it.
    ///
    /// Of sequence `i` the first `counts[i]` tokens are new, and the cache has them afterwards; the others are padding
    /// (any token of the vocabulary), and so is their output.
    ///
    /// # Panics
    /// If `counts` are not as many as the cache's sequences, one is above `t`, a sequence becomes longer than the
    /// context, or a token is not in the vocabulary.
    fn hidden_cached(&self, tokens_bt: Tensor<2, Int>, counts: &[usize], cache: &mut Cache) -> Tensor<3>;

    /// Logits of what the last block made: `[b, t, d]` to `[b, t, vocab]`.
    fn head(&self, x_btd: Tensor<3>) -> Tensor<3>;

    /// [`loss`](Self::loss) of what the last block made, of these targets.
    fn head_loss(&self, x_btd: Tensor<3>, targets: Targets) -> Tensor<1>;

    /// [`logits`](Self::logits) of new tokens, `[b, t]` to `[b, t, vocab]`: a whole prompt, or one token at a time.
    ///
    /// # Panics
    /// As [`hidden_cached`](Self::hidden_cached).
    fn logits_cached(&self, tokens_bt: Tensor<2, Int>, cache: &mut Cache) -> Tensor<3> {
        let [b, t] = tokens_bt.dims();
        self.head(self.hidden_cached(tokens_bt, &vec![t; b], cache))
    }

    /// The logits behind the last new token of each sequence, `[b, vocab]`; see [`hidden_cached`](Self::hidden_cached).
    ///
    /// # Panics
    /// As there, and if a sequence has no new token.
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
