//! `prepare SOURCE TOKENIZER OUT`: tokenizes text into a folder and prints the throughput.

use std::path::Path;
use std::time::Instant;

use data::{PrepareOptions, TokenizerSpec, prepare};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, tokenizer, out] = &arguments[..] else {
        return Err("usage: prepare SOURCE TOKENIZER OUT".into());
    };
    let start = Instant::now();
    let options = PrepareOptions { progress: true, ..PrepareOptions::default() };
    let meta = prepare(source, &TokenizerSpec::from(tokenizer.clone()), Path::new(out), &options)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} documents, {} bytes, {} tokens in {seconds:.2} s: {:.1} MB/s",
        meta.documents,
        meta.text_bytes,
        meta.tokens,
        meta.text_bytes as f64 / seconds / 1e6
    );
    Ok(())
}
