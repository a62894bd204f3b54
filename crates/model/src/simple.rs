//! Models of an embedding, like blocks and a head, for programs with a model of their own: [`SimpleDecoder`] and
//! [`SimpleArchitecture`], from which [`Decoder`] and [`Architecture`] follow.

use crate::cache::{Chunk, LayerCache};
use crate::layers::mlp::BlockOutput;
use crate::limits::MAX_LAYERS;
use crate::{
    Architecture, Batch, Decoder, Family, Initializer, MicroBatch, ModelError, ParameterSpec, Size, Training,
    VocabularyHead, parameters_of,
};
use burn::module::Module;
use burn::nn::Embedding;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use fsdp::Calls;
use fused::causal_attention;
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A decoder whose blocks map the residual stream to itself. [`Decoder`] follows from it, with training in any layout
/// that data, pipeline and sharding ranks allow, and generation with a cache.
pub trait SimpleDecoder: Module + 'static {
    /// A block.
    type Block: Module + 'static;

    /// What follows the blocks.
    type Head: Module + 'static;

    /// The model's parts.
    fn parts(&self) -> Parts<'_, Self>;

    /// Output of a block: maps `[b, t, d]` to `[b, t, d]`. Only `attention` relates tokens to each other.
    ///
    /// Activations and parameters are in the type of `parallel.precision.param`, which is bf16 on NVIDIA GPUs unless it
    /// is set. Cast what you compute in fp32, such as rotations by position: `cos.cast(x.dtype())`.
    fn forward(block: &Self::Block, x_btd: Tensor<3>, attention: &mut Attention) -> Tensor<3>;

    /// Maps the output of the last block, `[b, t, d]`, to the input of the output matrix, `[b, t, d]`. Returns it with
    /// that matrix, `[d, vocab]`. The logits are their product.
    fn output(head: &Self::Head, x_btd: Tensor<3>) -> (Tensor<3>, Tensor<2>);
}

/// The parts of a [`SimpleDecoder`]: its fields `embed`, `blocks` and `head`, which hold all of its parameters. A
/// parameter elsewhere panics when a run begins.
#[derive(Debug)]
pub struct Parts<'a, M: SimpleDecoder> {
    /// The table of `[vocab, d]`.
    pub embed: &'a Embedding,
    /// The blocks.
    pub blocks: &'a [M::Block],
    /// What follows the blocks.
    pub head: &'a M::Head,
    /// The longest sequence the model accepts, in tokens.
    pub context: usize,
}

/// Causal attention in a block, either of whole rows or of new tokens to a cache.
pub struct Attention<'a> {
    keys: Keys<'a>,
    /// Whether the block has attended: a cache has one place for its keys and values.
    is_done: bool,
}

enum Keys<'a> {
    /// Whole rows of `[b, t]` tokens.
    OfRows(&'a MicroBatch, [usize; 2]),
    /// The cache of a block, the new tokens, and the model's context.
    Cached(&'a mut LayerCache, &'a Chunk, usize),
}

impl<'a> Attention<'a> {
    fn to(keys: Keys<'a>) -> Self {
        Self { keys, is_done: false }
    }

    /// Attention of queries, `[b, heads, t, d]`, to the keys, `[b, kv_heads, t, d]`, and values, `[b, kv_heads, t, dv]`,
    /// of the same tokens and those before them. Scores are multiplied with `scale`. Returns `[b, t, heads, dv]`. See
    /// [`causal_attention`].
    ///
    /// # Panics
    /// If a block calls it twice; see also [`causal_attention`].
    pub fn causal(&mut self, [q, k, v]: [Tensor<4>; 3], scale: f64) -> Tensor<4> {
        assert!(!self.is_done, "a block calls Attention::causal once: give each attention a block of its own");
        self.is_done = true;
        match &mut self.keys {
            Keys::OfRows(micro, _) => causal_attention(q, k, v, scale, 0, micro.first_keys()),
            Keys::Cached(layer, chunk, _) => chunk.attention(q, layer.append([k, v], chunk), scale, None),
        }
    }

    /// The position of each token within its document, `[b, t]`, i32, for rotary positions. (`float()` gives fp32,
    /// whatever the type of the activations: see [`SimpleDecoder::forward`].)
    pub fn positions(&self, device: &Device) -> Tensor<2, Int> {
        let (rows, shape) = match &self.keys {
            Keys::OfRows(MicroBatch { documents: Some(documents), .. }, _) => return documents.positions_bt.clone(),
            Keys::OfRows(_, [b, t]) => ((0..*t).collect::<Vec<_>>().repeat(*b), [*b, *t]),
            Keys::Cached(_, chunk, context) => (chunk.positions(*context), chunk.shape()),
        };
        let rows: Vec<i32> = rows.into_iter().map(|at| at as i32).collect();
        Tensor::from_data(TensorData::new(rows, shape), (device, DType::I32))
    }
}

impl<M: SimpleDecoder> Decoder for M {
    fn calls(&self, training: &Training) -> Calls<Self, Batch> {
        let (mut calls, training, vocab) = (Calls::new(), training.clone(), vocab_size(self));
        training.add_embedding(&mut calls, |model: &M| model.parts().embed, vocab);
        let blocks: fn(&M) -> &[M::Block] = |model| model.parts().blocks;
        training.add_blocks(&mut calls, (blocks, blocks(self).len()), |block, x_btd, micro, _| {
            let [b, t, _] = x_btd.dims();
            let x_btd = M::forward(block, x_btd, &mut Attention::to(Keys::OfRows(micro, [b, t])));
            BlockOutput { x_btd, aux_loss: None, stats: None }
        });
        calls.last(
            "head",
            |model: &M| model.parts().head,
            move |head, x_btd, batch| {
                let (x_btd, weight) = output::<M>(head, x_btd, vocab);
                let head = VocabularyHead { weight, transposed: false, vocab };
                training.main_loss(batch, |targets, coef| {
                    head.losses(&training.parallel.sequences.tp, x_btd, targets, coef)
                })
            },
        );
        calls
    }

    fn blocks(&self) -> usize {
        self.parts().blocks.len()
    }

    fn max_positions(&self) -> usize {
        self.parts().context
    }

    fn head_logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let (x_btd, weight) = output::<M>(self.parts().head, x_btd, vocab_size(self));
        fused::linear(x_btd, weight, None)
    }

    fn embed_cached(&self, tokens_bt: Tensor<2, Int>, _: &Chunk) -> Tensor<3> {
        self.parts().embed.forward(tokens_bt)
    }

    fn block_cached(&self, block: usize, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let Parts { blocks, context, .. } = self.parts();
        M::forward(&blocks[block], x_btd, &mut Attention::to(Keys::Cached(layer, chunk, context)))
    }
}

/// [`SimpleDecoder::output`] with a matrix of the right shape.
fn output<M: SimpleDecoder>(head: &M::Head, x_btd: Tensor<3>, vocab: usize) -> (Tensor<3>, Tensor<2>) {
    let (x_btd, weight) = M::output(head, x_btd);
    let (found, expected) = (weight.dims(), [x_btd.dims()[2], vocab]);
    assert_eq!(found, expected, "SimpleDecoder::output returns a matrix of {found:?}, and [d, vocab] is {expected:?}");
    (x_btd, weight)
}

fn vocab_size<M: SimpleDecoder>(model: &M) -> usize {
    model.parts().embed.weight.lazy_shape()[0] // `shape` would initialize it
}

/// Sizes of a [`SimpleDecoder`], in its configuration.
#[derive(Debug)]
pub struct Dimensions<'a> {
    /// Vocabulary size; 0 until it is known from the data.
    pub vocab_size: &'a mut usize,
    /// Number of blocks.
    pub blocks: &'a mut usize,
    /// Width of the residual stream.
    pub width: usize,
    /// The configuration key of the longest context, such as `model.context`, and its value in tokens.
    pub context: Size,
}

/// The configuration of a [`SimpleDecoder`]: the keys of the section `model`. [`Architecture`] follows from it; see
/// there for the traits to derive.
///
/// Such a model has no experts, and neither tensor nor context parallelism. Memory and FLOPs are estimated from its
/// matrices.
pub trait SimpleArchitecture:
    Debug + Clone + PartialEq + Default + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The model.
    type Model: SimpleDecoder;

    /// The value of `model.type`: lower-case letters, digits, `-` and `_`.
    const TYPE: &'static str;

    /// A one-line description of this type of model.
    const ABOUT: &'static str;

    /// The model's sizes.
    fn dimensions(&mut self) -> Dimensions<'_>;

    /// Builds the model. The values of its parameters do not matter: they are set afterwards, see
    /// [`initializer`](Self::initializer).
    fn model(&self, device: &Device) -> Self::Model;

    /// The initial values of a parameter, given by its path of fields, such as `blocks.0.gain`. `None` are normal numbers
    /// with a standard deviation of 0.02 for tensors of two dimensions or more, zeros for vectors called `bias` or
    /// `beta`, and ones for other vectors, which are the gains of norms.
    fn initializer(&self, _path: &str) -> Option<Initializer> {
        None
    }

    /// Rejects shapes that no model can be built from; the message names key, value and remedy. A vocabulary of 0
    /// passes.
    ///
    /// # Errors
    /// See above.
    fn validate(&self) -> Result<(), ModelError> {
        Ok(())
    }
}

impl<C: SimpleArchitecture> Architecture for C {
    type Model = C::Model;

    const TYPE: &'static str = C::TYPE;
    const ABOUT: &'static str = C::ABOUT;

    fn family<'a>(&'a self, _: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        let mut copy = self.clone();
        let Dimensions { vocab_size, blocks, width, context } = copy.dimensions();
        Box::new(SimpleFamily { config: self, vocab_size: *vocab_size, blocks: *blocks, width, context })
    }

    fn model(&self, _: Option<&MoeConfig>, device: &Device) -> C::Model {
        SimpleArchitecture::model(self, device)
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        *self.dimensions().vocab_size = vocab_size;
    }

    fn set_blocks(&mut self, blocks: usize) {
        *self.dimensions().blocks = blocks;
    }
}

/// More than any model has; larger numbers are slips, and their products could overflow.
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 30;

struct SimpleFamily<'a, C> {
    config: &'a C,
    vocab_size: usize,
    blocks: usize,
    width: usize,
    context: Size,
}

impl<C: SimpleArchitecture> SimpleFamily<'_, C> {
    /// Panics if the model does not have the sizes of its configuration.
    fn expect(&self, model: &C::Model) {
        let Parts { embed, blocks, context, .. } = model.parts();
        let [vocab_size, width] = embed.weight.lazy_shape().dims();
        for (what, built, told) in [
            ("a vocabulary of", vocab_size, self.vocab_size),
            ("a width of", width, self.width),
            ("a number of blocks of", blocks.len(), self.blocks),
            ("a context of", context, self.context.1),
        ] {
            let of = C::TYPE;
            assert_eq!(built, told, "{of}: the model has {what} {built}, and its configuration's `dimensions` {told}");
        }
    }
}

impl<C: SimpleArchitecture> Family for SimpleFamily<'_, C> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    fn width(&self) -> usize {
        self.width
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context(&self) -> Size {
        self.context
    }

    fn document_masking(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), ModelError> {
        self.config.validate()?;
        let of_model = |what: &str| format!("the {what} of a model of type {}", C::TYPE);
        let sizes = [
            (of_model("number of blocks"), self.blocks, MAX_LAYERS),
            (of_model("width"), self.width, MAX_WIDTH),
            (self.context.0.into(), self.context.1, MAX_CONTEXT),
        ];
        match sizes.into_iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            Some((what, size, most)) => Err(format!("{what} is {size}: give 1 to {most}").into()),
            None => Ok(()),
        }
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let model = SimpleArchitecture::model(self.config, &Device::flex());
        self.expect(&model);
        let mut parameters = parameters_of(&model);
        let is_in_a_part = |name: &str| ["embed.", "blocks.", "head."].iter().any(|part| name.starts_with(part));
        if let Some(ParameterSpec { name, .. }) = parameters.iter().find(|of| !is_in_a_part(&of.name)) {
            panic!("{}: {name}: a SimpleDecoder has all parameters in its fields embed, blocks and head", C::TYPE);
        }
        for of in &mut parameters {
            of.initializer = self.config.initializer(&of.name).unwrap_or(of.initializer);
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LanguageModel;
    use burn::nn::{EmbeddingConfig, Linear, LinearConfig};
    use comm::ContextParallel;

    #[derive(Module, Debug)]
    struct Model {
        embed: Embedding,
        blocks: Vec<Linear>,
        head: Linear,
    }

    impl SimpleDecoder for Model {
        type Block = Linear;
        type Head = Linear;

        fn parts(&self) -> Parts<'_, Self> {
            Parts { embed: &self.embed, blocks: &self.blocks, head: &self.head, context: 8 }
        }

        /// One head, with keys that depend on the position.
        fn forward(block: &Linear, x_btd: Tensor<3>, attention: &mut Attention) -> Tensor<3> {
            let [q, k, v] = block.forward(x_btd.clone()).unsqueeze_dim::<4>(1).chunk(3, 3).try_into().expect("three");
            let at_b1t1 = attention.positions(&x_btd.device()).float().unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(3);
            let y_bt1d = attention.causal([q, k * at_b1t1.sin(), v], 1.0);
            x_btd + y_bt1d.squeeze_dim(2)
        }

        fn output(head: &Linear, x_btd: Tensor<3>) -> (Tensor<3>, Tensor<2>) {
            (x_btd, head.weight.val())
        }
    }

    fn model() -> Model {
        let device = Device::flex();
        device.seed(1);
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(&device);
        let blocks = vec![linear(4, 12), linear(4, 12)];
        Model { embed: EmbeddingConfig::new(11, 4).init(&device), blocks, head: linear(4, 11) }
    }

    fn tokens(rows: [[i32; 5]; 2]) -> Tensor<2, Int> {
        Tensor::from_data(rows, &Device::flex())
    }

    #[test]
    fn logits_with_a_cache_are_those_of_the_whole_row() {
        let (model, all) = (model(), tokens([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]));
        let expected = model.logits(all.clone());
        let mut cache = model.cache(2);
        let parts = [0..2, 2..3, 3..5].map(|part| model.logits_cached(all.clone().slice_dim(1, part), &mut cache));
        let far = (Tensor::cat(parts.to_vec(), 1) - expected).abs().max().into_scalar::<f32>();
        assert!(far < 1e-6, "logits differ by {far}");
    }

    #[test]
    #[should_panic(expected = "a block calls Attention::causal once")]
    fn a_block_attends_once() {
        let micro = MicroBatch::default();
        let mut attention = Attention::to(Keys::OfRows(&micro, [1, 2]));
        let qkv = || [(); 3].map(|()| Tensor::ones([1, 1, 2, 4], &Device::flex()));
        attention.causal(qkv(), 1.0);
        attention.causal(qkv(), 1.0);
    }

    #[test]
    fn a_document_is_as_if_alone() {
        let (model, all) = (model(), tokens([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]));
        let first_keys = vec![0, 0, 0, 3, 3, 0, 0, 0, 3, 3];
        let documents = crate::Documents::new(first_keys, 5, &ContextParallel::default(), &Device::flex());
        let packed = MicroBatch { documents: Some(documents), ..MicroBatch::default() };
        let found = model.hidden_of(all.clone(), &packed).slice_dim(1, 3..5);
        let far = (found - model.hidden(all.slice_dim(1, 3..5))).abs().max().into_scalar::<f32>();
        assert!(far < 1e-6, "outputs differ by {far}");
    }
}
