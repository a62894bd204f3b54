//! What a run reports: metrics in its folder, and progress in the terminal.

pub(crate) mod metrics;
pub(crate) mod progress;
pub(crate) mod step_line;
