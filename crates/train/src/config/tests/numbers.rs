//! Tests of numeric keys: each value is either rejected with its key or can be computed with.

use super::*;
use crate::config::learning_rate::learning_rate;
use crate::trainer::batches::Batches;
use crate::training::set_vocabulary;
use model::ParameterSpec;
use proptest::prelude::prop_assert_eq;

#[test]
fn a_value_that_no_run_can_have_is_refused_with_its_key() {
    let gpt2: &[(&str, &[&str])] = &[
        ("model.n_positions", &["0", "18446744073709551615"]),
        ("model.n_layer", &["0", "10001", "18446744073709551615"]),
        ("model.n_head", &["0"]),
        ("model.n_embd", &["0", "9223372036854775824"]),
        ("model.n_inner", &["0", "18446744073709551615"]),
        ("model.vocab_size", &["18446744073709551615"]),
        ("model.dropout", &["-0.1", "1", ".nan", ".inf"]),
        ("model.layer_norm_epsilon", &["0", "-1", ".nan", ".inf", "1e300", "1e-50"]),
        ("train.steps", &["0", "18446744073709551615"]),
        ("train.global_batch_size", &["0", "9223372036854775808"]),
        ("train.micro_batch_size", &["0"]),
        ("train.max_skips", &["0"]),
        ("train.patience", &["0"]),
        ("train.z_loss_coef", &["-1", ".nan", ".inf", "1e300"]),
        ("train.seq_len", &["0", "18446744073709551615"]),
        ("train.sample_tokens", &["18446744073709551615"]),
        ("optim.lr", &["0", "-1", ".nan", ".inf", "1e300", "1e-50"]),
        ("optim.min_lr", &["-1", ".nan", ".inf"]),
        ("optim.beta1", &["-0.1", "1", "0.999999999999", ".nan", ".inf"]),
        ("optim.beta2", &["-0.1", "1", "0.999999999999", ".nan", ".inf"]),
        ("optim.epsilon", &["0", "-1", ".nan", ".inf", "1e300", "1e-50"]),
        ("optim.weight_decay", &["-1", ".nan", ".inf", "1e300"]),
        ("optim.clip_grad_norm", &["-1", ".nan", ".inf", "1e300"]),
        ("parallel.gpus", &["0", "18446744073709551615"]),
        ("checkpoint.every_minutes", &["0", "-1", ".nan", ".inf"]),
        ("metrics.peak_tflops", &["0", "-1", ".nan", ".inf"]),
    ];
    let deepseek: &[(&str, &[&str])] = &[
        ("model.vocab_size", &["18446744073709551615"]),
        ("model.hidden_size", &["0", "18446744073709551615"]),
        ("model.num_hidden_layers", &["0", "18446744073709551615"]),
        ("model.num_attention_heads", &["0", "18446744073709551615"]),
        ("model.q_lora_rank", &["0", "18446744073709551615"]),
        ("model.kv_lora_rank", &["0", "18446744073709551615"]),
        ("model.qk_nope_head_dim", &["0", "18446744073709551615"]),
        ("model.qk_rope_head_dim", &["0", "7", "4098", "18446744073709551614"]),
        ("model.v_head_dim", &["0", "18446744073709551615"]),
        ("model.max_position_embeddings", &["0"]),
        ("model.rms_norm_eps", &["0", "-1", ".nan", ".inf", "1e300", "1e-50"]),
        ("model.rope_theta", &["0", "1", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.factor", &["0", "0.5", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.original_max_position_embeddings", &["0"]),
        ("model.rope_scaling.beta_fast", &["0", "1", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.beta_slow", &["0", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.mscale", &["-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.mscale_all_dim", &["-1", ".nan", ".inf", "1e300"]),
        ("model.mtp_depth", &["17", "18446744073709551615"]),
        ("train.mtp_loss_coef", &["-1", ".nan", ".inf", "1e300"]),
        ("moe.num_experts", &["0", "18446744073709551615"]),
        ("moe.top_k", &["0", "9", "18446744073709551615"]),
        ("moe.moe_intermediate_size", &["0", "18446744073709551615"]),
        ("moe.n_shared_experts", &["18446744073709551615"]),
        ("moe.n_group", &["0", "3", "18446744073709551615"]),
        ("moe.topk_group", &["0", "2", "18446744073709551615"]),
        ("moe.router_noise", &["-1", ".nan", ".inf", "1e300"]),
        ("moe.routed_scaling_factor", &["0", "-1", ".nan", ".inf", "1e300"]),
        ("moe.capacity_factor", &["0", "-1", ".nan", ".inf"]),
        ("moe.aux_loss_coef", &["-1", ".nan", ".inf", "1e300"]),
        ("moe.z_loss_coef", &["-1", ".nan", ".inf", "1e300"]),
        ("moe.bias_update_speed", &["-1", ".nan", ".inf", "1e300"]),
    ];
    let llama: &[(&str, &[&str])] = &[
        ("model.vocab_size", &["18446744073709551615"]),
        ("model.hidden_size", &["0", "18446744073709551615"]),
        ("model.num_hidden_layers", &["0", "10001", "18446744073709551615"]),
        ("model.intermediate_size", &["0", "18446744073709551615"]),
        ("model.num_attention_heads", &["0", "3", "18446744073709551615"]),
        ("model.num_key_value_heads", &["0", "3", "8", "18446744073709551615"]),
        ("model.head_dim", &["0", "7", "4098", "18446744073709551614"]),
        ("model.max_position_embeddings", &["0"]),
        ("model.rms_norm_eps", &["0", "-1", ".nan", ".inf", "1e300", "1e-50"]),
        ("model.rope_theta", &["0", "1", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.factor", &["0", "0.5", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.low_freq_factor", &["0", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.high_freq_factor", &["0", "1", "-1", ".nan", ".inf", "1e300"]),
        ("model.rope_scaling.beta_fast", &["0", "1", "-1", ".nan", ".inf", "1e300"]),
        ("model.sliding_window", &["0"]),
        ("model.mlp_only_layers", &["[4]", "[0, 0]", "[2, 1]"]),
    ];
    for (preset, keys, other) in
        [("gpt2", gpt2, ""), ("llama", llama, ""), ("deepseek", deepseek, "model.first_k_dense_replace=1")]
    {
        for (key, values) in keys {
            for value in *values {
                let all = [&format!("{key}={value}")[..], other];
                refuses(preset_with(preset, if other.is_empty() { &all[..1] } else { &all }), &[key]);
            }
        }
    }
    refuses(
        preset_with(
            "gpt2",
            &["train.global_batch_size=2e6", "train.seq_len=1e6", "model.n_positions=1e6", "train.steps=1e6"],
        ),
        &["train.global_batch_size is 2000000, which makes a run of 2.0e18 tokens"],
    );
    refuses(
        preset_with("gpt2", &["train.epochs=1", "train.global_batch_size=1000000000000000000"]),
        &["train.global_batch_size is 1000000000000000000, which makes a run of 1.3e20 tokens"],
    );
    refuses(
        preset_with(
            "gpt2",
            &[
                "train.seq_len=1e7",
                "model.n_positions=1e7",
                "train.micro_batch_size=1e3",
                "train.global_batch_size=1e3",
            ],
        ),
        &["train.seq_len 10000000 x model.n_head 4 x train.seq_len 10000000 make a tensor of 4.0e17 numbers"],
    );
}

#[test]
fn a_whole_number_may_be_written_as_a_float() {
    let config = preset_with("deepseek", &["train.steps=1e3", "moe.top_k=1.0", "moe.capacity_factor=2e0"]).unwrap();
    let moe = config.moe.unwrap();
    assert_eq!((config.train.steps, moe.top_k, moe.capacity_factor), (1000, 1, Some(2.0)));
    let config = files(&[("a.yaml", "base: preset:gpt2\ntrain: {steps: 2e3, micro_batch_size: 1e0}")]).unwrap();
    assert_eq!((config.train.steps, config.train.micro_batch_size), (2000, Some(1)));
}

#[test]
fn a_run_that_ends_within_its_warm_up_is_warned_of() {
    let warnings = |set: &str| preset_with("gpt2", &[set]).unwrap().warnings();
    assert_eq!(warnings("train.steps=21"), Vec::<String>::new());
    let expected = "the warm-up (optim.warmup_steps 20) is not over after 10 steps: the learning rate ends at 4.76e-4 and never \
                    reaches optim.lr 0.001";
    assert_eq!(warnings("train.steps=10"), [expected]);
    assert!(warnings("train.steps=1")[0].contains("after 1 step:"));
    assert_eq!(warnings("train.steps=20").len(), 1);
}

#[test]
fn sixteen_bits_that_a_cpu_does_not_multiply_are_warned_of() {
    let warnings =
        |param: &str| preset_with("gpt2", &[&format!("parallel.precision.param={param}")]).unwrap().warnings();
    assert_eq!(warnings("fp32"), Vec::<String>::new());
    assert!(warnings("fp16")[0].starts_with("this CPU multiplies fp16 in fp32"));
    assert_eq!(warnings("bf16").is_empty(), cpu::simd::multiplies_bf16());
}

/// Picks keys of a preset's configuration that may hold a number or null, and new numbers for them.
fn numbers() -> impl Generator<Value = (usize, Vec<(f64, &'static str)>)> {
    const NUMBERS: [&str; 26] = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "7",
        "8",
        "16",
        "64",
        "100",
        "1000",
        "1e4",
        "65536",
        "1e6",
        "4294967296",
        "1e12",
        "9e15",
        "9223372036854775807",
        "18446744073709551615",
        "-1",
        "0.5",
        "1e-50",
        "1e300",
        ".nan",
        ".inf",
        "null",
    ];
    (0..PRESETS.len(), prop::collection::vec((0.0..1.0, prop::sample::select(&NUMBERS[..])), 1..5))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Accepted values can be computed with: counting parameters, learning rates and rows does not overflow.
    #[test]
    fn numbers_are_refused_or_can_be_computed_with((preset, changes) in numbers()) {
        let load = |sets: &[String]| Config::load(Source::Preset(PRESETS[preset].name), sets);
        let keys = keys(load(&[]).unwrap().model.type_name());
        let sets = changes.into_iter().map(|(place, value)| format!("{}={value}", keys[(place * keys.len() as f64) as usize]));
        let sets: Vec<String> = sets.filter(|set| load(std::slice::from_ref(set)).is_ok()).collect();
        let Ok(mut config) = load(&sets) else { return Ok(()) };
        if config.validate().is_ok() {
            set_vocabulary(&mut config, Some(256)).ok();
            let listed: f64 = config.family().parameters().iter().map(ParameterSpec::len).sum();
            prop_assert_eq!(config.parameter_count() as f64, listed);
            let warnings = config.warnings();
            prop_assert!(warnings.len() <= 3);
            let steps = config.train.steps.max(1); // 0 until the data determines how many an epoch has
            let last = learning_rate(&config.optim, steps - 1, steps);
            prop_assert!((0.0..=config.optim.lr * 1.000001).contains(&last), "{last}");
            let ranks = config.parallel.data_parallel_size();
            let batches = Batches::new(&config, (ranks - 1, ranks), None, None, None);
            prop_assert!(batches.step_tokens(config.train.steps) > 0);
        }
    }
}
