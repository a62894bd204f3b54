//! Every user mistake gets an answer of a line or two that says what was given, where, and what to do, without a panic
//! or half-written files.

mod commands;
#[path = "../common/mod.rs"]
mod common;
mod hints;
mod layouts;
mod logits;
mod training;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A mistake: its name, the files it needs, the arguments, and parts of the answer. A file name ending in `/` is a
/// folder.
type Mistake = (&'static str, &'static [(&'static str, &'static [u8])], &'static str, &'static [&'static str]);

/// Returns what is wrong with the answer to a mistake.
fn check(name: &str, folder: &TempDir, args: &str, expected: &[&str]) -> Result<(), String> {
    let before = contents(folder.path());
    let output = common::run(folder.path(), &args.split_whitespace().collect::<Vec<_>>());
    let answer = String::from_utf8_lossy(&output.stderr);
    let mut wrong = vec![];
    if !matches!(output.status.code(), Some(1 | 2)) {
        wrong.push(format!("{}, not exit status 1, or 2 for a wrong argument", output.status));
    }
    wrong.extend(expected.iter().filter(|part| !answer.contains(**part)).map(|part| format!("no `{part}`")));
    wrong.extend(
        ["panicked", "RUST_BACKTRACE"].iter().filter(|part| answer.contains(**part)).map(|part| format!("`{part}`")),
    );
    if contents(folder.path()) != before {
        wrong.push("files were written".into());
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{name}: {}, in: {}", wrong.join(", "), answer.trim())) }
}

#[track_caller]
fn all(results: impl Iterator<Item = Result<(), String>>) {
    let wrong: Vec<String> = results.filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
}

fn write(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::create_dir_all(if name.ends_with('/') { &path } else { path.parent().unwrap() }).unwrap();
        if !name.ends_with('/') {
            fs::write(path, bytes).unwrap();
        }
    }
}

/// All files and folders with their contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            all.extend(contents(&path));
        }
        all.insert(path.clone(), fs::read(&path).unwrap_or_default());
    }
    all
}

#[track_caller]
fn answered(mistakes: &[Mistake]) {
    all(mistakes.iter().map(|(name, files, args, expected)| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), files);
        check(name, &folder, args, expected)
    }));
}
