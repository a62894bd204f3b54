//! Tests of the memory check: closed forms, advice, and measurements of real runs.

mod measured;

use super::available::Available;
use super::need::{Machine, Pool, of_run, of_whole_model, over_step};
use super::rows::Row;
use super::{gb, judge, judge_sample};
use crate::config::{Config, Source};
use crate::plan::workload::workload;
use model::{DeepSeekConfig, Workload};

fn config(preset: &str, overrides: &[&str]) -> Config {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let config = Config::load(Source::Preset(preset), &overrides).unwrap();
    config.validate().unwrap();
    config
}

fn cpu(ranks: usize) -> Machine {
    Machine { ranks, devices: 1, threads: true }
}

fn has(gigabytes: f64) -> impl Fn(Pool) -> Option<Available> {
    move |_| Some(Available { bytes: (gigabytes * 1e9) as u64, source: "this machine has" })
}

#[track_caller]
fn close(found: f64, expected: f64, by: f64) {
    assert!((found / expected - 1.0).abs() <= by, "{found:e} instead of {expected:e}");
}

#[test]
fn gpt2_small_takes_sixteen_bytes_a_parameter_and_its_activations() {
    let need = &of_run(&config("gpt2-124m", &[]), cpu(1))[0];
    let parameters = 124_439_808.0;
    for (row, bytes) in [(Row::Parameters, 4.0), (Row::Gradients, 4.0), (Row::Optimizer, 8.0), (Row::Checkpoint, 12.0)]
    {
        close(need.of_all[row], bytes * parameters, 1e-3);
    }
    assert_eq!(need.of_all[Row::Gathered], 0.0);
    // 12 sequences of 1024 tokens of width 768; 12 blocks with 12 heads.
    let (n, s) = (12.0 * 1024.0, 12.0 * 1024.0 * 768.0);
    let block = 8.0 * s + 2.0 * n * 3072.0 + 12.0 * n;
    // The head: stream, norm and their gradients, the matrix's gradient (twice while it is multiplied), and 256 rows of
    // logits.
    let head = 3.0 * s + 2.0 * 768.0 * 50257.0 + 256.0 * 50257.0;
    close(need.of_all[Row::Activations], 4.0 * (12.0 * block + head), 0.02);
}

#[test]
fn ranks_share_a_model_and_a_device_adds_up_its_ranks() {
    let overrides = ["parallel.gpus=4", "train.sample_tokens=0", "checkpoint.keep=0"];
    let of = |strategy: &str, machine| {
        let strategy = format!("parallel.strategy={strategy}");
        of_run(&config("gpt2-124m", &[&overrides[..], &[&strategy]].concat()), machine).remove(0)
    };
    let model = 4.0 * 124_439_808.0;
    let full_shard = of("full_shard", cpu(4));
    close(full_shard.of_rank[Row::Parameters], model / 4.0, 1e-3);
    close(full_shard.of_all[Row::Parameters], model, 1e-3);
    // What is gathered for all of them exists once: the ends and the last block.
    close(full_shard.of_all[Row::Gathered], full_shard.of_rank[Row::Gathered], 0.0);
    close(of("ddp", cpu(4)).of_all[Row::Parameters], 4.0 * model, 1e-3);
    close(of("zero1", cpu(4)).of_all[Row::Optimizer], 2.0 * model, 1e-3);
    // Four ranks on two devices: two on each.
    let two = of("full_shard", Machine { devices: 2, ..cpu(4) });
    assert_eq!(two.ranks, 2);
    close(two.of_all[Row::Parameters], model / 2.0, 1e-3);
}

#[test]
fn shards_that_rest_on_the_cpu_are_counted_there() {
    let overrides = ["train.device=cuda", "parallel.gpus=2", "checkpoint.keep=0", "train.sample_tokens=0"];
    let machine = Machine { devices: 2, ..cpu(2) };
    let [kept, offloaded] = ["false", "true"].map(|offload| {
        let offload = format!("parallel.cpu_offload={offload}");
        of_run(&config("gpt2-124m", &[&overrides[..], &[&offload]].concat()), machine)
    });
    let pools = |needs: &[super::Need]| needs.iter().map(|need| need.pool).collect::<Vec<_>>();
    assert_eq!((pools(&kept), pools(&offloaded)), (vec![Pool::Device], vec![Pool::Device, Pool::Host]));
    let [device, host] = [&offloaded[0].of_all, &offloaded[1].of_all];
    let parameters = 124_439_808.0;
    assert_eq!((device[Row::Parameters], device[Row::Optimizer]), (0.0, 0.0));
    close(host[Row::Parameters] + host[Row::Gradients] + host[Row::Optimizer], 16.0 * parameters, 1e-3);
    close(kept[0].of_all[Row::Optimizer], 4.0 * parameters, 1e-3);
}

#[test]
fn deepseek_v3_is_refused_with_a_table_and_what_would_help() {
    let message = judge(&config("deepseek-v3", &[]), cpu(1), 1, &has(64.0), false).unwrap_err();
    // 671 billion parameters take 4 bytes and a copy of 2; while units step, the new copy of one takes 23 GB.
    for part in [
        "this machine has 64.0 GB",
        "parameters      4049.173",
        "--set checkpoint.every=0",
        "with full_shard alone it takes at least",
        "devices of 192 GB (recomputation, micro-batches of 1",
        "--force",
    ] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
}

#[test]
fn a_run_that_would_fit_without_checkpoints_is_told_all_keys_that_make_them() {
    let keys = ["train.val_every=0", "checkpoint.every=0", "checkpoint.every_minutes=5", "checkpoint.keep_every=100"];
    let message = judge(&config("deepseek-v3", &keys), cpu(1), 1, &has(64.0), false).unwrap_err();
    let expected = "--set checkpoint.every=0 --set checkpoint.every_minutes=null --set checkpoint.keep_every=0";
    assert!(message.contains(expected), "{message}");
    for i in [2, 3] {
        assert!(config("gpt2", &[keys[0], keys[1], keys[i]]).saves_on_the_way(), "{}", keys[i]);
    }
    assert!(!config("gpt2", &keys[..2]).saves_on_the_way());
}

#[test]
fn a_run_goes_on_if_it_fits_is_forced_or_nobody_knows() {
    let config = config("gpt2-124m", &[]);
    let needed = of_run(&config, cpu(1))[0].of_all.total() / 1e9;
    let judged = |gigabytes: f64, force| judge(&config, cpu(1), 1, &has(gigabytes), force);
    assert_eq!(judged(1.2 * needed, false), Ok(None));
    assert!(judged(1.05 * needed, false).unwrap().unwrap().starts_with("memory is scarce: the run needs about"));
    assert!(judged(0.99 * needed, false).is_err());
    let forced = judged(0.99 * needed, true).unwrap().unwrap();
    assert!(forced.starts_with("--force: the run needs about") && forced.ends_with("it may be killed"), "{forced}");
    let unknown = judge(&config, cpu(1), 1, &|_| None, false).unwrap().unwrap();
    assert!(unknown.contains("not known here"), "{unknown}");
}

/// With ep 4 a rank holds a quarter of the experts, before any sharding.
#[test]
fn experts_over_ranks_are_a_part_on_each() {
    let of = |ep: &str| {
        let common = ["parallel.gpus=4", "parallel.strategy=ddp", "train.sample_tokens=0", "checkpoint.keep=0"];
        of_run(&config("deepseek", &[&common[..], &[ep]].concat()), cpu(4)).remove(0).of_rank
    };
    let (all, fourth) = (of("parallel.ep=1"), of("parallel.ep=4"));
    let moe = config("deepseek", &[]).moe.unwrap();
    let (layers, experts) = config("deepseek", &[]).expert_layers().unwrap();
    let config = config("deepseek", &[]);
    let shape = config.model.get::<DeepSeekConfig>().unwrap();
    let bytes = 4.0 * (layers.len() * experts * 3 * shape.hidden_size * moe.moe_intermediate_size) as f64;
    close(all[Row::Parameters] - fourth[Row::Parameters], 0.75 * bytes, 1e-3);
    close(all[Row::Optimizer] - fourth[Row::Optimizer], 1.5 * bytes, 1e-3);
}

/// With uneven loads a rank holds as many rows as `moe.max_rank_load` and the capacity allow.
#[test]
fn experts_over_ranks_are_counted_with_the_load_that_one_rank_may_get() {
    let of = |overrides: &[&str]| {
        let common = ["parallel.gpus=4", "parallel.ep=4", "moe.capacity_factor=null"];
        let config = config("deepseek", &[&common[..], overrides].concat());
        config.family().memory(&Workload { sequences: 2, ..workload(&config, 0) })[1].graph as f64
    };
    let (even, preset) = (of(&["moe.max_rank_load=1"]), of(&[]));
    // 2 sequences of 128 tokens with 2 experts each: x, gate, up, product and y, all 128 wide, in fp32.
    let rows = 1.02 * 4.0 * (2.0 * 128.0 * 2.0) * (5.0 * 128.0);
    close(preset - even, rows, 1e-6);
    close(of(&["moe.max_rank_load=3.5"]) - even, 2.5 * rows, 1e-6);
    // At most all rows of four ranks, and at most those of full experts.
    close(of(&["moe.max_rank_load=100"]) - even, 3.0 * rows, 1e-6);
    close(of(&["moe.capacity_factor=1.5"]) - even, 0.5 * rows, 1e-6);
    close(of(&["moe.capacity_factor=1.0"]), even, 1e-6);

    let run = config("deepseek", &["parallel.gpus=4", "parallel.ep=4", "moe.capacity_factor=null"]);
    let message = judge(&run, cpu(4), 1, &has(0.1), false).unwrap_err();
    assert!(message.contains("--set moe.max_rank_load=1 "), "{message}");
}

/// Each stage has its own parameters, and the last one the logits.
#[test]
fn every_stage_of_a_pipeline_counts() {
    let of = |overrides: &[&str], machine| {
        let common = ["parallel.gpus=4", "train.sample_tokens=0", "checkpoint.keep=0", "train.micro_batch_size=1"];
        of_run(&config("gpt2-124m", &[&common[..], overrides].concat()), machine).remove(0)
    };
    let (one, model) = (Machine { devices: 1, ..cpu(4) }, 4.0 * 124_439_808.0);
    // The embedding is also the head, so it is on the first and the last stage.
    let tied = 4.0 * (50257.0 + 1024.0 + 2.0) * 768.0;
    let ddp = of(&["parallel.pp=4", "parallel.strategy=ddp"], one);
    close(ddp.of_all[Row::Parameters], model + tied, 1e-3);
    // What each stage gathers is kept and counts once per stage: the whole model, and the tied part twice.
    let sharded = of(&["parallel.pp=2"], one);
    close(sharded.of_all[Row::Gathered], model + tied, 1e-3);
    // Of four devices, the one with the last stage needs the most: under gpipe, the logits of all micro-batches.
    let four = Machine { devices: 4, ..cpu(4) };
    let gpipe = of(&["parallel.pp=4", "parallel.strategy=ddp", "parallel.schedule=gpipe"], four);
    assert!(gpipe.of_all[Row::Activations] > 12.0 * 4.0 * 1024.0 * 50257.0, "{:e}", gpipe.of_all[Row::Activations]);
}

#[test]
fn a_pipeline_that_does_not_fit_is_refused_with_advice() {
    for overrides in [
        &["parallel.gpus=4", "parallel.pp=2"][..],
        &["parallel.gpus=6", "parallel.pp=3", "parallel.schedule=interleaved_1f1b", "train.global_batch_size=48"],
        &["parallel.gpus=4", "parallel.pp=4", "parallel.stages=[12, 12, 12, 12]"],
        &["parallel.gpus=5", "parallel.tp=5", "train.seq_len=100"],
        &["parallel.gpus=12", "parallel.pp=2", "parallel.cp=3", "train.seq_len=96"],
    ] {
        let config = config("gpt2-1558m", overrides);
        let message = judge(&config, cpu(config.parallel.gpus), 1, &has(2.0), false).unwrap_err();
        assert!(message.contains("it takes at least 1 device of 80 GB"), "{message}");
    }
    for overrides in [
        &["parallel.gpus=8", "parallel.ep=8"][..],
        &["parallel.gpus=8", "parallel.ep=2", "parallel.strategy=hybrid_shard"],
        &["parallel.gpus=8", "parallel.pp=2", "parallel.ep=4", "parallel.schedule=zb_v"],
    ] {
        let config = config("deepseek-7b", overrides);
        let message = judge(&config, cpu(config.parallel.gpus), 1, &has(2.0), false).unwrap_err();
        assert!(message.contains("it takes at least"), "{message}");
    }
}

/// Bytes that a gpt2-124m needs with these overrides and flags.
fn needed_with(base: &[&str], flags: &str) -> f64 {
    let words = [("--gpus ", "parallel.gpus="), ("--strategy ", "parallel.strategy="), ("--set ", "")];
    let set = words.iter().fold(flags.to_string(), |flags, (word, key)| flags.replace(word, key));
    let changed = config("gpt2-124m", &[base, &set.split(' ').collect::<Vec<_>>()].concat());
    of_run(&changed, cpu(changed.parallel.gpus))[0].of_all.total()
}

/// The flags recommended for a gpt2-124m with overrides, each with the claim whether the run then fits. Asserts that
/// each line's figure is that of a run with the flags and that its claim is true.
#[track_caller]
fn advised(message: &str, base: &[&str], gigabytes: f64) -> Vec<(String, bool)> {
    let advised = |line: &str| {
        let (flags, figure) = line.trim().split_once("  ").unwrap();
        let total = needed_with(base, flags);
        let fits = total <= gigabytes * 1e9;
        let verdict = if fits { "fits" } else { "not enough alone" };
        assert_eq!(figure.trim(), format!("{}, {verdict}", gb(total)), "{flags}");
        (flags.to_string(), fits)
    };
    message.lines().filter(|line| line.starts_with("  --")).map(advised).collect()
}

/// With less and less memory, the advice uses the fewest changes that fit, until nothing fits.
#[test]
fn changes_that_do_not_fit_alone_are_combined_into_as_few_as_do() {
    let base = ["parallel.gpus=2", "parallel.strategy=ddp"];
    let (mut gigabytes, mut numbers) = (28.0, vec![]);
    loop {
        let message = judge(&config("gpt2-124m", &base), cpu(2), 1, &has(gigabytes), false).unwrap_err();
        if message.contains("it takes at least") {
            assert!(message.contains(", not enough\n") && !message.contains("fits"), "{message}");
            break;
        }
        let lines = advised(&message, &base, gigabytes);
        assert!(lines[0].1 && lines.is_sorted_by_key(|(_, fits)| !fits), "{message}");
        // The flags for checkpoints together are one change.
        let number = |flags: &str| flags.matches("--").count() - flags.matches("keep_best").count();
        numbers.push(number(&lines[0].0));
        let alike =
            |(flags, fits): &(String, bool)| number(flags) == if *fits { numbers[numbers.len() - 1] } else { 1 };
        assert!(lines.iter().all(alike), "{message}");
        gigabytes *= 0.9;
    }
    assert!(
        numbers.is_sorted() && numbers[0] == 1 && numbers.contains(&2) && numbers[numbers.len() - 1] >= 3,
        "{numbers:?}"
    );
}

#[test]
fn advice_has_the_figures_of_a_run_that_takes_it() {
    let base = ["parallel.gpus=2", "parallel.strategy=ddp"];
    let message = judge(&config("gpt2-124m", &base), cpu(2), 1, &has(28.0), false).unwrap_err();
    let lines = advised(&message, &base, 28.0);
    assert!(lines.len() >= 4 && message.matches(", fits").count() >= 2, "{message}");
    assert!(lines.is_sorted_by_key(|(_, fits)| !fits), "what fits comes first: {message}");
    assert!(!lines[0].0.contains("checkpoint.every"), "checkpoints are given up last: {message}");
    // Here only more devices help.
    let message = judge(&config("gpt2-1558m", &[]), cpu(1), 1, &has(8.0), false).unwrap_err();
    assert!(message.contains("it takes at least 1 device of 80 GB") && !message.contains("fits"), "{message}");
}

/// Offloaded state takes more CPU memory than the device memory it frees.
#[test]
fn an_offload_helps_where_the_cpu_has_the_memory_that_a_device_has_not() {
    let config = config("gpt2-1558m", &["train.device=cuda", "train.micro_batch_size=1"]);
    let available = |host: f64| {
        move |pool| {
            let gigabytes = if pool == Pool::Host { host } else { 24.0 };
            Some(Available { bytes: (gigabytes * 1e9) as u64, source: "a device has" })
        }
    };
    let advice = |host: f64| judge(&config, cpu(1), 1, &available(host), false).unwrap_err();
    let (large, small) = (advice(256.0), advice(8.0));
    assert!(large.contains("parallel.cpu_offload=true") && large.contains("of the CPU's memory, fits"), "{large}");
    assert!(!small.contains("parallel.cpu_offload=true"), "{small}");
}

/// A forecast looks at some of many micro-batches; the memory over all of them is no higher.
#[test]
fn further_micro_batches_take_no_more_memory() {
    for (schedule, strategy) in
        [("1f1b", "full_shard"), ("interleaved_1f1b", "zero1"), ("zero_bubble", "ddp"), ("zb_v", "full_shard")]
    {
        let of = |batch: &str| {
            let schedule = format!("parallel.schedule={schedule}");
            let strategy = format!("parallel.strategy={strategy}");
            let sizes = ["parallel.gpus=4", "parallel.pp=2", "train.micro_batch_size=1", batch];
            let config = config("gpt2", &[&sizes[..], &[&schedule, &strategy]].concat());
            [0, 3].map(|rank| {
                let held = over_step(&config, &[rank]).remove(0);
                held.iter().map(|(_, bytes)| bytes.total()).max().unwrap()
            })
        };
        // Two data-parallel ranks with 16 and 80 micro-batches, and with 17 and 81, which do not fill their rounds.
        assert_eq!(of("train.global_batch_size=32"), of("train.global_batch_size=160"), "{schedule}");
        assert_eq!(of("train.global_batch_size=34"), of("train.global_batch_size=162"), "{schedule}");
    }
}

#[test]
fn a_sample_takes_the_whole_model_and_is_left_out_where_that_does_not_fit() {
    let of = |strategy: &str| {
        let strategy = format!("parallel.strategy={strategy}");
        of_whole_model(&config("gpt2-124m", &["parallel.gpus=4", &strategy]))
    };
    assert_eq!(of("ddp"), 0.0, "rank 0 has all of it");
    let needed = of("full_shard");
    close(needed, 4.0 * 124_439_808.0, 1e-3);
    assert_eq!(judge_sample(needed, has(0.6)(Pool::Host)), Ok(()));
    assert_eq!(judge_sample(needed, None), Ok(()), "it is not known");
    assert_eq!(judge_sample(0.0, has(0.0)(Pool::Host)), Ok(()));
    let refused = judge_sample(needed, has(0.4)(Pool::Host)).unwrap_err();
    assert_eq!(
        refused,
        "no sample is written: it takes the whole model on rank 0, 0.50 GB, and this machine has 0.40 GB: run `train generate` where the \
         model fits, and set train.sample_tokens to 0"
    );
}
