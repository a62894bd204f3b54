//! [`LanguageModel`], what every model can do, and [`Decoder`], which a family implements for it.

use crate::{Batch, Cache, Chunk, LayerCache, MicroBatch, Targets, Training};
use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use fsdp::{Calls, Loss};

/// A decoder, as its family implements it. [`LanguageModel`] and sharded training are derived from it: both run the
/// same list of calls.
pub trait Decoder: Module + 'static {
    /// The calls of a forward: the embedding, one call for each of the [`blocks`](Self::blocks), and the calls after
    /// them. [`LanguageModel::hidden`] runs the first `1 + blocks()`.
    fn calls(&self, training: &Training) -> Calls<Self, Batch>;

    /// Number of blocks.
    fn blocks(&self) -> usize;

    /// The longest sequence the model accepts.
    fn max_positions(&self) -> usize;

    /// Logits from the output of the last block: maps `[b, t, d]` to `[b, t, vocab]`.
    fn head_logits(&self, x_btd: Tensor<3>) -> Tensor<3>;

    /// Embeds new tokens in generation, `[b, t]` to `[b, t, d]`.
    fn embed_cached(&self, tokens_bt: Tensor<2, Int>, chunk: &Chunk) -> Tensor<3>;

    /// Output of a block for new tokens, `[b, t, d]` to `[b, t, d]`, which attend to the cached ones of their sequence.
    fn block_cached(&self, block: usize, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3>;
}

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
        self.losses(&Batch::new(tokens_bt, Targets::all(targets_bt))).loss
    }

    /// [`loss`](Self::loss) of a batch with documents, padding or a position in a run, and in training the sum of the
    /// balance losses of its experts.
    fn losses(&self, batch: &Batch) -> Loss;

    /// Output of the last block: maps `[b, t]` to `[b, t, d]`.
    fn hidden(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
        self.hidden_of(tokens_bt, &MicroBatch::default())
    }

    /// [`hidden`](Self::hidden) for a micro-batch with documents, padding or a position in a run.
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

impl<M: Decoder> LanguageModel for M {
    fn losses(&self, batch: &Batch) -> Loss {
        expect_short(self, &batch.inputs_bt);
        self.calls(&Training::default()).run(self, batch)
    }

    fn hidden_of(&self, tokens_bt: Tensor<2, Int>, batch: &MicroBatch) -> Tensor<3> {
        expect_short(self, &tokens_bt);
        // No call up to the last block reads the targets.
        let targets = Targets::all(tokens_bt.clone());
        let batch = Batch { micro: batch.clone(), ..Batch::new(tokens_bt, targets) };
        self.calls(&Training::default()).activation(self, 1 + self.blocks(), &batch)
    }

    fn context(&self) -> usize {
        self.max_positions()
    }

    fn cache(&self, sequences: usize) -> Cache {
        Cache::new(self.blocks(), sequences)
    }

    fn hidden_cached(&self, tokens_bt: Tensor<2, Int>, counts: &[usize], cache: &mut Cache) -> Tensor<3> {
        let chunk = cache.extend(counts, tokens_bt.dims()[1], self.max_positions());
        let x_btd = self.embed_cached(tokens_bt, &chunk);
        let layers = cache.layers.iter_mut().enumerate();
        layers.fold(x_btd, |x_btd, (block, layer)| self.block_cached(block, x_btd, layer, &chunk))
    }

    fn head(&self, x_btd: Tensor<3>) -> Tensor<3> {
        self.head_logits(x_btd)
    }
}

fn expect_short<M: Decoder>(model: &M, tokens_bt: &Tensor<2, Int>) {
    let ([_, t], most) = (tokens_bt.dims(), model.max_positions());
    assert!(t <= most, "{t} tokens are more than the context of {most}");
}
