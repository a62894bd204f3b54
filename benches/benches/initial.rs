//! Initial values: how long the last of 1,000 ranks waits for its first ones, for a GPT-2 of 10^12 parameters that is
//! never allocated.
//!
//! `cargo bench -p benches -- initial`. Any range of values costs time proportional to its length, and a rank computes
//! only those that it holds.

use burn::tensor::Device;
use fsdp::{Layout, ParamLayout};
use model::{Gpt2, Gpt2Config};
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

const RANKS: usize = 1000;
const FIRST: usize = 1000;
/// Columns of a row that a tensor-parallel rank holds.
const COLUMNS: usize = 128;

/// The fastest of several runs.
fn fastest(times: usize, work: impl Fn()) -> Duration {
    let time = |_| {
        let started = Instant::now();
        work();
        started.elapsed()
    };
    (0..times).map(time).min().expect("it is done at least once")
}

fn main() {
    // As in criterion, a benchmark runs if its name contains the filter.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if filter.is_some_and(|filter| !"initial".contains(&filter)) {
        return;
    }
    let shape = Gpt2Config {
        vocab_size: 50_257,
        n_positions: 2048,
        n_layer: 128,
        n_head: 200,
        n_embd: 25_600,
        ..Gpt2Config::default()
    };
    let model = Gpt2::new(&shape, &Device::flex());
    let last = shape.n_layer - 1;
    let layout = Layout::of(&model.blocks[last], RANKS);
    let shard = layout.padded_len() / RANKS;
    let at = (RANKS - 1) * shard;
    let is_first = |param: &&ParamLayout| (param.offset..param.offset + param.len()).contains(&at);
    let param = layout.params().iter().find(is_first).expect("the rank's shard begins in a parameter");
    let name = format!("blocks.{last}.{}", param.name);
    let start = at - param.offset;
    let initial = Gpt2::initial(&shape, 1);
    let make = |runs: &[Range<usize>]| {
        black_box(initial.values(&name, runs));
    };
    println!(
        "GPT-2 of {:.3e} parameters, rank {} of {RANKS}, {name} from element {start} on:",
        shape.parameters(),
        RANKS - 1
    );
    let first = fastest(100, || make(&[Range { start, end: start + FIRST }]));
    println!("| the first {FIRST} values | {:.1} us |", first.as_secs_f64() * 1e6);
    let each = |time: Duration, count: usize| time.as_secs_f64() * 1e9 / count as f64;
    let bulk = 4 << 20;
    println!(
        "| one run of {bulk} values | {:.1} ns each |",
        each(fastest(5, || make(&[Range { start, end: start + bulk }])), bulk)
    );
    let row = param.shape[1];
    let rows: Vec<Range<usize>> = (0..10_000).map(|i| i * row..i * row + COLUMNS).collect();
    let columns = rows.len() * COLUMNS;
    println!("| {} runs of {COLUMNS} values | {:.1} ns each |", rows.len(), each(fastest(5, || make(&rows)), columns));
}
