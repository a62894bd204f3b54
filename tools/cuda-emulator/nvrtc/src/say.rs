//! Messages to the user.

use std::io::{self, Write};

/// Writes a message to stderr. If that is closed, the message is lost, and the program goes on.
pub fn say(message: &str) {
    let _ = writeln!(io::stderr(), "nvrtc-cache: {message}");
}
