//! Short documents, masked from each other, in rows of several lengths.

use super::*;
use std::fs;
use std::path::Path;

/// Tiny models on short documents; a row of 32 tokens holds a few of them.
const GPT2: &[&str] = &[
    "--model=gpt2",
    "--set=model.n_layer=2",
    "--set=model.n_embd=32",
    "--set=model.n_head=4",
    "--set=model.n_positions=32",
    "--set=model.dropout=0.1",
];
const DEEPSEEK: &[&str] = &[
    "--model=deepseek",
    "--set=model.num_hidden_layers=2",
    "--set=model.hidden_size=32",
    "--set=model.kv_lora_rank=16",
    "--set=model.qk_nope_head_dim=8",
    "--set=model.qk_rope_head_dim=8",
    "--set=model.v_head_dim=8",
    "--set=model.mtp_depth=1",
    "--set=moe.num_experts=4",
    "--set=moe.moe_intermediate_size=32",
];
const DOCUMENTS: &[&str] = &[
    "--set=train.seq_len=32",
    "--set=train.global_batch_size=8",
    "--set=train.micro_batch_size=2",
    "--set=data.document_mask=true",
];

const ROWS: &[Row] = &[
    ("full_shard, 4 ranks", &["gpus=4"]),
    ("zero1, 3 ranks", &["gpus=3", "strategy=zero1"]),
    ("block, 3 ranks", &["gpus=3", "strategy=block"]),
    ("tp 4, recomputes", &["gpus=4", "tp=4", "activation_checkpointing=full"]),
    ("cp 4", &["gpus=4", "cp=4"]),
    ("pp 2 x cp 2 x tp 2", &["gpus=8", "pp=2", "cp=2", "tp=2"]),
    ("pp 2 x dp 2 x cp 2 x tp 2", &["gpus=16", "pp=2", "cp=2", "tp=2", "schedule=zero_bubble"]),
];

/// Writes the file of documents and returns its flag.
fn documents(folder: &Path) -> String {
    let words =
        "a mathematical theory of communication must take into account the statistical structure of its sources";
    let words: Vec<&str> = words.split(' ').collect();
    // Most documents are one word.
    let len = |i: usize| if i.is_multiple_of(7) { 1 + i * i % 8 } else { 1 };
    let document = |i: usize| words.iter().cycle().skip(7 * i % 11).take(len(i)).copied().collect::<Vec<_>>();
    let lines = (0..900).map(|i| format!("{{\"text\": \"{}\"}}\n", document(i).join(" ")));
    let path = folder.join("documents.jsonl");
    fs::write(&path, lines.collect::<String>()).unwrap();
    format!("--data={}", path.display())
}

#[test]
fn documents_apart_have_the_losses_of_one_rank_in_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    let data = documents(folder.path());
    let rows: Vec<Row> =
        ROWS.iter().copied().filter(|(name, _)| !name.contains("dp 2") && !name.contains("4 ranks")).collect();
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, DOCUMENTS, &[&data]].concat(), &rows);
}

#[test]
fn rows_of_several_lengths_have_the_losses_of_one_rank_in_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    let (data, buckets) = (documents(folder.path()), "--set=data.buckets=[8,16,32]");
    let (lengths, with_experts) = (&[buckets, &data][..], ["--set=model.mtp_depth=0"]);
    every_layout_has_the_losses_of_one_rank(&[GPT2, DOCUMENTS, lengths].concat(), ROWS);
    let apart: &[Row] =
        &[("ep 2 x tp 2", &["gpus=4", "ep=2", "tp=2"]), ("pp 2, zb_v", &["gpus=2", "pp=2", "schedule=zb_v"])];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, DOCUMENTS, lengths, &with_experts].concat(), apart);
    let odd = ["--set=data.buckets=[7,15,31]", "--set=train.seq_len=31", &data];
    let padded: &[Row] = &[("cp 2 x tp 2, rows of 7, 15 and 31", &["gpus=4", "cp=2", "tp=2"])];
    every_layout_has_the_losses_of_one_rank(&[GPT2, DOCUMENTS, &odd].concat(), padded);
    let metrics = train(&[GPT2, DOCUMENTS, lengths].concat(), STEPS);
    let steps: Vec<Value> = metrics.into_iter().filter(|line| line.get("loss").is_some()).collect();
    let mut lengths = values(&steps, "seq_len");
    lengths.sort_by(f64::total_cmp);
    lengths.dedup();
    assert_eq!(lengths, [8.0, 16.0, 32.0], "steps of all lengths have come");
}
