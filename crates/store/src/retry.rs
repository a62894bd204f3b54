//! Attempts at what a store may refuse for a while.

use crate::StoreError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Waits between the attempts of a transfer.
pub(crate) const AGAIN: [Duration; 4] = match cfg!(test) {
    true => [Duration::from_millis(5); 4],
    false => [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16), Duration::from_secs(60)],
};

/// Downloads until an attempt succeeds, or as many in a row as there are waits have failed without a byte. `got` counts the
/// bytes that arrive. Only errors that `may_pass` are tried again; `again` gets each, and the wait.
pub(crate) fn until_here(
    got: &AtomicU64,
    may_pass: impl Fn(&StoreError) -> bool,
    again: impl Fn(&StoreError, Duration),
    mut attempt: impl FnMut() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut failures = 0;
    loop {
        let before = got.load(Ordering::Relaxed);
        let Err(error) = attempt() else { return Ok(()) };
        if got.load(Ordering::Relaxed) > before {
            failures = 0;
        }
        let Some(wait) = AGAIN.get(failures).copied().filter(|_| may_pass(&error)) else { return Err(error) };
        failures += 1;
        again(&error, wait);
        thread::sleep(wait);
    }
}
