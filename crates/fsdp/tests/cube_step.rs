//! A whole step on a device: what the host waits for, and how non-finite numbers are handled.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::module::Param;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use comm::run_ranks;
use fsdp::{Fsdp, FsdpConfig, FsdpError, Strategy, Units};
use fused::cube::{launches, testing, unreadable};
use std::time::Duration;

const WIDTH: usize = 32;
const LAYERS: usize = 4;
const RANKS: [(usize, Strategy); 4] =
    [(1, Strategy::Ddp), (2, Strategy::Ddp), (2, Strategy::Zero1), (2, Strategy::FullShard)];

fn layer(linear: &Linear, x: Tensor<3>) -> Tensor<3> {
    fused::gelu(fused::linear(x, linear.weight.val(), linear.bias.as_ref().map(Param::val)))
}

fn units(device: &Device) -> Units<Tensor<3>> {
    let initializer = Initializer::Constant { value: 1.5 / WIDTH as f64 };
    let linear = || LinearConfig::new(WIDTH, WIDTH).with_initializer(initializer.clone()).init(device);
    let mut units = Units::new();
    let first = units.add("first", linear());
    units.first(first, |linear: &Linear, x: &Tensor<3>| layer(linear, x.clone()));
    for i in 2..LAYERS {
        let middle = units.add(format!("layer {i}"), linear());
        units.then(middle, |linear: &Linear, x: Tensor<3>, _| layer(linear, x));
    }
    let last = units.add("last", linear());
    units.last(last, |linear: &Linear, x: Tensor<3>, _| layer(linear, x).powi_scalar(2).mean());
    units
}

fn config(strategy: Strategy) -> FsdpConfig {
    FsdpConfig { strategy, clip_grad_norm: Some(0.01), ..FsdpConfig::default() }
}

fn batch(rank: usize, factor: f32, device: &Device) -> Tensor<3> {
    let values = (0..4 * WIDTH).map(|i| factor * (((i * 37 + rank * 11) % 29) as f32 / 29.0 - 0.4));
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), [1, 4, WIDTH]), device)
}

/// A step on data that cannot be read ([`unreadable`]) ends at its first read.
fn the_optimizer_is_launched_before_anything_is_read() {
    if !testing::is_cpu_runtime() {
        return;
    }
    for (ranks, strategy) in RANKS {
        let of_step = |is_readable: bool| {
            let names = launches(|| {
                let device = testing::device();
                let step = run_ranks(vec![device.clone(); ranks], Duration::from_secs(300), move |comm| {
                    let x = batch(comm.rank(), 1.0, &device);
                    let x = if is_readable { x } else { unreadable(x) };
                    Fsdp::new(units(&device), comm, config(strategy))?.train_step(&[x.clone(), x], 1e-3)
                });
                assert_eq!(step.is_ok(), is_readable, "{ranks} ranks, {strategy:?}: {step:?}");
            });
            // A unit's matrix and bias are flattened together: once at creation, and the gradients once per
            // micro-batch.
            ["flatten_kernel", "adamw_kernel"].map(|kernel| names.iter().filter(|name| name.contains(kernel)).count())
        };
        let expected = [(1 + 2) * ranks * LAYERS, ranks * LAYERS];
        assert_eq!([true, false].map(of_step), [expected; 2], "{ranks} ranks, {strategy:?}");
    }
}

/// The loss and the norm of a step, and the unit with a non-finite number.
type Report = ([f64; 2], Option<String>);

/// Returns the reports of all steps, and the number of steps that the optimizer has made.
fn train(device: &Device, ranks: usize, strategy: Strategy) -> (Vec<Report>, u64) {
    let device = device.clone();
    let results = run_ranks(vec![device.clone(); ranks], Duration::from_secs(300), move |comm| {
        let rank = comm.rank();
        let mut fsdp = Fsdp::new(units(&device), comm, config(strategy))?;
        let reports = [f32::NAN, 1.0, f32::INFINITY, 1.0, 1.0].map(|factor| {
            let report = fsdp.train_step(&[batch(rank, factor, &device), batch(rank, 0.5, &device)], 1e-3)?;
            assert_eq!(report.skipped, !factor.is_finite());
            Ok(([report.loss, report.grad_norm], report.non_finite.map(|at| at.unit)))
        });
        let reports = reports.into_iter().collect::<Result<Vec<_>, FsdpError>>()?;
        Ok::<_, FsdpError>((reports, fsdp.state().progress.optimizer_steps))
    });
    results.unwrap().remove(0)
}

fn steps_are_skipped_as_on_the_cpu() {
    let device = testing::device();
    for (ranks, strategy) in RANKS {
        let ((found, steps), (expected, steps_on_cpu)) =
            (train(&device, ranks, strategy), train(&Device::flex(), ranks, strategy));
        assert_eq!((steps, steps_on_cpu), (3, 3), "{ranks} ranks, {strategy:?}");
        for ((found, unit), (expected, unit_on_cpu)) in found.iter().zip(&expected) {
            assert_eq!((unit, unit.is_some()), (unit_on_cpu, !expected[0].is_finite()));
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
            let agree = unit.is_some() || found.iter().zip(expected).all(near);
            assert!(agree, "{ranks} ranks, {strategy:?}: {found:?}, on the CPU {expected:?}");
        }
    }
}

/// A single test, because launches are counted for the whole process.
#[test]
fn a_step_is_launched_whole_and_skipped_where_it_must_be() {
    testing::device_of_ranks();
    the_optimizer_is_launched_before_anything_is_read();
    steps_are_skipped_as_on_the_cpu();
}
