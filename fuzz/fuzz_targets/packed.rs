//! Fuzzes compressed text. The first byte selects the format.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let name = ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst"][usize::from(kind % 4)];
    fuzz::prepare(name, bytes);
});
