//! What a run will need before it starts: units, memory, traffic and time.

pub(crate) mod estimate;
pub(crate) mod layout;
pub(crate) mod measure;
pub(crate) mod memory_check;
#[cfg(test)]
mod published;
#[cfg(test)]
mod published_memory;
pub(crate) mod search;
pub(crate) mod step_plan;
pub(crate) mod step_time;
pub(crate) mod units;
pub(crate) mod workload;
