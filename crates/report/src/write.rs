use crate::ReportError;
use crate::page::page;
use crate::run::Run;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How many runs the page shows.
    pub runs: usize,
    /// The page's size.
    pub bytes: usize,
    /// What is missing or was left out, each with the name of its run.
    pub notes: Vec<String>,
}

/// Writes the page of these run folders to `out`, which changes from what it was to the whole page at once.
pub fn write(runs: &[PathBuf], out: &Path) -> Result<Summary, ReportError> {
    if runs.is_empty() {
        return Err(ReportError::NoRuns);
    }
    let runs: Vec<_> =
        runs.iter().zip(names(runs)).map(|(folder, name)| Run::read(folder, name)).collect::<Result<_, _>>()?;
    let failed = |source| ReportError::Write { path: out.to_owned(), source };
    let page = page(&runs).map_err(|e| failed(io::Error::other(e)))?;
    replace(out, page.as_bytes()).map_err(failed)?;
    let notes = runs.iter().flat_map(|run| run.notes.iter().map(|note| format!("{}: {note}", run.name))).collect();
    Ok(Summary { runs: runs.len(), bytes: page.len(), notes })
}

/// Writes beside the file and renames, so that nobody reads half a page.
fn replace(out: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = out.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut beside = name.to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = out.with_file_name(beside);
    let done = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, out));
    if done.is_err() {
        // What went wrong first is what is told.
        let _ = fs::remove_file(&beside);
    }
    done
}

/// The last part of each path, or as many as it takes to tell the runs apart.
fn names(runs: &[PathBuf]) -> Vec<String> {
    // `.` has no name of its own.
    let full: Vec<_> = runs.iter().map(|run| run.canonicalize().unwrap_or_else(|_| run.clone())).collect();
    let parts = |path: &PathBuf, count: usize| {
        let all: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        all[all.len().saturating_sub(count)..].join("/")
    };
    let longest = full.iter().map(|path| path.components().count()).max().unwrap_or(1);
    for count in 1..longest {
        let names: Vec<_> = full.iter().map(|path| parts(path, count)).collect();
        if names.iter().collect::<HashSet<_>>().len() == names.len() {
            return names;
        }
    }
    // The same folder twice.
    full.iter().enumerate().map(|(index, path)| format!("{} ({})", parts(path, 1), index + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_long_as_it_takes() {
        let names = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["/none/a/x", "/none/b/y"]), ["x", "y"]);
        assert_eq!(names(&["/none/a/x", "/none/b/x"]), ["a/x", "b/x"]);
        assert_eq!(names(&["/none/a/x", "/none/a/x"]), ["x (1)", "x (2)"]);
    }
}
