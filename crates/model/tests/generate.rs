//! The cached forward against the uncached one, and generation.

mod common;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use common::{FIXTURES, load};
use model::hf::Pretrained;
use model::{
    Cache, DeepSeek, DeepSeekConfig, Generation, Gpt2, Gpt2Config, LanguageModel, Llama, LlamaConfig, ModelError,
    Sampling,
};
use moe::MoeConfig;
use proptest::prelude::*;
use std::ops::ControlFlow;
use std::time::Instant;
use test_kit::{floats, reference, worst};

fn fixture(name: &str) -> Pretrained {
    load(&reference(name))
}

/// Two query heads for each of two key-value heads, and a window.
fn llama() -> Llama {
    let config = LlamaConfig {
        vocab_size: 64,
        hidden_size: 32,
        num_hidden_layers: 2,
        intermediate_size: 48,
        qk_norm: true,
        sliding_window: Some(6),
        ..LlamaConfig::default()
    };
    Llama::init(&config, None, 3, &Device::flex())
}

/// Experts with a capacity that would drop most of their tokens in training.
fn deepseek_with_capacity() -> DeepSeek {
    let config = DeepSeekConfig { vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, ..DeepSeekConfig::default() };
    let moe = MoeConfig { capacity_factor: Some(0.25), moe_intermediate_size: 16, ..MoeConfig::default() };
    DeepSeek::init(&config, &moe, 3, &Device::flex())
}

fn tensor(tokens: &[u32], b: usize) -> Tensor<2, Int> {
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    Tensor::from_data(TensorData::new(ids, [b, tokens.len() / b]), &Device::flex())
}

/// Arbitrary tokens below 60, which every vocabulary here contains.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + i * (seed + 3) + seed * 11) % 60).collect()
}

/// Logits of `[b, t]`, computed in chunks of these sizes.
fn in_chunks(model: &dyn LanguageModel, tokens_bt: &Tensor<2, Int>, sizes: &[usize]) -> (Vec<f32>, Cache) {
    let [b, _] = tokens_bt.dims();
    let mut cache = model.cache(b);
    let mut start = 0;
    let mut parts = vec![];
    for size in sizes {
        parts.push(model.logits_cached(tokens_bt.clone().slice([0..b, start..start + size]), &mut cache));
        start += size;
    }
    (floats(Tensor::cat(parts, 1)), cache)
}

#[test]
fn one_token_at_a_time_has_the_logits_of_all_at_once() {
    for name in FIXTURES {
        let model = fixture(name);
        let tokens_bt = tensor(&tokens(1, 60), 3);
        let expected = floats(model.logits(tokens_bt.clone()));
        let (found, cache) = in_chunks(&*model, &tokens_bt, &[1; 20]);
        let worst = worst(&found, &expected);
        println!("{name}: {worst:e}");
        assert!(worst < 1e-5, "{name}: off by {worst:e}");
        assert_eq!(cache.lengths(), [20; 3]);
    }
}

#[test]
fn generation_sees_what_evaluation_sees_whatever_the_capacity_of_training() {
    let model = deepseek_with_capacity();
    let tokens_bt = tensor(&tokens(1, 48), 2);
    let expected = floats(model.logits(tokens_bt.clone()));
    let (found, _) = in_chunks(&model, &tokens_bt, &[10, 1, 13]);
    assert!(worst(&found, &expected) < 1e-5);
}

/// Casts parameters to bf16, or tracks them as in training.
struct Bind {
    dtype: DType,
    tracked: bool,
}

impl ModuleMapper for Bind {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val().cast(self.dtype);
        Param::initialized(param.id, if self.tracked { value.autodiff().require_grad() } else { value })
    }
}

#[test]
fn models_in_bf16_and_in_training_have_the_logits_of_the_whole_too() {
    fn check<M: Module + LanguageModel>(model: &M) {
        for (dtype, tracked, tolerance) in [(DType::BF16, false, 2e-2), (DType::F32, true, 1e-5)] {
            let model = model.clone().map(&mut Bind { dtype, tracked });
            let tokens_bt = tensor(&tokens(1, 40), 2);
            let expected = floats(model.logits(tokens_bt.clone()));
            let (found, cache) = in_chunks(&model, &tokens_bt, &[9, 1, 1, 9]);
            let (worst, largest) = (worst(&found, &expected), expected.iter().fold(0.0f32, |a, b| a.max(b.abs())));
            assert!(worst < tolerance * largest, "{dtype:?}: off by {worst:e} of {largest}");
            assert_eq!(cache.bytes_per_token() % dtype.size(), 0);
        }
    }
    check(&gpt2(2, 32, 64));
    check(&deepseek_with_capacity());
    check(&llama());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_into_chunks_has_the_logits_of_the_whole(
        name in prop::sample::select(&FIXTURES[..]),
        sizes in prop::collection::vec(1usize..9, 1..4),
        b in 1usize..4,
        seed in 0u32..50,
    ) {
        let model = fixture(name);
        let t: usize = sizes.iter().sum();
        let tokens_bt = tensor(&tokens(seed, b * t), b);
        let expected = floats(model.logits(tokens_bt.clone()));
        let (found, _) = in_chunks(&*model, &tokens_bt, &sizes);
        // DeepSeek absorbs matrices into others and is off by up to 1.2e-5. The others compute the same sums.
        let tolerance = if name.starts_with("deepseek") { 3e-5 } else { 0.0 };
        prop_assert!(worst(&found, &expected) <= tolerance, "off by {:e}", worst(&found, &expected));
    }

    /// Each sequence gets a different number of tokens at each step; then one is dropped and one restarted.
    #[test]
    fn sequences_of_different_lengths_have_the_logits_that_each_has_alone(
        name in prop::sample::select(&FIXTURES[..]),
        counts in prop::collection::vec([1usize..7, 1usize..7, 1usize..7], 1..4),
        seed in 0u32..50,
    ) {
        let model = fixture(name);
        let mut cache = model.cache(3);
        let mut texts: Vec<Vec<u32>> = vec![vec![]; 3];
        let step = |cache: &mut Cache, texts: &mut [Vec<u32>], counts: &[usize]| {
            let t = *counts.iter().max().unwrap();
            let mut ids = vec![];
            for (i, (text, count)) in texts.iter_mut().zip(counts).enumerate() {
                let new = tokens(seed + 5 * i as u32 + text.len() as u32, *count);
                text.extend(&new);
                ids.extend(new);
                ids.extend(vec![59; t - count]);
            }
            let found = floats(model.next_logits(tensor(&ids, texts.len()), counts, cache));
            for (text, found) in texts.iter().zip(found.chunks(found.len() / texts.len())) {
                let alone = floats(model.logits(tensor(text, 1)));
                assert!(worst(found, &alone[alone.len() - found.len()..]) < 1e-5, "{name}: {counts:?}");
            }
        };
        counts.iter().for_each(|counts| step(&mut cache, &mut texts, counts));
        cache.keep(&[2, 0]);
        texts = vec![texts[2].clone(), texts[0].clone()];
        step(&mut cache, &mut texts, &[1, 4]);
        cache.clear(1);
        texts[1].clear();
        step(&mut cache, &mut texts, &[2, 3]);
    }
}

#[test]
fn the_cache_of_latents_takes_rank_and_rotated_width_a_token_and_layer() {
    let config = DeepSeekConfig { vocab_size: 64, num_hidden_layers: 3, ..DeepSeekConfig::default() };
    let model = DeepSeek::init(&config, &MoeConfig::default(), 1, &Device::flex());
    let mut cache = model.cache(2);
    assert_eq!((cache.bytes(), cache.bytes_per_token()), (0, 0));
    model.logits_cached(tensor(&tokens(1, 20), 2), &mut cache);
    assert_eq!(cache.bytes_per_token(), 3 * (config.kv_lora_rank + config.qk_rope_head_dim) * 4);
    assert!(cache.bytes() >= 2 * 10 * cache.bytes_per_token());
    assert_eq!(cache.bytes() % (2 * cache.bytes_per_token()), 0);
    // The size of the keys and values of all heads.
    let heads = config.num_attention_heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim);
    assert!(cache.bytes_per_token() * 3 < 3 * heads * 4);

    let gpt2 = gpt2(2, 32, 64);
    let mut cache = gpt2.cache(2);
    gpt2.logits_cached(tensor(&tokens(1, 20), 2), &mut cache);
    assert_eq!(cache.bytes_per_token(), 2 * 2 * 32 * 4);
}

fn gpt2(n_layer: usize, n_embd: usize, n_positions: usize) -> Gpt2 {
    let config = Gpt2Config { vocab_size: 64, n_positions, n_layer, n_head: 4, n_embd, ..Gpt2Config::default() };
    Gpt2::init(&config, 7, &Device::flex())
}

fn how(max_new_tokens: usize, window: usize, sampling: Sampling) -> Generation {
    Generation { max_new_tokens, window, stop: vec![], sampling }
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: None, seed: 0 };

fn run(model: &dyn LanguageModel, prompts: &[Vec<u32>], how: &Generation) -> Vec<Vec<u32>> {
    model::generate(model, prompts, how, &Device::flex(), &mut |_, _| ControlFlow::Continue(())).unwrap()
}

/// Greedy generation from its definition: a whole forward for each token.
fn naive(model: &dyn LanguageModel, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let logits = floats(model.logits(tensor(&text, 1)));
        let last = &logits[logits.len() / text.len() * (text.len() - 1)..];
        let best = (1..last.len()).fold(0, |best, token| if last[token] > last[best] { token } else { best });
        text.push(best as u32);
    }
    text.split_off(prompt.len())
}

#[test]
fn a_batch_of_prompts_is_continued_as_each_prompt_alone() {
    for name in FIXTURES {
        let model = fixture(name);
        let prompts: Vec<Vec<u32>> = [3, 9, 1, 6].iter().zip(0..).map(|(n, seed)| tokens(seed, *n)).collect();
        let found = run(&*model, &prompts, &how(12, 99, GREEDY));
        for (found, prompt) in found.iter().zip(&prompts) {
            assert_eq!(*found, naive(&*model, prompt, 12), "{name}");
        }
    }
}

/// Every sequence outgrows the window at a different step.
#[test]
fn beyond_the_window_a_batch_is_still_continued_as_each_prompt_alone() {
    let model = fixture("gpt2-a");
    let sampling = Sampling { temperature: 0.9, top_k: Some(20), top_p: Some(0.9), seed: 5 };
    let prompts: Vec<Vec<u32>> = [3, 14, 1, 40].iter().zip(0..).map(|(n, seed)| tokens(seed, *n)).collect();
    for window in [1, 2, 7, 99] {
        let found = run(&*model, &prompts, &how(50, window, sampling));
        assert!(found.iter().all(|new| new.len() == 50));
        let alone = run(&*model, &prompts[..1], &how(50, window, sampling));
        assert_eq!(found[0], alone[0], "sequence 0 has the same draws in any batch");
        let greedy = run(&*model, &prompts, &how(50, window, GREEDY));
        for (prompt, greedy) in prompts.iter().zip(greedy) {
            assert_eq!(greedy, run(&*model, std::slice::from_ref(prompt), &how(50, window, GREEDY))[0]);
        }
    }
}

#[test]
fn a_full_window_goes_on_from_its_last_half() {
    let model = fixture("gpt2-a");
    let prompt = tokens(2, 6);
    let found = run(&*model, std::slice::from_ref(&prompt), &how(4, 8, GREEDY));
    let mut text = prompt.clone();
    text.extend(naive(&*model, &prompt, 3)); // the last of these is the ninth token
    let last = naive(&*model, &text[5..], 1);
    assert_eq!(found[0], [&text[6..], &last].concat());
}

#[test]
fn a_stop_token_or_the_callback_ends_a_sequence_and_no_other() {
    let model = fixture("gpt2-b");
    let prompts: Vec<Vec<u32>> = (0..3).map(|seed| tokens(seed, 4)).collect();
    let whole = run(&*model, &prompts, &how(10, 99, GREEDY));
    let stop = whole[1][4];
    let until = |new: &[u32]| new.iter().take_while(|token| **token != stop).copied().collect::<Vec<_>>();
    let mut seen = vec![vec![]; 3];
    let options = Generation { stop: vec![stop], ..how(10, 99, GREEDY) };
    let found = model::generate(&*model, &prompts, &options, &Device::flex(), &mut |sequence, token| {
        seen[sequence].push(token);
        if sequence == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(found, [until(&whole[0]), until(&whole[1]), until(&whole[2])[..1].to_vec()]);
    assert_eq!(found, seen);
}

/// Whatever the modules draft, the text, its end and the reported tokens are the same.
#[test]
fn with_drafts_a_text_is_the_same_as_without() {
    let sampling = Sampling { temperature: 0.4, top_k: Some(20), top_p: Some(0.9), seed: 5 };
    let prompts: Vec<Vec<u32>> = [3, 14, 1, 40].iter().zip(0..).map(|(n, seed)| tokens(seed, *n)).collect();
    for name in ["deepseek-v3-mtp-1", "deepseek-v3-mtp-2"] {
        let pretrained = fixture(name);
        let model = pretrained.model.predicts_ahead().expect("a model with multi-token prediction");
        for (window, sampling) in [(1, GREEDY), (2, GREEDY), (7, sampling), (99, GREEDY), (99, sampling)] {
            let mut options = how(40, window, sampling);
            for stop in [vec![], vec![run(model, &prompts, &options)[1][20]]] {
                options.stop = stop;
                let expected = run(model, &prompts, &options);
                let mut seen = vec![vec![]; prompts.len()];
                let (found, drafts) =
                    model::generate_speculative(model, &prompts, &options, &Device::flex(), &mut |sequence, token| {
                        seen[sequence].push(token);
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                assert_eq!(found, expected, "{name}, a window of {window}");
                assert_eq!(seen, expected);
                println!("{name}, a window of {window}: {drafts:?}");
                assert!(drafts.accepted <= drafts.drafted && (window < 99 || drafts.drafted > 20));
            }
        }
    }
}

#[test]
fn what_cannot_be_generated_is_said() {
    let model = gpt2(1, 8, 8);
    let error = |prompts: &[Vec<u32>], how: Generation| {
        model::generate(&model, prompts, &how, &Device::flex(), &mut |_, _| ControlFlow::Continue(())).unwrap_err()
    };
    assert!(matches!(error(&[vec![1], vec![]], how(1, 8, GREEDY)), ModelError::EmptyPrompt(1)));
    assert!(error(&[vec![1]], how(1, 0, GREEDY)).to_string().contains("window is 0"));
    let hot = Sampling { temperature: -1.0, ..GREEDY };
    assert!(error(&[vec![1]], how(1, 8, hot)).to_string().contains("temperature is -1"));
    assert_eq!(run(&model, &[], &how(3, 8, GREEDY)), Vec::<Vec<u32>>::new());
    assert_eq!(run(&model, &[vec![1]], &how(0, 8, GREEDY)), [Vec::<u32>::new()]);
}

#[test]
#[should_panic(expected = "9 tokens are more than the context of 8")]
fn more_tokens_than_the_context_are_refused() {
    let model = gpt2(1, 8, 8);
    let mut cache = model.cache(1);
    model.logits_cached(tensor(&tokens(1, 8), 1), &mut cache);
    model.logits_cached(tensor(&tokens(1, 1), 1), &mut cache);
}

#[test]
#[should_panic(expected = "9 tokens are more than the context of 8")]
fn logits_beyond_the_context_are_refused() {
    gpt2(1, 8, 8).logits(tensor(&tokens(1, 9), 1));
}

/// `cargo test --workspace --test generate -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn tokens_per_second() {
    let gpt2 = gpt2(6, 384, 1024);
    let config = DeepSeekConfig { vocab_size: 64, hidden_size: 384, num_hidden_layers: 6, ..DeepSeekConfig::default() };
    let deepseek = DeepSeek::init(&config, &MoeConfig::default(), 1, &Device::flex());
    for (name, model) in [("GPT-2", &gpt2 as &dyn LanguageModel), ("DeepSeek", &deepseek)] {
        run(model, &[vec![1]], &how(2, 1024, GREEDY)); // parameters are generated when they are first read
        for (new, b) in [(256, 1), (1000, 1), (256, 8)] {
            let prompts = vec![tokens(1, 16); b];
            let start = Instant::now();
            run(model, &prompts, &how(new, 1024, GREEDY));
            println!(
                "{name}: {:.0} tokens/s, batch {b}, {new} tokens",
                (b * new) as f64 / start.elapsed().as_secs_f64()
            );
        }
        let start = Instant::now();
        naive(model, &tokens(1, 16), 256);
        println!("{name}: {:.0} tokens/s without a cache, 256 tokens", 256.0 / start.elapsed().as_secs_f64());
    }
}
