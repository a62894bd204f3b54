//! What the driver prints to stderr.

use std::collections::HashSet;
use std::sync::Mutex;

/// Prints a line to stderr under the emulator's name.
pub fn say(line: &str) {
    eprintln!("emulated CUDA: {line}");
}

/// Prints a line once for each different text.
pub fn say_once(line: &str) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if said.get_or_insert_with(HashSet::new).insert(line.to_owned()) {
        say(line);
    }
}
