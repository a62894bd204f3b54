//! Rates of single operations, and of the link between two ranks.

use super::{Sizes, Spreads, rounded};
use crate::error::TrainError;
use crate::format::bytes;
use crate::host::device::Devices;
use crate::terminal::say;
use burn::tensor::{DType, Device, Distribution, Tensor};
use comm::TIMEOUT;
use fsdp::FsdpError;
use plan::{Link, Peak};
use std::time::{Duration, Instant};

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(40);
/// FLOPs of attention for a query, a visible key and an element of a head: half each for scores and output.
const OF_A_PAIR: f64 = 4.0;

/// Rates of single operations.
pub struct Operations {
    pub peak: Peak,
    pub half_k: f64,
    /// Parts of the peak, forward and backward.
    pub attention: [f64; 2],
    pub bandwidth: f64,
    pub launch: f64,
}

impl Operations {
    pub fn measure(device: &Device, is_cpu: bool, sizes: &Sizes, spreads: &mut Spreads) -> Result<Self, TrainError> {
        let mut timed = Timed { device, spreads };
        let half = [DType::BF16, DType::F16].into_iter().find(|dtype| device.supports_dtype(*dtype));
        let usual = if is_cpu { DType::F32 } else { half.unwrap_or(DType::F32) };
        let (peak, half_k) = products(&mut timed, sizes, usual)?;
        let mut of = |dtype: DType| match dtype == usual {
            true => Ok(peak),
            false => products(&mut timed, sizes, dtype).map(|(peak, _)| peak),
        };
        let found = Peak { fp32: rounded(of(DType::F32)?), bf16: rounded(of(half.unwrap_or(DType::F32))?) };
        say(&format!(
            "products        {:.0} GFLOP/s in fp32, {:.0} GFLOP/s in 16 bits; sums over {half_k:.0} elements reach half of that",
            1e-9 * found.fp32,
            1e-9 * found.bf16
        ));
        let attention = attention(&mut timed, sizes, usual)?.map(|rate| (rate / peak).min(1.0));
        say(&format!("attention       {:.2} of that forward, {:.2} backward", attention[0], attention[1]));
        let ones = || Tensor::<1>::ones([sizes.large], device);
        let (x, y) = (ones(), ones());
        let moved = (3 * sizes.large * size_of::<f32>()) as f64;
        let bandwidth = moved / timed.seconds("memory", || x.clone() + y.clone())?;
        let (x, w) = (Tensor::<2>::ones([8, 8], device), Tensor::<2>::ones([8, 8], device));
        let launch = timed.seconds("launches", || fused::linear(x.clone(), w.clone(), None))?;
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
fn products(timed: &mut Timed, sizes: &Sizes, dtype: DType) -> Result<(f64, f64), TrainError> {
    let point = |k: &usize| -> Result<[f64; 2], TrainError> {
        let random = |shape| Tensor::<2>::random(shape, Distribution::Default, (timed.device, dtype));
        let (x, w) = (random([sizes.rows, *k]), random([*k, sizes.columns]));
        let flops = 2.0 * (sizes.rows * k * sizes.columns) as f64;
        Ok([1.0 / *k as f64, timed.seconds("products", || fused::linear(x.clone(), w.clone(), None))? / flops])
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
fn attention(timed: &mut Timed, sizes: &Sizes, dtype: DType) -> Result<[f64; 2], TrainError> {
    let [b, t, heads, width] = sizes.attention;
    let scale = (width as f64).powf(-0.5);
    let qkv = Tensor::<3>::random([b, t, 3 * heads * width], Distribution::Default, (timed.device, dtype));
    let flops = OF_A_PAIR * (b * heads * t * t / 2 * width) as f64;
    let forward = timed.seconds("attention", || fused::causal_self_attention(qkv.clone(), heads, scale, None, None))?;
    let tracked = qkv.autodiff().require_grad();
    let both = timed.seconds("attention", || {
        let y = fused::causal_self_attention(tracked.clone(), heads, scale, None, None);
        tracked.grad(&y.sum().backward())
    })?;
    Ok([flops / forward, 2.0 * flops / (both - forward).max(0.1 * forward)])
}

/// A device, and how even its times are.
struct Timed<'a> {
    device: &'a Device,
    spreads: &'a mut Spreads,
}

impl Timed<'_> {
    /// Returns the median seconds of an operation.
    fn seconds<T>(&mut self, name: &'static str, mut operation: impl FnMut() -> T) -> Result<f64, TrainError> {
        let mut batch = |times: usize| -> Result<f64, TrainError> {
            let sync = || self.device.sync().map_err(|error| TrainError::Device(error.to_string()));
            sync()?;
            let start = Instant::now();
            (0..times).for_each(|_| drop(operation()));
            sync()?;
            Ok(start.elapsed().as_secs_f64() / times as f64)
        };
        batch(2)?;
        let times = (ROUND.as_secs_f64() / batch(1)?) as usize;
        let rounds = (0..ROUNDS).map(|_| batch(times.clamp(1, 10_000))).collect::<Result<Vec<_>, _>>()?;
        Ok(self.spreads.median(name, rounds))
    }
}

/// Measures the link between two ranks with all-gathers.
pub fn link(devices: &Devices, spreads: &mut Spreads) -> Result<Link, TrainError> {
    const LARGE: usize = 1 << 22;
    let of_ranks = comm::run_ranks(devices.of_rank.clone(), TIMEOUT, |comm| {
        let timed = |elements: usize, times: usize| -> Result<Vec<f64>, TrainError> {
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
            (0..ROUNDS).map(round).collect()
        };
        Ok::<_, TrainError>((timed(1, 100)?, timed(LARGE, 4)?))
    });
    let of_ranks = of_ranks.map_err(|failure| TrainError::Rank(Box::new(failure)))?;
    let mut medians =
        of_ranks.into_iter().map(|(one, large)| [one, large].map(|rounds| spreads.median("all-gathers", rounds)));
    let [latency, large] = medians.by_ref().reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])]).expect("two ranks");
    let bandwidth = (LARGE * size_of::<f32>()) as f64 / (large - latency).max(1e-9);
    say(&format!("between ranks   {}/s, {:.0} us", bytes(bandwidth as usize), 1e6 * latency));
    Ok(Link { bandwidth: rounded(bandwidth), latency: rounded(latency) })
}
