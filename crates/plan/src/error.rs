//! Errors of plans.

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum PlanError {
    #[error("there is no cluster `{name}`: give one of {known}, or the path of a YAML file{meant}")]
    UnknownCluster { name: String, known: String, meant: String },

    #[error("{path}: {message}")]
    Unreadable { path: String, message: String },

    #[error("{path}: {key} is {value}: {remedy}")]
    Figure { path: String, key: &'static str, value: String, remedy: &'static str },

    #[error("operation {op} would take {seconds:e} seconds: check the rates of the cluster")]
    Duration { op: String, seconds: f64 },

    #[error("deadlock: {0}")]
    Deadlock(String),
}
