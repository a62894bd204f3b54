//! How long ranks wait for each other.

use std::time::Duration;

/// Default time that a rank waits for the others. Ranks that share a CPU can be a whole step apart.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The time that a rank waits for the others before the group fails. A [`Duration`] sets both values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until all ranks of the world have met in a collective; one rank may be ready long before another.
    pub init: Duration,
    /// In every later call.
    pub call: Duration,
}

impl From<Duration> for Timeouts {
    fn from(timeout: Duration) -> Self {
        Self { init: timeout, call: timeout }
    }
}
