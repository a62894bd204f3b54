//! The name under which the program was started, for the commands in messages: `train`, `kiln`, or the name of a
//! program with its own models.

use crate::format::quoted;
use std::env;
use std::path::Path;
use std::sync::OnceLock;

static NAME: OnceLock<String> = OnceLock::new();

/// Takes the name from the command line. Without this it is `train`.
pub(crate) fn set_name() {
    let called = env::args_os().next();
    let name = called.as_deref().and_then(|called| Path::new(called).file_name()?.to_str());
    if let Some(name) = name {
        let _ = NAME.set(quoted(name.strip_suffix(env::consts::EXE_SUFFIX).unwrap_or(name)));
    }
}

/// The name.
pub(crate) fn name() -> &'static str {
    NAME.get().map_or("train", String::as_str)
}

/// The name or path under which the program was called, for a command to paste.
pub(crate) fn path() -> String {
    env::args_os().next().map_or_else(|| name().into(), |called| called.to_string_lossy().into_owned())
}

/// A command of this program, to paste.
pub(crate) fn command(args: &[&str]) -> String {
    let words = std::iter::once(path()).chain(args.iter().map(|arg| arg.to_string()));
    words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}
