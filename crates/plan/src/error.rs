//! Errors of plans.

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum PlanError {
    #[error("there is no cluster `{name}`: give one of {known}, or the path of a YAML file")]
    UnknownCluster { name: String, known: String },

    #[error("{path}: {message}")]
    Unreadable { path: String, message: String },

    #[error("cluster {cluster}: {key} is {value}: {remedy}")]
    Rate { cluster: String, key: &'static str, value: f64, remedy: &'static str },

    #[error("{op} takes {seconds:e} seconds: check the rates of the cluster")]
    Duration { op: String, seconds: f64 },

    #[error("deadlock: {0}")]
    Deadlock(String),
}
