//! Tests of rows of several lengths.

use super::*;

/// For each length: tokens per row, global batch size and micro-batch size.
fn lengths(config: &Config) -> Vec<[usize; 3]> {
    config.validate().unwrap();
    let of = |config: Config| [config.train.seq_len, config.train.global_batch_size, config.micro_batch_size()];
    config.by_length().into_iter().map(of).collect()
}

#[test]
fn shorter_rows_come_in_as_many_tokens_as_the_longest() {
    let base =
        ["train.seq_len=256", "train.global_batch_size=8", "train.micro_batch_size=2", "data.buckets=[64,100,256]"];
    let config = preset_with("deepseek", &base).unwrap();
    assert_eq!(lengths(&config), [[64, 32, 8], [100, 20, 5], [256, 8, 2]]);
    let four =
        preset_with("deepseek", &[&base[..], &["parallel.gpus=4", "train.micro_batch_size=null"]].concat()).unwrap();
    assert_eq!(lengths(&four), [[64, 32, 8], [100, 20, 5], [256, 8, 2]]);
    assert_eq!(lengths(&preset_with("deepseek", &["data.buckets=null"]).unwrap()), [[128, 32, 8]]);
}

#[test]
fn a_table_by_length_decides_batch_and_micro_batches_of_each() {
    let rows = ["model.max_position_embeddings=4096", "train.seq_len=4096", "data.buckets=[512,2048,4096]"];
    let layout = ["parallel={gpus: 16, pp: 4, ep: 4, adaptive: true}"];
    let config = preset_with("deepseek", &[&rows[..], &layout].concat()).unwrap();
    // tp is 2 because the longest rows need it, so two groups of ranks share a batch.
    assert_eq!(lengths(&config), [[512, 32, 1], [2048, 32, 2], [4096, 16, 2]]);
    assert!(config.by_length().iter().all(|at| at.parallel.tp == 2));
    // A given batch takes precedence over the table at all lengths.
    let given = preset_with("deepseek", &[&rows[..], &layout, &["train.global_batch_size=8"]].concat()).unwrap();
    assert_eq!(lengths(&given).into_iter().map(|[_, batch, _]| batch).collect::<Vec<_>>(), [64, 16, 8]);
    // Even if it equals the table's, and in a resumed run.
    let given = preset_with("deepseek", &[&rows[..], &layout, &["train.global_batch_size=16"]].concat()).unwrap();
    let batches = |config: &Config| lengths(config).into_iter().map(|[_, batch, _]| batch).collect::<Vec<_>>();
    assert_eq!(batches(&given), [128, 32, 16]);
    let again = |config: &Config, sets: &[&str]| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("a.yaml"), config.to_yaml()).unwrap();
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        Config::load(Source::File(&folder.path().join("a.yaml")), &sets).unwrap()
    };
    assert_eq!(again(&given, &[]), given);
    assert_eq!(lengths(&again(&config, &[])), lengths(&config));
    assert_eq!(batches(&again(&config, &["train.global_batch_size=16"])), [128, 32, 16]);
    assert_eq!(lengths(&again(&given, &["parallel.adaptive=true"])), lengths(&config));
}

#[test]
fn lengths_that_make_no_sense_are_refused() {
    for (settings, message) in [
        (&["data.buckets=[]"][..], "data.buckets is []: give lengths of rows from short to long"),
        (&["data.buckets=[256,64]"], "data.buckets is [256, 64]: give lengths"),
        (&["data.buckets=[64,64,256]"], "from short to long, each once"),
        (&["data.buckets=[0,256]"], "data.buckets is [0, 256]"),
        (
            &["data.buckets=[64,128]"],
            "end at 128, and train.seq_len is 256: the last is the longest row, give --seq-len 128",
        ),
        (&["data.buckets=[64,512]"], "end at 512"),
        (&["data.buckets=[2,256]", "model.mtp_depth=2"], "at rows of 2 tokens: model.mtp_depth is 2"),
        (&["data.buckets=64"], "`data.buckets` is 64"),
    ] {
        refuses(preset_with("deepseek", &[&["train.seq_len=256"], settings].concat()), &[message]);
    }
}
