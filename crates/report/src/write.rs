//! Writes the page of a report to a file.

use crate::ReportError;
use crate::page::page;
use crate::source::{Source, Sources};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Number of runs on the page.
    pub runs: usize,
    /// The page's size.
    pub bytes: usize,
    /// What is missing or was left out, each with the name of its run.
    pub notes: Vec<String>,
}

/// Writes the page for these run folders to `out`, atomically. A run that has not made a step yet is left out, with a
/// note.
///
/// # Errors
/// If no run has anything to show, a folder does not exist, or a file cannot be read or written.
pub fn write(runs: &[PathBuf], out: &Path) -> Result<Summary, ReportError> {
    let mut runs = Sources::new(runs)?;
    runs.read_on();
    runs.leave_out_empty()?;
    let failed = |source| ReportError::Write { path: out.to_owned(), source };
    let data = runs.data().map_err(|e| failed(io::Error::other(e)))?;
    let page = page(&runs.title(), Some(&data));
    replace(out, page.as_bytes()).map_err(failed)?;
    let of_run = |run: &Source| run.notes().into_iter().map(|note| format!("{}: {note}", run.name)).collect::<Vec<_>>();
    let notes = runs.left_out.iter().cloned().chain(runs.sources.iter().flat_map(of_run)).collect();
    Ok(Summary { runs: runs.sources.len(), bytes: page.len(), notes })
}

/// Writes a temporary file next to `out` and renames it, so nobody reads half a page. The temporary file is always new,
/// so a link that someone put in its place is not followed. A device or a pipe at `out` is written to, and stays.
///
/// # Errors
/// If the file cannot be written.
pub fn replace(out: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(out).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return OpenOptions::new().write(true).open(out)?.write_all(bytes);
    }
    let name = out.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut beside = name.to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = out.with_file_name(beside);
    let _ = fs::remove_file(&beside);
    let written = File::create_new(&beside).and_then(|mut file| file.write_all(bytes));
    written.and_then(|()| fs::rename(&beside, out)).inspect_err(|_| {
        // Reports the first error, not one of the cleanup.
        let _ = fs::remove_file(&beside);
    })
}
