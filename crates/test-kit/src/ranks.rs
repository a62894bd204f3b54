//! Work on ranks that are threads.

use burn::tensor::Device;
use comm::{Communicator, TIMEOUT, run_ranks};
use std::error::Error;

/// Returns the results of `work` on this many ranks on the CPU.
///
/// # Panics
/// If a rank fails.
#[track_caller]
pub fn on_ranks<T, E, F>(ranks: usize, work: F) -> Vec<T>
where
    T: Send + 'static,
    E: Error + Send + 'static,
    F: Fn(Communicator) -> Result<T, E> + Send + Sync + 'static,
{
    match run_ranks(vec![Device::flex(); ranks], TIMEOUT, work) {
        Ok(results) => results,
        Err(failure) => panic!("{failure}"),
    }
}
