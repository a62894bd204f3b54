//! Exported folders against the fixtures made with transformers, and models that cannot be exported.

mod common;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use common::{FIXTURES, load};
use half::{bf16, f16};
use model::ModelError;
use model::hf::{Dtype, ExportOptions, Folder, Pretrained, Summary, export};
use model::{
    DeepSeek, DeepSeekConfig, Family, Gpt2, Gpt2Config, LanguageModel, Llama, LlamaConfig, ModelConfig, RopeScaling,
    RopeType, YarnConfig,
};
use moe::{GroupMask, MoeConfig, ScoreFunc};
use safetensors::{SafeTensors, tensor};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use test_kit::{Values, floats, reference};

/// A model's parameters by path.
fn values<M: Module>(model: &M) -> BTreeMap<String, Vec<f32>> {
    Values::of(model).by_path()
}

fn shape_of(model: &Pretrained) -> (Box<dyn Family + '_>, BTreeMap<String, Vec<f32>>) {
    let mut values = BTreeMap::new();
    model.model.for_each_parameter(|path, _, value| {
        values.insert(path.to_string(), floats(value));
    });
    (model.config.family(model.moe.as_ref()), values)
}

fn write(folder: &Path, model: &dyn Family, values: &BTreeMap<String, Vec<f32>>, options: &ExportOptions) -> Summary {
    export(folder, model, options, |path| Ok::<_, Infallible>(values[path].clone())).unwrap()
}

/// Tensors by name: type, shape and bytes.
type Tensors = BTreeMap<String, (tensor::Dtype, Vec<usize>, Vec<u8>)>;

/// Reads every tensor of a folder.
fn tensors(path: &Path) -> Tensors {
    let mut tensors = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let file = fs::read(&entry).unwrap();
            let (_, header) = SafeTensors::read_metadata(&file).unwrap();
            assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
            for (name, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
                tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            }
        }
    }
    tensors
}

#[test]
fn what_is_loaded_and_exported_is_what_was_there() {
    for name in FIXTURES {
        let (model, folder) = (load(&reference(name)), tempfile::tempdir().unwrap());
        let path = folder.path().join("deeper/export");
        let (shape, expected) = shape_of(&model);
        let summary = write(&path, &*shape, &expected, &ExportOptions::default());
        assert_eq!(summary.weight_files, ["model.safetensors"]);

        let again = load(&path);
        let (_, found) = shape_of(&again);
        assert_eq!((&again.config, &again.moe), (&model.config, &model.moe), "{name}");
        assert_eq!(found, expected, "{name}");

        let unprefixed = |name: &str| name.trim_start_matches("transformer.").to_string();
        let found: BTreeMap<_, _> = tensors(&path).into_iter().map(|(name, t)| (unprefixed(&name), t)).collect();
        let expected: BTreeMap<_, _> = tensors(&reference(name))
            .into_iter()
            .map(|(name, tensor)| (unprefixed(&name), tensor))
            .filter(|(name, _)| !(name.starts_with("h.") && name.ends_with(".attn.bias"))) // gpt2-a's masks
            .collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        assert!(found == expected, "{name}: a tensor differs");
        assert_eq!(summary.tensors, found.len());
        assert_eq!(summary.bytes, 4 * summary.parameters as u64);
        assert_eq!(summary.bytes, found.values().map(|(_, _, bytes)| bytes.len() as u64).sum::<u64>());
        assert!(!folder.path().join("deeper/export.partial").exists());
    }
}

#[test]
fn a_module_of_multi_token_prediction_whose_embedding_is_its_own_or_whose_layer_is_missing_is_refused() {
    let (folder, reference) = (tempfile::tempdir().unwrap(), reference("deepseek-v3-mtp-2"));
    fs::copy(reference.join("config.json"), folder.path().join("config.json")).unwrap();
    let error = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors(&reference);
        change(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        Pretrained::load(&Folder::open(folder.path()).unwrap(), &Device::flex()).map(drop).unwrap_err().to_string()
    };
    for copy in ["embed_tokens", "shared_head.head"] {
        let name = format!("model.layers.2.{copy}.weight");
        let message = error(&|tensors| tensors.get_mut(&name).unwrap().2[0] ^= 1);
        assert!(
            message.contains("model.safetensors") && message.contains(&format!("`{name}` is not equal to")),
            "{message}"
        );
    }
    let message = error(&|tensors| drop(tensors.remove("model.layers.2.hnorm.weight")));
    assert!(message.contains("no tensor `model.layers.2.hnorm.weight`"), "{message}");
}

#[test]
fn shards_have_an_index_and_each_parameter_is_asked_for_once() {
    let (model, folder) = (load(&reference("deepseek-v3-q-lora")), tempfile::tempdir().unwrap());
    let path = folder.path().join("sharded");
    let (shape, expected) = shape_of(&model);
    let options = ExportOptions { max_shard_bytes: 20_000, ..ExportOptions::default() };
    let mut asked = vec![];
    let summary = export(&path, &*shape, &options, |path| {
        asked.push(path.to_string());
        Ok::<_, Infallible>(expected[path].clone())
    })
    .unwrap();
    asked.sort();
    assert_eq!(asked, expected.keys().cloned().collect::<Vec<_>>());

    let n = summary.weight_files.len();
    assert!(n > 3 && n as u64 >= summary.bytes / 20_000);
    for (i, file) in summary.weight_files.iter().enumerate() {
        assert_eq!(*file, format!("model-{:05}-of-{n:05}.safetensors", i + 1));
        let bytes = fs::read(path.join(file)).unwrap();
        let views = SafeTensors::deserialize(&bytes).unwrap();
        assert!(views.iter().map(|(_, view)| view.data().len()).sum::<usize>() <= 20_000);
    }
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(path.join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], summary.bytes);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), summary.tensors);
    assert_eq!(shape_of(&load(&path)).1, expected);
    assert_eq!(tensors(&path), tensors(&reference("deepseek-v3-q-lora")));
}

#[test]
fn bf16_and_f16_are_rounded_to_the_nearest_and_the_selection_bias_stays_f32() {
    let (model, folder) = (load(&reference("deepseek-v3-q-lora")), tempfile::tempdir().unwrap());
    let (shape, expected) = shape_of(&model);
    for (dtype, round) in
        [(Dtype::BF16, (|x| bf16::from_f32(x).to_f32()) as fn(f32) -> f32), (Dtype::F16, |x| f16::from_f32(x).to_f32())]
    {
        let path = folder.path().join(format!("{dtype:?}"));
        write(&path, &*shape, &expected, &ExportOptions { dtype, ..ExportOptions::default() });
        for (name, found) in shape_of(&load(&path)).1 {
            let round = if name.ends_with("router.bias") { |x| x } else { round };
            assert_eq!(found, expected[&name].iter().map(|x| round(*x)).collect::<Vec<_>>(), "{name}");
        }
    }
}

#[test]
fn halves_between_two_bf16_go_to_the_even_one() {
    let config =
        Gpt2Config { vocab_size: 1, n_positions: 1, n_layer: 1, n_head: 1, n_embd: 2, ..Gpt2Config::default() };
    let folder = tempfile::tempdir().unwrap();
    let options = ExportOptions { dtype: Dtype::BF16, ..ExportOptions::default() };
    let shapes = values(&Gpt2::init(&config, 1, &Device::flex()));
    export(&folder.path().join("x"), &*ModelConfig::from(config.clone()).family(None), &options, |path| {
        let ends = if path == "ends.wte.weight" { Some(vec![1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]) } else { None };
        Ok::<_, Infallible>(ends.unwrap_or(shapes[path].clone()))
    })
    .unwrap();
    let found = &tensors(&folder.path().join("x"))["transformer.wte.weight"];
    assert_eq!(found.2, [0x80, 0x3f, 0x82, 0x3f]); // 1 and 1 + 4/256
}

const SHAPE: [usize; 2] = [2, 12];

fn tokens() -> Vec<i64> {
    (0..24).map(|i| i * i % 61).collect()
}

fn logits(model: &dyn LanguageModel) -> Vec<f32> {
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(tokens(), SHAPE), &Device::flex());
    floats(model.logits(tokens_bt))
}

#[test]
fn a_gpt2_without_biases_gets_biases_of_zero_and_has_the_same_logits() {
    let config = Gpt2Config {
        vocab_size: 61,
        n_positions: 16,
        n_layer: 2,
        n_head: 2,
        n_embd: 16,
        bias: false,
        ..Gpt2Config::default()
    };
    let (model, folder) = (Gpt2::init(&config, 5, &Device::flex()), tempfile::tempdir().unwrap());
    let path = folder.path().join("x");
    write(&path, &*ModelConfig::from(config.clone()).family(None), &values(&model), &ExportOptions::default());
    assert!(tensors(&path)["transformer.h.1.attn.c_attn.bias"].2.iter().all(|byte| *byte == 0));
    assert_eq!(logits(&*load(&path)), logits(&model));
}

#[test]
fn a_deepseek_of_ours_has_the_same_logits_after_export() {
    let config = DeepSeekConfig { vocab_size: 61, hidden_size: 32, num_hidden_layers: 2, ..DeepSeekConfig::default() };
    let v3 = MoeConfig { score_func: ScoreFunc::Sigmoid, moe_intermediate_size: 16, ..MoeConfig::default() };
    let v2 = MoeConfig { score_func: ScoreFunc::Softmax, norm_topk_prob: false, ..v3.clone() };
    let grouped = MoeConfig { n_group: 4, topk_group: 2, n_shared_experts: 2, ..v2.clone() };
    let limited = MoeConfig { capacity_factor: Some(1.0), aux_loss_coef: 0.1, router_noise: 0.1, ..v3.clone() };
    for moe in [v3, v2, grouped, limited] {
        let (model, folder) = (DeepSeek::init(&config, &moe, 5, &Device::flex()), tempfile::tempdir().unwrap());
        let path = folder.path().join("x");
        let options = ExportOptions { end_of_text: &[7], ..ExportOptions::default() };
        write(&path, &*ModelConfig::from(config.clone()).family(Some(&moe)), &values(&model), &options);
        assert_eq!(logits(&*load(&path)), logits(&model), "{moe:?}");
        for file in ["config.json", "generation_config.json"] {
            let json: serde_json::Value = serde_json::from_slice(&fs::read(path.join(file)).unwrap()).unwrap();
            assert_eq!((&json["eos_token_id"], &json["bos_token_id"]), (&7.into(), &7.into()));
        }
    }
}

#[test]
fn what_transformers_cannot_compute_is_refused_with_its_key() {
    let config = DeepSeekConfig { vocab_size: 8, ..DeepSeekConfig::default() };
    let sigmoid = MoeConfig { score_func: ScoreFunc::Sigmoid, ..MoeConfig::default() };
    let grouped = MoeConfig { n_group: 4, topk_group: 2, selection_bias: true, ..sigmoid.clone() };
    let softmax = MoeConfig { norm_topk_prob: false, ..MoeConfig::default() };
    let key = |config: &DeepSeekConfig, moe: MoeConfig| {
        let folder = tempfile::tempdir().unwrap();
        let values = |_: &str| -> Result<Vec<f32>, Infallible> { unreachable!("refused before") };
        let error = export(
            &folder.path().join("x"),
            &*ModelConfig::from(config.clone()).family(Some(&moe)),
            &ExportOptions::default(),
            values,
        );
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left");
        match error.unwrap_err() {
            ModelError::NotExpressible { key, .. } => key,
            other => panic!("{other}"),
        }
    };
    assert_eq!(key(&config, MoeConfig::default()), "moe.norm_topk_prob");
    assert_eq!(key(&config, MoeConfig { selection_bias: true, ..softmax.clone() }), "moe.selection_bias");
    assert_eq!(key(&config, MoeConfig { selection_bias: false, ..grouped.clone() }), "moe.selection_bias");
    assert_eq!(key(&config, MoeConfig { group_mask: GroupMask::Zero, ..grouped }), "moe.group_mask");
    assert_eq!(key(&config, MoeConfig { n_group: 8, topk_group: 8, ..sigmoid }), "moe.n_group");
    assert_eq!(key(&DeepSeekConfig { num_attention_heads: 3, ..config }, softmax), "model.hidden_size");
}

/// Llamas that Kiln can train, with the `model_type` or the key that prevents an export.
#[test]
fn a_llama_is_exported_as_the_model_type_that_computes_it() {
    let dense = LlamaConfig { vocab_size: 61, hidden_size: 32, num_hidden_layers: 2, ..LlamaConfig::default() };
    let window = LlamaConfig { sliding_window: Some(3), ..dense.clone() };
    let some = LlamaConfig { max_window_layers: 1, ..window.clone() };
    let normed = LlamaConfig { qk_norm: true, ..dense.clone() };
    let biased = LlamaConfig { qkv_bias: true, ..dense.clone() };
    let undivided = LlamaConfig { num_attention_heads: 3, num_key_value_heads: 1, head_dim: Some(8), ..dense.clone() };
    let linear = RopeScaling { rope_type: RopeType::Linear, ..RopeScaling::default() };
    let scaled = LlamaConfig { rope_scaling: Some(linear), tie_word_embeddings: true, ..dense.clone() };
    let first = LlamaConfig { mlp_only_layers: vec![0], ..normed.clone() };
    let moe = MoeConfig { moe_intermediate_size: 16, ..MoeConfig::default() };
    let experts = Some(&moe);
    for (config, moe, expected) in [
        (&dense, None, Ok("llama")),
        (&scaled, None, Ok("llama")),
        (&undivided, None, Ok("mistral")),
        (&window, None, Ok("mistral")),
        (&biased, None, Ok("qwen2")),
        (&LlamaConfig { qkv_bias: true, ..some.clone() }, None, Ok("qwen2")),
        (&LlamaConfig { qk_norm: true, ..some.clone() }, None, Ok("qwen3")),
        (&window, experts, Ok("mixtral")),
        (&LlamaConfig { qk_norm: true, ..window.clone() }, experts, Ok("qwen3_moe")),
        (&first, experts, Ok("qwen3_moe")),
        (&some, None, Err("model.max_window_layers")),
        (&LlamaConfig { qk_norm: true, ..biased.clone() }, None, Err("model.qkv_bias")),
        (&biased, experts, Err("model.qkv_bias")),
        (&LlamaConfig { qk_norm: false, ..first.clone() }, experts, Err("model.mlp_only_layers")),
        (&dense, Some(&MoeConfig { norm_topk_prob: false, ..moe.clone() }), Err("moe.norm_topk_prob")),
        (&normed, Some(&MoeConfig { score_func: ScoreFunc::Sigmoid, ..moe.clone() }), Err("moe.score_func")),
        (&normed, Some(&MoeConfig { selection_bias: true, ..moe.clone() }), Err("moe.selection_bias")),
        (&normed, Some(&MoeConfig { n_group: 4, topk_group: 2, ..moe.clone() }), Err("moe.topk_group")),
        (&normed, Some(&MoeConfig { n_shared_experts: 1, ..moe.clone() }), Err("moe.n_shared_experts")),
        (&normed, Some(&MoeConfig { routed_scaling_factor: 2.0, ..moe.clone() }), Err("moe.routed_scaling_factor")),
    ] {
        let (model, folder) = (Llama::init(config, moe, 5, &Device::flex()), tempfile::tempdir().unwrap());
        let (path, of, given) = (folder.path().join("x"), ModelConfig::from(config.clone()), values(&model));
        let result =
            export(&path, &*of.family(moe), &ExportOptions::default(), |path| Ok::<_, Infallible>(given[path].clone()));
        match (result, expected) {
            (Ok(_), Ok(model_type)) => {
                let again = load(&path);
                assert_eq!(Folder::open(&path).unwrap().config()["model_type"], model_type, "{config:?}");
                assert_eq!(logits(&*again), logits(&model), "{config:?} with {moe:?}");
            }
            (Err(ModelError::NotExpressible { key, .. }), Err(expected)) => assert_eq!(key, expected),
            (result, expected) => panic!("{config:?} with {moe:?}: {result:?}, not {expected:?}"),
        }
    }
}

#[test]
fn tensors_that_are_not_part_of_the_model_are_named() {
    for name in FIXTURES {
        assert_eq!(load(&reference(name)).unread, Vec::<String>::new(), "{name}");
    }
    let (folder, reference) = (tempfile::tempdir().unwrap(), reference("qwen2"));
    fs::copy(reference.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = fs::read_to_string(reference.join("config.json")).unwrap();
    let config = config.replace("\"qwen2\"", "\"llama\"");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let unread = load(folder.path()).unread;
    assert_eq!(unread.len(), 9, "{unread:?}");
    assert_eq!(unread[0], "model.layers.0.self_attn.k_proj.bias");
}

/// transformers does not tie them either, but has the matrix as another parameter.
#[test]
fn a_tied_llama_whose_output_matrix_differs_from_its_embedding_is_refused() {
    let (folder, reference) = (tempfile::tempdir().unwrap(), reference("qwen2"));
    fs::copy(reference.join("config.json"), folder.path().join("config.json")).unwrap();
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut tensors = tensors(&reference);
        let mut copy = tensors["model.embed_tokens.weight"].clone();
        change(&mut copy.2);
        tensors.insert("lm_head.weight".into(), copy);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        Pretrained::load(&Folder::open(folder.path()).unwrap(), &Device::flex()).map(drop)
    };
    read(&|_| ()).unwrap();
    let message = read(&|bytes| bytes[0] ^= 1).unwrap_err().to_string();
    assert!(message.contains("`lm_head.weight` is not equal to"), "{message}");
}

/// Changes or rejects the values of the parameter at a path.
type Change = dyn Fn(&str, Vec<f32>) -> Result<Vec<f32>, String>;

#[test]
fn an_export_that_fails_leaves_nothing_and_one_over_files_is_refused() {
    let config =
        Gpt2Config { vocab_size: 4, n_positions: 4, n_layer: 1, n_head: 1, n_embd: 2, ..Gpt2Config::default() };
    let given = values(&Gpt2::init(&config, 1, &Device::flex()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let try_export = |dtype: Dtype, change: &Change| {
        let options = ExportOptions { dtype, ..ExportOptions::default() };
        let result = export(&path, &*ModelConfig::from(config.clone()).family(None), &options, |name| {
            change(name, given[name].clone())
        });
        result.map_err(|error| error.to_string())
    };
    let fails = |dtype, change: &Change| try_export(dtype, change).unwrap_err();
    let error =
        fails(Dtype::F32, &|name, values| if name == "ends.wpe.weight" { Err("no disk".into()) } else { Ok(values) });
    assert_eq!(error, "parameter `ends.wpe.weight`: no disk");
    let error = fails(Dtype::F32, &|_, values| Ok(values[..3].to_vec()));
    assert_eq!(error, "parameter `ends.wte.weight`: 3 values do not fill [4, 2]");
    let error = fails(Dtype::F16, &|_, values| Ok(vec![1e5; values.len()]));
    assert_eq!(error, "parameter `ends.wte.weight`: 1e5 is too large for fp16: export as fp32 or bf16");
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());

    fs::create_dir(&path).unwrap();
    try_export(Dtype::F32, &|_, values| Ok(values)).expect("an empty folder is taken");
    let error = fails(Dtype::F32, &|_, values| Ok(values));
    assert!(error.ends_with("x exists and is not empty: choose a new folder, or delete it"), "{error}");
}

#[test]
fn a_folder_has_the_tokenizer_files_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(reference("gpt2-a").join(file), folder.path().join(file)).unwrap();
    }
    let opened = Folder::open(folder.path()).unwrap();
    assert!(opened.tokenizer_files().unwrap().is_empty());
    let files = ["tokenizer.json", "merges.txt"].map(|name| (name.to_string(), b"{}".to_vec()));
    files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    assert_eq!(opened.tokenizer_files().unwrap(), files);
}

/// Exports models together with their logits before the export, for `tests/reference/check_export.py`.
#[test]
#[ignore = "writes folders into $EXPORT_DIR, for tests/reference/round_trip.sh"]
fn folders_for_transformers() {
    let root = PathBuf::from(std::env::var("EXPORT_DIR").expect("EXPORT_DIR says where to"));
    let bytes = |bytes: Vec<[u8; 4]>| bytes.concat();
    let put = |name: &str, shape: &dyn Family, values: &BTreeMap<String, Vec<f32>>, logits: Vec<f32>| {
        let path = root.join(name);
        write(&path, shape, values, &ExportOptions { max_shard_bytes: 30_000, ..ExportOptions::default() });
        let vocab = logits.len() / SHAPE.iter().product::<usize>();
        let ids: Vec<u8> = tokens().iter().flat_map(|token| token.to_le_bytes()).collect();
        let logits = bytes(logits.iter().map(|logit| logit.to_le_bytes()).collect());
        let tokens = tensor::TensorView::new(tensor::Dtype::I64, SHAPE.to_vec(), &ids).unwrap();
        let logits = tensor::TensorView::new(tensor::Dtype::F32, [&SHAPE[..], &[vocab]].concat(), &logits).unwrap();
        let file = safetensors::serialize([("tokens", tokens), ("logits", logits)], None).unwrap();
        fs::write(path.join("ours.safetensors"), file).unwrap();
    };
    for name in FIXTURES {
        let model = load(&reference(name));
        let (shape, values) = shape_of(&model);
        put(name, &*shape, &values, logits(&*model));
    }
    for bias in [true, false] {
        let config = Gpt2Config { vocab_size: 65, n_layer: 3, n_head: 4, n_embd: 64, bias, ..Gpt2Config::default() };
        let model = Gpt2::init(&config, 5, &Device::flex());
        put(
            &format!("our-gpt2-bias-{bias}"),
            &*ModelConfig::from(config.clone()).family(None),
            &values(&model),
            logits(&model),
        );
    }
    let config =
        DeepSeekConfig { vocab_size: 65, rope_scaling: Some(YarnConfig::default()), ..DeepSeekConfig::default() };
    let config = DeepSeekConfig { q_lora_rank: Some(48), first_k_dense_replace: 1, ..config };
    let v3 = MoeConfig { score_func: ScoreFunc::Sigmoid, capacity_factor: Some(1.0), ..MoeConfig::default() };
    let v2 = MoeConfig { score_func: ScoreFunc::Softmax, norm_topk_prob: false, ..v3.clone() };
    let shared = MoeConfig { n_shared_experts: 2, n_group: 4, topk_group: 2, ..v2.clone() };
    for (name, moe) in [("our-v3", v3), ("our-v2", v2), ("our-v2-groups-shared", shared)] {
        let model = DeepSeek::init(&config, &moe, 5, &Device::flex());
        put(name, &*ModelConfig::from(config.clone()).family(Some(&moe)), &values(&model), logits(&model));
    }
    let dense = LlamaConfig { vocab_size: 65, hidden_size: 64, num_hidden_layers: 2, ..LlamaConfig::default() };
    let undivided = LlamaConfig { num_attention_heads: 3, num_key_value_heads: 1, head_dim: Some(8), ..dense.clone() };
    let window = LlamaConfig { sliding_window: Some(3), max_window_layers: 1, qk_norm: true, ..dense.clone() };
    let linear = RopeScaling { rope_type: RopeType::Linear, ..RopeScaling::default() };
    let tied = LlamaConfig { rope_scaling: Some(linear), tie_word_embeddings: true, ..dense.clone() };
    let moe = MoeConfig { moe_intermediate_size: 16, capacity_factor: Some(1.0), ..MoeConfig::default() };
    for (name, config, moe) in [
        ("our-llama", &dense, None),
        ("our-llama-tied-linear", &tied, None),
        ("our-llama-of-an-undivided-width", &undivided, None),
        ("our-qwen3-window", &window, None),
        ("our-mixtral", &dense, Some(&moe)),
        ("our-qwen3-moe", &LlamaConfig { max_window_layers: 0, ..window.clone() }, Some(&moe)),
    ] {
        let model = Llama::init(config, moe, 5, &Device::flex());
        put(name, &*ModelConfig::from(config.clone()).family(moe), &values(&model), logits(&model));
    }
}
