//! Logits, loss and every parameter's gradient against Hugging Face transformers (`tests/reference/make_fixtures.py`).

#[path = "../common/mod.rs"]
mod common;
mod ranks;

use burn::module::Module;
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use comm::ContextParallel;
use common::Loaded;
use model::hf::{Folder, Pretrained, Source, bind, names};
use model::{Batch, DeepSeek, Documents, Gpt2, LanguageModel, Llama, MicroBatch, MtpBatch, Targets, TokenRows};
use moe::MoeConfig;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use test_kit::{Values, assert_close, floats, largest, reference, stored_floats, stored_ints, tracked};

const LOGITS: f64 = 1e-4;
const GRADIENTS: f64 = 1e-3;

macro_rules! fixtures {
    ($($test:ident: $folder:literal,)*) => {$(
        #[test]
        fn $test() {
            equals_transformers($folder);
        }
    )*};
}

fixtures! {
    gpt2: "gpt2-a",
    gpt2_with_prefixed_names_and_another_inner_width: "gpt2-b",
    deepseek_v3_with_groups_bias_and_compressed_query: "deepseek-v3-q-lora",
    deepseek_v3_without_compressed_query_or_normalised_weights: "deepseek-v3-no-q-lora",
    deepseek_v3_with_yarn_in_two_shards: "deepseek-v3-yarn",
    deepseek_v3_with_yarn_of_two_mscales_and_no_dense_layer: "deepseek-v3-yarn-2",
    deepseek_v2_greedy: "deepseek-v2-greedy",
    deepseek_v2_group_limited_greedy: "deepseek-v2-group-limited",
    llama_with_scaled_rotary_positions: "llama-scaled-rope",
    qwen2_with_biases_and_a_tied_head: "qwen2",
    qwen2_with_windows_in_its_last_layers: "qwen2-window",
    qwen3_with_norms_of_queries_and_keys_and_yarn: "qwen3",
    mistral_with_a_window_shorter_than_the_text: "mistral-window",
    mixtral: "mixtral",
    qwen3_moe_with_a_dense_layer: "qwen3-moe",
}

fn equals_transformers(name: &str) {
    let device = Device::flex();
    let path = reference(name);
    let file = fs::read(path.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let folder = Folder::open(&path).unwrap();
    let tokens = ints(&expected, "tokens", &device);
    let targets = ints(&expected, "targets", &device);

    let pretrained = Pretrained::load(&folder, &device).unwrap();
    let found = floats(pretrained.logits(tokens.clone()));
    assert_close("logits", &found, &stored_floats(&expected, "logits"), LOGITS);

    train_as_transformers(pretrained, &path, &expected, |model| model.loss(tokens.clone(), targets.clone()));
}

/// All sequences of a fixture, as documents of one row.
#[test]
fn documents_in_one_row_equal_transformers() {
    for name in ["gpt2-a", "deepseek-v3-q-lora", "deepseek-v3-yarn", "deepseek-v2-greedy", "qwen3", "mistral-window"] {
        let device = Device::flex();
        let path = reference(name);
        let file = fs::read(path.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&file).unwrap();
        let (tokens, batch) = in_one_row(ints(&expected, "tokens", &device), &ContextParallel::default());
        let targets = in_one_row(ints(&expected, "targets", &device), &ContextParallel::default()).0;
        let pretrained = common::load(&path);
        let model: &dyn LanguageModel = &*pretrained;
        let logits = model.head(model.hidden_of(tokens.clone(), &batch));
        assert_close(name, &floats(logits), &stored_floats(&expected, "logits"), LOGITS);
        train_as_transformers(pretrained, &path, &expected, |model| {
            let batch = Batch { micro: batch.clone(), ..Batch::new(tokens.clone(), Targets::all(targets.clone())) };
            model.losses(&batch).loss
        });
    }
}

/// Packs tokens `[b, t]` into one row of b documents. A context-parallel rank keeps its part.
fn in_one_row(tokens_bt: Tensor<2, Int>, context: &ContextParallel) -> (Tensor<2, Int>, MicroBatch) {
    let [b, t] = tokens_bt.dims();
    let first_keys = (0..b * t).map(|i| (i / t * t) as i32).collect();
    let documents = Documents::new(first_keys, b * t, context, &tokens_bt.device());
    let batch = MicroBatch { documents: Some(documents), ..MicroBatch::default() };
    (context.own(tokens_bt.reshape([1, b * t]), 1), batch)
}

/// Compares loss and gradients.
fn train_as_transformers(
    pretrained: Pretrained,
    path: &Path,
    expected: &SafeTensors,
    loss: impl Fn(&dyn LanguageModel) -> Tensor<1>,
) {
    let device = Device::flex();
    let loss = |model: &dyn LanguageModel| {
        let loss = loss(model);
        assert_close("loss", &floats(loss.clone()), &stored_floats(expected, "loss"), LOGITS);
        loss
    };
    match Loaded::from(pretrained) {
        Loaded::Gpt2(config, model) => {
            compare_gradients(model, gradients(Gpt2::new(&config, &device), path), |model| loss(model));
        }
        Loaded::Llama(config, moe, model) => {
            let expected = gradients(Llama::new(&config, moe.as_ref(), &device), path);
            compare_gradients(model, expected, |model| loss(model));
        }
        Loaded::DeepSeek(config, moe, model) => {
            // The selection bias has no gradient, so the model that holds the expected gradients omits it.
            let moe = MoeConfig { selection_bias: false, ..moe };
            compare_gradients(model, gradients(DeepSeek::new(&config, &moe, &device), path), |model| loss(model));
        }
    }
}

/// The losses and the gradients of their weighted sum, against PyTorch and an independent implementation of the paper
/// (`tests/reference/make_mtp_fixtures.py`).
#[test]
fn multi_token_prediction_of_one_and_two_modules() {
    let device = Device::flex();
    for name in ["deepseek-v3-mtp-1", "deepseek-v3-mtp-2"] {
        let path = reference(name);
        let file = fs::read(path.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&file).unwrap();
        let (tokens, targets) = (ints(&expected, "tokens", &device), ints(&expected, "targets", &device));
        let rows = |tokens: &Tensor<2, Int>| tokens.clone().into_data().iter::<i32>().collect::<Vec<_>>();
        let Loaded::DeepSeek(config, moe, model) = common::load(&path).into() else { unreachable!("{name}") };
        let (depth, t) = (config.mtp_depth, tokens.dims()[1]);
        let rows = TokenRows {
            inputs: &rows(&tokens),
            targets: &rows(&targets),
            t,
            here: std::iter::once(0..t).collect(),
            end_of_text: Some(1),
            documents_apart: false,
            scale: 1.0,
        };
        let batches = MtpBatch::of_rows(&rows, depth, &device);
        let moe = MoeConfig { selection_bias: false, ..moe };
        compare_gradients(model, gradients(DeepSeek::new(&config, &moe, &device), &path), |model| {
            let (main, further) = model.mtp_losses(tokens.clone(), targets.clone(), &batches);
            let further = Tensor::cat(further.into_iter().map(Option::unwrap).collect(), 0);
            assert_close("loss", &floats(main.clone()), &stored_floats(&expected, "loss"), LOGITS);
            assert_close(
                "losses of modules",
                &floats(further.clone()),
                &stored_floats(&expected, "mtp_losses"),
                LOGITS,
            );
            main + further.sum() * (0.3 / depth as f64)
        });
    }
}

/// The expected gradients, loaded like weights into a second model, so that they are renamed, transposed and stacked
/// the same way.
fn gradients<M: Module>(model: M, path: &Path) -> M {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(path.join("config.json"), folder.path().join("config.json")).unwrap();
    fs::copy(path.join("expected.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let folder_of_weights = Folder::open(path).unwrap();
    let name_of = names(&folder_of_weights).unwrap();
    let gradient_of = |path: &str| match name_of(path) {
        Source::Same(name) => Source::Same(format!("grad.{name}")),
        Source::Transposed(name) => Source::Transposed(format!("grad.{name}")),
        Source::TransposedExperts(prefix, suffix) => Source::TransposedExperts(format!("grad.{prefix}"), suffix),
    };
    bind(model, &Folder::open(folder.path()).unwrap(), &gradient_of).unwrap()
}

fn compare_gradients<M: Module>(model: M, expected_gradients: M, loss: impl Fn(&M) -> Tensor<1>) {
    let model = tracked(model);
    let found = found_gradients(&model, &loss(&model).backward());
    let expected = Values::of(&expected_gradients).by_path();
    for (path, expected) in &expected {
        assert_close(path, &found[path], expected, GRADIENTS * largest(expected, 0.0));
    }
    let untrained = found.keys().filter(|path| !expected.contains_key(*path));
    assert!(
        untrained.clone().all(|path| path.ends_with("router.bias")),
        "without reference: {:?}",
        untrained.collect::<Vec<_>>()
    );
}

/// The gradients of all parameters by path: zeros for those that have none.
fn found_gradients<M: Module>(model: &M, gradients: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let found = test_kit::gradients(model, gradients);
    let of = |(path, values): (String, Vec<f32>)| {
        let gradient = found.get(&path).map_or_else(|| vec![0.0; values.len()], |data| data.iter::<f32>().collect());
        (path, gradient)
    };
    Values::of(model).by_path().into_iter().map(of).collect()
}

fn ints(file: &SafeTensors, name: &str, device: &Device) -> Tensor<2, Int> {
    let (values, shape) = stored_ints(file, name);
    Tensor::from_data(TensorData::new(values, shape), device)
}
