//! Fuzzes a token file in a prepared folder. The input is the folder's `meta.json`, a zero byte, and the tokens.
#![no_main]

use data::{OpenOptions, TokenizerSpec, open};
use std::fs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (meta, tokens) = bytes.split_at(end);
    let folder = fuzz::path("prepared");
    let _ = fs::create_dir(&folder);
    if !folder.join("tokenizer.json").exists() {
        data::Tokenizer::byte().save(&folder).expect("memory has room");
    }
    fs::write(folder.join("meta.json"), meta).expect("memory has room");
    fs::write(folder.join("train-000000.bin"), tokens.get(1..).unwrap_or_default()).expect("memory has room");
    let cache = fuzz::path("cache");
    for tokenizer in [None, Some(TokenizerSpec::Byte)] {
        let options = OpenOptions { cache: Some(cache.clone()), tokenizer, ..OpenOptions::default() };
        for source in [folder.clone(), folder.join("train-000000.bin")] {
            let Ok(prepared) = open(source.to_str().expect("it is text"), &options) else { continue };
            if prepared.dataset.check(2).is_ok() {
                let _ = prepared.dataset.train_batch(1, 0..4, 2);
                let _ = prepared.dataset.val_batch(prepared.dataset.val_indices(0, 2), 2);
            }
        }
    }
    let _ = fs::remove_dir_all(cache);
});
