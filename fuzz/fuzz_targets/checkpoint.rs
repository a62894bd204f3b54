//! Fuzzes a checkpoint of one rank with corrected lengths and digests. The input is the JSON of `index.json`, a zero
//! byte, the length of `pieces.bin` in two bytes, that file, and the rank's file.
#![no_main]

use checkpoint::Checkpoint;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (index, rest) = bytes.split_at(end);
    let rest = rest.get(1..).unwrap_or_default();
    let (len, rest) = rest.split_first_chunk().map_or((0, rest), |(len, rest)| (u16::from_le_bytes(*len), rest));
    let (table, data) = rest.split_at(rest.len().min(len.into()));
    let folder = fuzz::path("step-3");
    let _ = fs::create_dir(&folder);
    write(&folder, "rank-0.safetensors", data);
    write(&folder, "pieces.bin", table);
    match serde_json::from_slice(index) {
        Ok(index) => write_index(&folder, index, table, data),
        Err(_) => write(&folder, "index.json", index),
    }
    if let Ok(checkpoint) = Checkpoint::open(&folder) {
        let _ = checkpoint.verify(0, 1);
        for parameter in checkpoint.index().parameters.iter().take(4) {
            let len = parameter.len().unwrap_or_default();
            let _ = checkpoint.read(&parameter.name, checkpoint::Kind::Param, len / 2..(len / 2 + 100).min(len));
        }
    }
});

/// Writes the index, and the list of blocks that it refers to: one for each file that is not empty.
fn write_index(folder: &Path, mut index: Value, table: &[u8], data: &[u8]) {
    let mut blocks = vec![];
    let mut right = |entry: &mut Value, bytes: &[u8]| {
        let digest = blake3::hash(bytes);
        if !bytes.is_empty() {
            blocks.extend(digest.as_bytes());
        }
        if let Value::Object(entry) = entry {
            entry.insert("bytes".into(), json!(bytes.len()));
            entry.insert("blake3".into(), json!(digest.to_hex().as_str()));
        }
    };
    if !index.is_object() {
        return write(folder, "index.json", index.to_string().as_bytes());
    }
    index["files"].as_array_mut().into_iter().flatten().for_each(|entry| right(entry, data));
    right(&mut index["table"], table);
    index["digest"] = json!("");
    let text = serde_json::to_string_pretty(&index).expect("it was JSON") + "\n";
    let key = "\"digest\": \"";
    let digest = blake3::hash(text.as_bytes()).to_hex();
    write(folder, "index.json", text.replacen(key, &format!("{key}{digest}"), 1).as_bytes());
    write(folder, "blocks.bin", &blocks);
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("memory has room");
}
