//! Measures this machine as a cluster: rates of single operations, and from short runs what those leave open.
//!
//! ```text
//! linear          rows x k x columns, k doubled      peak, and the k that reaches half of it
//! attention       forward, forward and backward      its parts of the peak
//! x + y           more than the caches hold          memory's bandwidth
//! all_gather      two ranks, large and small         bandwidth and latency of a link
//! GPT-2 steps     what products do not explain       `elementwise_traffic`
//! DeepSeek steps  what else is left                  `grouped`
//! ```
//!
//! Everything is repeated, and the median counts: a disturbed repetition does not move it. If the middle half of the
//! repetitions still differs by more than a tenth, a warning says so.

mod operations;
mod spreads;

use crate::config::{Config, Source};
use crate::dry_run::Scratch;
use crate::error::TrainError;
use crate::format::count;
use crate::host::device::Devices;
use crate::host::machine::{Machine, now};
use crate::plan::memory_check::available;
use crate::plan::step_time::{Assumptions, step_time};
use crate::run::folder::RunFolder;
use crate::run::options::RunOptions;
use crate::terminal::{say, to_stderr};
use crate::training::{set_vocabulary, threads_per_rank, train};
use operations::{Operations, link};
use plan::{Backend, Cluster, Efficiency};
use serde_json::Value;
use spreads::Spreads;
use std::fs;
use std::path::Path;

/// Runs of each kind, and steps of each; the first step is not timed.
const RUNS: usize = 3;
const STEPS: usize = 20;

/// Sizes that keep a device busy.
struct Sizes {
    rows: usize,
    columns: usize,
    /// Contracted dimensions of products.
    contracted: &'static [usize],
    /// Sequences, positions, heads, and the width of a head.
    attention: [usize; 4],
    /// Elements of a tensor that no cache holds.
    large: usize,
    /// Settings of the runs.
    gpt2: &'static [&'static str],
    deepseek: &'static [&'static str],
}

const CPU: Sizes = Sizes {
    rows: 2048,
    columns: 512,
    contracted: &[32, 64, 128, 256, 512, 1024],
    attention: [4, 256, 8, 32],
    large: 1 << 24,
    gpt2: &[
        "model.n_embd=192",
        "model.n_head=6",
        "model.n_layer=3",
        "train.seq_len=192",
        "train.global_batch_size=16",
        "train.micro_batch_size=8",
    ],
    deepseek: &[
        "model.hidden_size=192",
        "model.num_attention_heads=6",
        "model.num_hidden_layers=3",
        "moe.moe_intermediate_size=192",
        "train.seq_len=192",
        "train.global_batch_size=16",
        "train.micro_batch_size=8",
    ],
};

const GPU: Sizes = Sizes {
    rows: 8192,
    columns: 4096,
    contracted: &[128, 256, 512, 1024, 2048, 4096, 8192],
    attention: [8, 2048, 16, 128],
    large: 1 << 28,
    gpt2: &[
        "model.n_embd=1024",
        "model.n_head=16",
        "model.n_layer=8",
        "model.n_positions=1024",
        "train.seq_len=1024",
        "train.global_batch_size=32",
        "train.micro_batch_size=8",
    ],
    deepseek: &[
        "model.hidden_size=1024",
        "model.num_attention_heads=16",
        "model.num_hidden_layers=8",
        "model.kv_lora_rank=256",
        "model.qk_nope_head_dim=64",
        "model.v_head_dim=64",
        "moe.moe_intermediate_size=1024",
        "train.seq_len=1024",
        "train.global_batch_size=32",
        "train.micro_batch_size=8",
    ],
};

/// Measures the devices of this machine called `name`, as in `--device`, and prints what it finds.
///
/// # Errors
/// If there is no such device, or if the short runs fail.
pub(crate) fn measure(name: &str, scratch: &Scratch) -> Result<Cluster, TrainError> {
    let devices = Devices::new(name, 1)?;
    let (kind, here) = (devices.kind().to_string(), devices.here);
    let (is_cpu, device) = (kind == "cpu", devices.of_rank[0].clone());
    let sizes = if is_cpu { CPU } else { GPU };
    let machine = Machine::this();
    let cores = machine.cores;
    let memory = if is_cpu { available::of_host() } else { available::of_devices(&devices) };
    let memory = memory.map_or(0.0, |memory| memory.bytes as f64);
    // As a rank's operations do, these run inside a pool of threads.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads_per_rank(1)).build().map_err(TrainError::Threads)?;
    let mut spreads = Spreads::default();
    let operations = pool.install(|| Operations::measure(&device, is_cpu, &sizes, &mut spreads))?;
    let link = link(&Devices::new(name, 2)?, &mut spreads)?;
    let mut cluster = Cluster {
        name: machine.host.clone(),
        source: format!("measured on {} with `train plan --measure`: {}, {cores} cores", &now()[..10], machine.cpu),
        nodes: Some(1),
        devices_per_node: if is_cpu { 64 } else { here },
        host_memory: available::of_host().filter(|_| !is_cpu).map(|memory| rounded(memory.bytes as f64)),
        offload: None, // nothing measures it
        device: plan::Device {
            memory: rounded(memory),
            memory_bandwidth: rounded(operations.bandwidth),
            peak: operations.peak,
            efficiency: Efficiency {
                product: 1.0,
                product_half_k: rounded(operations.half_k),
                grouped_product: 1.0,
                unaligned: 1.0,
                attention_forward: rounded(operations.attention[0]),
                attention_backward: rounded(operations.attention[1]),
                memory: 1.0,
                elementwise_traffic: 6.0,
                logit_traffic: 8.0,
                recomputed: 1.0,
                slowest_device: 1.0,
                launch: rounded(operations.launch),
            },
            cpu_cores: if is_cpu { cores } else { 0 },
            backend: match kind.as_str() {
                "vulkan" => Some(Backend::Vulkan),
                "metal" => Some(Backend::Metal),
                _ => None,
            },
        },
        node_link: link,
        network: link,
    };
    // A rank of several threads is less regular than ranks of one.
    let ranks = if is_cpu { cores.clamp(1, 4) } else { 1 };
    let mut runs = Runs { name, kind: &kind, scratch, ranks, spreads: &mut spreads };
    let elementwise_traffic = |cluster: &mut Cluster, value| cluster.device.efficiency.elementwise_traffic = value;
    let unfit = runs.fit("gpt2", sizes.gpt2, &mut cluster, elementwise_traffic, [0.1, 1e3])?;
    let grouped = |cluster: &mut Cluster, value| cluster.device.efficiency.grouped_product = value;
    let unfit = [unfit, runs.fit("deepseek", sizes.deepseek, &mut cluster, grouped, [1.0, 0.02])?];
    let found = &cluster.device.efficiency;
    say(&format!(
        "steps           {:.1} bytes of elementwise operations for each that is kept, experts at {:.2} of other products",
        found.elementwise_traffic, found.grouped_product
    ));
    for warning in unfit.into_iter().flatten().chain(spreads.warning()) {
        to_stderr(&format!("warning: {warning}"));
        cluster.source += &format!("; {warning}");
    }
    Ok(cluster)
}

/// Keeps three digits, of which the last may change from one measurement to the next.
fn rounded(value: f64) -> f64 {
    format!("{value:.2e}").parse().expect("a float is written as one")
}

/// Finds the value between a fast and a slow one, above 0, that is neither too fast nor too slow. If the fast one is too
/// slow or the slow one too fast, returns that one, and says how what is measured compares.
fn bisected<E>(
    [fast, slow]: [f64; 2],
    mut is_too_fast: impl FnMut(f64) -> Result<bool, E>,
) -> Result<(f64, Option<&'static str>), E> {
    if !is_too_fast(fast)? {
        return Ok((fast, Some("faster")));
    }
    if is_too_fast(slow)? {
        return Ok((slow, Some("slower")));
    }
    let (mut fast, mut slow) = (fast.ln(), slow.ln());
    for _ in 0..40 {
        let middle = (fast + slow) / 2.0;
        if is_too_fast(middle.exp())? { fast = middle } else { slow = middle }
    }
    Ok((((fast + slow) / 2.0).exp(), None))
}

/// Short runs.
struct Runs<'a> {
    /// As in `--device`.
    name: &'a str,
    kind: &'a str,
    scratch: &'a Scratch,
    ranks: usize,
    spreads: &'a mut Spreads,
}

impl Runs<'_> {
    /// Sets a rate of the cluster so that steps take as long as they do. Returns a warning if no rate does that.
    fn fit(
        &mut self,
        preset: &'static str,
        settings: &[&str],
        cluster: &mut Cluster,
        set: impl Fn(&mut Cluster, f64),
        bounds: [f64; 2],
    ) -> Result<Option<String>, TrainError> {
        let config = self.config(preset, settings)?;
        let measured = self.step(preset, &config)?;
        let planned = |cluster: &Cluster| {
            let timeline = step_time(&config, cluster, Assumptions::default());
            let noise =
                |_| TrainError::Config("the measured rates are no rates: end other programs and measure again".into());
            Ok::<_, TrainError>(timeline.map_err(noise)?.end())
        };
        let is_too_fast = |value: f64| {
            set(cluster, value);
            Ok::<_, TrainError>(planned(cluster)? < measured)
        };
        let (found, unexplained) = bisected(bounds, is_too_fast)?;
        set(cluster, rounded(found));
        Ok(unexplained.map(|how| {
            format!(
                "a step of {preset} is {how} than other measured rates explain, so the last one is a guess: end other \
                 programs and measure again"
            )
        }))
    }

    fn config(&self, preset: &str, settings: &[&str]) -> Result<Config, TrainError> {
        let text = self.scratch.path().join("text.txt");
        if !text.exists() {
            let noise: String = (0..1 << 20_u32)
                .map(|i: u32| char::from(b'a' + (i.wrapping_mul(2_654_435_761) >> 27) as u8 % 26))
                .collect();
            fs::write(&text, noise).map_err(|source| TrainError::RunFolder { path: text.clone(), source })?;
        }
        let common = [
            &format!("parallel.gpus={}", self.ranks),
            &format!("train.device={}", self.name),
            &format!("data.source={}", text.display()),
            &format!("train.steps={STEPS}"),
            "train.val_every=0",
            "train.val_batches=1",
            "train.sample_tokens=0",
            "checkpoint.keep=0",
            "optim.warmup_steps=1",
        ];
        let all: Vec<String> = settings.iter().chain(&common).map(|setting| setting.to_string()).collect();
        let mut config = Config::load(Source::Preset(preset), &all)?;
        config.parallel.precision.choose(self.kind);
        set_vocabulary(&mut config, Some(data::Tokenizer::byte().vocab_size()))?;
        Ok(config)
    }

    /// Returns the median seconds of a step.
    fn step(&mut self, preset: &'static str, config: &Config) -> Result<f64, TrainError> {
        let run = |i| self.step_of_a_run(&self.scratch.path().join(format!("{preset}-{i}")), config);
        let medians = (0..RUNS).map(run).collect::<Result<Vec<_>, _>>()?;
        let median = self.spreads.median(preset, medians);
        say(&format!("a step          {:.1} ms, {preset} on {}", 1e3 * median, count(self.ranks, "rank")));
        Ok(median)
    }

    fn step_of_a_run(&self, out: &Path, config: &Config) -> Result<f64, TrainError> {
        let options = RunOptions { out: Some(out.into()), quiet: true, force: true, ..RunOptions::default() };
        let outcome = train(config.clone(), &options, Default::default())?;
        let metrics = RunFolder::at(&outcome.folder).metrics();
        let text = fs::read_to_string(&metrics).map_err(|source| TrainError::RunFolder { path: metrics, source })?;
        let seconds = |line: &str| serde_json::from_str::<Value>(line).ok()?["step_seconds"].as_f64();
        Ok(spreads::median(text.lines().filter_map(seconds).skip(1).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_that_ends_at_a_bound_is_told() {
        let fitted = |wanted: f64| {
            let found = bisected([0.1, 1e3], |value| Ok::<_, ()>(value < wanted)).unwrap();
            (rounded(found.0), found.1)
        };
        assert_eq!(fitted(5.26), (5.26, None));
        assert_eq!((fitted(0.01), fitted(1e4)), ((0.1, Some("faster")), (1e3, Some("slower"))));
        let falling = bisected([1.0, 0.02], |value| Ok::<_, ()>(value > 0.5)).unwrap();
        assert_eq!((rounded(falling.0), falling.1), (0.5, None));
    }
}
