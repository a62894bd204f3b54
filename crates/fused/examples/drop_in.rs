//! A model of Burn's layers, trained with Kiln's attention, loss and optimizer: `cargo run --example drop_in`.
//!
//! It learns to repeat the first token of a sequence at each later position. The first position has no target: a pad.

use burn::module::{Module, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Distribution, Int, Tensor};
use fused::{FusedAdamW, LinearCrossEntropyConfig};

const VOCAB: usize = 16;
const PAD: usize = 0;
const B: usize = 32;
const T: usize = 12;
const D: usize = 32;

#[derive(Module, Debug)]
struct Model {
    tokens: Embedding,
    positions: Embedding,
    queries: Linear,
    keys: Linear,
    values: Linear,
    output: Linear,
    head: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            tokens: EmbeddingConfig::new(VOCAB, D).init(device),
            positions: EmbeddingConfig::new(T, D).init(device),
            queries: linear(D, D),
            keys: linear(D, D / 2),
            values: linear(D, D / 2),
            output: linear(D, D),
            head: LinearConfig::new(D, VOCAB).with_bias(false).init(device),
        }
    }

    /// The head's input, one row for each position: `[b t, d]`.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [b, t] = tokens.dims();
        let positions = Tensor::arange(0..t as i64, &tokens.device()).unsqueeze::<2>();
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let heads = |linear: &Linear, n| linear.forward(x.clone()).reshape([b, t, n, D / 4]).swap_dims(1, 2);
        // Two query heads share each head of keys and values.
        let (q, k, v) = (heads(&self.queries, 4), heads(&self.keys, 2), heads(&self.values, 2));
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let y = fused::attention(q, k, v, None, None, options);
        (x + self.output.forward(y.swap_dims(1, 2).reshape([b, t, D]))).reshape([b * t, D])
    }
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = Model::new(&device);
    let cross_entropy = LinearCrossEntropyConfig::new().with_pad_tokens(Some(vec![PAD])).init();
    let (adamw, biases) = (FusedAdamW::default(), ParamGroup::from_predicate("bias")); // no weight decay for biases
    let new =
        || ModuleOptimizer::from(adamw).with_group(biases.clone(), FusedAdamW { weight_decay: 0.0, ..adamw }, None);
    let (mut optim, mut losses) = (new(), vec![]);
    for step in 0..150 {
        let tokens = Tensor::<2>::random([B, T], Distribution::Uniform(1.0, VOCAB as f64), &device).int();
        let targets = tokens.clone().slice([0..B, 0..1]).repeat_dim(1, T).slice_fill([0..B, 0..1], PAD as i64);
        let loss = cross_entropy.forward(model.forward(tokens), model.head.weight.val(), targets.reshape([B * T]));
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-2, model, gradients);
        if step == 75 {
            optim = new().from_bytes(optim.into_bytes().expect("a record")).expect("the same record");
        }
    }
    println!("loss {:.3} -> {:.3}", losses[0], losses[149]);
    assert!(losses[0] > 2.0 && losses[149] < 0.1, "{losses:?}");
}
