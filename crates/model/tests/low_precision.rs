//! Models with bf16 or f16 parameters: sensitive operations run in f32, and the result is close to that of f32
//! parameters.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use model::deepseek::Head;
use model::{
    Batch, Decoder, DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, LanguageModel, Llama, LlamaConfig, RopeScaling,
    StepContext, Targets, YarnConfig,
};
use moe::{MoeConfig, ScoreFunc};
use std::collections::BTreeMap;
use test_kit::{floats, gradients};

const VOCAB: usize = 37;
const T: usize = 12;
/// A seed whose parameters give a loss away from that of a uniform prediction and no near ties in expert selection.
const SEED: u64 = 2;
const PLACE: StepContext = StepContext { seed: 1, step: 2, first_row: 3 };

/// Uses every feature: grouped heads, biases, norms of queries and keys, a window, a tied head, scaled positions,
/// experts.
fn llama(moe: Option<&MoeConfig>) -> Llama {
    let config = LlamaConfig {
        vocab_size: VOCAB,
        hidden_size: 32,
        num_hidden_layers: 2,
        intermediate_size: 48,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        qkv_bias: true,
        qk_norm: true,
        tie_word_embeddings: true,
        sliding_window: Some(T / 2),
        max_window_layers: 1,
        rope_scaling: Some(RopeScaling::default()),
        mlp_only_layers: if moe.is_some() { vec![0] } else { vec![] },
        ..LlamaConfig::default()
    };
    Llama::init(&config, moe, SEED, &Device::flex())
}

fn gpt2() -> Gpt2 {
    let config = Gpt2Config {
        vocab_size: VOCAB,
        n_positions: T,
        n_layer: 2,
        n_head: 2,
        n_embd: 32,
        dropout: 0.1,
        ..Gpt2Config::default()
    };
    Gpt2::init(&config, SEED, &Device::flex())
}

/// Uses every feature: groups, selection bias, shared experts, balance loss, compressed query, YaRN, a dense block.
fn deepseek(score_func: ScoreFunc, capacity_factor: Option<f64>) -> DeepSeek {
    let config = DeepSeekConfig {
        vocab_size: VOCAB,
        hidden_size: 32,
        num_hidden_layers: 3,
        first_k_dense_replace: 1,
        intermediate_size: 48,
        num_attention_heads: 2,
        q_lora_rank: Some(24),
        kv_lora_rank: 16,
        qk_nope_head_dim: 8,
        qk_rope_head_dim: 4,
        v_head_dim: 8,
        rope_scaling: Some(YarnConfig::default()),
        ..DeepSeekConfig::default()
    };
    let moe = MoeConfig {
        num_experts: 4,
        moe_intermediate_size: 16,
        n_shared_experts: 1,
        score_func,
        selection_bias: score_func == ScoreFunc::Sigmoid,
        n_group: 2,
        topk_group: 1,
        capacity_factor,
        aux_loss_coef: 0.1,
        ..MoeConfig::default()
    };
    DeepSeek::init(&config, &moe, SEED, &Device::flex())
}

/// Binds every parameter in this dtype, with matrices five times their initial size so that the loss differs from that
/// of a uniform prediction.
struct Bind(DType);

impl ModuleMapper for Bind {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let scale = if D == 1 { 1.0 } else { 5.0 };
        let value = (param.val() * scale).cast(self.0);
        Param::initialized(param.id, value.autodiff().require_grad())
    }
}

/// Loss and gradients of one batch with parameters of this dtype.
fn train<M: Decoder>(model: M, dtype: DType) -> (f64, BTreeMap<String, Vec<f64>>) {
    let model = model.map(&mut Bind(dtype));
    let ids = |step: i64| {
        let ids = Tensor::<1, Int>::arange(0..2 * T as i64, &Device::flex()) * step + 3;
        ids.remainder_scalar(VOCAB as i64).reshape([2, T])
    };
    let x_btd = model.hidden_of(ids(5), &PLACE.into());
    assert_eq!(x_btd.dtype(), dtype, "the residual stream keeps its dtype");
    let losses = model.losses(&Batch { micro: PLACE.into(), ..Batch::new(ids(5), Targets::all(ids(11))) });
    let loss = losses.aux.into_iter().fold(losses.loss, |loss, aux| loss + aux);
    assert_eq!(loss.dtype(), DType::F32);
    let values = gradients(&model, &loss.backward()).into_iter().map(|(path, gradient)| {
        assert_eq!(gradient.dtype(), dtype, "{path}");
        let values = gradient.iter::<f64>().collect();
        (path, values)
    });
    let values = values.collect();
    (f64::from(loss.into_scalar::<f32>()), values)
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Asserts that the loss is within 1% of that of f32 parameters, and that every gradient has a cosine above 0.99 with
/// theirs.
fn is_near_f32<M: Decoder>(model: M, dtype: DType) {
    let (expected_loss, expected) = train(model.clone(), DType::F32);
    let (loss, found) = train(model, dtype);
    let even_odds = (VOCAB as f64).ln();
    let trivial = "about the loss of even odds, which any precision has: give this model another seed";
    assert!((expected_loss - even_odds).abs() > 0.2, "{expected_loss} is {trivial}");
    assert!((loss - expected_loss).abs() < 0.01 * expected_loss, "{dtype:?}: loss {loss}, not {expected_loss}");
    assert!(found.keys().eq(expected.keys()) && found.len() > 10);
    for (path, expected) in &expected {
        let cosine = cosine(&found[path], expected);
        assert!(cosine > 0.99, "{dtype:?}: the gradient of {path} has a cosine of {cosine}");
    }
}

#[test]
fn gpt2_in_bf16_and_f16_is_near_f32() {
    is_near_f32(gpt2(), DType::BF16);
    is_near_f32(gpt2(), DType::F16);
}

#[test]
fn llama_in_bf16_and_f16_is_near_f32() {
    let moe = MoeConfig { num_experts: 4, moe_intermediate_size: 16, aux_loss_coef: 0.1, ..MoeConfig::default() };
    for moe in [None, Some(&moe)] {
        is_near_f32(llama(moe), DType::BF16);
        is_near_f32(llama(moe), DType::F16);
    }
}

#[test]
fn deepseek_in_bf16_and_f16_is_near_f32() {
    for (score_func, capacity_factor) in [(ScoreFunc::Sigmoid, None), (ScoreFunc::Softmax, Some(1.0))] {
        is_near_f32(deepseek(score_func, capacity_factor), DType::BF16);
        is_near_f32(deepseek(score_func, capacity_factor), DType::F16);
    }
}

/// Unless it is computed in f32, a norm's mean of squares overflows f16 for values above 255.
#[test]
fn the_head_takes_a_residual_stream_whose_squares_are_beyond_f16() {
    let Head { norm, .. } = deepseek(ScoreFunc::Softmax, None).map(&mut Bind(DType::F16)).head;
    let x_btd = Tensor::<3>::full([1, 1, 32], 1000.0, (&Device::flex(), DType::F16)).autodiff();
    let y = floats(norm.forward(x_btd));
    assert!(y.iter().all(|y| (y - 1.0).abs() < 1e-3), "{y:?}");
}

#[test]
fn the_gradient_of_a_frequent_token_is_the_sum_of_all_its_terms() {
    let table: Embedding = EmbeddingConfig::new(2, 1).init(&Device::flex()).map(&mut Bind(DType::BF16));
    let tokens_bt = Tensor::<2, Int>::ones([4, 1024], &Device::flex());
    let gradients = fused::embedding(table.weight.val(), tokens_bt).cast(DType::F32).sum().backward();
    assert_eq!(floats(table.weight.grad(&gradients).unwrap()), [0.0, 4096.0]);
}
