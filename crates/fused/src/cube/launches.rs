//! Which kernels a computation launches.

use cubecl::logging::{LaunchObservation, LaunchObserver};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
struct Names(Mutex<Vec<&'static str>>);

impl LaunchObserver for Names {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(kernel);
    }
}

/// The names of the kernels that the whole process launches while `run` runs, in order: CubeCL's and Burn's, too.
///
/// Burn's devices work behind their callers: what `run` has made must be read before it ends.
pub fn launches(run: impl FnOnce()) -> Vec<&'static str> {
    let names = Arc::new(Names::default());
    let observation = LaunchObservation::new(names.clone());
    run();
    drop(observation);
    std::mem::take(&mut names.0.lock().unwrap_or_else(PoisonError::into_inner))
}
