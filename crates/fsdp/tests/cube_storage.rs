//! The device memory of ranks that gather a model.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::module::Param;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use comm::run_ranks;
use fsdp::{ActivationCheckpointing, Category, Fsdp, FsdpConfig, FsdpError, Strategy, Units};
use fused::cube::testing;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const WIDTH: usize = 256;
const LAYERS: usize = 8;
const LAYER_BYTES: u64 = (WIDTH * WIDTH * 4) as u64;
const STEPS: usize = 3;

fn layer(linear: &Linear, x: Tensor<3>) -> Tensor<3> {
    fused::gelu(fused::linear(x, linear.weight.val(), linear.bias.as_ref().map(Param::val)))
}

fn linear(device: &Device) -> Linear {
    let initializer = Initializer::Constant { value: 1.5 / WIDTH as f64 };
    LinearConfig::new(WIDTH, WIDTH).with_initializer(initializer).init(device)
}

/// Creates linear layers; `look` is called in the last one's forward, after the forwards of all others.
fn units(device: &Device, look: impl Fn(Tensor<3>) + 'static) -> Units<Tensor<3>> {
    let mut units = Units::new();
    let first = units.add("first", linear(device));
    units.first(first, |linear: &Linear, x: &Tensor<3>| layer(linear, x.clone()));
    for i in 0..LAYERS - 2 {
        let middle = units.add(format!("layer {i}"), linear(device));
        units.then(middle, |linear: &Linear, x: Tensor<3>, _| layer(linear, x));
    }
    let last = units.add("last", linear(device));
    units.last(last, move |linear: &Linear, x: Tensor<3>, _| {
        look(x.clone().inner());
        layer(linear, x).powi_scalar(2).mean()
    });
    units
}

/// Returns the loss and the norm of each step, the device bytes in use in the last forward, and the peak of bytes that
/// the first rank counts as gathered.
fn train(device: &Device, ranks: usize, reshard_after_forward: bool) -> (Vec<[f64; 2]>, u64, usize) {
    let device = device.clone();
    let results = run_ranks(vec![device.clone(); ranks], Duration::from_secs(300), move |comm| {
        let in_use = Rc::new(Cell::new(0));
        let seen = in_use.clone();
        let look = move |x: Tensor<3>| {
            if x.device() != Device::flex() {
                seen.set(testing::bytes_in_use(x.flatten(0, 2)));
            }
        };
        let config = FsdpConfig {
            strategy: Strategy::FullShard,
            activation_checkpointing: ActivationCheckpointing::None,
            reshard_after_forward,
            ..FsdpConfig::default()
        };
        let rank = comm.rank();
        let mut fsdp = Fsdp::new(units(&device, look), comm, config)?;
        let values = (0..4 * WIDTH).map(|i| ((i * 37 + rank * 11) % 29) as f32 / 29.0 - 0.4).collect::<Vec<_>>();
        let x = Tensor::<3>::from_data(TensorData::new(values, [1, 4, WIDTH]), &device);
        let curve = (0..STEPS).map(|_| {
            let report = fsdp.train_step(std::slice::from_ref(&x), 1e-3)?;
            Ok([report.loss, report.grad_norm])
        });
        let curve = curve.collect::<Result<Vec<_>, FsdpError>>()?;
        Ok::<_, FsdpError>((curve, in_use.get(), fsdp.memory().peak[Category::Gathered]))
    })
    .unwrap();
    results.into_iter().next().unwrap()
}

/// Only the unit that computes and the next one are gathered at a time.
#[test]
fn a_graph_on_a_device_does_not_keep_the_memory_of_gathered_parameters() {
    let device = testing::device_of_ranks();
    let (freed, in_use, gathered) = train(&device, 2, true);
    let (kept, in_use_where_kept, all_gathered) = train(&device, 2, false);
    println!("{in_use} bytes in use, {in_use_where_kept} where a graph keeps them");
    assert_eq!(freed, kept, "refilled parameters are the same");
    let layers = (all_gathered - gathered) as u64 / LAYER_BYTES;
    assert_eq!(layers, LAYERS as u64 - 2, "{gathered} bytes gathered, {all_gathered} where a graph keeps them");
    // The other rank may be one call behind.
    assert!(in_use + (layers - 1) * LAYER_BYTES <= in_use_where_kept, "{in_use} of {in_use_where_kept}");
    let (on_cpu, ..) = train(&Device::flex(), 2, true);
    let near = |(a, b): (&[f64; 2], &[f64; 2])| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs());
    assert!(freed.iter().zip(&on_cpu).all(near), "{freed:?}, on the CPU {on_cpu:?}");
}
