//! What is forecast before anything is made is what the ranks then count.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use comm::run_ranks;
use fsdp::{
    ActivationCheckpointing, CallBytes, Category, FloatType, Forecast, ForecastRun, Fsdp, FsdpConfig, FsdpError,
    Memory, Precision, Prefetch, Strategy, Units, Wrap,
};
use std::time::Duration;

const WIDTH: usize = 48;
const INPUT: usize = 4 * 16 * WIDTH * 4;

/// Layers between two calls of the same unit, one of them larger than the others.
fn units() -> Units<Tensor<3>> {
    let (mut units, device) = (Units::new(), Device::flex());
    let linear = |from, to| {
        let value = 0.5 / WIDTH as f64; // the same on all ranks
        LinearConfig::new(from, to).with_initializer(Initializer::Constant { value }).init(&device)
    };
    let ends = units.add("ends", linear(WIDTH, WIDTH));
    units.first(ends, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
    for i in 0..4 {
        let inner = if i == 2 { 5 * WIDTH } else { WIDTH };
        let layer = units.add(format!("layer {i}"), vec![linear(WIDTH, inner), linear(inner, WIDTH)]);
        units.then(layer, |layer: &Vec<Linear>, x, _| layer.iter().fold(x, |x, linear| linear.forward(x)));
    }
    units.last(ends, |linear, x, _| linear.forward(x).powi_scalar(2).mean());
    units
}

/// Every rank's memory after two steps, and what was forecast.
fn train(config: &FsdpConfig, ranks: usize, micro_batches: usize) -> Vec<(Memory, Forecast)> {
    let device = Device::flex();
    let x = Tensor::<3>::random([4, 16, WIDTH], Distribution::Default, &device);
    let (of_ranks, x) = (config.clone(), x);
    let memories = run_ranks(vec![device; ranks], Duration::from_secs(60), move |comm| {
        let mut fsdp = Fsdp::new(units(), comm, of_ranks.clone())?;
        for _ in 0..2 {
            fsdp.train_step(&vec![x.clone(); micro_batches], 1e-3)?;
        }
        Ok::<_, FsdpError>(fsdp.memory())
    })
    .unwrap();
    // Without an allocator that counts, a rank counts a graph by its input; the first call's is the batch.
    let input = if config.precision.param == FloatType::Fp32 { INPUT } else { INPUT / 2 };
    let mut calls = vec![CallBytes { input, graph: input, backward: 0 }; 6];
    calls[0] = CallBytes::default();
    let forecast = |(rank, memory)| {
        let run = ForecastRun { world_size: ranks, rank, micro_batches, calls: &calls, on_cpu: true };
        (memory, units().forecast(config, run).unwrap())
    };
    memories.into_iter().enumerate().map(forecast).collect()
}

#[test]
fn ranks_count_what_was_forecast() {
    let with = |strategy| FsdpConfig { strategy, ..FsdpConfig::default() };
    let bf16 = Precision { param: FloatType::Bf16, reduce: FloatType::Fp32 };
    let configs = [
        (with(Strategy::FullShard), 1),
        (with(Strategy::FullShard), 4),
        (with(Strategy::Ddp), 2),
        (with(Strategy::Zero1), 4),
        (with(Strategy::ShardGradOp), 4),
        (with(Strategy::HybridShard), 4),
        (with(Strategy::Block), 3),
        (FsdpConfig { precision: bf16, ..with(Strategy::FullShard) }, 2),
        (FsdpConfig { precision: bf16, ..with(Strategy::Zero1) }, 2),
        (FsdpConfig { no_sync: true, ..with(Strategy::FullShard) }, 2),
        (FsdpConfig { wrap: Wrap::Size(8000), ..with(Strategy::FullShard) }, 2),
        (FsdpConfig { reshard_after_forward: false, ..with(Strategy::FullShard) }, 2),
        (
            FsdpConfig {
                forward_prefetch: Prefetch::None,
                backward_prefetch: Prefetch::Post,
                ..with(Strategy::FullShard)
            },
            2,
        ),
        (FsdpConfig { activation_checkpointing: ActivationCheckpointing::Full, ..with(Strategy::FullShard) }, 2),
        (FsdpConfig { activation_checkpointing: ActivationCheckpointing::Every(2), ..with(Strategy::Ddp) }, 2),
    ];
    for (config, ranks) in configs {
        for micro_batches in [1, 3] {
            for (rank, (found, forecast)) in train(&config, ranks, micro_batches).into_iter().enumerate() {
                let expected = forecast.memory;
                let what =
                    format!("rank {rank} of {ranks}, {micro_batches} micro-batches, {config:?}: {found}\n{expected}");
                assert_eq!(found.now, expected.now, "{what}");
                for category in [Category::Gradients, Category::Gathered, Category::Activations] {
                    let (found, expected) = (found.peak[category], expected.peak[category]);
                    // Communication may be done before it is in the way.
                    let least = if category == Category::Activations { expected } else { expected * 2 / 3 };
                    assert!((least..=expected).contains(&found), "{category:?}, {what}");
                }
                let all: usize = Category::ALL.into_iter().map(|category| expected.peak[category]).sum();
                assert!((expected.now.total()..=all).contains(&forecast.most.total()), "{what}");
            }
        }
    }
}
