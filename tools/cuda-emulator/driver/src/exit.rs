//! What is reported when the process ends.

use crate::card::cards;
use crate::engine::engine;
use crate::say::say;
use crate::settings::settings;
use crate::streams::Kind;
use std::path::Path;

/// Asks for the reports at the end of the process.
pub fn at_exit() {
    extern "C" fn report() {
        let _ = std::panic::catch_unwind(finish);
    }
    // SAFETY: the function has no preconditions, and this library is not unloaded before the process ends.
    unsafe { libc::atexit(report) };
}

fn finish() {
    if !crate::call::is_initialized() {
        return;
    }
    if let Some(file) = &settings().profile {
        write(file, &crate::profile::table());
    }
    if settings().leaks {
        leaks().iter().for_each(|line| say(line));
    }
}

/// Adds to the file, so that the processes of one program do not overwrite each other's tables.
fn write(file: &Path, table: &str) {
    use std::io::Write as _;
    if file.as_os_str() == "-" {
        return eprint!("{table}");
    }
    let open = std::fs::OpenOptions::new().create(true).append(true).open(file);
    if let Err(error) = open.and_then(|mut file| file.write_all(table.as_bytes())) {
        say(&format!("the profile cannot be written to \"{}\": {error}", file.display()));
    }
}

/// A line for each kind of thing that was not freed.
pub fn leaks() -> Vec<String> {
    let mut lines = Vec::new();
    for card in cards() {
        let owned = card.owned();
        let bytes: u64 = owned.iter().filter_map(|row| card.memory.find(row.0)).map(|found| found.size).sum();
        if !owned.is_empty() {
            lines.push(format!("leak: {} allocations of card {}, {bytes} bytes", owned.len(), card.ordinal));
            let first = owned.iter().take(5).filter_map(|row| card.memory.find(row.0));
            lines.extend(first.map(|found| format!("  {found}")));
        }
    }
    let made = |kind: &Kind| matches!(kind, Kind::Blocking | Kind::NonBlocking);
    let (graphs, executables) = crate::graph::live();
    let counts = [
        (crate::streams::streams().all().iter().filter(|stream| made(&stream.kind)).count(), "streams"),
        (crate::event::events().all().len(), "events"),
        (crate::modules::modules().all().len(), "modules"),
        (crate::card::all_pinned().len(), "ranges of pinned host memory"),
        (crate::pool::made(), "pools"),
        (graphs, "graphs"),
        (executables, "executable graphs"),
    ];
    let left = counts.iter().filter(|row| row.0 > 0);
    lines.extend(left.map(|(count, what)| format!("leak: {count} {what}")));
    match engine().pending() {
        0 => {}
        count => lines.push(format!("{count} pieces of queued work had not run: nothing waited for them")),
    }
    lines
}
