//! The built-in table of `parallel.adaptive`: each of its layouts on 16 ranks has the losses of one rank with the same
//! batch and micro-batches.

use super::*;

const CONFIG: &str = concat!("--config=", env!("CARGO_MANIFEST_DIR"), "/../../configs/adaptive/deepseek.yaml");

const ONE_RANK: &[&str] = &["--gpus=1", "--set=parallel.pp=1", "--set=parallel.ep=1", "--set=parallel.adaptive=false"];

/// The table's rows with all lengths divided by 64. A step then takes about a second.
const SHORT: &str = "--set=parallel.adaptive=[\
    {up_to: 8, micro_batches: 16, global_batch_size: 32}, {up_to: 32, micro_batches: 8, global_batch_size: 32}, \
    {up_to: 64, micro_batches: 4, global_batch_size: 16, tp: 2, activation_checkpointing: full}, \
    {up_to: 160, micro_batches: 2, global_batch_size: 8, tp: 2, activation_checkpointing: full}]";

/// Compares two steps with this sequence length, batch size and micro-batch size.
#[track_caller]
fn has_the_losses_of_one_rank(table: &[&str], seq_len: usize, batch: usize, micro: usize) {
    let length = format!("--seq-len={seq_len}");
    let (batch, micro) = (format!("--batch-size={batch}"), format!("--set=train.micro_batch_size={micro}"));
    let found = train(&[&[CONFIG, &length], table].concat(), 2);
    let expected = train(&[&[CONFIG, &length, &batch, &micro], ONE_RANK].concat(), 2);
    for (key, factor) in COMPARED {
        for (found, expected) in values(&found, key).into_iter().zip(values(&expected, key)) {
            let difference = (found - expected).abs() / expected / factor;
            println!("{seq_len} tokens: {key} {found}, {difference:.1e}");
            assert!(difference < TOLERANCE, "{seq_len} tokens: {key} is {found} and not {expected}");
        }
    }
}

#[test]
fn the_layouts_of_the_built_in_table_have_the_losses_of_one_rank() {
    has_the_losses_of_one_rank(&[], 128, 32, 1);
    for (seq_len, batch, micro) in [(64, 16, 2), (160, 8, 2)] {
        has_the_losses_of_one_rank(&[SHORT], seq_len, batch, micro);
    }
}

#[test]
#[ignore = "minutes: the same layouts with sequences as long as the table's"]
fn the_built_in_table_has_the_losses_of_one_rank_at_its_own_lengths() {
    for (seq_len, batch, micro) in [(512, 32, 1), (2048, 32, 1), (4096, 16, 2), (10240, 8, 2)] {
        has_the_losses_of_one_rank(&[], seq_len, batch, micro);
    }
}
