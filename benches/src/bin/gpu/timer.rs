//! Measures the seconds of a launch.

use crate::cases::Sizes;
use burn::tensor::{Device, Tensor};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// How [`seconds`] measures, in words.
pub const METHOD: &str = "host clock around a batch of launches between two synchronisations of the device, divided by their number; as \
                          many launches as take about 0.05 s, at least 1; median of 15 such samples after a warm-up of 4 launches (with \
                          --smoke one launch after two). Every result is a new tensor from the runtime's pool. Afterwards numbers of \
                          one more result are read and checked, so that a launch that has failed is no measurement";

/// Median seconds of `launch`, or why it could not be measured. `check` examines one result.
pub fn seconds<T>(
    device: &Device,
    sizes: &Sizes,
    mut launch: impl FnMut() -> T,
    check: impl FnOnce(T) -> Result<(), String>,
) -> Result<f64, String> {
    let mut batch = |launches: usize| -> Result<f64, String> {
        device.sync().map_err(|error| error.to_string())?;
        let start = Instant::now();
        for _ in 0..launches {
            let result = launch();
            // Burn may skip the computation of a tensor that is dropped before it is flushed.
            device.flush().map_err(|error| error.to_string())?;
            drop(result);
        }
        device.sync().map_err(|error| error.to_string())?;
        Ok(start.elapsed().as_secs_f64() / launches as f64)
    };
    let mut run = || {
        batch(sizes.warm_up)?;
        let launches = ((sizes.sample_seconds / batch(1)?) as usize).clamp(1, 1000);
        (0..sizes.samples).map(|_| batch(launches)).collect::<Result<Vec<_>, _>>()
    };
    let samples = catch_unwind(AssertUnwindSafe(&mut run)).unwrap_or_else(|panic| Err(message(&*panic)));
    let mut samples = samples?;
    catch_unwind(AssertUnwindSafe(|| check(launch()))).unwrap_or_else(|panic| Err(message(&*panic)))?;
    samples.sort_by(f64::total_cmp);
    Ok(samples[samples.len() / 2])
}

/// Checks that the first number of a tensor can be read and is finite.
pub fn finite<const D: usize>(tensor: Tensor<D>) -> Result<(), String> {
    let first = tensor.slice([const { 0..1 }; D]).into_data();
    if first.iter::<f32>().all(f32::is_finite) { Ok(()) } else { Err("the result is not a number".into()) }
}

/// The message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_else(|| "a panic without a message".into())
}
