//! Fuzzes lines of JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::prepare("a.jsonl", bytes));
