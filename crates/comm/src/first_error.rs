//! Keeps the first error of a collective that runs inside a graph, where none can be returned.

use crate::CommError;
use std::sync::{Arc, Mutex, PoisonError};

/// The first error of collectives that run where no error can be returned, inside a graph's forward or backward: it is
/// kept until whoever runs the graph asks for it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FirstError(Arc<Mutex<Option<CommError>>>);

impl FirstError {
    /// What a collective returns, or `instead` if it fails, or one before it did: then it is not made.
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

    /// The error, if something has failed since it was last asked for.
    pub fn check(&self) -> Result<(), CommError> {
        self.lock().take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<CommError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
