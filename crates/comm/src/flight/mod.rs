//! The flight recorder of a rank's calls, and the diagnosis of a hang from the records of all ranks.
mod diagnosis;
mod finding;
mod index;
mod record;
mod recorder;
mod stragglers;
#[cfg(test)]
mod tests;
mod waits;

pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Absent, CallName, Finding, Wait};
pub use record::{Aborted, Call, CallFailure, FlightRecord, Place};
pub use recorder::FlightRecorder;
pub(crate) use recorder::GroupCalls;
