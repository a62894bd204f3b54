//! Records the kernels that a computation launches.

use cubecl::logging::{LaunchObservation, LaunchObserver};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
struct Names(Mutex<Vec<&'static str>>);

impl LaunchObserver for Names {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(kernel);
    }
}

/// Returns the names of the kernels that the whole process launches while `run` runs, in order, including those of
/// CubeCL and Burn.
///
/// Burn's devices run behind their callers, so `run` must read its results before it returns.
pub fn launches(run: impl FnOnce()) -> Vec<&'static str> {
    let names = Arc::new(Names::default());
    let observation = LaunchObservation::new(names.clone());
    run();
    drop(observation);
    std::mem::take(&mut names.0.lock().unwrap_or_else(PoisonError::into_inner))
}
