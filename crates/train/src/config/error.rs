//! Configuration errors.

use std::io;
use std::path::PathBuf;

use super::ModelConfig;

/// Why a configuration is rejected. Every message states what was given, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}{role}: {error}: {}", file.display(), how_to_read(error))]
    Read {
        /// The file.
        file: PathBuf,
        /// Which file names it, or empty.
        role: String,
        /// The system's error.
        error: io::Error,
    },
    /// A file or an override is not YAML.
    #[error("{origin} {}", what_is_wrong(error))]
    Syntax {
        /// The file, preset or override.
        origin: String,
        /// The parser's message, with line and column.
        error: yaml_serde::Error,
    },
    /// No preset has this name.
    #[error("there is no preset `{name}`: {hint}")]
    UnknownPreset {
        /// The name that was given.
        name: String,
        /// The nearest name, all names, and the command for other models.
        hint: String,
    },
    /// Files inherit from each other in a circle.
    #[error("`base` is circular: {}: remove one of them", chain.join(" -> "))]
    Cycle {
        /// The files; the first one is repeated at the end.
        chain: Vec<String>,
    },
    /// An override is not `KEY=VALUE`.
    #[error("--set {given}: give KEY=VALUE with a dotted key, as in --set optim.lr=3e-4")]
    Override {
        /// The override.
        given: String,
    },
    /// No key has this name.
    #[error("unknown key `{key}` in {origin}: {hint}")]
    UnknownKey {
        /// The dotted key.
        key: String,
        /// The file, preset or `--set`.
        origin: String,
        /// The nearest key, or the existing ones.
        hint: String,
    },
    /// A value is of the wrong type.
    #[error("`{key}` is {given} in {origin}: give {expected}")]
    WrongValue {
        /// The dotted key.
        key: String,
        /// Its value.
        given: String,
        /// The file, preset or `--set`.
        origin: String,
        /// What is accepted.
        expected: String,
    },
    /// No `model.type` is given.
    #[error(
        "`model.type` is missing in {origin}: give one of {}, or inherit one with `base: preset:NAME`",
        ModelConfig::types().join(", ")
    )]
    NoModel {
        /// The file or preset.
        origin: String,
    },
    /// Values that do not fit each other or are out of range.
    #[error("{0}")]
    Invalid(String),
}

/// Advice for a file that cannot be read.
fn how_to_read(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::InvalidData => "save it as UTF-8 (`iconv -f UTF-16 -t UTF-8`, or -f LATIN1)",
        io::ErrorKind::PermissionDenied => "check its permissions",
        _ => "check the path",
    }
}

/// The parser reads whole numbers beyond 64 bits but then fails to use them.
fn what_is_wrong(error: &yaml_serde::Error) -> String {
    match error.to_string() {
        message if message.contains("128") && message.contains("integer") => {
            format!("has a whole number that is too large: give at most {}", u64::MAX)
        }
        message => format!("is not valid YAML: {message}"),
    }
}
