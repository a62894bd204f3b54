//! The guide's table: at each length of sequences its layout on 16 ranks has the losses of one rank, which is told batch and micro-batches.

use super::*;

const GUIDE_CONFIG: &str = concat!("--config=", env!("CARGO_MANIFEST_DIR"), "/../../configs/guide/deepseek.yaml");

const ONE_RANK: &[&str] = &["--gpus=1", "--set=parallel.pp=1", "--set=parallel.ep=1", "--set=parallel.adaptive=false"];

/// Two steps of sequences of such a length, in batches and micro-batches of so many.
#[track_caller]
fn the_guides_layout_has_the_losses_of_one_rank(seq_len: usize, batch: usize, micro: usize) {
    let length = format!("--seq-len={seq_len}");
    let (batch, micro) = (format!("--batch-size={batch}"), format!("--set=train.micro_batch_size={micro}"));
    let found = train(&[GUIDE_CONFIG, &length], 2);
    let expected = train(&[&[GUIDE_CONFIG, &length, &batch, &micro], ONE_RANK].concat(), 2);
    for (key, factor) in COMPARED {
        for (found, expected) in values(&found, key).into_iter().zip(values(&expected, key)) {
            let difference = (found - expected).abs() / expected / factor;
            println!("{seq_len} tokens: {key} {found}, {difference:.1e}");
            assert!(difference < TOLERANCE, "{seq_len} tokens: {key} is {found} and not {expected}");
        }
    }
}

#[test]
fn sequences_of_512_tokens_have_the_losses_of_one_rank_in_the_guides_layout() {
    the_guides_layout_has_the_losses_of_one_rank(512, 32, 1);
}

#[test]
fn sequences_of_4096_tokens_have_the_losses_of_one_rank_in_the_guides_layout() {
    the_guides_layout_has_the_losses_of_one_rank(4096, 16, 2);
}

#[test]
#[ignore = "minutes: the layout of 512 tokens with longer sequences"]
fn sequences_of_2048_tokens_have_the_losses_of_one_rank_in_the_guides_layout() {
    the_guides_layout_has_the_losses_of_one_rank(2048, 32, 1);
}

#[test]
#[ignore = "minutes: the layout of 4096 tokens with longer sequences"]
fn sequences_of_10240_tokens_have_the_losses_of_one_rank_in_the_guides_layout() {
    the_guides_layout_has_the_losses_of_one_rank(10240, 8, 2);
}
