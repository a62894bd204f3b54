//! What a run will need before it starts: units, memory and traffic.

pub(crate) mod layout;
pub(crate) mod memory_check;
pub(crate) mod units;
pub(crate) mod workload;
