//! Tests of timeouts on a machine that may be busy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs a test of timeouts with the first timeout, and repeats it with the next one if it fails. On a busy machine, an
/// innocent rank may also be late, and only a longer timeout distinguishes it from the guilty one.
///
/// # Panics
/// If the test also fails with the last timeout.
pub fn patiently<const N: usize>(timeouts: [Duration; N], test: impl Fn(Duration)) {
    let (last, quick) = timeouts.split_last().expect("a timeout");
    if !quick.iter().any(|timeout| catch_unwind(AssertUnwindSafe(|| test(*timeout))).is_ok()) {
        test(*last);
    }
}
