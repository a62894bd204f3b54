//! Mistakes in the arguments of the other commands, in a folder with a run.

use super::common::{TINY, succeed};
use super::{all, check, write};
use std::fs;
use tempfile::TempDir;
use test_kit::reference;

/// What is wrong, the arguments, and parts of the answer.
type WrongArguments = (&'static str, &'static str, &'static [&'static str]);

const PREPARE: &[WrongArguments] = &[
    ("no such text", "prepare none.md --out t", &["data none.md does not exist: check the path"]),
    ("a text near another's name", "prepare txet.txt --out t", &["txet.txt does not exist: did you mean `text.txt`?"]),
    ("a source near another's name", "prepare shakespear --out t", &["did you mean `shakespeare`?"]),
    (
        "a data set on the hub",
        "prepare hf://datasets/roneneldan/TinyStories --out t",
        &["only files of this machine are read", "`hf download roneneldan/TinyStories --repo-type dataset --local-dir"],
    ),
    (
        "a text on the web",
        "prepare https://example.org/a.txt --out t",
        &["only files of this machine are read: download it (`curl -LO https://example.org/a.txt`)"],
    ),
    (
        "a tokenizer on the hub",
        "prepare text.txt --out t --tokenizer openai-community/gpt2",
        &["no tokenizer at openai-community/gpt2", "`hf download openai-community/gpt2 --local-dir gpt2`"],
    ),
    ("a folder of other things", "prepare text.txt --out run", &["run exists and is not empty: name a new folder"]),
    ("a folder that is a file", "prepare text.txt --out text.txt", &["text.txt exists and is not empty"]),
    ("a folder of other things and no text", "prepare none.txt --out run", &["run exists and is not empty"]),
    (
        "a share above 1",
        "prepare text.txt --out t --val-fraction 1.5",
        &["data.val_fraction (--val-fraction of `train prepare`) is 1.5: give a fraction above 0"],
    ),
    (
        "a share below 0",
        "prepare text.txt --out t --val-fraction -1",
        &["`train prepare`) is -1: give a fraction above 0"],
    ),
    ("a BPE of too few tokens", "prepare text.txt --out t --train-bpe 256", &["of 256 tokens", "need 257"]),
    ("a BPE of too many", "prepare text.txt --out t --train-bpe 99999999999", &["of 99999999999 tokens: ", "1048576"]),
    (
        "shards of no tokens",
        "prepare text.txt --out t --shard-tokens 0",
        &["--shard-tokens", "a whole number, 1 or above"],
    ),
    ("tokens", "prepare tokens.bin --out t", &["tokens.bin already contains tokens", "give text to prepare"]),
    (
        "a tokenizer on which the library panics",
        "prepare text.txt --out t --tokenizer panics.json",
        &["tokenizer panics.json: it is not a tokenizer; save or download it again"],
    ),
];

const EVAL: &[WrongArguments] = &[
    ("no such run", "eval none", &["there is no run none: give a run's folder"]),
    ("a run without its path", "eval old", &["there is no run old: did you mean runs/old?"]),
    ("a file for a run", "eval text.txt", &["there is no run text.txt: give a run's folder"]),
    ("a run without a checkpoint", "eval runs/old", &["runs/old: there is no checkpoint", "checkpoints/step-N"]),
    (
        "a folder of Hugging Face's",
        "eval hf --data text.txt",
        &["hf is a Hugging Face folder: make a run of it with `train import --hf hf --out RUN`"],
    ),
    ("no such text", "eval run --data none.txt", &["data none.txt does not exist: check the path"]),
    ("no such split", "eval run --split test", &["'test'", "val, train, all"]),
    ("sequences of no tokens", "eval run --seq-len 0", &["--seq-len", "a whole number, 1 or above"]),
    ("sequences beyond the context", "eval run --seq-len 257", &["--seq-len is 257: give at most 256"]),
    ("no sequences", "eval none --batch 0", &["--batch", "a whole number, 1 or above"]),
    (
        "a text shorter than a window",
        "eval run --data short.txt",
        &[
            "short.txt has 4 tokens, fewer than a window of 16 and its last target: give more text, or a smaller --seq-len",
        ],
    ),
    (
        "a run",
        "eval run --data run",
        &["data run is the folder of a run, not data: give the text or the tokens that it trained on"],
    ),
    (
        "another field",
        "eval run --data body.jsonl",
        &["body.jsonl, line 1: has no field \"text\", but body: ", "--text-field NAME"],
    ),
    (
        "a damaged meta.json",
        "eval run --data damaged",
        &["damaged/meta.json: ", "EOF while parsing", "prepare the folder again (train prepare)"],
    ),
    ("no such questions", "eval none --choices none.jsonl", &["cannot read none.jsonl: No such file", "--choices"]),
    ("no questions", "eval run --choices blank.jsonl", &["blank.jsonl has no questions"]),
    (
        "a label of no ending",
        "eval run --choices labels.jsonl",
        &["labels.jsonl, line 2: label is \"\", of 2 endings: give the number of the right one, from 0"],
    ),
    ("both", "eval run --choices labels.jsonl --data text.txt", &["--choices", "--data", "cannot be used"]),
    (
        "another tokenizer than the run's",
        "eval run --data text.txt --tokenizer char.json",
        &["was trained with a different tokenizer than char.json and has its own: omit --tokenizer"],
    ),
    ("characters of no text", "eval blind --data text.txt --tokenizer char", &["--tokenizer char", "tokenizer.json"]),
    ("a text without a tokenizer", "eval blind --data text.txt", &["has no tokenizer", "with --tokenizer FILE"]),
    (
        "a tokenizer that the model has no room for",
        "eval blind --data text.txt --tokenizer reference",
        &["tokenizer reference has 500 tokens, but the model only 300"],
    ),
];

const GENERATE: &[WrongArguments] = &[
    ("no such run", "generate none --prompt a", &["there is no run none"]),
    // Checked before the run is looked up.
    ("a temperature below 0", "generate none --prompt a --temperature -1", &["temperature is -1: give 0 or"]),
    ("a temperature that is no number", "generate none --temperature warm", &["'warm'", "--temperature"]),
    ("none of the tokens", "generate none --prompt a --top-k 0", &["top_k is 0: give at least 1"]),
    ("a share above 1", "generate none --prompt a --top-p 1.5", &["top_p is 1.5: give a number above 0, up to 1"]),
    ("a share below 0", "generate none --prompt a --top-p -0.5", &["top_p is -0.5"]),
    ("no tokens", "generate none --prompt a --tokens 0", &["--tokens", "a whole number, 1 or above"]),
    ("less than no tokens", "generate none --prompt a --tokens -1", &["'-1'", "--tokens", "give a whole number"]),
    ("no such prompts", "generate run --prompts none", &["cannot read none: No such file", "--prompts"]),
    ("no prompts", "generate run --prompts blank.jsonl", &["blank.jsonl has no prompts: give at least one line"]),
    (
        "drafts of a model without modules for them",
        "generate run --prompt a --speculative",
        &["the model of run has none (model.mtp_depth 0)", "--set model.mtp_depth=1"],
    ),
    ("no tokenizer", "generate blind --prompt a", &["has no tokenizer", "with --tokenizer FILE"]),
    ("no such tokenizer", "generate blind --prompt a --tokenizer no/t.json", &["no tokenizer at no/t.json: give byte"]),
];

const EXPORT_IMPORT_AND_INSPECT: &[WrongArguments] = &[
    ("no such run", "export none --out e", &["there is no run none"]),
    ("an export into another folder", "export none --out hf", &["hf exists and is not an empty folder", "--out"]),
    ("an export into a file", "export none --out text.txt", &["text.txt exists and is not an empty folder", "--out"]),
    ("all of it into a file that is there", "export none --full-state text.txt", &["text.txt exists", "--full-state"]),
    ("logits into a file that is there", "logits --hf hf --tokens 1 --out text.txt", &["text.txt exists", "--out"]),
    (
        "shards of no bytes",
        "export run --out e --max-shard-bytes 0",
        &["--max-shard-bytes", "a whole number, 1 or above"],
    ),
    ("no such type", "export run --out e --dtype fp8", &["'fp8'", "fp32, bf16, fp16"]),
    ("an import over a run", "import --hf none --out run", &["run exists and is not an empty folder", "--out"]),
    ("an import into a file", "import --hf none --out text.txt", &["text.txt exists and is not an empty folder"]),
    (
        "a model on the hub",
        "import --hf openai-community/gpt2 --out r",
        &["there is no folder openai-community/gpt2", "`hf download openai-community/gpt2 --local-dir gpt2`"],
    ),
    ("a model known by name", "import --hf gpt2 --out r", &["`hf download openai-community/gpt2 --local-dir gpt2`"]),
    ("a run for a model", "import --hf run --out r", &["cannot read run/config.json", "model.safetensors"]),
    ("no such run", "inspect none", &["there is no run none"]),
    (
        "no such checkpoint",
        "inspect run/checkpoints/step-9",
        &["run/checkpoints: there is no checkpoint of step 9: there is that of step 1 (RUN@1)"],
    ),
];

#[test]
fn a_mistake_in_a_command_is_answered_with_what_to_do_and_before_anything_is_written() {
    let folder = folder();
    let tables = [PREPARE, EVAL, GENERATE, EXPORT_IMPORT_AND_INSPECT];
    all(tables.into_iter().flatten().map(|(name, args, expected)| check(name, &folder, args, expected)));
}

/// A folder with what the tables refer to: a run on bytes, one on tokens alone, and malformed files.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> = (0..600u16).map(|i| i % 300).flat_map(u16::to_le_bytes).collect();
    // A merge whose result is not a token.
    let panics = r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}"#;
    let labels =
        ["0", "\"\""].map(|label| format!(r#"{{"ctx": "a", "endings": ["b", "c"], "label": {label}}}"#)).join("\n");
    let text = "The five boxing wizards jump quickly. ".repeat(60);
    let texts: [(&str, &[u8]); 11] = [
        ("text.txt", text.as_bytes()),
        ("short.txt", b"wiz\n"),
        ("body.jsonl", b"{\"body\": \"one\"}\n"),
        ("blank.jsonl", b"\n\n"),
        ("labels.jsonl", labels.as_bytes()),
        ("panics.json", panics.as_bytes()),
        ("tokens.bin", &tokens),
        ("damaged/meta.json", b""),
        ("damaged/train-000000.bin", &tokens),
        ("runs/old/config.yaml", b""),
        ("hf/config.json", b"{\"model_type\": \"gpt2\"}"),
    ];
    write(folder.path(), &texts);
    fs::create_dir(folder.path().join("reference")).unwrap();
    let tokenizer = fs::read(reference("tokenizer").join("tokenizer.json")).unwrap();
    fs::write(folder.path().join("reference/tokenizer.json"), tokenizer).unwrap();
    succeed(folder.path(), &[TINY, &["--steps=1", "--out=run"]].concat());
    let blind = TINY.iter().copied().filter(|arg| *arg != "--data=text.txt");
    let blind = blind.chain(["--data=tokens.bin", "--set=model.vocab_size=300", "--steps=1", "--out=blind"]);
    succeed(folder.path(), &blind.collect::<Vec<_>>());
    succeed(folder.path(), &["prepare", "text.txt", "--tokenizer=char", "--out=char"]);
    fs::rename(folder.path().join("char/tokenizer.json"), folder.path().join("char.json")).unwrap();
    folder
}
