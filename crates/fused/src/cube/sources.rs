//! Finds the kernels in a crate's sources, so that none is missing from the compilation without a GPU.

use super::offline::KernelCase;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the paths of kernels (`fused::gelu::cube::gelu_kernel`) that none of these cases covers, in the crate `name`
/// whose `Cargo.toml` is in `folder`.
///
/// # Panics
/// If a source file cannot be read, or if an attribute `#[cube(launch..)]` does not belong to a function of the file's
/// outermost module.
pub fn unlisted(folder: &str, name: &str, cases: &[KernelCase]) -> Vec<String> {
    let root = Path::new(folder).join("src");
    let mut files = vec![];
    find(&root, &mut files);
    files.sort();
    let kernels: Vec<String> = files.iter().flat_map(|file| kernels(&root, file, name)).collect();
    assert!(!kernels.is_empty(), "{}: no kernels", root.display());
    kernels.into_iter().filter(|kernel| !cases.iter().any(|case| case.is_of(kernel))).collect()
}

/// The `.rs` files of a folder.
fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The paths of a file's kernels.
fn kernels(root: &Path, file: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let within = file.strip_prefix(root).expect("found there").with_extension("");
    let parts = within.iter().map(|part| part.to_str().expect("modules have names in ASCII"));
    let module: Vec<&str> = std::iter::once(name).chain(parts.filter(|part| !["mod", "lib"].contains(part))).collect();

    let mut kernels = vec![];
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cube(launch") {
            let function = lines.find_map(|line| {
                // Not indented, because kernels in nested modules of a file would have different paths.
                let (before, after) = line.split_once("fn ")?;
                (!before.starts_with(' ')).then(|| after.split(['(', '<']).next().expect("the first part"))
            });
            let function = function.unwrap_or_else(|| panic!("{}: {line} of no function", file.display()));
            kernels.push(format!("{}::{function}", module.join("::")));
        }
    }
    kernels
}
