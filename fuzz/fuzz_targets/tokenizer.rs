//! Fuzzes a tokenizer. The input is a `tokenizer.json`, a zero byte, and a text to encode and decode.
#![no_main]

use data::Tokenizer;
use std::fs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (json, text) = bytes.split_at(end);
    let path = fuzz::path("tokenizer.json");
    fs::write(&path, json).expect("memory has room");
    if let Ok(tokenizer) = Tokenizer::open(&path) {
        let _ = tokenizer.encode(&String::from_utf8_lossy(text)).map(|tokens| tokenizer.decode(&tokens));
        tokenizer.decode(&[0, 1, 255, u32::MAX]);
        tokenizer.files();
    }
});
