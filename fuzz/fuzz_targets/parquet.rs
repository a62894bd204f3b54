//! Fuzzes Parquet files.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::prepare("a.parquet", bytes));
