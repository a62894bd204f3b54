//! Tests of the layout that follows the sequence length.

use super::*;
use fsdp::ActivationCheckpointing;

const LAYERS: &str = "base: preset:deepseek\nmodel: {max_position_embeddings: 10240}\nparallel: {gpus: 16, pp: 4, ep: 4, adaptive: true}";

/// What the table sets: batch, micro-batches, tp and whether everything is recomputed.
fn chosen(config: &Config) -> (usize, usize, usize, bool) {
    let ParallelConfig { tp, activation_checkpointing, .. } = config.parallel;
    let recomputes = activation_checkpointing == ActivationCheckpointing::Full;
    (config.train.global_batch_size, config.micro_batches(), tp, recomputes)
}

fn of_length(yaml: &str, sets: &[&str]) -> Config {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("adaptive.yaml");
    fs::write(&file, yaml).unwrap();
    let config =
        Config::load(Source::File(&file), &sets.iter().map(|set| set.to_string()).collect::<Vec<_>>()).unwrap();
    config.validate().unwrap();
    config
}

#[test]
fn the_built_in_table_goes_by_the_length_of_sequences() {
    let rows = [
        // The table asks for 16 micro-batches, but four ranks that share 32 sequences have only 8 each.
        (512, (32, 8, 1, false)),
        (514, (32, 8, 1, false)),
        (2048, (32, 8, 1, false)),
        (2050, (16, 4, 2, true)),
        (4096, (16, 4, 2, true)),
        (10240, (8, 2, 2, true)),
    ];
    for (length, expected) in rows {
        let config = of_length(LAYERS, &[&format!("train.seq_len={length}")]);
        assert_eq!(chosen(&config), expected, "{length} tokens");
    }
    let one_rank = of_length(LAYERS, &["train.seq_len=512", "parallel={gpus: 1, pp: 1, ep: 1}"]);
    assert_eq!(chosen(&one_rank), (32, 16, 1, false));
}

#[test]
fn what_is_chosen_and_what_is_given_instead_is_told() {
    let lines = |sets: &[&str]| of_length(LAYERS, sets).describe_adaptive();
    let long = "adaptive: sequences of 3000 tokens (2049 to 4096): 4 micro-batches of 2 sequences per step and rank, batch 16, tp 2, recomputation full";
    assert_eq!(lines(&["train.seq_len=3000"]), [long]);
    let given = lines(&["train.seq_len=512", "parallel.activation_checkpointing=full"]);
    assert_eq!(
        given[1],
        "adaptive: differs from the table: 8 micro-batches instead of 16, of a share of 8 sequences; \
         parallel.activation_checkpointing full instead of none"
    );
    assert!(lines(&["parallel.adaptive=false"]).is_empty());
}

#[test]
fn what_is_given_beside_a_table_or_later_counts_more_and_what_is_inherited_less() {
    // The preset's micro_batch_size is dropped; the file's tp and the later batch are kept.
    let with_tp = LAYERS.replace("adaptive: true", "adaptive: true, tp: 1");
    let config = of_length(&with_tp, &["train.seq_len=4096", "train.global_batch_size=64"]);
    assert_eq!(chosen(&config), (64, 4, 1, true));
    let own = "parallel.adaptive=[{up_to: 64, micro_batches: 1, global_batch_size: 4}, {up_to: 128, micro_batches: 2, global_batch_size: 16}]";
    assert_eq!(chosen(&of_length(&with_tp, &[own])), (16, 2, 1, false), "a later table drops what was given before");
}

#[test]
fn what_was_chosen_stays_when_a_run_goes_on_until_a_table_is_given_anew() {
    let config = of_length(LAYERS, &["train.seq_len=512"]);
    let saved = config.to_yaml();
    assert_eq!(of_length(&saved, &[]), config);
    let longer = of_length(&saved, &["train.seq_len=4096"]);
    assert_eq!(chosen(&longer), chosen(&config));
    assert_eq!(longer.describe_adaptive().len(), 2, "and is told");
    assert_eq!(chosen(&of_length(&saved, &["train.seq_len=4096", "parallel.adaptive=true"])), (16, 4, 2, true));
    let own = "parallel.adaptive=[{up_to: 64, micro_batches: 1, global_batch_size: 4}, {up_to: 512, micro_batches: 2, global_batch_size: 16}]";
    let config = of_length(&saved, &[own]);
    assert_eq!(of_length(&config.to_commented_yaml(), &[]), config);
}
