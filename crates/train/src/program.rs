//! The name under which the program was started, for the commands in messages: `train`, `kiln`, or that of a program with
//! models of its own.

use std::env;
use std::path::Path;
use std::sync::OnceLock;

static NAME: OnceLock<String> = OnceLock::new();

/// Takes the name from the command line. Without this it is `train`.
pub(crate) fn set_name() {
    let called = env::args().next();
    let stem = called.as_deref().and_then(|called| Path::new(called).file_stem()?.to_str());
    if let Some(stem) = stem {
        let _ = NAME.set(stem.into());
    }
}

/// The name.
pub(crate) fn name() -> &'static str {
    NAME.get().map_or("train", String::as_str)
}

/// The name or path under which the program was called, for a command to paste.
pub(crate) fn path() -> String {
    env::args().next().unwrap_or_else(|| name().into())
}
