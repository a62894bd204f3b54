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

use crate::config::{Config, Source};
use crate::dry_run::Scratch;
use crate::error::TrainError;
use crate::format::{bytes, count};
use crate::host::device::Devices;
use crate::host::machine::{Machine, now};
use crate::plan::memory_check::available;
use crate::plan::step_time::{Assumptions, step_time};
use crate::run::folder::RunFolder;
use crate::run::options::RunOptions;
use crate::terminal::say;
use crate::training::{set_vocabulary, threads_per_rank, train};
use burn::tensor::{DType, Device, Distribution, Tensor};
use comm::TIMEOUT;
use fsdp::FsdpError;
use plan::{Backend, Cluster, Efficiency, Link, Peak};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// Of a measurement's rounds the fastest counts: others may have been disturbed.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(40);
/// Steps of each run; the first is not timed.
const STEPS: usize = 20;
/// FLOPs of attention for a query, a visible key and an element of a head: half each for scores and output.
const OF_A_PAIR: f64 = 4.0;

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
    let operations = pool.install(|| Operations::measure(&device, is_cpu, &sizes))?;
    let link = link(&Devices::new(name, 2)?)?;
    let mut cluster = Cluster {
        name: machine.host.clone(),
        source: format!("measured on {} with `train plan --measure`: {}, {cores} cores", &now()[..10], machine.cpu),
        nodes: Some(1),
        devices_per_node: if is_cpu { 64 } else { here },
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
    let runs = Runs { name, kind: &kind, scratch, ranks };
    let elementwise_traffic = |cluster: &mut Cluster, value| cluster.device.efficiency.elementwise_traffic = value;
    runs.fit("gpt2", sizes.gpt2, &mut cluster, elementwise_traffic, [0.1, 1e3])?;
    let grouped = |cluster: &mut Cluster, value| cluster.device.efficiency.grouped_product = value;
    runs.fit("deepseek", sizes.deepseek, &mut cluster, grouped, [1.0, 0.02])?;
    let found = &cluster.device.efficiency;
    say(&format!(
        "steps           {:.1} bytes of elementwise operations for each that is kept, experts at {:.2} of other products",
        found.elementwise_traffic, found.grouped_product
    ));
    Ok(cluster)
}

/// Keeps three digits, of which the last may change from one measurement to the next.
fn rounded(value: f64) -> f64 {
    format!("{value:.2e}").parse().expect("a float is written as one")
}

/// Rates of single operations.
struct Operations {
    peak: Peak,
    half_k: f64,
    /// Parts of the peak, forward and backward.
    attention: [f64; 2],
    bandwidth: f64,
    launch: f64,
}

impl Operations {
    fn measure(device: &Device, is_cpu: bool, sizes: &Sizes) -> Result<Self, TrainError> {
        let half = [DType::BF16, DType::F16].into_iter().find(|dtype| device.supports_dtype(*dtype));
        let usual = if is_cpu { DType::F32 } else { half.unwrap_or(DType::F32) };
        let (peak, half_k) = products(device, sizes, usual)?;
        let of = |dtype: DType| match dtype == usual {
            true => Ok(peak),
            false => products(device, sizes, dtype).map(|(peak, _)| peak),
        };
        let found = Peak { fp32: rounded(of(DType::F32)?), bf16: rounded(of(half.unwrap_or(DType::F32))?) };
        say(&format!(
            "products        {:.0} GFLOP/s in fp32, {:.0} GFLOP/s in 16 bits, half of it for {half_k:.0} contracted elements",
            1e-9 * found.fp32,
            1e-9 * found.bf16
        ));
        let attention = attention(device, sizes, usual)?.map(|rate| (rate / peak).min(1.0));
        say(&format!("attention       {:.2} of that forward, {:.2} backward", attention[0], attention[1]));
        let ones = || Tensor::<1>::ones([sizes.large], device);
        let (x, y) = (ones(), ones());
        let moved = (3 * sizes.large * size_of::<f32>()) as f64;
        let bandwidth = moved / seconds(device, || x.clone() + y.clone())?;
        let (x, w) = (Tensor::<2>::ones([8, 8], device), Tensor::<2>::ones([8, 8], device));
        let launch = seconds(device, || fused::linear(x.clone(), w.clone(), None))?;
        say(&format!(
            "memory          {}/s; an operation takes at least {:.1} us",
            bytes(bandwidth as usize),
            1e6 * launch
        ));
        Ok(Self { peak: found, half_k, attention, bandwidth, launch })
    }
}

/// Returns the FLOPs per second of large products, and the contracted dimension that reaches half of them: the line
/// through seconds per FLOP over 1 / k, of least relative error.
fn products(device: &Device, sizes: &Sizes, dtype: DType) -> Result<(f64, f64), TrainError> {
    let point = |k: &usize| -> Result<[f64; 2], TrainError> {
        let random = |shape| Tensor::<2>::random(shape, Distribution::Default, (device, dtype));
        let (x, w) = (random([sizes.rows, *k]), random([*k, sizes.columns]));
        let flops = 2.0 * (sizes.rows * k * sizes.columns) as f64;
        Ok([1.0 / *k as f64, seconds(device, || fused::linear(x.clone(), w.clone(), None))? / flops])
    };
    let points = sizes.contracted.iter().map(point).collect::<Result<Vec<_>, _>>()?;
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|[x, y]| of(*x, *y) / (y * y)).sum::<f64>();
    let (n, x, xx) = (sum(&|_, _| 1.0), sum(&|x, _| x), sum(&|x, _| x * x));
    let (y, xy) = (sum(&|_, y| y), sum(&|x, y| x * y));
    let slope = ((n * xy - x * y) / (n * xx - x * x)).max(0.0);
    let at_once = ((y - slope * x) / n).max(f64::MIN_POSITIVE);
    Ok((1.0 / at_once, slope / at_once))
}

/// Returns the FLOPs per second of causal attention, forward and backward.
fn attention(device: &Device, sizes: &Sizes, dtype: DType) -> Result<[f64; 2], TrainError> {
    let [b, t, heads, width] = sizes.attention;
    let scale = (width as f64).powf(-0.5);
    let qkv = Tensor::<3>::random([b, t, 3 * heads * width], Distribution::Default, (device, dtype));
    let flops = OF_A_PAIR * (b * heads * t * t / 2 * width) as f64;
    let forward = seconds(device, || fused::causal_self_attention(qkv.clone(), heads, scale, None, None))?;
    let tracked = qkv.autodiff().require_grad();
    let both = seconds(device, || {
        let y = fused::causal_self_attention(tracked.clone(), heads, scale, None, None);
        tracked.grad(&y.sum().backward())
    })?;
    Ok([flops / forward, 2.0 * flops / (both - forward).max(0.1 * forward)])
}

/// Returns the fastest seconds of an operation.
fn seconds<T>(device: &Device, mut operation: impl FnMut() -> T) -> Result<f64, TrainError> {
    let mut batch = |times: usize| -> Result<f64, TrainError> {
        let sync = || device.sync().map_err(|error| TrainError::Device(error.to_string()));
        sync()?;
        let start = Instant::now();
        (0..times).for_each(|_| drop(operation()));
        sync()?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    };
    batch(2)?;
    let times = (ROUND.as_secs_f64() / batch(1)?) as usize;
    let rounds = (0..ROUNDS).map(|_| batch(times.clamp(1, 10_000))).collect::<Result<Vec<_>, _>>()?;
    Ok(rounds.into_iter().fold(f64::INFINITY, f64::min))
}

/// Measures the link between two ranks with all-gathers.
fn link(devices: &Devices) -> Result<Link, TrainError> {
    const LARGE: usize = 1 << 22;
    let of_ranks = comm::run_ranks(devices.of_rank.clone(), TIMEOUT, |comm| {
        let timed = |elements: usize, times: usize| -> Result<f64, TrainError> {
            let shard = Tensor::<1>::ones([elements], comm.device());
            comm.all_gather(shard.clone()).map_err(FsdpError::from)?;
            let round = |_| -> Result<f64, TrainError> {
                comm.barrier().map_err(FsdpError::from)?;
                let start = Instant::now();
                for _ in 0..times {
                    drop(comm.all_gather(shard.clone()).map_err(FsdpError::from)?);
                }
                comm.device().sync().map_err(|error| TrainError::Device(error.to_string()))?;
                Ok(start.elapsed().as_secs_f64() / times as f64)
            };
            let rounds = (0..ROUNDS).map(round).collect::<Result<Vec<_>, _>>()?;
            Ok(rounds.into_iter().fold(f64::INFINITY, f64::min))
        };
        Ok::<_, TrainError>((timed(1, 100)?, timed(LARGE, 4)?))
    });
    let of_ranks = of_ranks.map_err(|failure| TrainError::Rank(Box::new(failure)))?;
    let (latency, large) = of_ranks.into_iter().reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))).expect("two ranks");
    let bandwidth = (LARGE * size_of::<f32>()) as f64 / (large - latency).max(1e-9);
    say(&format!("between ranks   {}/s, {:.0} us", bytes(bandwidth as usize), 1e6 * latency));
    Ok(Link { bandwidth: rounded(bandwidth), latency: rounded(latency) })
}

/// Short runs.
struct Runs<'a> {
    /// As in `--device`.
    name: &'a str,
    kind: &'a str,
    scratch: &'a Scratch,
    ranks: usize,
}

impl Runs<'_> {
    /// Sets a rate of the cluster so that steps take as long as they do.
    fn fit(
        &self,
        preset: &str,
        settings: &[&str],
        cluster: &mut Cluster,
        set: impl Fn(&mut Cluster, f64),
        [fast, slow]: [f64; 2],
    ) -> Result<(), TrainError> {
        let config = self.config(preset, settings)?;
        let measured = self.step(preset, &config)?;
        let planned = |cluster: &Cluster| {
            let timeline = step_time(&config, cluster, Assumptions::default());
            let noise =
                |_| TrainError::Config("the measured rates are no rates: end other programs and measure again".into());
            Ok::<_, TrainError>(timeline.map_err(noise)?.end())
        };
        let (mut fast, mut slow) = (fast.ln(), slow.ln());
        for _ in 0..40 {
            let middle = (fast + slow) / 2.0;
            set(cluster, middle.exp());
            if planned(cluster)? < measured { fast = middle } else { slow = middle }
        }
        set(cluster, rounded(((fast + slow) / 2.0).exp()));
        Ok(())
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
    fn step(&self, preset: &str, config: &Config) -> Result<f64, TrainError> {
        let out = self.scratch.path().join(preset);
        let options = RunOptions { out: Some(out), quiet: true, force: true, ..RunOptions::default() };
        let outcome = train(config.clone(), &options, Default::default())?;
        let metrics = RunFolder::at(&outcome.folder).metrics();
        let text = fs::read_to_string(&metrics).map_err(|source| TrainError::RunFolder { path: metrics, source })?;
        let seconds = |line: &str| serde_json::from_str::<Value>(line).ok()?["step_seconds"].as_f64();
        let mut steps: Vec<f64> = text.lines().filter_map(seconds).skip(1).collect();
        steps.sort_by(f64::total_cmp);
        let median = steps[steps.len() / 2];
        say(&format!("a step          {:.1} ms, {preset} on {}", 1e3 * median, count(self.ranks, "rank")));
        Ok(median)
    }
}
