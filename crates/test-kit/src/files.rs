//! Files for tests.

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Returns a folder of `tests/reference`.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference").join(name)
}

/// Makes a folder with a `text.txt` of this many times the same sentence: 38 bytes, 28 different characters, without
/// line ends.
pub fn text_folder(sentences: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "The five boxing wizards jump quickly. ".repeat(sentences);
    fs::write(folder.path().join("text.txt"), text).expect("a file in a temporary folder");
    folder
}
