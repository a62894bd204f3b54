//! The `index.json` of a checkpoint, whose own digest is put right; behind a zero byte another file of it.
#![no_main]

use checkpoint::Checkpoint;
use sha2::{Digest, Sha256};
use std::fs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (index, rest) = bytes.split_at(end);
    let folder = fuzz::path("step-3");
    let _ = fs::create_dir(&folder);
    fs::write(folder.join("index.json"), digested(&String::from_utf8_lossy(index))).expect("memory has room");
    for name in ["rank-0.safetensors", "pieces.bin", "blocks.bin"] {
        fs::write(folder.join(name), rest.get(1..).unwrap_or_default()).expect("memory has room");
    }
    if let Ok(checkpoint) = Checkpoint::open(&folder) {
        let _ = checkpoint.verify(0, 1);
        for parameter in checkpoint.index().parameters.iter().take(4) {
            let len = parameter.len().unwrap_or_default();
            let _ = checkpoint.read(&parameter.name, checkpoint::Kind::Param, len / 2..(len / 2 + 100).min(len));
        }
    }
});

/// The text with its digest, which is that of the text without it.
fn digested(text: &str) -> String {
    const KEY: &str = "\"digest\": \"";
    let Some(start) = text.rfind(KEY).map(|at| at + KEY.len()) else { return text.into() };
    let end = start + text[start..].find('"').unwrap_or(0);
    let without = [&text[..start], &text[end..]].concat();
    let digest: String = Sha256::digest(&without).iter().map(|byte| format!("{byte:02x}")).collect();
    [&text[..start], &digest, &text[end..]].concat()
}
