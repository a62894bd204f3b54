//! The default corpus: Rust source that cargo has already put on this disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;

use crate::DataError;

/// The source that needs no file: Rust source of crates pinned in `Cargo.lock`.
pub const DEFAULT_SOURCE: &str = "rust-crates";

/// Size limit of the default corpus in bytes: enough for a small model, and loaded in a fraction of a second.
const MAX_BYTES: usize = 4 << 20;

/// The crates of the default corpus. Cargo downloads only what the platform and the features need, so this lists only
/// crates that the default build compiles on every platform, not all of `Cargo.lock`. It omits `serde`, which carries a
/// copy of `serde_core`: a file in both splits would flatter the validation loss.
#[rustfmt::skip]
const CRATES: &[&str] = &[
    "burn-autodiff", "burn-backend", "burn-core", "burn-derive", "burn-flex", "burn-nn", "burn-optim", "burn-std",
    "burn-tensor", "bytes", "either", "half", "log", "num-traits", "rayon", "rayon-core", "serde_core", "serde_json",
];

const LOCK_FILE: &str = include_str!("workspace.lock");

/// The name of the default corpus, and its text.
///
/// It consists of the `.rs` files below `src/` of a fixed list of crates, read from `registry/src` of cargo's home, in
/// the versions that the `Cargo.lock` of this build pins (the highest if there are several). Files are ordered by a
/// hash of `crate/path` and appended unchanged until the next one would exceed [`MAX_BYTES`]. Files that are not UTF-8
/// are skipped. So the same lock file gives the same bytes everywhere, and the validation split, the last 10%, draws
/// from the same mix of crates as the rest.
pub fn load() -> Result<(String, String), DataError> {
    load_crates(CRATES, LOCK_FILE, &cargo_home().join("registry").join("src"), MAX_BYTES)
}

fn load_crates(
    names: &[&str],
    lock_file: &str,
    registry: &Path,
    max_bytes: usize,
) -> Result<(String, String), DataError> {
    let versions = pinned_versions(lock_file);
    let mut files = Vec::new();
    for &name in names {
        let version = versions.get(name).ok_or_else(|| DataError::NotLocked { name: name.into() })?;
        let folder = crate_folder(registry, name, version)?;
        list_rust_files(&folder.join("src"), &format!("{name}/src"), &mut files)?;
    }
    files.sort_by_cached_key(|(id, _)| (fnv1a(id.as_bytes()), id.clone()));

    let (mut text, mut count) = (String::with_capacity(max_bytes), 0);
    for (_, path) in files {
        let Ok(source) = String::from_utf8(fs::read(&path).map_err(|error| DataError::read(&path, error))?) else {
            continue;
        };
        if text.len() + source.len() > max_bytes {
            break;
        }
        text.push_str(&source);
        count += 1;
    }
    Ok((format!("{DEFAULT_SOURCE} ({count} source files of {} crates)", names.len()), text))
}

fn cargo_home() -> PathBuf {
    let set = env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    set.unwrap_or_else(|| env::home_dir().unwrap_or_default().join(".cargo"))
}

/// The version of each crate in a lock file, the highest if there are several.
fn pinned_versions(lock_file: &str) -> HashMap<String, String> {
    #[derive(Deserialize)]
    struct LockFile {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
    }
    let lock_file: LockFile = toml::from_str(lock_file).expect("cargo wrote the lock file that this build embeds");
    let mut packages = lock_file.package;
    packages.sort_by_cached_key(|package| version_numbers(&package.version));
    packages.into_iter().map(|package| (package.name, package.version)).collect() // later, so higher, versions win
}

/// `1.10.2-rc.1+meta` as `[1, 10, 2]`.
fn version_numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

/// Finds `registry/*/NAME-VERSION`. The middle folder is named after the registry, and a mirror has a different name.
fn crate_folder(registry: &Path, name: &str, version: &str) -> Result<PathBuf, DataError> {
    let found = fs::read_dir(registry).ok().and_then(|entries| {
        let folders = entries.flatten().map(|entry| entry.path().join(format!("{name}-{version}")));
        folders.filter(|folder| folder.is_dir()).min()
    });
    found.ok_or_else(|| DataError::MissingCrate { name: name.into(), version: version.into(), folder: registry.into() })
}

/// Adds every `.rs` file below `folder` as (id, path). Ids have `/` separators on every platform.
fn list_rust_files(folder: &Path, id: &str, files: &mut Vec<(String, PathBuf)>) -> Result<(), DataError> {
    let failed = |error| DataError::read(folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let id = format!("{id}/{name}");
        if path.is_dir() {
            list_rust_files(&path, &id, files)?;
        } else if name.ends_with(".rs") {
            files.push((id, path));
        }
    }
    Ok(())
}

/// FNV-1a, 64 bits. Unlike the hashers of `std`, it is the same in every release of Rust.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
        version = 4
        package = [
            { name = "ant", version = "0.9.0" },
            { name = "ant", version = "0.10.0+spec-1.1.0" },
            { name = "bee", version = "1.0.0" },
        ]"#;

    /// A registry with `ant` and `bee`, which have four source files of ten bytes each, one of them not UTF-8.
    fn registry() -> tempfile::TempDir {
        let registry = tempfile::tempdir().unwrap();
        let files: [(&str, &[u8]); 5] = [
            ("ant-0.10.0+spec-1.1.0/src/lib.rs", b"// ant lib"),
            ("ant-0.10.0+spec-1.1.0/src/a/b.rs", b"// ant a/b"),
            ("ant-0.10.0+spec-1.1.0/src/notes.txt", b"not source"),
            ("bee-1.0.0/src/lib.rs", b"// bee lib"),
            ("bee-1.0.0/src/latin1.rs", b"// b\xe9e ...."),
        ];
        for (name, bytes) in files {
            let path = registry.path().join("mirror-1a2b").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        registry
    }

    #[test]
    fn the_default_corpus_is_whole_files_up_to_the_limit_and_the_same_each_time() {
        let (name, text) = load().unwrap();
        assert!((MAX_BYTES * 9 / 10..=MAX_BYTES).contains(&text.len()), "{} bytes", text.len());
        assert_eq!((name, text), load().unwrap());
    }

    #[test]
    fn crates_are_read_at_their_highest_version_in_hash_order_without_files_that_are_not_utf8() {
        let registry = registry();
        let (name, text) = load_crates(&["bee", "ant"], LOCK, registry.path(), 1000).unwrap();
        assert_eq!(name, "rust-crates (3 source files of 2 crates)");
        assert_eq!(text, "// ant a/b// bee lib// ant lib");
        assert_eq!(load_crates(&["ant", "bee"], LOCK, registry.path(), 29).unwrap().1, text[..20]);
    }

    #[test]
    fn a_missing_crate_is_named_with_its_folder_and_the_remedy() {
        let error = |names: &[&str]| load_crates(names, LOCK, Path::new("/nowhere/src"), 9).unwrap_err().to_string();
        assert_eq!(
            error(&["ant"]),
            "crate ant 0.10.0+spec-1.1.0 of the corpus rust-crates is not in /nowhere/src: run cargo fetch, give a text, \
             or take the one that is built in (shakespeare)"
        );
        assert_eq!(
            error(&["cow"]),
            "crate cow of the corpus rust-crates is not in Cargo.lock: give a text, or take the \
             one that is built in (shakespeare)"
        );
    }
}
