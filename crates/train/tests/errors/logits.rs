//! Mistakes in the folder, the tokens and the output of `train logits`.

use super::{Mistake, all, check, write};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use test_kit::reference;

/// A folder that is not a valid model: what is wrong, the reference model it was copied from, the function that spoils
/// the copy, and parts of the answer.
type SpoiltModel = (&'static str, &'static str, fn(&Path), &'static [&'static str]);

const MODEL_FOLDER: &[SpoiltModel] = &[
    (
        "no folder",
        "gpt2-a",
        |model| fs::remove_dir_all(model).unwrap(),
        &["there is no folder model: give one with config.json and model.safetensors"],
    ),
    (
        "weights of PyTorch",
        "gpt2-a",
        |model| fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).unwrap(),
        &[
            "model has no model.safetensors but pytorch_model.bin, which only PyTorch reads",
            "\nimport torch, safetensors.torch as s\n",
            "torch.load(\"model/pytorch_model.bin\"",
            "\"model/model.safetensors\")",
        ],
    ),
    (
        "shards of PyTorch",
        "gpt2-a",
        |model| {
            fs::rename(model.join("model.safetensors"), model.join("pytorch_model-00001-of-00002.bin")).unwrap();
            fs::write(model.join("pytorch_model-00002-of-00002.bin"), "").unwrap();
        },
        &[
            "pytorch_model-00001-of-00002.bin, which only PyTorch reads",
            "AutoModelForCausalLM.from_pretrained(\"model\").save_pretrained(\"model-safetensors\")",
        ],
    ),
    ("no config", "gpt2-a", |model| remove(model, "config.json"), &["model/config.json: No such file"]),
    (
        "a config that is not JSON",
        "gpt2-a",
        |model| fs::write(model.join("config.json"), "{\"vocab_size\": 96,\n oops}").unwrap(),
        &["model/config.json: not JSON", "line 2"],
    ),
    (
        "another kind of model",
        "gpt2-a",
        |model| configure(model, "\"gpt2\"", "\"bert\""),
        &[
            "model/config.json",
            "`model_type` \"bert\"",
            "known are gpt2, llama, ",
            "qwen3_moe, deepseek_v2 and deepseek_v3",
        ],
    ),
    (
        "no kind of model",
        "gpt2-a",
        |model| configure(model, "model_type", "kind"),
        &["model/config.json", "no `model_type`", "known are gpt2, llama, ", "qwen3_moe, deepseek_v2 and deepseek_v3"],
    ),
    (
        "a config without a key",
        "gpt2-a",
        |model| configure(model, "n_embd", "width"),
        &["model/config.json", "missing field `n_embd`"],
    ),
    (
        "a config without a key of DeepSeek's",
        "deepseek-v3-q-lora",
        |model| configure(model, "kv_lora_rank", "rank"),
        &["model/config.json", "missing field `kv_lora_rank`"],
    ),
    (
        "a config without a key whose default is another model's",
        "deepseek-v3-q-lora",
        |model| configure(model, "n_shared_experts", "shared"),
        &["model/config.json", "missing field `n_shared_experts`"],
    ),
    (
        "a value of another type",
        "qwen3",
        |model| configure(model, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": \"2\""),
        &["model/config.json: num_hidden_layers: invalid type: string \"2\", expected a whole number"],
    ),
    (
        "a negative value in a section",
        "llama-scaled-rope",
        |model| configure(model, "\"original_max_position_embeddings\": ", "\"original_max_position_embeddings\": -"),
        &[
            "model/config.json: rope_",
            ".original_max_position_embeddings: invalid value: integer `-",
            "expected a whole number",
        ],
    ),
    (
        "attention that is scaled by the layer",
        "gpt2-a",
        |model| configure(model, "\"n_embd\"", "\"scale_attn_by_inverse_layer_idx\": true, \"n_embd\""),
        &["model/config.json", "scale_attn_by_inverse_layer_idx true is not supported"],
    ),
    ("no weights", "gpt2-a", |model| remove(model, "model.safetensors"), &["model/model.safetensors: No such file"]),
    (
        "a tensor less",
        "gpt2-a",
        |model| rewrite(model, |tensors| drop(tensors.remove("h.1.mlp.c_fc.bias"))),
        &["model/model.safetensors: no tensor `h.1.mlp.c_fc.bias`"],
    ),
    (
        "an expert less",
        "deepseek-v3-q-lora",
        |model| rewrite(model, |tensors| drop(tensors.remove("model.layers.1.mlp.experts.7.up_proj.weight"))),
        &["model/model.safetensors: no tensor `model.layers.1.mlp.experts.7.up_proj.weight`"],
    ),
    (
        "a tensor of another shape",
        "gpt2-a",
        |model| {
            rewrite(model, |tensors| drop(tensors.insert("wpe.weight".into(), (vec![16, 96], vec![0; 16 * 96 * 4]))))
        },
        &["model/model.safetensors: tensor `wpe.weight` has shape [16, 96]", "config.json makes it [32, 48]"],
    ),
    (
        "half of the weights",
        "gpt2-a",
        |model| truncate(model, 130_000),
        &["model/model.safetensors: not a whole safetensors file (130000 bytes)"],
    ),
    (
        "weights that end in their header",
        "gpt2-a",
        |model| truncate(model, 100),
        &["model/model.safetensors: not a whole safetensors file (100 bytes)"],
    ),
    (
        "weights of no bytes",
        "gpt2-a",
        |model| truncate(model, 0),
        &["model/model.safetensors: not a whole safetensors file (0 bytes)"],
    ),
    (
        "a shard less",
        "deepseek-v3-yarn",
        |model| remove(model, "model-00002-of-00002.safetensors"),
        &["model/model-00002-of-00002.safetensors: No such file"],
    ),
];

/// Tokens and output file, for a model with 96 tokens and a context of 32.
const LOGITS: &[Mistake] = &[
    ("tokens that are no numbers", &[], "--tokens 1,two --out l.safetensors", &["--tokens: `two`", "1,2,3;4,5,6"]),
    ("no tokens", &[], "--tokens= --out l.safetensors", &["--tokens: ``", "1,2,3;4,5,6"]),
    ("a comma too many", &[], "--tokens 1,2, --out l.safetensors", &["--tokens: ``", "1,2,3;4,5,6"]),
    ("a token below 0", &[], "--tokens 1,-2 --out l.safetensors", &["--tokens: `-2`", "1,2,3;4,5,6"]),
    (
        "sequences of unequal length",
        &[],
        "--tokens 1,2,3;4,5 --out l.safetensors",
        &["--tokens: sequences have 3 and 2 tokens", "the same length"],
    ),
    (
        "a token outside of the vocabulary",
        &[],
        "--tokens 1,96 --out l.safetensors",
        &["--tokens: 96 is not in the model's vocabulary of 96 tokens"],
    ),
    (
        "more tokens than the context",
        &[],
        "--tokens 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 --out l.safetensors",
        &["--tokens: 33 tokens are more than the model's context of 32"],
    ),
    (
        "a folder that is not there",
        &[],
        "--tokens 1,2 --out none/l.safetensors",
        &["cannot write none/l.safetensors: No such file or directory", "--out"],
    ),
    ("a folder for a file", &[("a/", b"")], "--tokens 1,2 --out a", &["a exists: name a new file with --out"]),
];

#[test]
fn a_spoilt_model_folder_is_answered_with_its_file_and_what_is_wrong_with_it() {
    let folder = |reference: &str, spoil: fn(&Path)| {
        let folder = with_model(reference);
        spoil(&folder.path().join("model"));
        folder
    };
    let args = "logits --hf model --tokens 1,2 --out l.safetensors";
    let check =
        |(name, reference, spoil, expected): &SpoiltModel| check(name, &folder(reference, *spoil), args, expected);
    all(MODEL_FOLDER.iter().map(check));
}

#[test]
fn a_mistake_in_tokens_or_output_of_logits_is_answered() {
    let check = |(name, files, args, expected): &Mistake| {
        let folder = with_model("gpt2-a");
        write(folder.path(), files);
        check(name, &folder, &format!("logits --hf model {args}"), expected)
    };
    all(LOGITS.iter().map(check));
}

fn with_model(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(reference(name)).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, model.join(file.file_name().unwrap())).unwrap();
    }
    folder
}

fn remove(model: &Path, file: &str) {
    fs::remove_file(model.join(file)).unwrap();
}

fn configure(model: &Path, from: &str, to: &str) {
    let config = model.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains(from));
    fs::write(config, text.replace(from, to)).unwrap();
}

fn truncate(model: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(model.join("model.safetensors")).unwrap();
    assert!(len < file.metadata().unwrap().len());
    file.set_len(len).unwrap();
}

/// Shape and bytes of each tensor, all F32.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn rewrite(model: &Path, change: fn(&mut Tensors)) {
    let path = model.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensors = tensors.iter().map(|(name, view)| (name.to_string(), (view.shape().to_vec(), view.data().to_vec())));
    let mut tensors: Tensors = tensors.collect();
    change(&mut tensors);
    let views =
        tensors.iter().map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(path, bytes).unwrap();
}
