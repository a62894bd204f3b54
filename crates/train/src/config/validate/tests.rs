//! A test that every recommended layout passes validation.

use crate::config::{Config, Source};
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Values of keys; an empty string leaves the key out.
const KEYS: &[&[&str]] = &[
    &["gpus=1", "gpus=2", "gpus=3", "gpus=4", "gpus=6", "gpus=8", "gpus=12", "gpus=16", "gpus=20"],
    &["", "", "pp=2", "pp=3", "pp=4", "pp=8"],
    &["", "tp=2", "tp=3", "tp=4", "tp=8", "tp=16"],
    &["", "", "cp=2", "cp=3", "cp=4"],
    &["", "", "ep=2", "ep=3", "ep=4", "ep=8"],
    &["", "", "", "dp_replicate=1", "dp_replicate=2", "dp_replicate=3"],
    &["", "", "", "dp_shard=1", "dp_shard=2", "dp_shard=4"],
    &["", "strategy=ddp", "strategy=zero1", "strategy=hybrid_shard", "strategy=block"],
    &["", "", "schedule=interleaved_1f1b", "schedule=zb_v", "schedule=gpipe"],
    &["", "", "", "virtual_stages=2"],
    &["", "", "", "adaptive=true"],
    &["", "", "", "stages=[4,1]", "stages=[1,2,1]", "stages=[2,2]"],
];

/// The arguments that a message recommends. Consecutive flags belong together; numbers of ranks stand alone.
fn advised(message: &str) -> Vec<Vec<String>> {
    let words: Vec<&str> =
        message.split_whitespace().map(|word| word.trim_matches(['(', ')', '.', ',', ';'])).collect();
    let mut all: Vec<Vec<String>> = vec![];
    let mut last = 0;
    for (i, pair) in words.windows(2).enumerate() {
        let flag = match pair[0] {
            "--gpus" => format!("parallel.gpus={}", pair[1]),
            "--batch-size" => format!("train.global_batch_size={}", pair[1]),
            "--set" => pair[1].to_string(),
            _ => continue,
        };
        match all.last_mut().filter(|_| i == last + 2) {
            Some(together) => together.push(flag),
            None => all.push(vec![flag]),
        }
        last = i;
    }
    all
}

#[test]
fn whatever_is_advised_on_a_layout_passes() {
    let (mut random, mut followed) = (ChaCha8Rng::seed_from_u64(0), [0; 3]);
    for i in 0..400 {
        let preset = Source::Preset(if i % 2 == 0 { "deepseek" } else { "gpt2" });
        let given: Vec<String> = KEYS
            .iter()
            .filter_map(|values| values.choose(&mut random).filter(|value| !value.is_empty()))
            .map(|value| format!("parallel.{value}"))
            .collect();
        let Err(error) = Config::load(preset, &given).unwrap().validate() else { continue };
        for advice in advised(&error.to_string()) {
            let ranks = advice.iter().any(|flag| flag.starts_with("parallel.gpus"));
            followed[if ranks { 0 } else { advice.len().min(2) }] += 1;
            let config = Config::load(preset, &[&given[..], &advice].concat()).unwrap();
            config.validate().unwrap_or_else(|next| panic!("{given:?}: {error}\nthen {advice:?}: {next}"));
        }
    }
    assert!(followed.iter().all(|times| *times > 20), "ranks, one flag, several: {followed:?}");
}
