//! The first error of a collective inside a graph, where errors cannot be returned.

use crate::CommError;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the first error of collectives that run inside a graph's forward or backward, where no error can be returned,
/// until the code that runs the graph asks for it. Clones share the error.
#[derive(Debug, Clone, Default)]
pub struct FirstError(Arc<Mutex<Option<CommError>>>);

impl FirstError {
    /// Returns the result of `collective`, or `instead` if it fails. After an earlier failure it returns `instead`
    /// without running `collective`.
    pub fn run<T>(&self, collective: impl FnOnce() -> Result<T, CommError>, instead: impl FnOnce() -> T) -> T {
        let failed_before = self.lock().is_some();
        let result = if failed_before { None } else { Some(collective()) };
        match result {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                self.lock().get_or_insert(error);
                instead()
            }
            None => instead(),
        }
    }

    /// Returns the first error since the last check, if there is one, and clears it.
    pub fn check(&self) -> Result<(), CommError> {
        self.lock().take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<CommError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
